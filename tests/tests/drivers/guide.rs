//! A driver's test on the mock, as the guide shows it.

// ANCHOR: test
use core::cell::Cell;
use core::error::Error;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::{CounterSet, EventSource, service};
use pmu_intel::Emon;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviation, Deviations, MockMsr};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

#[test]
fn a_driver_loses_no_overflow_where_unmasking_raises_one() -> Result<(), Box<dyn Error>> {
    let deviations = Deviations::of(&[Deviation::DeadCounter, Deviation::RaisesOnUnmask]);
    let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 0));
    // Unhalted core cycles, which `ProfileTotalCycles` counts.
    let cycles = EventKey::general(0x3C, 0);
    let events = FedEvents::new(&[cycles])?;
    let mock = MockMsr::strict(VirtualPmu::new(configuration, events)?).deviating(deviations);

    let processor = mock.snapshot();
    let driver = Emon::detect(&processor)?;
    let memory = CounterMemory::<[CounterSlot; 4]>::new();
    let overflows = Cell::new(0);
    let handler = |mock: &MockMsr<'_, 64>| {
        let serviced = service(&driver, mock, &memory, |sample| {
            let of_source = driver.overflow(&sample).is_some();
            overflows.set(overflows.get() + u32::from(of_source));
        });
        serviced.expect("no register faults");
    };
    mock.on_interrupt(&handler);

    let mut session = Session::take(&driver, &processor, CounterSet::GENERAL, &mock, &memory)?;
    assert_eq!(session.counters().unresponsive.bits(), 0b0010);
    driver.set_interval(KProfileSource::TOTAL_CYCLES, 0x1000)?;
    session.start(KProfileSource::TOTAL_CYCLES)?;
    let happen = |count| {
        let mut feed = Feed::new(&events);
        feed.add(events.find(cycles).expect("it is fed"), Privilege::Kernel, count)?;
        mock.advance(&mut feed);
        Ok::<(), Box<dyn Error>>(())
    };
    happen(0x3000)?;
    assert_eq!(overflows.get(), 3);

    mock.lose_registers(); // suspend
    session.reprogram(|_| ())?;
    happen(0x1000)?;
    assert_eq!(overflows.get(), 4);
    session.shut_down()?;
    Ok(())
}
// ANCHOR_END: test
