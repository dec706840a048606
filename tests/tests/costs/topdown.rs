//! Costs of top-down counts in register accesses: exact, and equal to the table in tests/data/accesses.md.

use pmu_core::facility::DivisionMemory;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::reading::sample_read;
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{CounterSession, CounterSet, EventCount, Events, service};
use pmu_intel::topdown::{TopDown, TopDownUnit};
use pmu_tests::opened::Mock;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::topdown::VirtualTopDown;
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

use super::{accesses_of, are_in_the_table};

/// Numbers of RDMSRs, WRMSRs, and RDPMCs.
type Cost = [u32; 3];

fn text(cost: Cost) -> String {
    let parts = cost.into_iter().zip(["R", "W", "P"]).filter(|(count, _)| *count != 0);
    let parts: Vec<_> = parts.map(|(count, kind)| format!("{count}{kind}")).collect();
    if parts.is_empty() { "–".into() } else { parts.join(" ") }
}

/// Costs of a counter's interrupt without an overflow of the slots, beyond the counter's own; of the overflow's
/// interrupt; of a start, of a read, of a read of many slots, of a switch out and in, of a stop, of the first start,
/// and of a read in a handler.
fn measure(freezing: bool) -> [Cost; 9] {
    let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    let (slots, branches) = (EventKey::fixed(3).unwrap(), EventKey::general(0xC4, 0));
    let events = FedEvents::new(&[slots, branches]).unwrap();
    let pmu = VirtualPmu::new(configuration, events).unwrap();
    let metrics = VirtualTopDown::new(&configuration, true).unwrap();
    let mock = Mock::strict(pmu).with_top_down(metrics);
    let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
    let unit = TopDownUnit::of(&mock.snapshot(), &&mock).unwrap();
    let counters = pmu_intel::counters(&mock.snapshot());
    let (lent, table) = (DivisionMemory::new(), EventTable::<[EventEntry; 16]>::new());
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let source = Events::new(&counters, &table as &EventTable);
    let source = source.with(TopDown::new(&unit, &lent));
    let handler = |mock: &Mock<'_>| {
        service(&source, mock, &memory, |_| ()).unwrap();
    };
    mock.on_interrupt(&handler);
    let mut session =
        CounterSession::take(source, &counters, CounterSet::ALL, &mock, &memory).unwrap();
    if freezing {
        session.freeze_on_interrupt().unwrap();
    }
    let event =
        pmu_core::Event::raw(pmu_core::registers::EventSelect::from_bits(0xC4)).every(5_000);
    let event = session.open(&counters, &[event]).unwrap();
    session.enable(event, 0).unwrap();
    let pass = |key, count| {
        let mut feed = Feed::new(&events);
        feed.add(events.find(key).unwrap(), Privilege::User, count).unwrap();
        mock.advance(&mut feed);
    };
    let cost = |act: &mut dyn FnMut()| accesses_of(&mock, act);
    let own = cost(&mut || pass(branches, 5_000));
    let events = unit.events(session.counters().usable);
    let group = session.open(&counters, &events).unwrap();
    let first = cost(&mut || session.enable(group, 0).unwrap());
    session.disable(group, 0).unwrap();
    let start = cost(&mut || session.enable(group, 0).unwrap());
    let beside = cost(&mut || pass(branches, 5_000));
    let read_group = |session: &CounterSession<'_, _, _>| {
        session.read_group(group, 0, &mut [EventCount::default(); 9]).unwrap();
    };
    let read = cost(&mut || read_group(&session));
    pass(slots, 1 << 31);
    let read_of_many = cost(&mut || read_group(&session));
    let sampled = session.group_events(group).next().unwrap();
    let in_handler = cost(&mut || {
        assert_eq!(sample_read(&source, &mock, &memory, sampled, 0).unwrap().count(), 9);
    });
    let overflow = cost(&mut || pass(slots, 1 << 48));
    let stop = cost(&mut || session.disable(group, 0).unwrap());
    session.close(group, 0).unwrap();
    let saved = events.iter().map(|event| SavedEvent::new(&counters, event).unwrap());
    let mut saved: Vec<_> = saved.map(|event| event.to_be_enabled(true)).collect();
    SavedEvent::make_group(&mut saved).unwrap();
    let mut thread: Vec<_> = saved.into_iter().map(ThreadEvent::SwitchedOut).collect();
    session.switch_in(&counters, &mut thread, 0).unwrap();
    let switch = cost(&mut || {
        session.switch_out(&mut thread, 0, |_| ()).unwrap();
        session.switch_in(&counters, &mut thread, 0).unwrap();
    });
    assert!(mock.breach().is_none(), "{:?}", mock.breach());
    let more = [0, 1, 2].map(|kind| beside[kind] - own[kind]);
    [more, overflow, start, read, read_of_many, switch, stop, first, in_handler]
}

#[test]
fn the_rows_of_top_down_counts_are_what_is_measured() {
    let mut lines = vec![];
    for (name, freezing) in [("not freezing", false), ("freezing", true)] {
        let costs = measure(freezing);
        assert_eq!(costs[0], [0; 3], "{name}: beside counters");
        lines.push(format!("| {name} | {} |", costs.map(text).join(" | ")));
    }
    are_in_the_table(&lines);
}
