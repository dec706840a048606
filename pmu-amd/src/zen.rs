//! The Zen interface: general sources, each of which counts the event that it is named after.

use core::sync::atomic::AtomicU32;

use pmu_core::profile::{ProfileSource, ProfileSources, SourceIndex, SourceTable};
use pmu_core::registers::EventSelect;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterUnit, EventSource};

use crate::counters;
use crate::generation::Generation;
use crate::registers::PerfCtl;
use crate::sources::SOURCES;

/// Profile interface for AMD's Zen processors. Its profile sources are the sources of Windows that are not specific to
/// a vendor. Each source counts the event in its name.
///
/// The interface [`Amd64`](crate::Amd64) uses the same events as Windows. On Zen, most sources of `Amd64` do not count
/// the events in their names.
///
/// If a Zen generation has no event for a source, the interface lacks this source on that generation. Zen 6 lacks
/// instruction-cache fetches and floating-point instructions, and Zen 1 and 2 lack last-level cache misses. A load or a
/// store counts when it is dispatched. For data-cache misses, Zen 1 and 2 count requests to the second-level cache, and
/// later generations count fills of the data cache.
///
/// References: the PMC events in AMD's processor programming references, as listed in Linux' tables for Zen.
///
/// ```
/// # use pmu_core::x86::dump::CpuidDump;
/// # use pmu_core::x86::Snapshot;
/// # let dump = CpuidDump::parse(
/// #     "   0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
/// #         0x00000001 0x00: eax=0x00a20f10 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
/// #         0x80000000 0x00: eax=0x80000001 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
/// #         0x80000001 0x00: eax=0x00000000 ebx=0x00000000 ecx=0x00800000 edx=0x20000000",
/// # )?;
/// # let snapshot = Snapshot::capture(&dump);
/// use pmu_amd::Zen;
/// use pmu_core::EventSource;
/// use pmu_core::profile::KProfileSource;
/// let zen = Zen::detect(&snapshot).ok_or("not a Zen")?;
/// let row = zen.row(KProfileSource::DCACHE_MISSES).ok_or("not there")?;
/// assert_eq!(zen.sources()[row].select().event_number(), 0x44); // fills of the data cache, on Zen 3
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Zen {
    table: &'static SourceTable,
    sources: ProfileSources<[AtomicU32; ZEN_3.len()]>,
}

const _: () = assert!(
    ZEN_1.len() <= ZEN_3.len() && ZEN_6.len() <= ZEN_3.len() && ZEN_3.len() <= SOURCES.len(),
    "each has the variables of its sources, here and in a machine of any vendor"
);

impl Zen {
    /// Detects the Zen profile interface of a processor. Returns `None` if the processor does not belong to one of the
    /// generations Zen 1 to Zen 6.
    ///
    /// Also returns `None` if the processor lacks long mode, or if a hypervisor hides the counters: see
    /// [`Amd64::detect`](crate::Amd64::detect).
    pub fn detect(processor: &Snapshot) -> Option<Self> {
        let table = table(Generation::of(processor)?)?;
        let unit = counters::unit(processor, &[counters::AMD]);
        let zen = || Self { table, sources: ProfileSources::new("Zen", unit) };
        unit.why_absent().is_none().then(zen)
    }

    /// Returns the table of the interface's sources.
    ///
    /// ```
    /// # use pmu_amd::Zen;
    /// # use pmu_core::profile::KProfileSource;
    /// fn has_cycles(zen: &Zen) -> bool {
    ///     zen.table().row(KProfileSource::TOTAL_CYCLES).is_some()
    /// }
    /// # let _ = has_cycles;
    /// ```
    pub const fn table(&self) -> &'static SourceTable {
        self.table
    }

    /// Returns the sources of the Zen profile interface on a generation of processors. Returns `None` if the generation
    /// is not one of Zen 1 to Zen 6.
    ///
    /// ```
    /// use pmu_amd::{Generation, Zen};
    /// for source in Zen::sources(Generation::Zen4).unwrap_or_default() {
    ///     println!("{:#04x} {}: event {:#x}", source.source().value(), source.name(), source.select().event_number());
    /// }
    /// # assert!(Zen::sources(Generation::Hammer).is_none());
    /// ```
    pub fn sources(generation: Generation) -> Option<&'static [ProfileSource]> {
        table(generation).map(SourceTable::rows)
    }
}

// SAFETY: the unit is a field; that of another processor is what its CPUID declares.
unsafe impl EventSource for Zen {
    type Processor = Snapshot;
    type Facility = ();

