//! Stepping through operations.

use core::arch::asm;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Instant;

use pmu_core::{
    CounterMemory, CounterSlot, KProfileSource, ProcessorNumber, ProfileInterface, SavedCounter,
    SavedCounters,
};
use pmu_kprofile::trace::{Hook, TraceCallback, TraceRing};
use pmu_kprofile::{BasicProfile, PointerWidth, ProfileObject, Profiles, Rules, ThisProcessor};
use pmu_nmi_tests::{Frame, INTERVAL, Kind, Machine, SOURCES, amd, intel};

type Memory = CounterMemory<[CounterSlot; 6]>;
type Area = SavedCounters<[SavedCounter; 6]>;
type Ring = TraceRing<3>;

const TIME: KProfileSource = KProfileSource::TIME;
/// The source that an operation starts, where it starts one.
const STARTED: usize = 2;

/// What is interrupted: two sources run, an event short of overflowing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Start,
    Stop,
    SetInterval,
    Save,
    Restore,
    /// Saved and restored.
    Switch,
    /// Stopped, and another started on its counter.
    Replace,
    ShutDown,
    Freeze,
    StartProfile,
    StopProfile,
    /// What was not lost goes on.
    Reprogram,
    /// The interrupt path of the counters, which another interrupt interrupts.
    Serve,
    /// The interrupt path itself: a timer's interrupt is dispatched, counted and recorded.
    Dispatch,
    Drain,
}

const OPERATIONS: [Operation; 15] = [
    Operation::Start,
    Operation::Stop,
    Operation::SetInterval,
    Operation::Save,
    Operation::Restore,
    Operation::Switch,
    Operation::Replace,
    Operation::ShutDown,
    Operation::Freeze,
    Operation::StartProfile,
    Operation::StopProfile,
    Operation::Reprogram,
    Operation::Serve,
    Operation::Dispatch,
    Operation::Drain,
];

/// What comes at an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Nothing: the operation is executed instruction by instruction, and each time once to its end
    /// in a child for each of the others.
    None,
    /// So much happens that every running counter overflows; the interrupt is delivered so many instructions later.
    Overflow { late: u32 },
    /// An interrupt that is nobody's.
    Spurious,
}

const EVENTS: [Event; 3] =
    [Event::Overflow { late: 0 }, Event::Overflow { late: 7 }, Event::Spurious];

/// Whether it only happens, or is delivered too.
#[derive(Clone, Copy)]
enum Moment {
    Happens(Event),
    Delivered,
}

/// How often an instruction is interrupted: in the first rounds of a loop.
const ROUNDS: u8 = 16;

/// What a test looks like from the signal's handler. One thread writes it; a child has a copy.
struct Steps {
    /// Instructions executed one by one, and those of them that were interrupted.
    executed: AtomicU32,
    interrupted: AtomicU32,
    /// Children that failed.
    failed: AtomicU32,
    /// In a child: its event, by place, and one more; and in how many instructions it is delivered.
    child_of: AtomicUsize,
    deliver_in: AtomicU32,
    /// What is to be done: a `&dyn Fn(Moment)`.
    interrupt: AtomicPtr<&'static dyn Fn(Moment)>,
    /// How often the instructions were interrupted, by a part of their addresses.
    rounds: [AtomicU8; 1 << 16],
}

static STEPS: Steps = Steps {
    executed: AtomicU32::new(0),
    interrupted: AtomicU32::new(0),
    failed: AtomicU32::new(0),
    child_of: AtomicUsize::new(0),
    deliver_in: AtomicU32::new(0),
    interrupt: AtomicPtr::new(ptr::null_mut()),
    rounds: [const { AtomicU8::new(0) }; 1 << 16],
};

impl Steps {
    fn interrupt(&self, moment: Moment) {
        // SAFETY: null, or the address of a reference that outlives the steps.
        if let Some(interrupt) = unsafe { self.interrupt.load(SeqCst).as_ref() } {
            interrupt(moment);
        }
    }

    /// The event of this process, if it is a child.
    fn event(&self) -> Event {
        let place = self.child_of.load(SeqCst).checked_sub(1);
        place.map_or(Event::None, |place| EVENTS[place])
    }

