//! Costs of groups in register accesses: exact, and equal to the table in tests/data/accesses.md.

use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSession, CounterSet, Event, EventCount, Events, service};
use pmu_tests::FakePlatform;
use pmu_tests::groups::*;
use pmu_tests::opened::*;
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::mock::Deviations;

/// Returns RDMSR, WRMSR, RDPMC and unmasks since the last call, as the table has them.
pub(crate) fn take(extra: &WithExtra<'_, '_>, platform: &FakePlatform) -> String {
    let [reads, writes, pmc_reads] = extra.costs.take();
    let counts = [reads, writes, pmc_reads, platform.unmasked.take()];
    let parts = counts.into_iter().zip("RWPA".chars()).filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts.map(|(count, kind)| format!("{count}{kind}")).collect();
    if parts.is_empty() { "–".into() } else { parts.join(" ") }
}

/// Asserts that tests/data/accesses.md has the row of each kind of PMU.
pub(crate) fn assert_rows(row: impl Fn(Configuration, bool) -> String) {
    let intel = |version| Configuration::Intel(IntelConfiguration::new(version, 8, 0));
    let amd = Configuration::Amd;
    let mut missing = vec![];
    for (name, configuration, freezing) in [
        ("Intel, version 2 on", intel(2), false),
        ("Intel, version 4 on, freezing", intel(4), true),
        ("AMD, legacy and core extension", amd(AmdConfiguration::LEGACY), false),
        ("AMD, PerfMonV2", amd(AmdConfiguration::perf_mon_v2(6)), false),
    ] {
        let row = format!("| {name} {}", row(configuration, freezing));
        if !include_str!("../../data/accesses.md").contains(&row) {
            missing.push(row);
        }
    }
    assert!(missing.is_empty(), "tests/data/accesses.md lacks:\n{}", missing.join("\n"));
}

/// A group of four on general counters, the first of which interrupts: interrupt, switch out and in, start, stop, read;
/// and a rotation from two groups of two.
fn row(configuration: Configuration, freezing: bool) -> String {
    let processor = Processor::new(configuration, freezing, Deviations::NONE);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let (extra, platform) = (WithExtra::new(&mock), FakePlatform::default());
    let source = Events::new(&processor.unit, &table);
    let general = processor.unit.counters() & CounterSet::GENERAL;
    let four: CounterSet = general.iter().take(4).collect();
    let mut counters =
        CounterSession::take(source, &processor.unit, four, (&extra, &platform), &memory).unwrap();
    if freezing {
        counters.freeze_on_interrupt().unwrap();
    }
    let events = [raw(2).every(0x1000).with_total(), raw(3), raw(4), raw(5)];
    let group = counters.open(&processor.unit, &events).unwrap();
    take(&extra, &platform);
    counters.enable(group, 0).unwrap();
    let start = take(&extra, &platform);
    counters.read_group(group, 0, &mut [EventCount::default(); 4]).unwrap();
    let read = take(&extra, &platform);
    mock.pass(&mut happened(2, 0x1000));
    let mut reports = 0;
    service(&source, &(&extra, &platform), &memory, |_| reports += 1).unwrap();
    assert_eq!(reports, 1);
    let interrupt = take(&extra, &platform);
    let mut thread: Vec<_> = counters.group_events(group).map(ThreadEvent::Opened).collect();
    counters.switch_out(&mut thread, 0, |o| panic!("{o:?}")).unwrap();
    counters.switch_in(&processor.unit, &mut thread, 0).unwrap();
    let switch = take(&extra, &platform);
    let group = id_of(&thread[0]);
    counters.disable(group, 0).unwrap();
    let stop = take(&extra, &platform);
    counters.close(group, 0).unwrap();
    // Two stay, two turn.
    let mut open = |events: [Event; 2]| {
        let group = counters.open(&processor.unit, &events).unwrap();
        counters.enable(group, 0).unwrap();
    };
    open([raw(2), raw(3)]);
    open([raw(4), raw(5)].map(Event::rotating));
    open([raw(6), raw(7)].map(Event::rotating));
    take(&extra, &platform);
    counters.rotate(1).unwrap();
    let rotate = take(&extra, &platform);
    format!("| {interrupt} | {switch} | {start} | {read} | {stop} | {rotate} |")
}

#[test]
fn the_table_of_groups_costs_is_what_is_measured() {
    assert_rows(row);
}

#[test]
fn an_extra_register_costs_a_read_and_a_write_and_with_the_same_value_nothing() {
    let processor = plain(2);
    let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
    let extra = WithExtra::new(&mock);
    let mut counters = extra.take(&processor, CounterSet::ALL, &memory, &table);
    let mut start = |value| {
        let demand = Demand { value, registers: vec![EXTRA[0]] };
        let id = counters.open(&processor.unit, &[refined(2, &demand)]).unwrap();
        extra.costs.take();
        counters.enable(id, 0).unwrap();
        let costs = extra.costs.take();
        counters.disable(id, 0).unwrap();
        costs
    };
    assert_eq!([1, 1, 2].map(&mut start), [[1, 3, 0], [0, 2, 0], [0, 3, 0]]);
}
