//! The mock as a platform: its profile timer, and latched interrupts.

use pmu_core::access::{RegisterAddress, RegisterBackend};
use pmu_core::error::PlatformError;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::{CounterSet, EventSource, Platform};
use pmu_intel::Emon;
use pmu_tests::intel_processor;
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviation, Deviations, MockMsr};
use pmu_virt::{FedEvents, VirtualPmu, Write};

#[test]
fn the_mocks_timer_has_the_interval_of_the_session_while_time_is_profiled() {
    let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 0));
    let mock = MockMsr::<8>::strict(VirtualPmu::new(configuration, FedEvents::NONE).unwrap());
    let processor = intel_processor(2, 4);
    let interface = Emon::detect(&processor).unwrap();
    let memory = CounterMemory::<[CounterSlot; 4]>::new();
    let mut session =
        Session::take(&interface, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
    assert_eq!(mock.timer(), None);
    let interval = interface.set_interval(KProfileSource::TIME, 12_345).unwrap();
    session.start(KProfileSource::TIME).unwrap();
    assert_eq!(mock.timer(), Some(interval));
    assert_eq!(interval.get(), 12_345);
    session.stop(KProfileSource::TIME).unwrap();
    assert_eq!(mock.timer(), None);
    session.shut_down().unwrap();
    // And by itself.
    assert_eq!(mock.start_profile_timer(interval), Ok::<(), PlatformError>(()));
    assert_eq!(mock.timer(), Some(interval));
    mock.stop_profile_timer();
    assert_eq!(mock.timer(), None);
}

/// Both counters overflow before one access: the second interrupt waits for the end of the first.
#[test]
fn a_planned_interrupt_of_two_counters_is_latched_twice_where_the_platform_does_so() {
    let latches = Deviations::of(&[Deviation::LatchesSecondInterrupt]);
    for (counters, deviations, expected) in
        [(1, Deviations::NONE, 1), (2, Deviations::NONE, 1), (1, latches, 1), (2, latches, 2)]
    {
        let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 0));
        let pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
        let mock = MockMsr::<8>::strict(pmu).deviating(deviations);
        // SAFETY: the mock's registers are numbers.
        let register = |address| unsafe { RegisterAddress::new(address) };
        mock.unmask_performance_interrupt();
        for counter in 0..counters {
            // Cycles, at every privilege level, interrupting.
            mock.write(register(0x186 + counter), 0x53_003C).unwrap();
        }
        mock.interrupt_at(1);
        mock.read(register(0x38E)).unwrap();
        assert_eq!(mock.interrupts(), expected, "{counters} counters, {deviations:?}");
    }
}

/// An overflow of the first counter, and unmasking twice.
#[test]
fn unmasking_raises_an_interrupt_where_the_platform_does_so_and_an_overflow_is_pending() {
    let raises = Deviations::of(&[Deviation::RaisesOnUnmask]);
    let intel = Configuration::Intel(IntelConfiguration::new(4, 4, 0));
    let amd = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    for (configuration, status_set, deviations, status, expected) in [
        (intel, 0x391, raises, 1, 1),
        (intel, 0x391, raises, 0, 0),
        (intel, 0x391, Deviations::NONE, 1, 0),
        // No AMD processor does so.
        (amd, 0xC000_0303, raises, 1, 0),
    ] {
        let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
        assert_eq!(pmu.write(status_set, status).answer, Write::Done);
        let mock = MockMsr::<8>::new(pmu).deviating(deviations);
        let handler = |_: &MockMsr<'_, 8>| ();
        mock.on_interrupt(&handler);
        mock.unmask_performance_interrupt();
        assert_eq!(mock.interrupts(), expected, "{configuration:?}, {deviations:?}, {status}");
        let masked = mock.performance_entry() & 1 << 16 != 0;
        assert_eq!(masked, expected == 1, "delivery masks the entry");
    }
}
