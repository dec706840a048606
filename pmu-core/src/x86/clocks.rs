//! The frequencies of a processor of x86: the core's, by MPERF and APERF, and the TSC's.

use crate::access::address::RegisterUpdate;
use crate::access::backend::{AccessFault, RegisterAccess, RegisterBackend};
use crate::x86::snapshot::Snapshot;

/// `IA32_MPERF`, AMD's `MPERF` (SDM vol. 4, table 2-2; APM vol. 2, "Effective Frequency").
const MPERF: RegisterUpdate = RegisterUpdate::read(0xE7);
/// `IA32_APERF`, AMD's `APERF`.
const APERF: RegisterUpdate = RegisterUpdate::read(0xE8);

/// Access to a processor's clocks MPERF and APERF. MPERF ticks at a constant rate. APERF ticks at the core's present
/// frequency. Both clocks stop while the core is halted.
///
/// A value of this type proves that CPUID declares the registers MPERF and APERF. The proof holds on the processor
/// whose snapshot was passed to [`detect`](Self::detect). No operation on the value writes a register.
///
/// Sources: SDM vol. 3B, "Hardware Coordination Feedback", and vol. 2A, CPUID leaf 06H, ECX bit 0; APM vol. 2,
/// "Effective Frequency", and vol. 3, appendix E, CPUID leaf 6, ECX bit 0 (`EffFreq`).
///
/// ```
/// use pmu_core::x86::clocks::{ClockReading, Clocks, tsc_hertz};
/// use pmu_core::access::{RegisterBackend, AccessFault};
/// use pmu_core::x86::Snapshot;
///
/// /// Returns the core's mean frequency while `workload` ran, not counting the time in which the core was halted.
/// fn hertz(
///     this: &Snapshot,
///     msr: &impl RegisterBackend,
///     workload: impl FnOnce(),
/// ) -> Result<Option<u64>, AccessFault> {
///     let (Some(clocks), Some(base)) = (Clocks::detect(this), tsc_hertz(this)) else { return Ok(None) };
///     let before = clocks.read(msr)?;
///     workload();
///     Ok(clocks.read(msr)?.effective_hertz(&before, base))
/// }
///
/// let before = ClockReading { mperf: 1_000, aperf: 5_000 };
/// let after = ClockReading { mperf: 3_000, aperf: 8_000 };
/// assert_eq!(after.effective_hertz(&before, 2_000_000_000), Some(3_000_000_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Clocks(());

/// One reading of MPERF and APERF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ClockReading {
    /// Value of MPERF, which ticks at a constant rate.
    pub mperf: u64,
    /// Value of APERF, which ticks at the core's present frequency.
    pub aperf: u64,
}

impl Clocks {
    /// Returns access to the clocks if CPUID leaf 6 of `processor` declares the clocks.
    pub fn detect(processor: &Snapshot) -> Option<Self> {
        (processor.leaf(6, 0).ecx & 1 != 0).then_some(Self(()))
    }

    /// Reads MPERF, then APERF.
    ///
    /// # Context
    /// Any, on the processor for which the clocks were detected. If an interrupt comes between the two register reads,
    /// the APERF value includes the interrupt's duration, but the MPERF value does not. If the time between two
    /// readings is short, turn interrupts off for each reading.
    ///
    /// # Errors
    /// Returns the access that failed. An access can fail under a hypervisor that declares the clocks in CPUID but does
    /// not implement the registers.
    pub fn read(self, msr: &impl RegisterBackend) -> Result<ClockReading, AccessFault> {
        Ok(ClockReading { mperf: msr.update_retrying(MPERF)?, aperf: msr.update_retrying(APERF)? })
    }
}

