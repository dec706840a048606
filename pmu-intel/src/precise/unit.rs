//! Description of a processor's precise records.

use pmu_core::access::{RegisterAccess, RegisterBackend, RegisterUpdate};
use pmu_core::error::NoFacility;
use pmu_core::precise::SampleParts;
use pmu_core::registers::EventSelect;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, CounterUnit};

use crate::counters::{INTEL, unit};
use crate::cpuid::ArchitecturalPerfmon;
use crate::debug_store::DebugStoreSupport;
use crate::precise::layout::PreciseFormat;
use crate::precise::model::{MEROM, Model};
use crate::precise::registers::{
    PEBS_BASELINE, PEBS_TIMING_INFO, PmcCfgC, STATUS_ARCH_PEBS, STATUS_OVF_BUFFER,
};
use crate::precise::source::SourceEncoding;
use crate::registers::IA32_PERF_CAPABILITIES;

/// Description of a processor's precise records: the format, and the counters that can write records.
#[derive(Clone, Copy, Debug)]
pub struct PreciseUnit {
    pub(crate) counters: CounterUnit,
    pub(crate) model: &'static Model,
    pub(crate) sources: SourceEncoding,
    format: PreciseFormat,
    capable: CounterSet,
    exact: CounterSet,
    groups: SampleParts,
    /// Format 4 or later without `PEBS_BASELINE`: the basic group alone.
    basic_only: bool,
    timing: bool,
    /// Number of general counters' resets in front of the fixed counters', in the area.
    general_resets: u8,
}

/// The groups that adaptive records can have.
const ADAPTIVE: SampleParts = SampleParts::ACCESS
    .and(SampleParts::REGISTERS)
    .and(SampleParts::VECTORS)
    .and(SampleParts::branches(32));

/// The groups that records of formats 1 to 3 have.
const FIXED: SampleParts = SampleParts::ACCESS.and(SampleParts::REGISTERS);

impl PreciseUnit {
    /// Detects the precise records of the processor that executes the call: architectural PEBS, or PEBS with a Debug
    /// Store.
    ///
    /// ```
    /// # use pmu_core::x86::Snapshot;
    /// # use pmu_core::error::NoFacility;
    /// # use pmu_core::access::RegisterBackend;
    /// use pmu_intel::precise::PreciseUnit;
    /// fn report<M: RegisterBackend>(this_processor: &Snapshot, msr: &M) -> Result<PreciseUnit, NoFacility> {
    ///     let unit = PreciseUnit::detect(this_processor, msr)?;
    ///     println!("{:?} records of counters {:?}", unit.format(), unit.counters());
    ///     Ok(unit)
    /// }
    /// ```
    ///
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// Returns the reason why the processor has no precise records that this crate supports.
    pub fn detect<M: RegisterBackend>(processor: &Snapshot, msr: &M) -> Result<Self, NoFacility> {
        if processor.vendor() != INTEL {
            return Err(NoFacility::OtherVendor(processor.vendor()));
        }
        let counters = unit(processor, false);
        if let Some(why) = counters.why_absent() {
            return Err(NoFacility::NoCounters(why));
        } else if counters.global().is_none() {
            return Err(NoFacility::NoStatus);
        }
        let of_model = Model::of(processor);
        let common = Self {
            counters,
            model: of_model,
            sources: of_model.source_encoding(processor),
            format: PreciseFormat::Architectural,
            capable: CounterSet::NONE,
            exact: CounterSet::NONE,
            groups: SampleParts::NONE,
            basic_only: false,
            timing: true,
            general_resets: 0,
        };
        match common.architectural(processor) {
            Some(unit) => Ok(unit),
            None => common.of_debug_store(processor, msr),
        }
    }

