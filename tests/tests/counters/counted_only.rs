//! Events without a period, over the wraps of their counters.

use core::cell::Cell;

use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{Claim, CounterSession, CounterSet, Event, Events, GenericEvent, service};
use pmu_tests::deviations::snapshot;
use pmu_tests::software_pmu::*;
use pmu_virt::configuration::{
    AmdConfiguration, Configuration, IntelConfiguration, IntelFeature, Vendor,
};
use pmu_virt::mock::{Deviations, MockMsr};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

/// Intel's and AMD's cycles.
const KEYS: [EventKey; 2] = [CYCLES, EventKey::general(0x76, 0x00)];

/// A counter's total is right whether it is read in between or not: 40 bits of cycles are six minutes.
#[test]
fn a_total_loses_nothing_when_its_counter_wraps_unread() {
    let intel = |version, fixed, width, full_width_writes| {
        Configuration::Intel(IntelConfiguration::new(version, 2, fixed).with(|intel| {
            intel.general_width = width;
            intel.fixed_width = width;
            intel.set(IntelFeature::FullWidthWrites, full_width_writes);
        }))
    };
    for configuration in [
        intel(1, 0, 40, false),
        intel(2, 0, 40, false),
        intel(2, 3, 40, false),
        intel(4, 0, 48, true),
        intel(4, 3, 48, false),
        intel(6, 3, 48, true),
        Configuration::Amd(AmdConfiguration::LEGACY),
        Configuration::Amd(AmdConfiguration::CORE_EXTENSION),
        Configuration::Amd(AmdConfiguration::perf_mon_v2(6)),
    ] {
        let fed = FedEvents::new(&KEYS).unwrap();
        let processor = snapshot(configuration, Deviations::NONE);
        let unit = match configuration.vendor() {
            Vendor::Intel => pmu_intel::counters(&processor),
            Vendor::Amd => pmu_amd::counters(&processor),
        };
        let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
        let events = EventTable::<[EventEntry; 2]>::new();
        let source = Events::new(&unit, &events);
        let mock = MockMsr::<8>::strict(VirtualPmu::new(configuration, fed).unwrap());
        let unclaimed = Cell::new(0);
        let handler = |mock: &MockMsr<'_, 8>| {
            let serviced = service(&source, mock, &memory, |_| panic!("not reported"));
            unclaimed.set(unclaimed.get() + u32::from(serviced.unwrap().claim == Claim::NotOurs));
        };
        mock.on_interrupt(&handler);
        let mut counters =
            CounterSession::take(source, &unit, CounterSet::ALL, &mock, &memory).unwrap();
        let id = counters.open(&unit, &[Event::generic(GenericEvent::Cycles)]).unwrap();
        let mut expected = 0;
        // Short of half a range, over it, exactly a range, over one, over several; and some after each.
        let wraps = [1 << 39, 1 << 40, (1 << 40) + 5, 3 << 40, (1 << 48) - 7, 1 << 48, 3 << 47];
        for step in wraps.into_iter().flat_map(|wrap| [wrap, 12_345]) {
            if !counters.is_enabled(id) {
                counters.enable(id, 0).unwrap();
            }
            // Of 2³¹ each, it takes long to pass 2⁴⁸.
            if step > 1 << 41 && !matches!(configuration, Configuration::Amd(_)) {
                continue;
            }
            let mut feed = Feed::new(&fed);
            for key in KEYS {
                feed.add(fed.find(key).unwrap(), Privilege::User, step).unwrap();
            }
            mock.advance(&mut feed);
            expected += step;
            let read = counters.read(id, 0).unwrap().value;
            assert_eq!(read, expected, "{configuration:?} after {step:#X}");
            if step % 2 == 1 {
                counters.disable(id, 0).unwrap();
            }
        }
        assert_eq!(counters.close(id, 0).unwrap().value, expected);
        counters.shut_down().unwrap();
        assert_eq!(unclaimed.get(), 0, "{configuration:?}");
    }
}
