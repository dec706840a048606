//! A kernel of two processors on the model, whose every access can fail or be interrupted.

use core::cell::Cell;

use pmu::core::access::AccessErrorKind;
use pmu::user::UserPage;
use pmu::{Arm, Interrupted, Kernel, Pmu, PmuSample};
use pmu_arm::registers::Register;
use pmu_arm::{ArmRegisters, Identification, Pmuv3, SystemRegisters, frame};
use pmu_tests::arm::identify;
use pmu_virt::mock::MockPmuv3;

pub(crate) const PROCESSORS: usize = 2;

pub(crate) const INST_RETIRED: u64 = MockPmuv3::INST_RETIRED;
pub(crate) const BR_RETIRED: u64 = MockPmuv3::BR_RETIRED;

/// The instruction that is executed all the time.
pub(crate) const PLACE: u64 = 0x4008_1000;

pub(crate) type World = Pmu<ArmKernel, PROCESSORS>;

/// Event before, or instead of, an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// A fault, in this access and in as many after it.
    Fault { more: u32 },
    /// So many branches at EL0 before it, and their interrupts.
    Branches(u64),
    /// The same, and as many again before an access that comes so much later, which may be the handler's.
    Twice { branches: u64, later: u32 },
    /// So many branches before it, also in the handler, whose interrupts wait until it returns.
    Anywhere(u64),
}

thread_local! {
    static MODELS: Cell<Option<&'static [MockPmuv3; PROCESSORS]>> = const { Cell::new(None) };
    static PMU: Cell<Option<&'static World>> = const { Cell::new(None) };
    static HERE: Cell<usize> = const { Cell::new(0) };
    static NOW: Cell<u64> = const { Cell::new(0) };
    static ACCESSES: Cell<u32> = const { Cell::new(0) };
    static NEXT: Cell<Option<(u32, Met)>> = const { Cell::new(None) };
    static SAMPLES: Cell<u64> = const { Cell::new(0) };
    /// Those of events with the tags 0 to 2.
    static PAGES: Cell<Option<&'static [UserPage; 3]>> = const { Cell::new(None) };
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
    /// The driver takes the event counters in pairs.
    static IN_PAIRS: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn model() -> &'static MockPmuv3 {
    &MODELS.get().unwrap()[HERE.get()]
}

/// Lets the access after so many others meet something.
pub(crate) fn meet(after: u32, met: Met) {
    NEXT.set(Some((ACCESSES.get() + after, met)));
}

/// Returns whether it was met.
pub(crate) fn is_met() -> bool {
    NEXT.replace(None).is_none()
}

/// Number of accesses so far.
pub(crate) fn accesses() -> u32 {
    ACCESSES.get()
}

/// Returns the number of samples of opened events since the last call.
pub(crate) fn samples() -> u64 {
    SAMPLES.replace(0)
}

pub(crate) struct Registers;

