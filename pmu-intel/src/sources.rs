//! The sources of the Emon interface: its table as the original release of Windows 10 has it.

use pmu_core::{KProfileSource, ProfileSource, SourceIndex, SourceNames};

use crate::registers::PerfEvtSel;

/// A profile source of the Emon interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EmonSource {
    source: KProfileSource,
    name: &'static str,
    windows_spelling: Option<&'static str>,
    event_bit: Option<u8>,
    select: PerfEvtSel,
    canonical: Option<KProfileSource>,
}

impl EmonSource {
    /// The architectural event's number: its bit in EBX of CPUID leaf 0x0A. `ProfileTime`, which
    /// needs no counter, has none.
    pub const fn event_bit(&self) -> Option<u8> {
        self.event_bit
    }
}

impl ProfileSource for EmonSource {
    type Select = PerfEvtSel;

    fn source(&self) -> KProfileSource {
        self.source
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn windows_spelling(&self) -> Option<&'static str> {
        self.windows_spelling
    }

    fn select(&self) -> PerfEvtSel {
        self.select
    }

    fn canonical(&self) -> Option<KProfileSource> {
        self.canonical
    }
}

/// One of the seven architectural events of version 1 (SDM vol. 3B, table "UMask and Event Select
/// Encodings for Pre-Defined Architectural Performance Events").
const fn event(bit: u8) -> PerfEvtSel {
    let (event, unit_mask) = match bit {
        0 => (0x3C, 0x00), // unhalted core cycles
        1 => (0xC0, 0x00), // instruction retired
        2 => (0x3C, 0x01), // unhalted reference cycles
        3 => (0x2E, 0x4F), // last-level cache reference
        4 => (0x2E, 0x41), // last-level cache misses
        5 => (0xC4, 0x00), // branch instruction retired
        6 => (0xC5, 0x00), // branch misses retired
        _ => panic!("not an architectural event of version 1"),
    };
    PerfEvtSel::new().with_event(event).with_unit_mask(unit_mask).with_user(true).with_os(true)
}

const fn source(value: u32) -> KProfileSource {
    match KProfileSource::new(value) {
        Some(source) => source,
        None => panic!("ProfileMaximum is not a source"),
    }
}

/// The first source that belongs to this interface alone.
const FIRST_SPECIFIC: u32 = 0x19;

/// The specific source of an architectural event.
const fn specific(name: &'static str, bit: u8) -> EmonSource {
    let source = source(FIRST_SPECIFIC + bit as u32);
    EmonSource {
        source,
        name,
        windows_spelling: None,
        event_bit: Some(bit),
        select: event(bit),
        canonical: None,
    }
}

/// A general source, which is another name of an architectural event's.
const fn general(source: KProfileSource, name: &'static str, bit: u8) -> EmonSource {
    let canonical = specific(name, bit).source;
    EmonSource { source, canonical: Some(canonical), ..specific(name, bit) }
}

/// The sources, ascending by value. `ProfileTime` runs on a timer: its select, unhalted core cycles,
/// is what a counter standing in for the timer would count.
pub static SOURCES: [EmonSource; 13] = [
    EmonSource {
        source: KProfileSource::TIME,
        name: "ProfileTime",
        windows_spelling: Some("Timer"),
        event_bit: None,
        select: event(0),
        canonical: None,
    },
    general(KProfileSource::TOTAL_ISSUES, "ProfileTotalIssues", 1),
    general(KProfileSource::BRANCH_INSTRUCTIONS, "ProfileBranchInstructions", 5),
    general(KProfileSource::CACHE_MISSES, "ProfileCacheMisses", 4),
    general(KProfileSource::BRANCH_MISPREDICTIONS, "ProfileBranchMispredictions", 6),
    general(KProfileSource::TOTAL_CYCLES, "ProfileTotalCycles", 0),
    specific("ProfileUnhaltedCoreCycles", 0),
    specific("ProfileInstructionRetired", 1),
    specific("ProfileUnhaltedReferenceCycles", 2),
    specific("ProfileLLCReference", 3),
    specific("ProfileLLCMisses", 4),
    specific("ProfileBranchInstructionRetired", 5),
    specific("ProfileBranchMispredictsRetired", 6),
];

/// Finds a row of [`SOURCES`].
pub(crate) static INDEX: SourceIndex<64> = {
    let mut names =
        [SourceNames { source: source(0), name: "", windows_spelling: None }; SOURCES.len()];
    let mut row = 0;
    while row < SOURCES.len() {
        let EmonSource { source, name, windows_spelling, .. } = SOURCES[row];
        names[row] = SourceNames { source, name, windows_spelling };
        row += 1;
    }
    SourceIndex::new(&names)
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_value_and_nothing_else_is() {
        for (index, entry) in SOURCES.iter().enumerate() {
            assert_eq!(INDEX.row(entry.source), Some(index));
        }
        let found =
            (0..0x1_0000).filter_map(KProfileSource::new).filter(|s| INDEX.row(*s).is_some());
        assert_eq!(found.count(), SOURCES.len());
    }
}