impl ClockReading {
    /// Returns the core's mean frequency between `earlier` and this reading. Time in which the core was halted is not
    /// included.
    ///
    /// `base_hertz` is the rate of MPERF. On Intel's processors, this rate commonly equals the TSC's rate. On AMD's
    /// processors, this rate is the frequency of P-state 0.
    ///
    /// Returns `None` if the core was halted during the whole time between the readings, or if the frequency in hertz
    /// does not fit in 64 bits.
    pub fn effective_hertz(&self, earlier: &Self, base_hertz: u64) -> Option<u64> {
        let mperf = self.mperf.wrapping_sub(earlier.mperf);
        let aperf = self.aperf.wrapping_sub(earlier.aperf);
        let scaled = u128::from(base_hertz) * u128::from(aperf);
        scaled.checked_div(mperf.into())?.try_into().ok()
    }
}

/// Returns the TSC's frequency in hertz, if CPUID declares this frequency. The frequency is the core crystal clock's
/// frequency times a ratio.
///
/// Returns `None` if CPUID declares no ratio or no crystal frequency, as on many Intel processors and all AMD
/// processors.
///
/// Source: SDM vol. 2A, CPUID leaf 15H: ECX is the crystal's frequency, and EBX/EAX is the ratio.
///
/// ```
/// use pmu_core::x86::dump::CpuidDump;
/// use pmu_core::x86::Snapshot;
/// use pmu_core::x86::clocks::tsc_hertz;
/// // 19.2 MHz times 216/2.
/// let dump = CpuidDump::parse(
///     "   0x00000000 0x00: eax=0x00000015 ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
///         0x00000015 0x00: eax=0x00000002 ebx=0x000000d8 ecx=0x0124f800 edx=0x00000000",
/// )?;
/// assert_eq!(tsc_hertz(&Snapshot::capture(&dump)), Some(2_073_600_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn tsc_hertz(processor: &Snapshot) -> Option<u64> {
    let leaf = processor.leaf(0x15, 0);
    let (crystal, numerator) = (u64::from(leaf.ecx), u64::from(leaf.ebx));
    // Below 2⁶⁴, for both are below 2³².
    let hertz = (crystal * numerator).checked_div(leaf.eax.into())?;
    (crystal != 0 && numerator != 0).then_some(hertz)
}

#[cfg(test)]
mod tests {
    use raw_cpuid::CpuIdResult;

    use super::*;

    fn processor(leaf_6_ecx: u32, [eax, ebx, ecx]: [u32; 3]) -> Snapshot {
        Snapshot::capture(move |leaf: u32, _: u32| match leaf {
            0 => CpuIdResult { eax: 0x15, ebx: 0, ecx: 0, edx: 0 },
            6 => CpuIdResult { eax: !0, ebx: !0, ecx: leaf_6_ecx, edx: !0 },
            0x15 => CpuIdResult { eax, ebx, ecx, edx: !0 },
            _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
        })
    }

    #[test]
    fn clocks_are_there_where_leaf_6_says_so() {
        assert!(Clocks::detect(&processor(1, [0; 3])).is_some());
        assert!(Clocks::detect(&processor(!1, [0; 3])).is_none());
    }

    #[test]
    fn a_frequency_that_cpuid_leaves_open_is_none() {
        let hertz = |leaf| tsc_hertz(&processor(0, leaf));
        assert_eq!(hertz([2, 216, 19_200_000]), Some(2_073_600_000));
        assert_eq!(hertz([0, 216, 19_200_000]), None);
        assert_eq!(hertz([2, 0, 19_200_000]), None);
        assert_eq!(hertz([2, 216, 0]), None);
        assert_eq!(hertz([1, u32::MAX, u32::MAX]), Some(0xFFFF_FFFE_0000_0001));
    }

    #[test]
    fn the_effective_frequency_survives_wraps_and_halts() {
        let at = |mperf, aperf| ClockReading { mperf, aperf };
        let base = 2_000_000_000;
        let wrapped = at(500, 249).effective_hertz(&at(u64::MAX - 499, u64::MAX - 250), base);
        assert_eq!(wrapped, Some(1_000_000_000));
        assert_eq!(at(7, 9).effective_hertz(&at(7, 8), base), None, "paused all the time");
        assert_eq!(at(1, u64::MAX).effective_hertz(&at(0, 0), base), None);
        assert_eq!(at(1 << 62, 1 << 62).effective_hertz(&at(0, 0), base), Some(base));
    }
}
