//! The Amd64 profile interface.

use core::sync::atomic::AtomicU32;

use pmu_core::{
    GlobalRegisters, IntervalLimits, KProfileSource, MsrAddress, NoInterface, ProfileInterface,
    Snapshot,
};

use crate::counter::{CoreCounter, Family};
use crate::registers::{
    PERF_CNTR_GLOBAL_CTL, PERF_CNTR_GLOBAL_STATUS, PERF_CNTR_GLOBAL_STATUS_CLR, PerfCtl,
    STATUS_PMC_FREEZE,
};
use crate::sources::{Amd64Source, INDEX, SOURCES};

/// The Amd64 interface of a machine: 176 sources, on the best counters that CPUID declares: the four
/// legacy ones, those of the core extension, or those of PerfMonV2 with their global registers.
#[derive(Debug)]
pub struct Amd64 {
    family: Family,
    /// Some hypervisors mask the entry on delivery, as Intel's processors do.
    hypervisor: bool,
    intervals: [AtomicU32; SOURCES.len()],
}

impl Amd64 {
    /// Claims the machine whose boot processor `snapshot` describes, by Windows' rule: the vendor is
    /// AMD, the processor has long mode, and no Microsoft-compatible hypervisor hides the counters.
    ///
    /// No CPUID bit says that the legacy counters exist; [`initialise`](ProfileInterface::initialise)
    /// proves whichever are used.
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
            Ok(Self::new(Family::of(snapshot), snapshot.has_hypervisor()))
        }
    }

    /// The interface as any machine that it claims would have it, with the four legacy counters: for
    /// listings of what it offers.
    pub const fn declared() -> Self {
        Self::new(Family::Legacy, false)
    }

    const fn new(family: Family, hypervisor: bool) -> Self {
        let mut intervals = [const { AtomicU32::new(IntervalLimits::EVENTS.default) }; _];
        intervals[0] = AtomicU32::new(IntervalLimits::TIME.default);
        Self { family, hypervisor, intervals }
    }
}

impl ProfileInterface for Amd64 {
    type Select = PerfCtl;
    type Source = Amd64Source;
    type Counter = CoreCounter;

    const NAME: &'static str = "Amd64";
    /// Where Windows finds no memory it stops with bug check 0xAC, `HAL_MEMORY_ALLOCATION`.
    const MEMORY_REQUIRED: bool = true;

    fn sources(&self) -> &'static [Amd64Source] {
        &SOURCES
    }

    fn row(&self, source: KProfileSource) -> Option<usize> {
        INDEX.row(source)
    }

    fn row_named(&self, name: &str) -> Option<usize> {
        INDEX.row_named(&SOURCES, name)
    }

    fn is_declared(&self, row: usize) -> bool {
        row < SOURCES.len()
    }

    fn counters(&self) -> u8 {
        self.family.counters()
    }

    fn counter(&self, number: u8) -> Option<CoreCounter> {
        self.family.counter(number)
    }

    /// Those that both processors have, if they are of one family of counters.
    fn counters_of(&self, processor: &Snapshot) -> u64 {
        let amd = processor.vendor() == *b"AuthenticAMD";
        let count = if amd { self.family.shared_with(Family::of(processor)) } else { 0 };
        (1 << count) - 1
    }

    /// With PerfMonV2.
    fn global(&self) -> Option<GlobalRegisters> {
        // SAFETY: these say which counters run and which overflowed; none holds an address.
        matches!(self.family, Family::PerfMonV2 { .. }).then_some(unsafe {
            GlobalRegisters {
                control: MsrAddress::new(PERF_CNTR_GLOBAL_CTL),
                status: MsrAddress::new(PERF_CNTR_GLOBAL_STATUS),
                acknowledge: MsrAddress::new(PERF_CNTR_GLOBAL_STATUS_CLR),
                stop_while_serviced: false,
                frozen: STATUS_PMC_FREEZE,
                freeze: None,
            }
        })
    }

    /// AMD's local APIC leaves the entry as it is (APM vol. 2, §16.4.4, has no such side effect); in a
    /// virtual machine the hypervisor's may not.
    fn entry_masked_on_delivery(&self) -> bool {
        self.hypervisor
    }

    fn interval_cell(&self, row: usize) -> Option<&AtomicU32> {
        self.intervals.get(row)
    }
}