    /// After an instruction. `true`: go on so.
    fn step(&self, address: u64) -> bool {
        if self.event() != Event::None {
            // Late by another instruction.
            let left = self.deliver_in.load(SeqCst).saturating_sub(1);
            self.deliver_in.store(left, SeqCst);
            if left == 0 {
                self.interrupt(Moment::Delivered);
            }
            return left != 0;
        }
        self.executed.fetch_add(1, SeqCst);
        if self.rounds[address as usize % self.rounds.len()].fetch_add(1, SeqCst) >= ROUNDS {
            self.rounds[address as usize % self.rounds.len()].store(ROUNDS, SeqCst);
            return true;
        }
        self.interrupted.fetch_add(1, SeqCst);
        for (place, event) in EVENTS.into_iter().enumerate() {
            // SAFETY: the child goes on as this process's only thread, and ends by `_exit`.
            match unsafe { libc::fork() } {
                0 => {
                    self.child_of.store(place + 1, SeqCst);
                    self.interrupt(Moment::Happens(event));
                    if let Event::Overflow { late: late @ 1.. } = event {
                        self.deliver_in.store(late, SeqCst);
                        return true;
                    }
                    self.interrupt(Moment::Delivered);
                    return false;
                }
                child => {
                    let mut status = 0;
                    // SAFETY: waits for the child, whose status goes where it may.
                    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
                    let good = waited == child && status == 0;
                    self.failed.fetch_add(u32::from(!good), SeqCst);
                }
            }
        }
        true
    }
}

const TRAP_FLAG: i64 = 1 << 8;

/// After each instruction.
extern "C" fn trap(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the interrupted context to a handler with SA_SIGINFO.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    if !STEPS.step(registers[libc::REG_RIP as usize] as u64) {
        // The rest at full speed.
        registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
    }
}

fn install_trap() {
    // SAFETY: the handler is of the type that SA_SIGINFO asks for, and safe at any instruction: it
    // accesses atomics only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = trap as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()), 0);
    }
}

/// Executes `operation` instruction by instruction.
#[inline(never)]
fn step_through(interrupt: &dyn Fn(Moment), operation: impl FnOnce()) {
    // SAFETY: what refers to it is over at the end of this function.
    let interrupt: &'static dyn Fn(Moment) = unsafe { std::mem::transmute(interrupt) };
    STEPS.interrupt.store((&raw const interrupt).cast_mut(), SeqCst);
    STEPS.rounds.iter().for_each(|rounds| rounds.store(0, SeqCst));
    // SAFETY: sets the trap flag; the stack is left as it was. The red zone is not used where there
    // is inline assembly without `nostack`.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    operation();
    // SAFETY: clears the trap flag.
    unsafe { asm!("pushfq", "and qword ptr [rsp], 0xfffffffffffffeff", "popfq") };
    if STEPS.deliver_in.swap(0, SeqCst) > 0 {
        interrupt(Moment::Delivered);
    }
    STEPS.interrupt.store(ptr::null_mut(), SeqCst);
}

