//! The Emon profile interface.

use core::sync::atomic::AtomicU32;

use pmu_core::{
    Counter, Freeze, GlobalRegisters, IntervalLimits, KProfileSource, MsrAddress, NoInterface,
    PmcIndex, PreciseSampling, ProfileInterface, Snapshot,
};

use crate::ArchitecturalPerfmon;
use crate::registers::{
    DebugCtl, IA32_DEBUGCTL, IA32_MISC_ENABLE, IA32_PEBS_ENABLE, IA32_PERF_GLOBAL_CTRL,
    IA32_PERF_GLOBAL_OVF_CTRL, IA32_PERF_GLOBAL_STATUS, IA32_PERFEVTSEL0, IA32_PMC0, MiscEnable,
    PerfEvtSel, STATUS_CTR_FRZ,
};
use crate::sources::{EmonSource, INDEX, SOURCES};

/// `IA32_DEBUGCTL.FREEZE_PERFMON_ON_PMI`.
const FREEZE: u64 = DebugCtl::new().with_freeze_perfmon_on_pmi(true).into_bits();

/// `IA32_MISC_ENABLE.PEBS_UNAVAILABLE`.
const PEBS_UNAVAILABLE: u64 = MiscEnable::new().with_pebs_unavailable(true).into_bits();

/// The most general counters that there are registers for: after `IA32_PERFEVTSEL9` and `IA32_PMC9`
/// come registers of another kind (SDM vol. 4, table 2-2).
const MAX_COUNTERS: u8 = 10;

/// The Emon interface of a machine: the general counters of architectural performance monitoring,
/// and 13 sources.
#[derive(Debug)]
pub struct Emon {
    perfmon: ArchitecturalPerfmon,
    intervals: [AtomicU32; SOURCES.len()],
}

impl Emon {
    /// Claims the machine whose boot processor `snapshot` describes, by Windows' rule: the vendor is
    /// Intel; CPUID leaf 0x0A exists, has a version, a number of events, and the first event (cycles)
    /// available; and no Microsoft-compatible hypervisor hides the counters. Beyond that rule, the
    /// counters must be ones that can be.
    ///
    /// # Errors
    /// The first of these conditions that does not hold.
    pub fn claim(snapshot: &Snapshot) -> Result<Self, NoInterface> {
        let perfmon = ArchitecturalPerfmon::from_snapshot(snapshot);
        let (count, width) = (perfmon.counters(), perfmon.width());
        if snapshot.vendor() != *b"GenuineIntel" {
            Err(NoInterface::OtherVendor(snapshot.vendor()))
        } else if snapshot.hypervisor_hides_counters() {
            Err(NoInterface::HiddenByHypervisor)
        } else if perfmon.version() == 0 || perfmon.events() == 0 {
            Err(NoInterface::NoPerformanceMonitoring)
        } else if !perfmon.has_event(0) {
            Err(NoInterface::CyclesUnavailable)
        } else if !(1..=MAX_COUNTERS).contains(&count) || !(32..=64).contains(&width) {
            Err(NoInterface::ImplausibleCounters { count, width })
        } else {
            Ok(Self::new(perfmon))
        }
    }

    /// The interface as a machine has it that declares every event: for listings of what it offers.
    pub const fn declared() -> Self {
        Self::new(ArchitecturalPerfmon::from_registers(0x0730_0401, 0, 0, 0))
    }

    const fn new(perfmon: ArchitecturalPerfmon) -> Self {
        let mut intervals = [const { AtomicU32::new(IntervalLimits::EVENTS.default) }; _];
        intervals[0] = AtomicU32::new(IntervalLimits::TIME.default);
        Self { perfmon, intervals }
    }

    /// The status bit of frozen counters: from version 4 CTR_FRZ; before it the processor clears
    /// `IA32_PERF_GLOBAL_CTRL` (SDM vol. 3B, §18.4.7 and §20.2.4).
    const fn frozen_status(perfmon: &ArchitecturalPerfmon) -> u64 {
        if perfmon.version() >= 4 { STATUS_CTR_FRZ } else { 0 }
    }

    /// CPUID leaf 0x0A of the boot processor.
    pub const fn perfmon(&self) -> &ArchitecturalPerfmon {
        &self.perfmon
    }
}

impl ProfileInterface for Emon {
    type Select = PerfEvtSel;
    type Source = EmonSource;
    type Counter = GeneralCounter;

