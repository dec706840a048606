//! The trait `Kernel` on the model, and the handler of the counters' interrupt, as `examples/kernel-arm` has them.

use core::cell::Cell;
use core::ops::Deref;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use pmu::arm::registers::{Register, UserEnable};
use pmu::arm::{ArmRegisters, Identification, SystemRegisters, frame};
use pmu::user::UserPage;
use pmu::{Arm, CounterSet, Kernel, Pmu, PmuError, PmuSample};
pub(crate) use pmu_tests::arm::model;
use pmu_tests::arm::{Registers, install};
use pmu_virt::mock::MockPmuv3;

type World = Pmu<Arm64, 2>;

thread_local! {
    static WORLD: Cell<Option<&'static World>> = const { Cell::new(None) };
    static ON_SAMPLE: Cell<Option<OnSample>> = const { Cell::new(None) };
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// A handler of a sample, with the event's tag and the place of the sample.
pub(crate) type OnSample = fn(u64, u64);

/// Begins a machine.
pub(crate) fn start(is_long: bool, level: u8, on_sample: OnSample) {
    ON_SAMPLE.set(Some(on_sample));
    install(Box::leak(Box::new(MockPmuv3::new(is_long, level))));
    WORLD.set(Some(Box::leak(Box::new(World::new()))));
    INTERRUPTS.iter().chain([&STUCK]).for_each(|number| number.store(0, Relaxed));
}

/// The `Pmu` of the machine.
pub(crate) struct Current;

pub(crate) static PMU: Current = Current;

impl Deref for Current {
    type Target = World;

    fn deref(&self) -> &World {
        WORLD.get().unwrap()
    }
}

pub(crate) struct Arm64;

// SAFETY: the test has one thread, and the machine one processor.
unsafe impl Kernel for Arm64 {
    type Registers = ArmRegisters<Registers>;
    type Architecture = Arm;
    const USER_PAGES: bool = true;
    fn registers() -> Self::Registers {
        ArmRegisters::new(Registers)
    }
    fn this_processor() -> usize {
        0
    }
    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        act()
    }
    fn set_interrupt_masked(masked: bool) {
        model().set_unmasked(!masked);
    }
    fn interrupt(_: usize) {}
    fn sampled(sample: &PmuSample<'_, Self>) {
        ON_SAMPLE.get().unwrap()(sample.tag, sample.address().unwrap_or(0));
    }
    fn user_page(tag: u64) -> Option<&'static UserPage> {
        PAGES.get(usize::try_from(tag).ok()?)
    }
}

pub(crate) static PAGES: [UserPage; 2] = [const { UserPage::new() }; 2];

pub(crate) fn permit_reads_at_el0(permitted: bool) {
    let open = UserEnable::new().with_cycle_counter(permitted).with_event_counters(permitted);
    let Ok(()) = Registers.write(Register::Pmuserenr, open.into_bits());
    Registers.synchronize(); // by the return to EL0
}

pub(crate) fn identify() -> Identification {
    pmu_tests::arm::identify(model())
}

pub(crate) fn processor_up() -> Result<CounterSet, PmuError> {
    PMU.processor_up(&identify())
}

pub(crate) fn left() -> u64 {
    model().left()
}

pub(crate) static INTERRUPTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
pub(crate) static STUCK: AtomicUsize = AtomicUsize::new(0);
pub(crate) static UNHANDLED: AtomicUsize = AtomicUsize::new(0);

/// Interrupts the instruction at a place while the line is active.
pub(crate) fn interrupts(place: u64, level: u8) {
    while !IN_HANDLER.get() && model().is_interrupted() {
        IN_HANDLER.set(true);
        INTERRUPTS[0].fetch_add(1, Relaxed);
        let mode = [0x0, 0x5, 0x9][usize::from(level)];
        let frame = frame(place, mode, 0);
        let handled = PMU.interrupt(&frame);
        STUCK.fetch_add(handled.is_stuck.into(), Relaxed);
        if handled.overflows == 0 || handled.error.is_some() {
            UNHANDLED.fetch_add(1, Relaxed);
        }
        model().synchronize();
        IN_HANDLER.set(false);
    }
}
