//! The traits of the crates' parts, implemented by a [`Kernel`].

use core::fmt;
use core::marker::PhantomData;

use pmu_core::PlatformError;
use pmu_core::interval::Interval;

use crate::kernel::required::Kernel;
use crate::local_apic::{ApicRegisters, LocalApic, ProfileTimer};
use crate::per_processor::Processors;

/// Adapter from a [`Kernel`] to three traits: [`ApicRegisters`], [`ProfileTimer`] and [`Processors`]. Each trait method
/// calls a function of `K`.
///
/// ```
/// use pmu::Processors;
/// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
/// # use stand_in::*;
/// assert_eq!(pmu::Duties::<MyKernel>::this_processor(), 0); // by the kernel
/// ```
pub struct Duties<K>(PhantomData<fn() -> K>);

/// The [`Platform`](pmu_core::Platform) of a [`Pmu`](crate::Pmu). It accesses the local APIC through the functions of a
/// [`Kernel`].
pub type KernelApic<K> = LocalApic<Duties<K>, Duties<K>>;

impl<K: Kernel> Duties<K> {
    /// Returns the [`Platform`](pmu_core::Platform) that [`Pmu`](crate::Pmu) uses. A kernel passes this platform to
    /// drivers of hardware that `Pmu` does not drive.
    #[inline]
    pub fn platform() -> KernelApic<K> {
        LocalApic::new(Self(PhantomData), K::delivery(), Self(PhantomData))
    }
}

impl<K> fmt::Debug for Duties<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Duties")
    }
}

// SAFETY: (1) the number is right in every context, by the promise of `Kernel`; (2) `Pmu` calls `PerProcessor::with`
// in `Kernel::pinned`, or in a handler, where no task moves or comes in between, by the same promise.
unsafe impl<K: Kernel> Processors for Duties<K> {
    fn this_processor() -> usize {
        K::this_processor()
    }
}

impl<K: Kernel> ApicRegisters for Duties<K> {
    fn write_performance_entry(&self, entry: u32) {
        K::write_performance_entry(entry);
    }

    fn read_extended_entry(&self, number: u8) -> Option<u32> {
        K::read_extended_entry(number)
    }

    fn write_extended_entry(&self, number: u8, entry: u32) {
        K::write_extended_entry(number, entry);
    }
}

impl<K: Kernel> ProfileTimer for Duties<K> {
    fn start(&self, interval: Interval) -> Result<(), PlatformError> {
        K::start_timer(interval)
    }

    fn stop(&self) {
        K::stop_timer();
    }
}
