//! The sources of the Emon interface, as in the original release of Windows 10.

// To add a source: a row, and one in `tests/data/emon_sources.csv`. (AMD's: `pmu-amd/src/sources.rs`, and
// `amd64_sources.csv`.) A source of later versions of Windows is in `later_sources.rs`.

use pmu_core::profile::{KProfileSource, ProfileSource, SourceIndex, SourceTable};
use pmu_core::registers::EventSelect;

use crate::registers::PerfEvtSel;

/// Returns the select of one of the seven architectural events of version 1 (SDM vol. 3B, table "UMask and Event Select
/// Encodings for Pre-Defined Architectural Performance Events").
const fn event(bit: u8) -> EventSelect {
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
    PerfEvtSel::new()
        .with_event(event)
        .with_unit_mask(unit_mask)
        .with_user(true)
        .with_os(true)
        .select()
}

/// The first source that belongs to this interface alone.
const FIRST_SPECIFIC: u32 = 0x19;

/// Returns the specific source of an architectural event.
const fn specific(name: &'static str, bit: u8) -> ProfileSource {
    ProfileSource::new(FIRST_SPECIFIC + bit as u32, name, event(bit)).declared_by(bit)
}

/// Returns a general source, which is another name of an architectural event's.
const fn general(source: KProfileSource, name: &'static str, bit: u8) -> ProfileSource {
    ProfileSource::new(source.value(), name, event(bit))
        .declared_by(bit)
        .another_name_of(FIRST_SPECIFIC + bit as u32)
}

/// The sources of the Emon interface, in ascending order of their values.
///
/// `ProfileTime` runs on a timer. The table nevertheless has an event select for `ProfileTime`: unhalted core cycles.
pub static SOURCES: [ProfileSource; 13] = [
    ProfileSource::new(0, "ProfileTime", event(0)).spelled("Timer"),
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

static INDEX: SourceIndex<64> = SourceIndex::new(&SOURCES);

/// [`SOURCES`], found by value or name.
pub(crate) static TABLE: SourceTable = SourceTable::new(&SOURCES, &INDEX);