    fn facility(&self) {}

    #[inline]
    fn profile_sources(&self) -> &ProfileSources {
        &self.sources
    }

    #[inline]
    fn table(&self) -> &'static SourceTable {
        self.table
    }

    fn unit_of(&self, processor: &Snapshot) -> CounterUnit {
        counters::unit(processor, &[counters::AMD])
    }

    fn requires_memory(&self) -> bool {
        true
    }
}

fn table(generation: Generation) -> Option<&'static SourceTable> {
    match generation {
        Generation::Zen1 | Generation::Zen2 => Some(&TABLE_1),
        Generation::Zen3 | Generation::Zen4 | Generation::Zen5 => Some(&TABLE_3),
        Generation::Zen6 => Some(&TABLE_6),
        _ => None,
    }
}

/// Returns the select of an event at every privilege level. Bits 11:8 of the number are bits 35:32 of the register.
const fn event(number: u16, unit_mask: u8) -> EventSelect {
    let low = PerfCtl::new().with_event_low(number as u8).with_unit_mask(unit_mask);
    let low = low.with_user(true).with_os(true).into_bits();
    EventSelect::from_bits(low | (number as u64 >> 8) << 32)
}

macro_rules! sources {
    ($sources:ident $index:ident $table:ident: $($value:literal $name:literal $event:literal $unit_mask:literal;)*) => {
        static $sources: [ProfileSource; [$($value),*].len()] =
            [$(ProfileSource::new($value, $name, event($event, $unit_mask))),*];
        static $index: SourceIndex<32> = SourceIndex::new(&$sources);
        static $table: SourceTable = SourceTable::new(&$sources, &$index);
    };
}

sources! { ZEN_1 INDEX_1 TABLE_1:
    0x00 "ProfileTime" 0x76 0x00;
    0x02 "ProfileTotalIssues" 0xC0 0x00;
    0x04 "ProfileLoadInstructions" 0x29 0x01;
    0x06 "ProfileBranchInstructions" 0xC2 0x00;
    0x08 "ProfileDcacheMisses" 0x60 0xC8;
    0x09 "ProfileIcacheMisses" 0x60 0x10;
    0x0B "ProfileBranchMispredictions" 0xC3 0x00;
    0x0C "ProfileStoreInstructions" 0x29 0x02;
    0x0D "ProfileFpInstructions" 0xCB 0x07;
    0x13 "ProfileTotalCycles" 0x76 0x00;
    0x14 "ProfileIcacheIssues" 0x80 0x00;
    0x15 "ProfileDcacheAccesses" 0x29 0x07;
}

sources! { ZEN_3 INDEX_3 TABLE_3:
    0x00 "ProfileTime" 0x76 0x00;
    0x02 "ProfileTotalIssues" 0xC0 0x00;
    0x04 "ProfileLoadInstructions" 0x29 0x01;
    0x06 "ProfileBranchInstructions" 0xC2 0x00;
    0x08 "ProfileDcacheMisses" 0x44 0xFF;
    0x09 "ProfileIcacheMisses" 0x60 0x10;
    0x0A "ProfileCacheMisses" 0x44 0x48;
    0x0B "ProfileBranchMispredictions" 0xC3 0x00;
    0x0C "ProfileStoreInstructions" 0x29 0x02;
    0x0D "ProfileFpInstructions" 0xCB 0x07;
    0x13 "ProfileTotalCycles" 0x76 0x00;
    0x14 "ProfileIcacheIssues" 0x18E 0x1F;
    0x15 "ProfileDcacheAccesses" 0x29 0x07;
}

sources! { ZEN_6 INDEX_6 TABLE_6:
    0x00 "ProfileTime" 0x76 0x00;
    0x02 "ProfileTotalIssues" 0xC0 0x00;
    0x04 "ProfileLoadInstructions" 0x29 0x01;
    0x06 "ProfileBranchInstructions" 0xC2 0x00;
    0x08 "ProfileDcacheMisses" 0x44 0xDF;
    0x09 "ProfileIcacheMisses" 0x60 0x10;
    0x0A "ProfileCacheMisses" 0x44 0x48;
    0x0B "ProfileBranchMispredictions" 0xC3 0x00;
    0x0C "ProfileStoreInstructions" 0x29 0x02;
    0x13 "ProfileTotalCycles" 0x76 0x00;
    0x15 "ProfileDcacheAccesses" 0x29 0x07;
}
