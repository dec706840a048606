//! The embedder's interrupt controller, on x86 the local APIC, and timer; and both with the registers.

use crate::access::address::{CounterIndex, RegisterAddress, RegisterUpdate};
use crate::access::backend::RegisterBackend;
use crate::interval::Interval;

/// The interrupt controller and the timer of the processor that executes the call.
///
/// # For embedders
/// - `unmask_performance_interrupt` and `mask_performance_interrupt` are called in task, interrupt and NMI context.
///   `start_profile_timer` and `stop_profile_timer` are called in task context.
/// - No method takes a lock that the interrupted code may hold.
///
/// # Examples
/// This kernel gets the interrupt as an NMI, and has no profile timer. `pmu::apic::LocalApic` implements this trait for
/// the local APIC in xAPIC mode and in x2APIC mode.
///
/// ```
/// use pmu_core::Platform;
/// # unsafe fn wrmsr(_: u32, _: u64) {}
///
/// struct X2Apic;
///
/// impl Platform for X2Apic {
///     fn unmask_performance_interrupt(&self) {
///         // SAFETY: delivery mode 4 is NMI, for which this kernel has a handler.
///         unsafe { wrmsr(0x834, 0b100 << 8) };
///     }
///
///     fn mask_performance_interrupt(&self) {
///         // SAFETY: the same, masked.
///         unsafe { wrmsr(0x834, 1 << 16 | 0b100 << 8) };
///     }
/// }
/// # X2Apic.unmask_performance_interrupt();
/// ```
pub trait Platform {
    /// Unmasks the performance interrupt. On x86 that is a write of LVTPC, the entry of the local APIC at offset 0x340,
    /// with the embedder's vector or NMI delivery mode, and a clear mask bit. Intel processors set the mask bit when
    /// they deliver the interrupt (SDM vol. 3A, "Local Vector Table").
    fn unmask_performance_interrupt(&self);

    /// Masks the performance interrupt. [`service`](crate::service) calls this method if it can neither read nor clear
    /// the overflow status. The overflow status then stays set, and could raise an unmasked interrupt again and again.
    fn mask_performance_interrupt(&self);

    /// Returns whether the performance interrupt is a level, active until the overflow is acknowledged. An embedder
    /// [masks](Self::mask_performance_interrupt) a level that it cannot serve at the moment, so that each service
    /// unmasks it again. The default implementation returns `false`: on x86, the interrupt is an edge.
    ///
    /// ```
    /// use pmu_core::Platform;
    /// /// A controller whose line for the counters is active until the overflow is acknowledged.
    /// struct Line;
    /// impl Platform for Line {
    ///     fn unmask_performance_interrupt(&self) {} // enables the line
    ///     fn mask_performance_interrupt(&self) {} // disables it
    ///     fn is_level_interrupt(&self) -> bool {
    ///         true
    ///     }
    /// }
    /// assert!(Line.is_level_interrupt());
    /// ```
    #[inline]
    fn is_level_interrupt(&self) -> bool {
        false
    }

    /// Unmasks the interrupt of a facility that does not interrupt as the counters do, and lets it be delivered as the
    /// performance interrupt. `entry` is the interrupt's number, as the facility's registers have it. On AMD, it is an
    /// extended entry of the local vector table, at offset 0x500 + 16·`entry` of the local APIC (APM vol. 2, "Extended
    /// Interrupts"): that of instruction-based sampling. The facility never masks it again, because other facilities
    /// may use the same entry.
    ///
    /// The default implementation is for a platform whose facilities have no interrupts of their own, and returns an
    /// error.
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// The interrupt does not exist, or is already another user's. Nothing was changed.
    fn unmask_facility_interrupt(&self, entry: u8) -> Result<(), PlatformError> {
        let _ = entry;
        Err(PlatformError::NoFacilityInterrupt)
    }

