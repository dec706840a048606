//! The duties of the subsystem's kernel, on every architecture.

use pmu::core::access::RegisterBackend;
use pmu::core::thread::Tick;
use pmu::facilities::{
    BranchRecords, CounterReloads, PreciseRecords, SoftwareEvents, TopDownParts,
};
use pmu::user::UserPage;
use pmu::{Architecture, Kernel, PmuSample};

use crate::world;

/// The hardware beside the counters of one processor of x86, of any vendor.
pub(crate) type Everything =
    ((PreciseRecords<2048>, BranchRecords), ((CounterReloads, TopDownParts), SoftwareEvents));

/// The kernel's port to one architecture: registers, and the interrupt controller's entry for counters.
pub(crate) trait Port: 'static {
    type Registers: RegisterBackend + Send;
    type Architecture: Architecture;
    const REGISTERS: Self::Registers;
    fn set_interrupt_masked(masked: bool);
}

/// The kernel with a port.
pub(crate) struct World<P>(core::marker::PhantomData<P>);

/// The greatest number of an event's samples between two ticks.
pub(crate) const MOST: u32 = 100;

// SAFETY: (1) each test has one thread, and a `Pmu` of its own; (2) its processors are models, which write to the lent
// memory alone.
unsafe impl<P: Port> Kernel for World<P> {
    type Registers = P::Registers;
    type Architecture = P::Architecture;
    const USER_PAGES: bool = true;
    const TICK: Tick = Tick::new(250, 250 * MOST);
    const CLOCK_TIMER: bool = true;
    fn registers() -> P::Registers {
        P::REGISTERS
    }
    fn this_processor() -> usize {
        world::this_processor()
    }
    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        act()
    }
    fn set_interrupt_masked(masked: bool) {
        P::set_interrupt_masked(masked);
    }
    fn interrupt(_: usize) {} // No processor asks another one.
    fn sampled(sample: &PmuSample<'_, Self>) {
        world::perf::<Self>().push(sample);
    }
    fn now() -> u64 {
        world::now()
    }
    fn set_clock_timer(at: Option<u64>) {
        world::set_timer(at);
    }
    fn user_page(tag: u64) -> Option<&'static UserPage> {
        world::page(tag)
    }
    fn physical_address(_: *const (), _: usize) -> Option<u64> {
        Some(world::PHYSICAL)
    }
}
