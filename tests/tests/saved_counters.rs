//! What a save area says of itself.

use pmu_core::raw_cpuid::CpuIdResult;
use pmu_core::{
    CounterMemory, CounterSlot, KProfileSource, ProfileInterface, SavedCounter, SavedCounters,
    Snapshot,
};
use pmu_intel::Emon;
use pmu_tests::{FakePlatform, RegisterFile};

#[test]
fn a_save_area_tells_how_many_counters_it_holds() {
    let snapshot = Snapshot::capture(|leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
            0x0A => (0x0730_0401, 0, 0, 0),
            _ => (0, 0, 0, 0),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    });
    let interface = Emon::claim(&snapshot).unwrap();
    let (msr, platform) = (RegisterFile::intel(4, false), FakePlatform::default());
    let memory = CounterMemory::<[CounterSlot; 4]>::new();
    let mut session = interface.initialise(&msr, &platform, &memory).unwrap();
    let mut area = SavedCounters::<[SavedCounter; 4]>::new();
    assert_eq!((area.len(), area.is_empty()), (0, true), "a new one holds nothing");

    for (running, source) in (0..).zip([
        KProfileSource::TOTAL_CYCLES,
        KProfileSource::TOTAL_ISSUES,
        KProfileSource::BRANCH_INSTRUCTIONS,
    ]) {
        session.save(&mut area, |overflow| panic!("{overflow:?}")).unwrap();
        assert_eq!((area.len(), area.is_empty()), (running, running == 0));
        session.restore(&area).unwrap();
        assert_eq!(area.len(), running, "it stays as it is");
        session.start(source).unwrap();
    }
    session.shut_down().unwrap();
}
