//! The core counters, as CPUID declares them.

use pmu_core::x86::Snapshot;

use crate::registers::{CORE_COUNTERS, LEGACY_COUNTERS};

/// A family of core counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// The four counters that every processor has.
    Legacy,
    /// Six counters at addresses of their own. The first four of these counters also have the legacy addresses.
    CoreExtension,
    /// The number of counters that CPUID declares, with global registers.
    PerfMonV2 { counters: u8 },
}

impl Family {
    /// Returns the best family that a processor declares (APM vol. 3, appendix E): leaf 0x80000022 EAX bit 0
    /// (PerfMonV2) and EBX bits 3:0 (number of core counters); leaf 0x80000001 ECX bit 23 (PerfCtrExtCore).
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let v2 = snapshot.leaf(0x8000_0022, 0);
        let counters = (v2.ebx & 0xF) as u8;
        if v2.eax & 1 != 0 && counters != 0 {
            Self::PerfMonV2 { counters }
        } else if snapshot.leaf(0x8000_0001, 0).ecx >> 23 & 1 != 0 {
            Self::CoreExtension
        } else {
            Self::Legacy
        }
    }

    pub(crate) const fn counters(self) -> u8 {
        match self {
            Self::Legacy => LEGACY_COUNTERS,
            Self::CoreExtension => CORE_COUNTERS,
            Self::PerfMonV2 { counters } => counters,
        }
    }
}
