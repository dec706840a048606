//! Stepping through operations, each of whose instructions is interrupted.
//!
//! The processor's trap flag raises SIGTRAP after each instruction. The signal's handler then forks: the
//! child takes the interrupt right there, executes the rest and checks what became of everything; its
//! parent goes on to the next instruction. Of a loop, the first rounds are interrupted.

use core::arch::asm;
use core::fmt::Debug;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Instant;

use crate::Machine;

/// Event at an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing: the operation is executed instruction by instruction, and each time once to its end
    /// in a child for each of the others.
    None,
    /// Every running counter overflows; the interrupt is delivered `late` instructions later.
    Overflow { late: u32 },
    /// An interrupt without a source.
    Spurious,
}

const EVENTS: [Event; 3] =
    [Event::Overflow { late: 0 }, Event::Overflow { late: 7 }, Event::Spurious];

/// A moment: it only happens, or is delivered too.
#[derive(Clone, Copy)]
pub enum Moment {
    Happens(Event),
    Delivered,
}

/// A test, as the signal's handler sees it. One thread writes it; a child has a copy.
struct Steps {
    /// Instructions executed one by one, and those of them that were interrupted.
    executed: AtomicU32,
    interrupted: AtomicU32,
    /// Children that failed.
    failed: AtomicU32,
    /// In a child: its event, by place, and one more; and in how many instructions it is delivered.
    child_of: AtomicUsize,
    deliver_in: AtomicU32,
    /// The work to be done: a `&dyn Fn(Moment)`.
    interrupt: AtomicPtr<&'static dyn Fn(Moment)>,
    /// Number of times that the instructions were interrupted, by a part of their addresses.
    rounds: [AtomicU8; 1 << 16],
    /// Greatest of these numbers.
    most_rounds: AtomicU8,
    /// Number of [`EVENTS`] that come.
    events: AtomicUsize,
}

static STEPS: Steps = Steps {
    executed: AtomicU32::new(0),
    interrupted: AtomicU32::new(0),
    failed: AtomicU32::new(0),
    child_of: AtomicUsize::new(0),
    deliver_in: AtomicU32::new(0),
    interrupt: AtomicPtr::new(ptr::null_mut()),
    rounds: [const { AtomicU8::new(0) }; 1 << 16],
    most_rounds: AtomicU8::new(0),
    events: AtomicUsize::new(0),
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
        let (rounds, most) =
            (&self.rounds[address as usize % self.rounds.len()], self.most_rounds.load(SeqCst));
        if rounds.fetch_add(1, SeqCst) >= most {
            rounds.store(most, SeqCst);
            return true;
        }
        self.interrupted.fetch_add(1, SeqCst);
        // Each in a child, all at once.
        let mut children = [0; EVENTS.len()];
        let events = self.events.load(SeqCst).min(EVENTS.len());
        for (place, event) in EVENTS.into_iter().enumerate().take(events) {
            // SAFETY: the child goes on as this process's only thread, and ends by `_exit`.
            children[place] = match unsafe { libc::fork() } {
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
                child => child,
            };
        }
        for child in children.into_iter().take(events) {
            let mut status = 0;
            // SAFETY: waits for the child, whose status goes where it may.
            let waited = unsafe { libc::waitpid(child, &mut status, 0) };
            let good = child > 0 && waited == child && status == 0;
            self.failed.fetch_add(u32::from(!good), SeqCst);
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
pub fn step_through(interrupt: &dyn Fn(Moment), operation: impl FnOnce()) {
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

/// Executes `run` for each operation, which [steps through](step_through) it, and interrupts each instruction, `rounds`
/// times at most, by each of the first `events`: an overflow, one whose interrupt is late, and a spurious interrupt.
/// Only in a release build.
pub fn every_instruction<I, O: Copy + Debug>(
    machine: &Machine<I>,
    operations: impl IntoIterator<Item = O>,
    rounds: u8,
    events: usize,
    run: impl Fn(O),
) {
    let machine = format!("{:?}, freezing {}", machine.kind, machine.freezes);
    if cfg!(debug_assertions) {
        println!(
            "{machine} skipped: it is the release build that is interrupted: cargo test --release"
        );
        return;
    }
    install_trap();
    STEPS.most_rounds.store(rounds, SeqCst);
    STEPS.events.store(events, SeqCst);
    let begin = Instant::now();
    let take = |counter: &AtomicU32| counter.swap(0, SeqCst);
    let (mut executed, mut interrupted) = (0, 0);
    for operation in operations {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(operation)));
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
        assert_eq!(failed, 0, "{operation:?}, {machine}: interrupts that did harm");
        executed += steps;
        interrupted += take(&STEPS.interrupted);
    }
    println!(
        "{machine}: {executed} instructions, {interrupted} of them interrupted {} times, {:.1} s",
        events,
        begin.elapsed().as_secs_f64()
    );
}
