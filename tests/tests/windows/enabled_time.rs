//! Events without `exclude_guest` while counters are lent: no event is counted, and `enabled` goes on if the kernel
//! chooses.

use pmu_core::{CounterSet, Event, EventCount, EventId};
use pmu_tests::opened::operations::general;
use pmu_tests::opened::*;
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::mock::Deviations;

fn hosts() -> impl Iterator<Item = Processor> {
    let amd = [AmdConfiguration::LEGACY, AmdConfiguration::perf_mon_v2(6)].map(|mut amd| {
        amd.guest_host = true;
        Configuration::Amd(amd)
    });
    let intel = [2, 4].map(|version| IntelConfiguration::new(version, 4, 3));
    let all = amd.into_iter().chain(intel.map(Configuration::Intel));
    all.map(|host| Processor::new(host, false, Deviations::NONE))
}

/// Started at 100, lent from 110 to 135, of which the kernel counts 20 as enabled, and read at 150.
#[test]
fn an_event_without_exclude_guest_stands_still_while_its_enabled_time_goes_on_if_the_kernel_chooses()
 {
    for processor in hosts() {
        for counts in [false, true] {
            let context = format!("{processor:?}, {counts}");
            let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
            let three = [0, 1, 2].map(|number| general(&processor, number));
            let only = three.into_iter().fold(CounterSet::NONE, |all, one| all | one);
            let mut counters = processor.take_only(only, &mock, &memory, &table);
            let mut open = |event: Event| counters.open(&processor.unit, &[event]).unwrap();
            let [everywhere, outside, waits, stopped] = [
                open(raw(2).on(three[0])),
                open(raw(3).on(three[1]).outside_guests()),
                open(raw(4).on(three[0]).rotating()),
                open(raw(5)),
            ];
            let sampled = open(raw(6).on(three[2]).every(0x1000).with_total());
            let started = [everywhere, outside, waits, sampled];
            started.into_iter().for_each(|event| counters.enable(event, 100).unwrap());
            (2..7).for_each(|kind| happen(&mock, kind, 10));
            let mut window = counters.lend(110, |o| panic!("{o:?}")).unwrap();
            (2..7).for_each(|kind| happen(&mock, kind, 1000));
            mock.clear();
            if counts {
                window.count_as_enabled(130);
                // A clock that goes back adds nothing.
                window.count_as_enabled(120);
            }
            assert_eq!(mock.accesses().total(), 0, "{context}");
            window.end(135).unwrap();
            (2..7).for_each(|kind| happen(&mock, kind, 15));
            let count = |event: EventId| counters.read(event, 150).unwrap();
            let more = if counts { 20 } else { 0 };
            let of = |value, enabled, running| EventCount { value, enabled, running };
            assert_eq!(count(everywhere), of(25, 25 + more, 25), "{context}");
            assert_eq!(count(sampled), of(25, 25 + more, 25), "{context}");
            assert_eq!(count(waits), of(0, 25 + more, 0), "{context}");
            assert_eq!(count(outside), of(25, 25, 25), "{context}");
            assert_eq!(count(stopped), of(0, 0, 0), "{context}");
            // 25 in 25 of 45 units of time.
            let scaled = if counts { 45 } else { 25 };
            assert_eq!(count(everywhere).scaled(), Some(scaled), "{context}");
            counters.shut_down().unwrap();
        }
    }
}
