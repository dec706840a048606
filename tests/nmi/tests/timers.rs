//! Threads that start and stop profiles while real timers interrupt them, for two seconds, with exact
//! accounts at the end.
//!
//! A thread is a processor. One timer's signal is the profile timer's interrupt; another's is the
//! performance interrupt, an NMI: it interrupts the first one too.
#![cfg(target_os = "linux")]

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use core::time::Duration;
use std::ptr;
use std::time::Instant;

use pmu_core::frame::{InterruptFrame, ProcessorNumber};
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{InterfaceError, KProfileSource, Overflow, Session};
use pmu_core::{CounterSet, EventSource, service};
use pmu_intel::Emon;
use pmu_kprofile::trace::{Detail, Sample, TraceRing};
use pmu_kprofile::{
    Affinity, BasicProfile, PointerWidth, ProfileHardware, ProfileObject, Profiles, Rules,
};
use pmu_nmi_tests::{Chip, Machine, SOURCES, frame, intel};

const PROCESSORS: usize = 3;
const TIME: KProfileSource = KProfileSource::TIME;
/// Short enough to interrupt everything, and long enough to leave time for progress.
const PERIODS: [Duration; 2] = [Duration::from_micros(70), Duration::from_micros(110)];

static LISTS: Profiles<8, PROCESSORS> = Profiles::new();
static RINGS: [TraceRing<8>; PROCESSORS] = [const { TraceRing::new() }; PROCESSORS];

/// State that a processor's interrupts use.
struct Processor<'m> {
    number: u16,
    chip: Chip,
    machine: &'m Machine<Emon>,
    memory: CounterMemory<[CounterSlot; 8]>,
    interrupts: [AtomicU64; 2],
    /// Interrupts that interrupted another's handler.
    nested: AtomicU64,
    in_timer: AtomicBool,
    dispatched: AtomicU64,
    hits: AtomicU64,
    pushed: AtomicU64,
    faults: AtomicU64,
}

thread_local! {
    /// The thread's processor, while its timers run.
    static PROCESSOR: Cell<*const Processor<'static>> = const { Cell::new(ptr::null()) };
}

impl Processor<'_> {
    fn dispatch(&self, source: KProfileSource) {
        let frame = frame(self.number);
        let outcome = LISTS.interrupt(&frame, source);
        self.dispatched.fetch_add(1, SeqCst);
        self.hits.fetch_add(outcome.hits.into(), SeqCst);
        let number = self.pushed.fetch_add(1, SeqCst);
        let sample = Sample {
            pc: frame.pc(),
            thread: u32::from(self.number),
            detail: Detail::PmcInterrupt { source: source.value() as u16, reserved: 0 },
        };
        RINGS[usize::from(self.number)].push_sample(PointerWidth::Bits64, number, &sample);
    }

    fn timer_interrupt(&self) {
        self.interrupts[0].fetch_add(1, SeqCst);
        self.in_timer.store(true, SeqCst);
        // Long enough to be interrupted itself.
        (0..8).for_each(|_| self.dispatch(TIME));
        self.in_timer.store(false, SeqCst);
    }

    fn performance_interrupt(&self) {
        let count = self.interrupts[1].fetch_add(1, SeqCst);
        self.nested.fetch_add(self.in_timer.load(SeqCst).into(), SeqCst);
        // Some overflow each time, but not always the same.
        let mut left = 3000 + count * 7919 % 2000;
        while left > 0 {
            left = self.chip.happen(count as usize % SOURCES, left);
            while self.chip.deliver() {
                let tell = |overflow: Overflow| {
                    let sources = &self.machine.sources;
                    let place = sources.iter().position(|source| *source == overflow.source);
                    self.chip.told(place.unwrap_or(SOURCES), overflow.events);
                    self.dispatch(overflow.source);
                };
                let interface = &self.machine.interface;
                let serviced = service(interface, &self.chip, &self.memory, |sample| {
                    interface.overflow(&sample).map(tell);
                });
                self.faults.fetch_add(serviced.is_err().into(), SeqCst);
            }
        }
    }
}