    /// Intel's Architecture Instruction Set Extensions reference, CPUID leaf 0x23: EAX of sub-leaf 0 says that
    /// sub-leaves 4 and 5 exist; EBX of 4 has the groups, in the places of CFG_C's upper half; 5 has the counters.
    fn architectural(self, processor: &Snapshot) -> Option<Self> {
        let version = ArchitecturalPerfmon::from_snapshot(processor).version();
        // SDM vol. 2A, CPUID leaf 7, subleaf 1, EAX bit 8: leaf 0x23 exists.
        let has_leaf = processor.leaf(7, 1).eax >> 8 & 1 != 0;
        let declares = has_leaf && processor.leaf(0x23, 0).eax >> 4 & 0b11 == 0b11;
        let counters = processor.leaf(0x23, 5);
        let set = |general: u32, fixed: u32| {
            CounterSet::from_bits(u64::from(fixed) << 32 | u64::from(general))
                & self.counters.counters()
        };
        let capable = set(counters.eax, counters.ecx);
        if version < 6 || !declares || capable.is_empty() {
            return None;
        }
        let can = PmcCfgC::from_bits(u64::from(processor.leaf(0x23, 4).ebx) << 32);
        let of = |has: bool, group| if has { group } else { SampleParts::NONE };
        let groups = of(can.memory(), SampleParts::ACCESS)
            | of(can.registers(), SampleParts::REGISTERS)
            | of(can.xmm(), SampleParts::VECTORS)
            | of(can.branches() != 0, SampleParts::branches(32))
            | of(can.counters(), SampleParts::COUNTERS)
            | of(can.metrics(), SampleParts::METRICS);
        Some(Self { capable, exact: set(counters.ebx, counters.edx), groups, ..self })
    }

    fn of_debug_store<M: RegisterBackend>(
        self,
        processor: &Snapshot,
        msr: &M,
    ) -> Result<Self, NoFacility> {
        let support = DebugStoreSupport::detect(processor, msr).map_err(NoFacility::Access)?;
        if !support.debug_store {
            return Err(NoFacility::NotDeclared);
        }
        if !support.has_pebs() {
            return Err(NoFacility::Unavailable);
        }
        if !support.dtes64 {
            return Err(NoFacility::NarrowWords);
        }
        if processor.family() == 6 && processor.model() == MEROM {
            return Err(NoFacility::Erratum);
        }
        // SDM vol. 2A, CPUID leaf 1, ECX bit 15, PDCM: there is IA32_PERF_CAPABILITIES.
        let capabilities = match processor.leaf(1, 0).ecx >> 15 & 1 {
            0 => 0,
            _ => msr
                .update_retrying(RegisterUpdate::read(IA32_PERF_CAPABILITIES))
                .map_err(NoFacility::Access)?,
        };
        let number = (capabilities >> 8 & 0xF) as u8;
        let format = PreciseFormat::of_number(number).ok_or(NoFacility::UnknownFormat(number))?;
        let is_adaptive = matches!(format, PreciseFormat::Adaptive);
        let baseline = is_adaptive && capabilities & PEBS_BASELINE != 0;
        let all = self.counters.counters();
        let capable =
            if baseline { all } else { all & CounterSet::from_bits(self.model.counters.into()) };
        let groups = match format {
            PreciseFormat::Adaptive if !baseline => SampleParts::NONE,
            PreciseFormat::Adaptive if number >= 6 => {
                ADAPTIVE | SampleParts::COUNTERS | SampleParts::METRICS
            }
            PreciseFormat::Adaptive => ADAPTIVE,
            PreciseFormat::Core | PreciseFormat::Bits32 => SampleParts::REGISTERS,
            _ => FIXED,
        };
        Ok(Self {
            format,
            capable,
            exact: self.model.exact & capable,
            groups,
            basic_only: is_adaptive && !baseline,
            timing: baseline && capabilities & PEBS_TIMING_INFO != 0,
            // SDM vol. 3B, "PEBS Programming Environment": the resets of formats 0 to 2, 3 and 4, and 5 and later.
            general_resets: match number {
                0..=2 => 4,
                3 | 4 => 8,
                _ => 32,
            },
            ..self
        })
    }

    /// Returns the format of the processor's precise records.
    pub const fn format(&self) -> PreciseFormat {
        self.format
    }

    /// Returns the counters for which the processor can write precise records.
    pub const fn counters(&self) -> CounterSet {
        self.capable
    }

    /// Returns whether the processor can write records of the event with this select. The mode bits of the select do
    /// not matter.
    ///
    /// ```
    /// # use pmu_intel::precise::PreciseUnit;
    /// use pmu_core::registers::EventSelect;
    /// /// Returns whether branches can be sampled precisely.
    /// fn records_branches(unit: &PreciseUnit) -> bool {
    ///     unit.can_record(EventSelect::from_bits(0x00C4)) // BR_INST_RETIRED.ALL_BRANCHES
    /// }
    /// ```
    pub fn can_record(&self, select: EventSelect) -> bool {
        self.is_baseline() || self.model.has_event(select)
    }