impl Registers {
    fn access(&self) -> Result<(), AccessErrorKind> {
        let this = ACCESSES.replace(ACCESSES.get() + 1);
        match NEXT.get() {
            Some((at, Met::Fault { more })) if at <= this => {
                NEXT.set((more > 0).then(|| (at, Met::Fault { more: more - 1 })));
                Err(AccessErrorKind::Fault)
            }
            Some((at, Met::Branches(branches))) if at <= this && !IN_HANDLER.get() => {
                NEXT.set(None);
                execute(0, branches);
                Ok(())
            }
            Some((at, Met::Twice { branches, later })) if at <= this && !IN_HANDLER.get() => {
                NEXT.set(Some((this + later, Met::Anywhere(branches))));
                execute(0, branches);
                Ok(())
            }
            Some((at, Met::Anywhere(branches))) if at <= this => {
                NEXT.set(None);
                execute(0, branches);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The driver has no access to the kernel's registers.
fn of_driver(register: Register) -> u16 {
    assert!(!matches!(register, Register::Pmuserenr | Register::Pmovsset), "{register:?}");
    register.encoding()
}

impl SystemRegisters for Registers {
    type Error = AccessErrorKind;

    fn read(&self, register: Register) -> Result<u64, AccessErrorKind> {
        self.access()?;
        Ok(model().read(of_driver(register)))
    }

    fn write(&self, register: Register, value: u64) -> Result<(), AccessErrorKind> {
        self.access()?;
        model().write(of_driver(register), value);
        Ok(())
    }

    fn synchronize(&self) {
        model().synchronize();
    }
}

pub(crate) struct ArmKernel;

// SAFETY: each test has one thread, and a `Pmu` of its own; processors take turns.
unsafe impl Kernel for ArmKernel {
    type Registers = ArmRegisters<Registers>;
    type Architecture = Arm;
    fn registers() -> Self::Registers {
        ArmRegisters::new(Registers)
    }
    fn this_processor() -> usize {
        HERE.get()
    }
    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        act()
    }
    fn set_interrupt_masked(masked: bool) {
        model().set_unmasked(!masked);
    }
    fn interrupt(processor: usize) {
        on(processor, || PMU.get().unwrap().serve_call());
    }
    fn sampled(_: &PmuSample<'_, Self>) {
        SAMPLES.set(SAMPLES.get() + 1);
    }
    fn now() -> u64 {
        NOW.get()
    }
    fn detect(first: &Identification) -> Pmuv3 {
        if IN_PAIRS.get() { Pmuv3::detect_chained(first) } else { Pmuv3::detect(first) }
    }
    const USER_PAGES: bool = true;
    fn user_page(tag: u64) -> Option<&'static UserPage> {
        PAGES.get()?.get(tag as usize)
    }
}

pub(crate) fn on<R>(processor: usize, act: impl FnOnce() -> R) -> R {
    let before = HERE.replace(processor);
    let result = act();
    HERE.set(before);
    result
}

/// Returns a machine with counters of 64 or of 32 bits, at EL1 or EL2. No processor is up.
pub(crate) fn machine(is_long: bool, level: u8) -> &'static World {
    IN_PAIRS.set(false);
    let pmu = Box::leak(Box::new(Pmu::new()));
    let models = [(); PROCESSORS].map(|()| MockPmuv3::new(is_long, level));
    MODELS.set(Some(Box::leak(Box::new(models))));
    PMU.set(Some(pmu));
    PAGES.set(Some(Box::leak(Box::new([const { UserPage::new() }; _]))));
    NEXT.set(None);
    SAMPLES.set(0);
    pmu
}

/// Returns a machine with counters of 32 bits, which the driver takes in pairs.
pub(crate) fn in_pairs(level: u8) -> &'static World {
    let pmu = machine(false, level);
    IN_PAIRS.set(true);
    pmu
}

/// Counters of 32 and of 64 bits, with the kernel at EL1 and at EL2.
pub(crate) fn on_each(test: impl Fn(bool, u8)) {
    for is_long in [false, true] {
        for level in [1, 2] {
            test(is_long, level);
        }
    }
}

/// Returns the same with all processors up.
pub(crate) fn running(is_long: bool, level: u8) -> &'static World {
    let pmu = machine(is_long, level);
    for processor in 0..PROCESSORS {
        on(processor, || pmu.processor_up(&identify(model())).unwrap());
    }
    pmu
}

/// Executes so many branches at an exception level, each of four instructions and ten cycles. Each overflow interrupts
/// at once.
pub(crate) fn execute(level: u8, branches: u64) {
    NOW.set(NOW.get() + 10 * branches);
    interrupts(level); // those that were pending
    for (event, each) in [(BR_RETIRED, 1), (INST_RETIRED, 4), (MockPmuv3::CPU_CYCLES, 10)] {
        happen(level, event, each * branches);
    }
}

/// Lets an event happen so often at an exception level. Each overflow interrupts at once.
pub(crate) fn happen(level: u8, event: u64, times: u64) {
    let mut left = times;
    while left != 0 {
        left -= model().happen(event, level, left);
        interrupts(level);
    }
}

/// Executes with interrupts off.
pub(crate) fn execute_masked(level: u8, branches: u64) {
    let before = IN_HANDLER.replace(true);
    execute(level, branches);
    IN_HANDLER.set(before);
}

fn interrupts(level: u8) {
    let mut interrupts = 0;
    while !IN_HANDLER.get() && model().is_interrupted() {
        IN_HANDLER.set(true);
        let mode = [0x0, 0x5, 0x9][usize::from(level)];
        let frame = frame(PLACE, mode, HERE.get());
        let handled: Interrupted = PMU.get().unwrap().interrupt(&frame);
        // A kernel ends the interrupt here, and a line that is still active would interrupt again.
        assert!(!model().is_interrupted(), "{handled:?} {:x?}", model());
        model().synchronize(); // the return
        IN_HANDLER.set(false);
        interrupts += 1;
        assert!(interrupts < 4, "the line stays active: {handled:?} {:x?}", model());
    }
}

/// Takes all processors down, which leaves nothing.
pub(crate) fn shut_down(pmu: &'static World) {
    for processor in 0..PROCESSORS {
        on(processor, || {
            pmu.processor_down().unwrap();
            assert_eq!(model().left(), 0, "processor {processor}: {:x?}", model());
        });
    }
}