/// Executes an operation, interrupted or not, and checks what became of everything.
fn interrupt<I: ProfileInterface>(machine: &Machine<I>, operation: Operation) {
    let context = format!("{operation:?}, {:?}", machine.kind);
    let chip = machine.chip();
    let (interface, sources) = (&machine.interface, machine.sources);
    let memory = Memory::new();
    let lists = Profiles::<4, 1>::new();
    // The callback wants rings that live forever; there are not many.
    let rings: &'static [Ring; 1] = Box::leak(Box::new([Ring::new()]));
    let trace = TraceCallback::new(Hook::SampledProfile, PointerWidth::Bits64, rings);
    let (hits, dispatched) = (AtomicU32::new(0), AtomicU32::new(0));
    let dispatch = |source| {
        let outcome = lists.interrupt(&Frame(0), source);
        hits.fetch_add(outcome.hits, SeqCst);
        dispatched.fetch_add(1, SeqCst);
    };
    let serve = || {
        let serviced = interface.service(&chip, &chip, &memory, |overflow| {
            chip.told(overflow);
            dispatch(overflow.source);
        });
        if serviced.is_err() {
            std::process::abort();
        }
    };
    let deliver = || {
        while chip.deliver() {
            serve();
        }
    };
    let interrupt = |moment| match moment {
        Moment::Happens(Event::Overflow { .. }) => {
            (0..SOURCES).for_each(|source| _ = chip.happen(source, INTERVAL));
        }
        Moment::Happens(Event::Spurious) => chip.raise(),
        Moment::Happens(Event::None) => {}
        Moment::Delivered => deliver(),
    };

    let mut session = interface.initialize(&machine.processor, &chip, &chip, &memory).unwrap();
    let found = 0;
    if machine.freezes && operation != Operation::Freeze {
        session.freeze_on_interrupt().unwrap();
    }
    let number = ProcessorNumber::default();
    let buffer = [const { AtomicU32::new(0) }; 2];
    let counts = || buffer.iter().map(|count| count.load(SeqCst)).sum::<u32>();
    let basic = |source| {
        let affinity = None;
        let (process, base, size, bucket_log2, buffer) = (None, 0x1000, 8, 2, &buffer);
        BasicProfile { process, base, size, bucket_log2, buffer, source, affinity }
    };
    let profiled = match operation {
        Operation::StartProfile => sources[STARTED],
        Operation::StopProfile => sources[0],
        _ => TIME,
    };
    let hardware = ThisProcessor::new(&mut session, number);
    let object = ProfileObject::basic(Rules::LATEST, basic(profiled), &hardware).unwrap();
    let traced = [TIME, sources[1]]
        .map(|source| ProfileObject::callback(Rules::LATEST, source, &trace).unwrap());
    let start = |object: &ProfileObject<'_>, session: &mut _| {
        // SAFETY: the object lives until it is stopped, below.
        unsafe { lists.start_borrowed(object, &mut ThisProcessor::new(session, number)) }.unwrap();
    };
    let traces = matches!(operation, Operation::Dispatch | Operation::Drain);
    if operation == Operation::StopProfile || traces {
        start(&object, &mut session);
    }
    if traces {
        start(&traced[0], &mut session);
        start(&traced[1], &mut session);
        dispatch(TIME);
    }
    if operation != Operation::Freeze {
        for source in &sources[..STARTED] {
            if !session.is_running(*source) {
                session.start(*source).unwrap();
            }
        }
    }
    (0..STARTED).for_each(|source| _ = chip.happen(source, INTERVAL - 1));
    interface.set_interval(sources[0], 2 * INTERVAL).unwrap();
    let mut area = Area::new();
    if operation == Operation::Restore {
        session.save(&mut area, |_| panic!("nothing overflowed")).unwrap();
    }

    let mut drained = 0;
    step_through(&interrupt, || match operation {
        Operation::Start => session.start(sources[STARTED]).unwrap(),
        Operation::Stop => session.stop(sources[0]).unwrap(),
        Operation::SetInterval => _ = interface.set_interval(sources[1], 2 * INTERVAL).unwrap(),
        Operation::Save => session.save(&mut area, |overflow| chip.told(overflow)).unwrap(),
        Operation::Restore => session.restore(&area).unwrap(),
        Operation::Replace => {
            session.stop(sources[0]).unwrap();
            session.start(sources[STARTED]).unwrap();
        }
        Operation::Switch => {
            session.save(&mut area, |overflow| chip.told(overflow)).unwrap();
            session.restore(&area).unwrap();
        }
        Operation::ShutDown => session.shut_down().unwrap(),
        Operation::Freeze => session.freeze_on_interrupt().unwrap(),
        Operation::Reprogram => {
            let anew = session.reprogram(|overflow| chip.told(overflow)).unwrap();
            assert!(anew.is_empty(), "{context}: registers that were not lost");
        }
        Operation::Serve => serve(),
        Operation::StartProfile => start(&object, &mut session),
        Operation::StopProfile => {
            lists.stop(&object, &mut ThisProcessor::new(&mut session, number)).unwrap();
        }
        Operation::Dispatch => dispatch(TIME),
        Operation::Drain => {
            drained += rings[0].drain().unwrap().filter(Result::is_ok).count() as u64;
        }
    });

    // An overflow of the source that was stopped may have been dropped.
    for source in 0..SOURCES {
        match operation {
            Operation::Stop | Operation::Replace | Operation::StopProfile if source == 0 => {
                _ = chip.forgive(source)
            }
            Operation::ShutDown => _ = chip.forgive(source),
            _ => assert_eq!(chip.untold(source), 0, "{context}: {source} lost"),
        }
    }
    assert_eq!(chip.wrong(), 0, "{context}: invented, or with wrong events");
    assert_eq!(chip.counted(), sources.map(|source| session.is_running(source)), "{context}");
    if operation == Operation::Save {
        session.restore(&area).unwrap();
    }
    if matches!(operation, Operation::Stop | Operation::StopProfile) {
        // The counter's next source inherits no overflow.
        session.start(sources[STARTED]).unwrap();
        chip.raise();
        deliver();
    }
    // What runs goes on, and what does not is silent.
    for (source, name) in sources.into_iter().enumerate() {
        let (before, hits_before) = (chip.tellings()[source], hits.load(SeqCst));
        let mut left = 4 * INTERVAL;
        while left > 0 {
            left = chip.happen(source, left);
            deliver();
        }
        assert_eq!((chip.untold(source), chip.wrong()), (0, 0), "{context}: afterwards");
        let told = chip.tellings()[source] - before;
        let runs = session.is_running(name);
        assert!(if runs { told >= 2 } else { told == 0 }, "{context}: {source} told {told}");
        let on_lists = (name == profiled && object.is_started())
            || traced.iter().any(|object| object.is_started() && object.source() == name);
        let hit = u64::from(hits.load(SeqCst) - hits_before);
        assert_eq!(hit, if on_lists { told } else { 0 }, "{context}: {source}");
    }
    drained += rings[0].drain().unwrap().count() as u64;
    let recorded = hits.load(SeqCst) - counts();
    if traces {
        // Each time a basic object and a callback, or a callback.
        assert_eq!(drained + trace.dropped(), recorded.into(), "{context}: records");
    } else {
        assert_eq!(recorded, 0, "{context}: not in the buffer");
    }
    let statistics = lists.statistics();
    assert_eq!((statistics.seen, statistics.outside), (dispatched.load(SeqCst).into(), 0));
    let counted = counts();
    for object in traced.iter().chain([&object]).filter(|object| object.is_started()) {
        lists.stop(object, &mut ThisProcessor::new(&mut session, number)).unwrap();
    }
    session.shut_down().unwrap();
    assert_eq!(chip.counted(), [false; SOURCES], "{context}");
    chip.raise();
    deliver();
    assert_eq!(chip.global(), (found, false), "{context}: not as it was found");
    assert_eq!(counts(), counted, "{context}: counted after stop");
}

