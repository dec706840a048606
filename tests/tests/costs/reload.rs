//! Costs of counter reload in register accesses: exact, and equal to the table in tests/data/accesses.md.

use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::{EventSelect, MAX_COUNTERS};
use pmu_core::reload::{AutoCounterReload, ReloadMemory};
use pmu_core::thread::ThreadEvent;
use pmu_core::{CounterSession, CounterSet, Event, EventId, EventSource, Events};
use pmu_tests::opened::Mock;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
use pmu_virt::{FedEvents, VirtualPmu};

use super::accesses_of;

/// Numbers of RDMSRs, WRMSRs, and RDPMCs.
type Cost = [u32; 3];

fn text(cost: Cost) -> String {
    let parts = cost.into_iter().zip(["R", "W", "P"]).filter(|(count, _)| *count != 0);
    let parts: Vec<_> = parts.map(|(count, kind)| format!("{count}{kind}")).collect();
    if parts.is_empty() { "–".into() } else { parts.join(" ") }
}

/// Costs of a start, a stop, a thread's switch out and in, a rotation and a window, of groups with these members.
fn measure<S: EventSource>(
    mock: &Mock<'_>,
    source: S,
    memory: &CounterMemory,
    events: [Event; 2],
) -> [Cost; 5] {
    let unit = pmu_intel::counters(&mock.snapshot());
    let mut session = CounterSession::take(source, &unit, CounterSet::ALL, mock, memory).unwrap();
    let cost = |act: &mut dyn FnMut()| accesses_of(mock, act);
    let [first, second]: [EventId; 2] = [5_000, 6_000].map(|period| {
        let events = events.map(|event| event.every(period).rotating());
        session.open(&unit, &events).unwrap()
    });
    // The registers of all counters are known from here on.
    session.enable(first, 0).unwrap();
    session.disable(first, 0).unwrap();
    let start = cost(&mut || session.enable(first, 0).unwrap());
    let ids: Vec<_> = session.group_events(first).collect();
    let mut thread = [ThreadEvent::Opened(ids[0]), ThreadEvent::Opened(ids[1])];
    let switch = cost(&mut || {
        session.switch_out(&mut thread, 0, |_| ()).unwrap();
        session.switch_in(&unit, &mut thread, 0).unwrap();
    });
    session.enable(second, 0).unwrap();
    let rotate = cost(&mut || session.rotate(0).unwrap());
    let lend = cost(&mut || {
        let window = session.lend(0, |_| ()).unwrap();
        window.end(0).unwrap();
    });
    let stop = cost(&mut || {
        session.disable(second, 0).unwrap();
    });
    session.shut_down().unwrap();
    [start, stop, switch, rotate, lend]
}

#[test]
fn the_row_of_counter_reload_is_what_is_measured() {
    // Two general counters, and no fixed one, so that the groups rotate.
    let intel = IntelConfiguration::new(6, 2, 0);
    let configuration = Configuration::Intel(intel);
    let mock = || {
        let pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
        let reload = VirtualReload::new(&configuration, ReloadConfiguration::of(0b11, 0)).unwrap();
        let mock = Mock::strict(pmu).with_reload(reload);
        let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
        mock
    };
    let event = |number| Event::raw(EventSelect::from_bits(number)).every(5_000);
    let plain = [event(0xC5), event(0xC4)];
    let costs = [false, true].map(|reloads| {
        let mock = mock();
        let unit = pmu_intel::counters(&mock.snapshot());
        let table = EventTable::<[EventEntry; 6]>::new();
        let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
        let opened = Events::new(&unit, &table as &EventTable);
        if !reloads {
            return measure(&mock, opened, &memory, plain);
        }
        let known = ReloadMemory::new();
        let reload = pmu_intel::counter_reload(&mock.snapshot()).unwrap();
        let source = opened.with(AutoCounterReload::new(&reload, &known));
        let events = plain.map(|event| event.reloaded_by(0b10));
        measure(&mock, source, &memory, events)
    });
    let [without, with] = costs;
    let more =
        |operation: usize| [0, 1, 2].map(|kind| with[operation][kind] - without[operation][kind]);
    let line = format!("| reload | {} |", [0, 1, 2, 3, 4].map(more).map(text).join(" | "));
    assert!(
        include_str!("../../data/accesses.md").contains(&line),
        "tests/data/accesses.md lacks:\n{line}"
    );
}