extern "C" fn on_signal(signal: i32) {
    // SAFETY: null, or the processor, which outlives the timers.
    let Some(processor) = (unsafe { PROCESSOR.get().as_ref() }) else { return };
    if signal == signals()[0] {
        processor.timer_interrupt();
    } else {
        processor.performance_interrupt();
    }
}

/// Returns the signals of the profile timer, and of the performance counters.
fn signals() -> [i32; 2] {
    [libc::SIGRTMIN() + 1, libc::SIGRTMIN() + 2]
}

fn install_handlers() {
    for (place, signal) in signals().into_iter().enumerate() {
        // SAFETY: the handler is of the type asked for; what it does, it may do at any instruction.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            // Nothing interrupts an NMI; a timer's interrupt is interrupted by an NMI.
            for other in &signals()[..1 + place] {
                libc::sigaddset(&mut action.sa_mask, *other);
            }
            assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
        }
    }
}

/// Timers that interrupt the thread that made them, until they are dropped.
struct Timers([libc::timer_t; 2]);

impl Timers {
    fn start() -> Self {
        Self(core::array::from_fn(|place| {
            // SAFETY: a timer of this thread's; the structures are what the calls expect.
            unsafe {
                let mut event: libc::sigevent = std::mem::zeroed();
                event.sigev_notify = libc::SIGEV_THREAD_ID;
                event.sigev_signo = signals()[place];
                event.sigev_notify_thread_id = libc::gettid();
                let mut timer = ptr::null_mut();
                let created = libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer);
                assert_eq!(created, 0, "no timer");
                let period =
                    libc::timespec { tv_sec: 0, tv_nsec: PERIODS[place].as_nanos() as i64 };
                let times = libc::itimerspec { it_interval: period, it_value: period };
                assert_eq!(libc::timer_settime(timer, 0, &times, ptr::null_mut()), 0);
                timer
            }
        }))
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        for timer in self.0 {
            // SAFETY: it was created, and is not used again.
            unsafe { libc::timer_delete(timer) };
        }
    }
}

/// The hardware as the tasks of one processor use it: their profiles are of this processor only.
struct Hardware<'s, 'm> {
    session: &'s mut Session<'m, &'m Emon, &'m Chip>,
    number: ProcessorNumber,
}

impl ProfileHardware for Hardware<'_, '_> {
    fn this_processor(&self) -> ProcessorNumber {
        self.number
    }
    fn in_interrupt(&self) -> bool {
        false
    }
    fn active_processors(&self) -> Affinity {
        Affinity::first(PROCESSORS)
    }
    fn supports(&self, source: KProfileSource) -> bool {
        self.session.query(source).is_supported()
    }
    fn start(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        assert_eq!(on, self.number);
        self.session.start(source)
    }
    fn stop(&mut self, on: ProcessorNumber, source: KProfileSource) -> Result<(), InterfaceError> {
        assert_eq!(on, self.number);
        self.session.stop(source)
    }
}

/// Result of one processor.
#[derive(Debug, Default)]
struct Account {
    counted: u64,
    drained: u64,
    rounds: u64,
}