    const NAME: &'static str = "Emon";
    /// Windows goes on without: every source is then unsupported.
    const MEMORY_REQUIRED: bool = false;

    fn sources(&self) -> &'static [EmonSource] {
        &SOURCES
    }

    fn row(&self, source: KProfileSource) -> Option<usize> {
        INDEX.row(source)
    }

    fn row_named(&self, name: &str) -> Option<usize> {
        INDEX.row_named(&SOURCES, name)
    }

    fn is_declared(&self, row: usize) -> bool {
        SOURCES
            .get(row)
            .is_some_and(|source| source.event_bit().is_none_or(|bit| self.perfmon.has_event(bit)))
    }

    fn counters(&self) -> u8 {
        self.perfmon.counters()
    }

    fn counter(&self, number: u8) -> Option<GeneralCounter> {
        let width = self.perfmon.width();
        (number < self.perfmon.counters()).then_some(GeneralCounter { number, width })
    }

    /// The counters that leaf 0x0A of both processors declares, if they are of one width and have the same
    /// global registers.
    fn counters_of(&self, processor: &Snapshot) -> u64 {
        let other = ArchitecturalPerfmon::from_snapshot(processor);
        let alike = processor.vendor() == *b"GenuineIntel"
            && other.width() == self.perfmon.width()
            && (other.version() >= 2) == (self.perfmon.version() >= 2)
            && Self::frozen_status(&other) == Self::frozen_status(&self.perfmon);
        let count = if alike { other.counters().min(self.perfmon.counters()) } else { 0 };
        (1 << count.min(MAX_COUNTERS)) - 1
    }

    /// From version 2 (SDM vol. 3B, §20.2.2).
    fn global(&self) -> Option<GlobalRegisters> {
        // SAFETY: these say which counters run and which overflowed; none holds an address. The PEBS
        // buffer's bit of the acknowledge register clears a flag.
        // Freezing the counters is one bit of a register whose others stay as they are.
        (self.perfmon.version() >= 2).then_some(unsafe {
            GlobalRegisters {
                control: MsrAddress::new(IA32_PERF_GLOBAL_CTRL),
                status: MsrAddress::new(IA32_PERF_GLOBAL_STATUS),
                acknowledge: MsrAddress::new(IA32_PERF_GLOBAL_OVF_CTRL),
                stop_while_serviced: true,
                frozen: Self::frozen_status(&self.perfmon),
                freeze: Some(Freeze::new(IA32_DEBUGCTL, FREEZE)),
            }
        })
    }

    /// Where CPUID declares the Debug Store (leaf 1, EDX bit 21), and `IA32_MISC_ENABLE` does not say that
    /// PEBS is unavailable (SDM vol. 3B, §20.6.2.4).
    fn precise_sampling(&self, processor: &Snapshot) -> Option<PreciseSampling> {
        // SAFETY: without a counter's bit, its overflow writes no record.
        (processor.leaf(1, 0).edx >> 21 & 1 != 0).then_some(unsafe {
            PreciseSampling::new(IA32_PEBS_ENABLE, IA32_MISC_ENABLE, PEBS_UNAVAILABLE)
        })
    }

    /// SDM vol. 3A, "Local Vector Table": delivery of the interrupt sets the entry's mask bit.
    fn entry_masked_on_delivery(&self) -> bool {
        true
    }

    fn interval_cell(&self, row: usize) -> Option<&AtomicU32> {
        self.intervals.get(row)
    }
}

/// A general counter: `IA32_PMCn` with `IA32_PERFEVTSELn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GeneralCounter {
    number: u8,
    width: u8,
}

impl Counter for GeneralCounter {
    fn select_register(&self) -> MsrAddress {
        // SAFETY: an event select; no value of it makes the processor write to memory. (Precise
        // sampling needs IA32_PEBS_ENABLE as well, which is behind an unsafe operation.)
        unsafe { MsrAddress::new(IA32_PERFEVTSEL0 + u32::from(self.number)) }
    }

    fn value_register(&self) -> MsrAddress {
        // SAFETY: a counter; its value is a number.
        unsafe { MsrAddress::new(IA32_PMC0 + u32::from(self.number)) }
    }

    fn rdpmc_index(&self) -> Option<PmcIndex> {
        Some(PmcIndex::new(u32::from(self.number)))
    }

    fn width(&self) -> u32 {
        self.width.into()
    }
}