    /// Starts the interrupts of this processor's profile timer, or changes their interval. The default implementation
    /// is for a platform without a profile timer, and returns an error.
    fn start_profile_timer(&self, interval: Interval) -> Result<(), PlatformError> {
        let _ = interval;
        Err(PlatformError::NoTimer)
    }

    /// Stops the profile timer's interrupts.
    fn stop_profile_timer(&self) {}
}

impl<P: Platform + ?Sized> Platform for &P {
    fn unmask_performance_interrupt(&self) {
        (**self).unmask_performance_interrupt();
    }
    fn mask_performance_interrupt(&self) {
        (**self).mask_performance_interrupt();
    }
    fn is_level_interrupt(&self) -> bool {
        (**self).is_level_interrupt()
    }
    fn unmask_facility_interrupt(&self, entry: u8) -> Result<(), PlatformError> {
        (**self).unmask_facility_interrupt(entry)
    }
    fn start_profile_timer(&self, interval: Interval) -> Result<(), PlatformError> {
        (**self).start_profile_timer(interval)
    }
    fn stop_profile_timer(&self) {
        (**self).stop_profile_timer();
    }
}

/// The registers, the interrupt controller and the timer of a processor, for a session and for the interrupt path.
///
/// Every type that is both a [`RegisterBackend`] and a [`Platform`] implements this trait. A pair of the two is both.
/// Pass the same to the session and to the handler.
///
/// ```
/// use pmu_core::{Claim, EventSource, Platform, service};
/// use pmu_core::access::RegisterBackend;
/// use pmu_core::memory::CounterMemory;
/// /// The handler of a kernel that has its register accesses and its local APIC in two types.
/// fn handler<M: RegisterBackend, P: Platform>(
///     (msr, apic): (M, P),
///     events: &impl EventSource,
///     memory: &CounterMemory,
/// ) -> Claim {
///     service(events, &(msr, apic), memory, |_| ()).map_or(Claim::OursAndMore, |serviced| serviced.claim)
/// }
/// ```
///
/// # Context
/// Any, including NMI.
pub trait Hardware: RegisterBackend + Platform {}

impl<H: RegisterBackend + Platform + ?Sized> Hardware for H {}

impl<M: RegisterBackend, P: Platform> RegisterBackend for (M, P) {
    type Error = M::Error;

    #[inline]
    fn read(&self, address: RegisterAddress) -> Result<u64, M::Error> {
        self.0.read(address)
    }

    #[inline]
    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), M::Error> {
        self.0.write(address, value)
    }

    #[inline]
    fn read_counter(&self, index: CounterIndex) -> Result<u64, M::Error> {
        self.0.read_counter(index)
    }

    #[inline]
    fn update(&self, update: RegisterUpdate) -> Result<u64, M::Error> {
        self.0.update(update)
    }

    #[inline]
    fn user_index(&self, index: CounterIndex) -> CounterIndex {
        self.0.user_index(index)
    }
}

impl<M: RegisterBackend, P: Platform> Platform for (M, P) {
    fn unmask_performance_interrupt(&self) {
        self.1.unmask_performance_interrupt();
    }

    fn mask_performance_interrupt(&self) {
        self.1.mask_performance_interrupt();
    }

    #[inline]
    fn is_level_interrupt(&self) -> bool {
        self.1.is_level_interrupt()
    }

    fn unmask_facility_interrupt(&self, entry: u8) -> Result<(), PlatformError> {
        self.1.unmask_facility_interrupt(entry)
    }

    fn start_profile_timer(&self, interval: Interval) -> Result<(), PlatformError> {
        self.1.start_profile_timer(interval)
    }

    fn stop_profile_timer(&self) {
        self.1.stop_profile_timer();
    }
}

