//! Platforms that deviate from the manuals, and the processors on them.

use std::collections::BTreeSet;

use pmu_core::x86::Snapshot;
use pmu_virt::configuration::{Configuration, Vendor};
use pmu_virt::mock::{Deviation, Deviations};

use crate::result;

/// Returns CPUID of a processor of a platform, on which a guest sees `configuration`, with every other feature. A
/// hypervisor is declared where only hypervisors deviate like that.
pub fn snapshot(configuration: Configuration, deviations: Deviations) -> Snapshot {
    let vendor = match configuration.vendor() {
        Vendor::Intel => [0x756E_6547, 0x6C65_746E, 0x4965_6E69],
        Vendor::Amd => [0x6874_7541, 0x444D_4163, 0x6974_6E65],
    };
    Snapshot::capture(move |leaf, subleaf| {
        let given = match leaf {
            0 => [0x23, vendor[0], vendor[1], vendor[2]],
            0x4000_0000..=0x4000_FFFF => [0x4000_0000, 0, 0, 0],
            0x8000_0000 => [0x8000_0022, 0, 0, 0],
            1 => [0x806F8, 0, !(1 << 31), u32::MAX],
            _ => [u32::MAX; 4],
        };
        result(deviations.cpuid(&configuration, leaf, subleaf, given))
    })
}

/// Returns the deviations of platforms that the drivers of Intel's and AMD's counters meet.
fn of_both_vendors() -> Vec<Deviation> {
    let others = [
        Deviation::AcknowledgesWhileEnabled,
        // Of branch records.
        Deviation::NeverFreezesBranches,
        Deviation::BranchesLostInDeepSleep,
        Deviation::ErroneousBranches,
        // Of instruction-based sampling.
        Deviation::LateIbs,
        // Of precise records.
        Deviation::PreciseStatusBeside,
        Deviation::ShortDebugStore,
        Deviation::ScribbledIndex,
        Deviation::CollidedRecords,
    ];
    Deviation::ALL.into_iter().filter(|deviation| !others.contains(deviation)).collect()
}

/// Returns each deviation alone.
pub fn single() -> impl Iterator<Item = Deviations> {
    of_both_vendors().into_iter().map(|deviation| Deviations::of(&[deviation]))
}

/// Returns `count` pairs of deviations, by this seed; all where `PMU_TEST_ALL_PAIRS` is set.
pub fn pairs(count: usize, seed: u64) -> Vec<Deviations> {
    let of = of_both_vendors();
    let all: Vec<_> = (0..of.len())
        .flat_map(|a| (0..a).map(move |b| [a, b]))
        .map(|pair| Deviations::of(&pair.map(|number| of[number])))
        .collect();
    if std::env::var_os("PMU_TEST_ALL_PAIRS").is_some() || count >= all.len() {
        return all;
    }
    // Marsaglia's xorshift64, for the same sample everywhere.
    let (mut state, mut chosen) = (seed, BTreeSet::new());
    while chosen.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chosen.insert((state >> 32) as usize % all.len());
    }
    chosen.into_iter().map(|place| all[place]).collect()
}