/// Starts and stops profiles on a processor that is interrupted, until the time is over.
fn play(processor: &Processor<'_>, until: Instant) -> Account {
    let Processor { chip, machine, memory, .. } = processor;
    let mut session =
        Session::take(&machine.interface, &machine.processor, CounterSet::GENERAL, chip, memory)
            .unwrap();
    if machine.freezes {
        session.freeze_on_interrupt().unwrap();
    }
    let number = ProcessorNumber::from_index(processor.number);
    PROCESSOR.set(ptr::from_ref(processor).cast());
    let timers = Timers::start();
    let mut account = Account::default();
    let drain = |account: &mut Account, ring: usize| {
        let records = RINGS[ring].drain();
        account.drained += records.filter(|record| record.decode().is_ok()).count() as u64;
    };
    while Instant::now() < until {
        let round = account.rounds as usize;
        account.rounds += 1;
        let buffers = [const { [const { AtomicU32::new(0) }; 2] }; 2];
        let counts = || -> Vec<u32> {
            buffers.as_flattened().iter().map(|count| count.load(SeqCst)).collect()
        };
        let source = machine.sources[round % SOURCES];
        let sources = if round.is_multiple_of(4) { [source, source] } else { [source, TIME] };
        let mut hardware = Hardware { session: &mut session, number };
        let object = |place: usize| {
            let request = BasicProfile {
                process: None,
                base: 0x1000,
                size: 8,
                bucket_log2: 2,
                buffer: &buffers[place],
                source: sources[place],
                affinity: Some(Affinity::of(number)),
            };
            ProfileObject::basic(Rules::LATEST, request, &hardware).unwrap()
        };
        let objects = [object(0), object(1)];
        for object in &objects {
            // SAFETY: object and buffer live, and stay where they are, until the stop below.
            unsafe { LISTS.start_borrowed(object, &mut hardware) }.unwrap();
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_micros(300) {
            core::hint::spin_loop();
        }
        let neighbor = (round + usize::from(processor.number)) % PROCESSORS;
        drain(&mut account, neighbor);
        for object in &objects {
            LISTS.stop(object, &mut hardware).unwrap();
        }
        let dropped = chip.forgive(round % SOURCES);
        assert!(dropped <= 1, "one overflow may be pending when its source is stopped");
        let at_stop = counts();
        drain(&mut account, usize::from(processor.number));
        assert_eq!(counts(), at_stop, "counted after stop");
        account.counted += at_stop.into_iter().map(u64::from).sum::<u64>();
    }
    drop(timers);
    PROCESSOR.set(ptr::null());
    session.shut_down().unwrap();
    account
}

#[test]
fn profiles_that_real_timers_interrupt_are_exact() {
    install_handlers();
    let machines = [intel(2, false), intel(4, true), intel(1, false)];
    let processors: Vec<_> = (0..)
        .zip(&machines)
        .map(|(number, machine)| Processor {
            number,
            chip: machine.chip(),
            machine,
            memory: CounterMemory::new(),
            interrupts: Default::default(),
            nested: AtomicU64::new(0),
            in_timer: AtomicBool::new(false),
            dispatched: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            pushed: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        })
        .collect();
    let until = Instant::now() + Duration::from_secs(2);
    let accounts: Vec<Account> = std::thread::scope(|scope| {
        let threads: Vec<_> = processors
            .iter()
            .map(|processor| scope.spawn(move || play(processor, until)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let sum = |of: for<'p> fn(&'p Processor<'_>) -> &'p AtomicU64| -> u64 {
        processors.iter().map(|processor| of(processor).load(SeqCst)).sum()
    };
    let rest: u64 = RINGS.iter().map(|ring| ring.drain().count() as u64).sum();
    let dropped: u64 = RINGS.iter().map(TraceRing::dropped).sum();
    let drained = accounts.iter().map(|account| account.drained).sum::<u64>() + rest;
    let counted: u64 = accounts.iter().map(|account| account.counted).sum();
    let (hits, statistics) = (sum(|p| &p.hits), LISTS.statistics());
    assert_eq!(counted, hits, "hits are in the buffers");
    assert_eq!(statistics.seen, sum(|p| &p.dispatched));
    assert_eq!((statistics.hit + statistics.missed, statistics.outside), (statistics.seen, 0));
    assert_eq!(drained + dropped, sum(|p| &p.pushed), "records are drained or dropped");
    assert_eq!(sum(|p| &p.faults), 0);
    let mut overflows = 0;
    for processor in &processors {
        assert_eq!(processor.chip.wrong(), 0, "invented overflows, or with wrong events");
        assert_eq!(processor.chip.counted(), [false; SOURCES]);
        assert!((0..SOURCES).all(|source| processor.chip.untold(source) == 0), "overflows lost");
        overflows += processor.chip.tellings().iter().sum::<u64>();
    }
    let [timer, performance] = [sum(|p| &p.interrupts[0]), sum(|p| &p.interrupts[1])];
    let (nested, rounds) = (sum(|p| &p.nested), accounts.iter().map(|a| a.rounds).sum::<u64>());
    println!(
        "{rounds} starts and stops, {timer} timer and {performance} performance interrupts, {nested} \
         of them nested; {overflows} overflows, {hits} hits, {drained} records, {dropped} dropped"
    );
    for happened in [timer, performance, overflows, hits, drained, rounds] {
        assert!(happened > 20, "nothing happened");
    }
}