    /// Returns the counters that can record exactly the instruction at which the counter overflows (PDIR, PDIST). Some
    /// processors can record only one particular event exactly.
    pub const fn exact_counters(&self) -> CounterSet {
        self.exact
    }

    /// Returns the groups of data that the processor's precise records can have. In PEBS formats 0 to 3, every record
    /// has all groups that this method returns.
    pub const fn groups(&self) -> SampleParts {
        self.groups
    }

    /// Returns whether the processor needs the physical address of the buffer of precise records. If so, the buffer
    /// must be physically contiguous.
    pub const fn needs_physical_address(&self) -> bool {
        matches!(self.format, PreciseFormat::Architectural)
    }

    /// Returns whether [`PreciseRecord::retire_latency`](crate::precise::PreciseRecord::retire_latency) of adaptive and
    /// architectural records is valid.
    pub const fn records_retire_latency(&self) -> bool {
        self.timing
    }

    /// Returns whether a record's latency word has the latencies of the instruction and of the caches.
    pub(crate) const fn has_two_latencies(&self) -> bool {
        self.needs_physical_address() || self.model.two_latencies
    }

    /// Returns whether a counter's control chooses between an adaptive record and the basic group alone.
    pub(crate) const fn has_adaptive_control(&self) -> bool {
        matches!(self.format, PreciseFormat::Adaptive) && !self.basic_only
    }

    /// Returns the place of a counter's reset in the area.
    pub(crate) fn reset_place(&self, counter: pmu_core::registers::CounterId) -> usize {
        let first = if counter.is_fixed() { self.general_resets } else { 0 };
        usize::from(first) + usize::from(counter.number())
    }

    /// Returns the bit of the overflow status by which the records interrupt.
    pub(crate) const fn status_bit(&self) -> u64 {
        match self.format {
            PreciseFormat::Architectural => STATUS_ARCH_PEBS,
            _ => STATUS_OVF_BUFFER,
        }
    }

    /// Returns the size in bytes of the greatest record with these groups, of a session with this number of counters.
    pub(crate) fn record_size(&self, groups: SampleParts, counters: usize) -> usize {
        let of = |group, bytes| if groups.contains(group) { bytes } else { 0 };
        let branches = usize::from(groups.branch_count());
        let of_counters = of(SampleParts::COUNTERS, 8 * counters)
            + of(SampleParts::METRICS, 16)
            + if kinds_of_counters(groups) { 16 } else { 0 };
        match self.format {
            PreciseFormat::Adaptive => {
                32 + of(SampleParts::ACCESS, 32)
                    + of(SampleParts::REGISTERS, 144)
                    + of(SampleParts::VECTORS, 256)
                    + 24 * branches
                    + of_counters
            }
            PreciseFormat::Architectural => {
                // A header and its padding for each group, should each be in a fragment of its own.
                let headers = 7 * 24;
                64 + of(SampleParts::ACCESS, 64)
                    + of(SampleParts::REGISTERS, 160)
                    + of(SampleParts::VECTORS, 16 + 256)
                    + if branches == 0 { 0 } else { 48 + 24 * 32 }
                    + of_counters
                    + headers
            }
            format => format.record_size().unwrap_or(0),
        }
    }

    /// Returns whether the processor has the register of front-end conditions.
    pub(crate) const fn has_frontend(&self) -> bool {
        matches!(
            self.format,
            PreciseFormat::Skylake | PreciseFormat::Adaptive | PreciseFormat::Architectural
        )
    }

    /// Returns whether every counter writes records of every event, and the enable register has bits of fixed counters
    /// in the places of load latencies.
    pub(crate) const fn is_baseline(&self) -> bool {
        self.needs_physical_address() || self.has_adaptive_control()
    }
}

/// Returns whether a record with these parts has the group of counters and metrics.
pub(crate) const fn kinds_of_counters(parts: SampleParts) -> bool {
    parts.contains(SampleParts::COUNTERS) || parts.contains(SampleParts::METRICS)
}
