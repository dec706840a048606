//! The mock as a platform: a profile timer that runs while it is to.

use pmu_core::{
    CounterMemory, CounterSlot, KProfileSource, Platform, ProfileInterface, TimerUnavailable,
};
use pmu_intel::Emon;
use pmu_tests::intel_processor;
use pmu_virt::mock::MockMsr;
use pmu_virt::{Configuration, FedEvents, IntelConfiguration, VirtualPmu};

#[test]
fn the_mocks_timer_has_the_interval_of_the_session_while_time_is_profiled() {
    let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 0));
    let mock = MockMsr::<8>::strict(VirtualPmu::new(configuration, FedEvents::NONE).unwrap());
    let processor = intel_processor(2, 4);
    let interface = Emon::claim(&processor).unwrap();
    let memory = CounterMemory::<[CounterSlot; 4]>::new();
    let mut session = interface.initialise(&processor, &mock, &mock, &memory).unwrap();
    assert_eq!(mock.timer(), None);
    let interval = interface.set_interval(KProfileSource::TIME, 12_345).unwrap();
    session.start(KProfileSource::TIME).unwrap();
    assert_eq!(mock.timer(), Some(interval));
    assert_eq!(interval.get(), 12_345);
    session.stop(KProfileSource::TIME).unwrap();
    assert_eq!(mock.timer(), None);
    session.shut_down().unwrap();
    // And by itself.
    assert_eq!(mock.start_profile_timer(interval), Ok::<(), TimerUnavailable>(()));
    assert_eq!(mock.timer(), Some(interval));
    mock.stop_profile_timer();
    assert_eq!(mock.timer(), None);
}