/// Reason why a [`Platform`] cannot do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum PlatformError {
    /// The platform has no profile timer, or the timer cannot run at the requested interval.
    #[error("the platform's profile timer is unavailable")]
    NoTimer,
    /// The platform has no interrupt with this number for a facility.
    #[error("the facility's interrupt is unavailable")]
    NoFacilityInterrupt,
    /// The interrupt is already another user's. The `u32` is the present content of its register: on AMD, of the
    /// extended entry of the local APIC.
    #[error("the facility's interrupt is in use, with value {0:#X}")]
    FacilityInterruptInUse(u32),
    /// The delivery of the performance interrupt, which is to be the facility's too, is unknown: on x86, its
    /// entry of the local APIC cannot be read, or has neither an NMI nor a vector.
    #[error("the delivery of the performance interrupt is unknown")]
    NoDelivery,
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;
    use std::vec::Vec;

    use super::*;
    use crate::access::backend::AccessErrorKind;
    use crate::interval::IntervalLimits;

    /// Records its calls. A write and the interrupt of a facility are refused.
    #[derive(Default)]
    struct Noted(RefCell<Vec<&'static str>>);

    impl Noted {
        fn note(&self, call: &'static str) {
            self.0.borrow_mut().push(call);
        }
    }

    impl RegisterBackend for Noted {
        type Error = AccessErrorKind;

        fn read(&self, _: RegisterAddress) -> Result<u64, AccessErrorKind> {
            self.note("read");
            Ok(1)
        }

        fn write(&self, _: RegisterAddress, _: u64) -> Result<(), AccessErrorKind> {
            self.note("write");
            Err(AccessErrorKind::Other)
        }

        fn read_counter(&self, _: CounterIndex) -> Result<u64, AccessErrorKind> {
            self.note("read_counter");
            Ok(2)
        }

        fn update(&self, _: RegisterUpdate) -> Result<u64, AccessErrorKind> {
            self.note("update");
            Ok(3)
        }

        fn user_index(&self, _: CounterIndex) -> CounterIndex {
            self.note("user_index");
            CounterIndex::new(9)
        }
    }

    impl Platform for Noted {
        fn unmask_performance_interrupt(&self) {
            self.note("unmask");
        }

        fn mask_performance_interrupt(&self) {
            self.note("mask");
        }

        fn is_level_interrupt(&self) -> bool {
            self.note("is_level");
            true
        }

        fn unmask_facility_interrupt(&self, entry: u8) -> Result<(), PlatformError> {
            self.note("unmask_facility");
            Err(PlatformError::FacilityInterruptInUse(entry.into()))
        }

        fn start_profile_timer(&self, _: Interval) -> Result<(), PlatformError> {
            self.note("start");
            Ok(())
        }

        fn stop_profile_timer(&self) {
            self.note("stop");
        }
    }

    #[test]
    fn a_pair_accesses_the_registers_of_one_and_the_interrupts_of_the_other() {
        let pair = (Noted::default(), Noted::default());
        // SAFETY: no register is accessed.
        let register = unsafe { RegisterAddress::new(0xC1) };
        assert_eq!(pair.read(register), Ok(1));
        assert_eq!(pair.write(register, 0), Err(AccessErrorKind::Other));
        assert_eq!(pair.read_counter(CounterIndex::new(0)), Ok(2));
        assert_eq!(pair.update(RegisterUpdate::read(0xC1)), Ok(3));
        assert_eq!(pair.user_index(CounterIndex::new(0)), CounterIndex::new(9));
        pair.unmask_performance_interrupt();
        pair.mask_performance_interrupt();
        assert!(pair.is_level_interrupt() && Platform::is_level_interrupt(&&pair));
        let taken = Err(PlatformError::FacilityInterruptInUse(2));
        assert_eq!(pair.unmask_facility_interrupt(2), taken);
        let interval = IntervalLimits::TIME.check(10_000).unwrap();
        assert_eq!(pair.start_profile_timer(interval), Ok(()));
        pair.stop_profile_timer();
        assert_eq!(*pair.0.0.borrow(), ["read", "write", "read_counter", "update", "user_index"]);
        let of_the_other =
            ["unmask", "mask", "is_level", "is_level", "unmask_facility", "start", "stop"];
        assert_eq!(*pair.1.0.borrow(), of_the_other);
    }
}
