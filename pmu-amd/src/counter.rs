//! The counters that an AMD processor has, by what CPUID declares.

use pmu_core::{Counter, MsrAddress, PmcIndex, Snapshot};

use crate::registers::{
    CORE_COUNTERS, COUNTER_WIDTH, LEGACY_COUNTERS, PERF_CTL0, PERF_CTR0, PERF_LEGACY_CTL0,
    PERF_LEGACY_CTR0, RDPMC_CORE_COUNTERS,
};

/// Which family of counters a processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// The four that every processor has.
    Legacy,
    /// Six, at addresses of their own; the first four are the legacy ones too.
    CoreExtension,
    /// As many as CPUID says, with global registers.
    PerfMonV2 { counters: u8 },
}

impl Family {
    /// APM vol. 3, appendix E: leaf 0x80000022 EAX bit 0 (PerfMonV2) and EBX bits 3:0 (the number of
    /// core counters); leaf 0x80000001 ECX bit 23 (PerfCtrExtCore).
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

    /// The counters that a processor of this family shares with one of the other.
    pub(crate) fn shared_with(self, other: Self) -> u8 {
        match (self, other) {
            (Self::PerfMonV2 { counters }, Self::PerfMonV2 { counters: others }) => {
                counters.min(others)
            }
            _ if self == other => self.counters(),
            _ => 0,
        }
    }

    pub(crate) fn counter(self, number: u8) -> Option<CoreCounter> {
        (number < self.counters()).then_some(CoreCounter { number, legacy: self == Self::Legacy })
    }
}

/// A core counter with its event select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CoreCounter {
    number: u8,
    legacy: bool,
}

impl Counter for CoreCounter {
    fn select_register(&self) -> MsrAddress {
        let number = u32::from(self.number);
        let address = if self.legacy { PERF_LEGACY_CTL0 + number } else { PERF_CTL0 + 2 * number };
        // SAFETY: an event select; no value of it makes the processor write to memory.
        unsafe { MsrAddress::new(address) }
    }

    fn value_register(&self) -> MsrAddress {
        let number = u32::from(self.number);
        let address = if self.legacy { PERF_LEGACY_CTR0 + number } else { PERF_CTR0 + 2 * number };
        // SAFETY: a counter; its value is a number.
        unsafe { MsrAddress::new(address) }
    }

    fn rdpmc_index(&self) -> Option<PmcIndex> {
        (self.number < RDPMC_CORE_COUNTERS).then_some(PmcIndex::new(self.number.into()))
    }

    fn width(&self) -> u32 {
        COUNTER_WIDTH
    }
}
