//! What a save area says of itself.

use pmu_core::{
    CounterError, CounterMemory, CounterSlot, InterfaceError, KProfileSource, ProfileInterface,
    SavedCounter, SavedCounters,
};
use pmu_intel::Emon;
use pmu_tests::{FakePlatform, RegisterFile, intel_processor};

#[test]
fn a_save_area_tells_how_many_counters_it_holds() {
    let processor = intel_processor(1, 4);
    let interface = Emon::detect(&processor).unwrap();
    let (msr, platform) = (RegisterFile::intel(4, false), FakePlatform::default());
    let memory = CounterMemory::<[CounterSlot; 4]>::new();
    let mut session = interface.initialize(&processor, &msr, &platform, &memory).unwrap();
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

#[test]
fn an_area_with_fewer_places_than_the_session_has_counters_is_refused() {
    let processor = intel_processor(1, 4);
    let interface = Emon::detect(&processor).unwrap();
    let (msr, platform) = (RegisterFile::intel(4, false), FakePlatform::default());
    let memory = CounterMemory::<[CounterSlot; 4]>::new();
    let mut session = interface.initialize(&processor, &msr, &platform, &memory).unwrap();
    session.start(KProfileSource::TOTAL_CYCLES).unwrap();
    let mut small = SavedCounters::<[SavedCounter; 3]>::new();
    let mut large = SavedCounters::<[SavedCounter; 5]>::new();
    let refused =
        Err(InterfaceError::Counters(CounterError::InsufficientMemory { needed: 4, lent: 3 }));
    assert_eq!(session.save(&mut small, |overflow| panic!("{overflow:?}")), refused);
    assert!(small.is_empty() && session.is_running(KProfileSource::TOTAL_CYCLES));
    session.save(&mut large, |overflow| panic!("{overflow:?}")).unwrap();
    assert_eq!(large.len(), 1);
    session.restore(&large).unwrap();
    session.shut_down().unwrap();
}