/// Interrupts every operation at each of its instructions.
fn every_instruction<I: ProfileInterface>(machine: &Machine<I>) {
    let begin = Instant::now();
    let take = |counter: &AtomicU32| counter.swap(0, SeqCst);
    let (mut executed, mut interrupted) = (0, 0);
    for operation in OPERATIONS {
        if operation == Operation::Freeze && !machine.freezes {
            continue;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| interrupt(machine, operation)));
        let (steps, event) = (take(&STEPS.executed), STEPS.event());
        if event != Event::None {
            if outcome.is_err() {
                eprintln!("{operation:?}: {event:?} after instruction {steps}");
            }
            // SAFETY: ends the child, without what the parent's threads would have done at exit.
            unsafe { libc::_exit(outcome.is_err().into()) };
        }
        assert!(outcome.is_ok(), "{operation:?} fails without an interrupt");
        let failed = take(&STEPS.failed);
        assert_eq!(failed, 0, "{operation:?}, {:?}: interrupts that did harm", machine.kind);
        executed += steps;
        interrupted += take(&STEPS.interrupted);
    }
    println!(
        "{:?}, freezing {}: {executed} instructions, {interrupted} of them interrupted thrice, {:.1} s",
        machine.kind,
        machine.freezes,
        begin.elapsed().as_secs_f64()
    );
}

#[test]
fn an_interrupt_at_any_instruction_does_no_harm() {
    if cfg!(debug_assertions) {
        println!("skipped: it is the release build that is interrupted: cargo test --release");
        return;
    }
    install_trap();
    every_instruction(&intel(1, false));
    every_instruction(&intel(2, false));
    every_instruction(&intel(3, true));
    every_instruction(&intel(4, true));
    every_instruction(&amd(Kind::Legacy));
    every_instruction(&amd(Kind::Core(false)));
    every_instruction(&amd(Kind::Core(true)));
}
