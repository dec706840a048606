//! The Amd64 profile interface.

use core::sync::atomic::AtomicU32;

use pmu_core::{
    Counter, GlobalRegisters, IntervalLimits, KProfileSource, MsrAddress, NoInterface, PmcIndex,
    ProfileInterface, Snapshot,
};

use crate::registers::{
    COUNTER_WIDTH, LEGACY_COUNTERS, PERF_LEGACY_CTL0, PERF_LEGACY_CTR0, PerfCtl,
};
use crate::sources::{self, Amd64Source, SOURCES};

/// The Amd64 interface of a machine: four counters a processor, 176 sources.
#[derive(Debug)]
pub struct Amd64 {
    intervals: [AtomicU32; SOURCES.len()],
}

impl Amd64 {
    /// Claims the machine whose boot processor `snapshot` describes, by Windows' rule: the vendor is
    /// AMD, the processor has long mode, and no Microsoft-compatible hypervisor hides the counters.
    ///
    /// No CPUID bit says that the counters exist; [`initialise`](ProfileInterface::initialise)
    /// proves them.
    ///
    /// # Errors
    /// The first of these conditions that does not hold.
    pub fn claim(snapshot: &Snapshot) -> Result<Self, NoInterface> {
        if snapshot.vendor() != *b"AuthenticAMD" {
            Err(NoInterface::OtherVendor(snapshot.vendor()))
        } else if !snapshot.has_long_mode() {
            Err(NoInterface::NoLongMode)
        } else if snapshot.hypervisor_hides_counters() {
            Err(NoInterface::HiddenByHypervisor)
        } else {
            Ok(Self::declared())
        }
    }

    /// The interface as any machine that it claims would have it: for listings of what it offers.
    pub const fn declared() -> Self {
        let mut intervals = [const { AtomicU32::new(IntervalLimits::EVENTS.default) }; _];
        intervals[0] = AtomicU32::new(IntervalLimits::TIME.default);
        Self { intervals }
    }
}

impl ProfileInterface for Amd64 {
    type Select = PerfCtl;
    type Source = Amd64Source;
    type Counter = LegacyCounter;

    const NAME: &'static str = "Amd64";
    /// Where Windows finds no memory it stops with bug check 0xAC, `HAL_MEMORY_ALLOCATION`.
    const MEMORY_REQUIRED: bool = true;

    fn sources(&self) -> &'static [Amd64Source] {
        &SOURCES
    }

    fn row(&self, source: KProfileSource) -> Option<usize> {
        sources::row(source)
    }

    fn is_declared(&self, row: usize) -> bool {
        row < SOURCES.len()
    }

    fn counters(&self) -> u8 {
        LEGACY_COUNTERS
    }

    fn counter(&self, number: u8) -> Option<LegacyCounter> {
        (number < LEGACY_COUNTERS).then_some(LegacyCounter { number })
    }

    fn global(&self) -> Option<GlobalRegisters> {
        None
    }

    /// AMD's local APIC leaves the entry as it is (APM vol. 2, §16.4.4, has no such side effect).
    fn entry_masked_on_delivery(&self) -> bool {
        false
    }

    fn interval_cell(&self, row: usize) -> Option<&AtomicU32> {
        self.intervals.get(row)
    }
}

/// One of the four legacy counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LegacyCounter {
    number: u8,
}

impl Counter for LegacyCounter {
    fn select_register(&self) -> MsrAddress {
        // SAFETY: an event select; no value of it makes the processor write to memory.
        unsafe { MsrAddress::new(PERF_LEGACY_CTL0 + u32::from(self.number)) }
    }

    fn value_register(&self) -> MsrAddress {
        // SAFETY: a counter; its value is a number.
        unsafe { MsrAddress::new(PERF_LEGACY_CTR0 + u32::from(self.number)) }
    }

    fn rdpmc_index(&self) -> PmcIndex {
        PmcIndex::new(u32::from(self.number))
    }

    fn width(&self) -> u32 {
        COUNTER_WIDTH
    }
}
