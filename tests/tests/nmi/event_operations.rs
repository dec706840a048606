//! The performance interrupt as an NMI at every register access of every operation on opened events, beside a
//! source. `source_operations.rs` has the operations on sources.
//!
//! The expected counts come from the model, by the events that it was fed: every period is reported once, every total
//! is exact, and no NMI that a counter raised is left unclaimed.

use super::events::*;
use super::world::World;
use core::cell::Cell;
use pmu_amd::Amd64;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::registers::{CounterId, MAX_COUNTERS};
use pmu_core::thread::{SavedCounter, SavedCounters, ThreadEvent};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, CounterUnit, EventSource, Events};
use pmu_intel::Emon;
use pmu_tests::deviations::{self, snapshot};
use pmu_tests::opened::{self, Mock, Table, raw, running};
use pmu_tests::reports::{Report, service_reports};
use pmu_tests::{StateRegisters, enum_with_all};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviation, Deviations};
use pmu_virt::{EventKey, VirtualPmu};

type Memory = CounterMemory<[CounterSlot; MAX_COUNTERS]>;

enum_with_all! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Operation {
        Start,
        StartWithMove,
        /// A group of one.
        StartGroup,
        Stop,
        /// The two events that run are one group.
        StopGroup,
        /// The event that interrupts, which is not the group's first.
        DisableMember,
        EnableMember,
        Close,
        /// The event that interrupts, of a group in which the other one stays.
        CloseMember,
        /// The first event of the group, which the other one then outlives alone.
        CloseFirst,
        Read,
        /// The same period begins anew.
        ApplyPeriod,
        Rotate,
        RotateGroup,
        SwitchOut,
        Switch,
        SwitchGroup,
        TakeMore,
        GiveBack,
        OthersFixedControl,
        Reprogram,
        ReprogramLost,
        Suspend,
        /// The registers lose their contents meanwhile.
        SuspendLost,
        SaveSources,
        StopSource,
        ShutDown,
    }
}

impl Operation {
    /// Returns whether it needs one more event or counter than the three that run.
    fn needs_a_fourth_counter(self) -> bool {
        matches!(self, Self::Start | Self::StartWithMove | Self::StartGroup | Self::TakeMore)
    }

    fn leaves_counters_out(self) -> bool {
        self.rotates() || self == Self::TakeMore
    }

    fn rotates(self) -> bool {
        matches!(self, Self::Rotate | Self::RotateGroup)
    }

    /// Returns whether the two events that run are one group.
    fn is_of_a_group(self) -> bool {
        self.is_of_a_member()
            || matches!(
                self,
                Self::StopGroup | Self::CloseFirst | Self::RotateGroup | Self::SwitchGroup
            )
    }

    fn is_of_a_member(self) -> bool {
        matches!(self, Self::DisableMember | Self::EnableMember | Self::CloseMember)
    }
}

/// Interrupts an operation. Returns whether the plan went beyond its end.
fn interrupt<I: EventSource<Processor = Snapshot>>(
    interface: &I,
    (configuration, freezing, deviations): (Configuration, bool, Deviations),
    on_fixed: bool,
    operation: Operation,
    plan: Plan,
) -> bool {
    let deviates = |deviation| deviations.contains(deviation);
    let snapshot = snapshot(deviations.configuration(configuration), deviations);
    let unit = interface.unit_of(&snapshot);
    let dead = if deviates(Deviation::DeadCounter) { 0b10 } else { 0 };
    let general = unit.counters() & CounterSet::GENERAL;
    let general: Vec<_> = general.without(CounterSet::from_bits(dead)).iter().collect();
    if general.len() < 4 && operation.needs_a_fourth_counter() {
        return true;
    }
    // Counters left running beside the session's are another owner's.
    if operation.leaves_counters_out() && deviates(Deviation::LeftRunning) {
        return true;
    }
    let has_fixed = !(unit.counters() & CounterSet::FIXED).is_empty();
    if operation == Operation::OthersFixedControl && !has_fixed {
        return true;
    }
    let context =
        format!("{operation:?}, {plan:?}, {on_fixed}, {configuration:?}, {freezing}, {deviations}");
    // A source whose event is none of the others.
    let key_of = |row: &pmu_core::profile::ProfileSource| {
        EventKey::of_select(configuration.vendor(), row.select().select_bits())
    };
    let others = opened::KINDS.map(|(event, unit_mask)| EventKey::general(event.into(), unit_mask));
    let mut rows = interface.sources().iter().filter(|row| {
        let there =
            row.source() != KProfileSource::TIME && interface.query(row.source()).is_supported();
        there && !others.contains(&key_of(row))
    });
    let row = rows.next().unwrap();
    let source = row.source();
    interface.set_interval(source, PERIOD).unwrap();
    // One of the two events is on a fixed counter, where there are some.
    let kinds = if on_fixed { [0, 5] } else { [5, 0] };
    let key = |kind: usize| {
        let (event, unit_mask) = opened::KINDS[kind];
        let general = EventKey::general(event.into(), unit_mask);
        vec![general]
    };
    let keys = [vec![key_of(row)], key(kinds[0]), key(kinds[1]), key(4)];
    let world = Processor::new(context, deviations, keys);
    let context = &world.context;
    let (memory, table) = (Memory::new(), Table::new());
    let both = Events::new(interface, &table);
    let handler = |mock: &Mock<'_>| {
        let told = |report| {
            world.told(report);
            world.callback(mock, report);
        };
        let serviced = service_reports(&both, mock, &memory, told).unwrap();
        world.claimed(serviced.claim);
    };
    let before_access = |mock: &Mock<'_>| world.step(mock);
    let mock =
        Mock::strict(VirtualPmu::new(deviations.configuration(configuration), world.fed).unwrap())
            .deviating(deviations);
    if !deviates(Deviation::LeftRunning) {
        for control in [0x38F, 0xC000_0301] {
            let _ = mock.with_pmu(|pmu| pmu.write(control, 0));
        }
    }
    mock.on_interrupt(&handler);
    mock.on_access(&before_access);
    let only = match operation {
        operation if operation.rotates() => general[..3].iter().copied().collect(),
        Operation::TakeMore => {
            general[..3].iter().copied().collect::<CounterSet>() | CounterSet::fixed(1)
        }
        _ => CounterSet::ALL,
    };
    let mut session = Session::take(both, &snapshot, only, &mock, &memory).unwrap();
    let unresponsive = session.counters().unresponsive;
    assert_eq!(unresponsive, CounterSet::from_bits(dead) & only, "{context}");
    if freezing {
        session.freeze_on_interrupt().unwrap();
    }
    session.start(source).unwrap();
    let counters = session.counters_mut();
    let sampling = |kind| raw(kind).every(PERIOD).with_total().rotating();
    let mut pair = [sampling(kinds[0]), raw(kinds[1])];
    if operation.is_of_a_member() {
        pair.reverse();
    }
    let group = operation.is_of_a_group().then(|| counters.open(&unit, &pair).unwrap());
    let [sampled, counted] = match group {
        Some(group) => {
            counters.enable(group, 0).unwrap();
            let mut events: Vec<_> = counters.group_events(group).collect();
            if operation.is_of_a_member() {
                events.reverse();
            }
            [events[0], events[1]]
        }
        None => pair.map(|event| {
            let id = counters.open(&unit, &[event]).unwrap();
            counters.enable(id, 0).unwrap();
            id
        }),
    };
    world.watchdog.watch(sampled);
    let own = match operation {
        Operation::StartWithMove => {
            let narrow = counters.counter_of(sampled).unwrap().only();
            sampling(4).on(narrow)
        }
        _ => sampling(4),
    };
    if operation == Operation::StartWithMove && on_fixed && has_fixed {
        // Event 4 has no fixed counter that it could want.
        return true;
    }
    let own_group = match operation {
        Operation::StartGroup => Some(counters.open(&unit, &[own]).unwrap()),
        _ => None,
    };
    let own = match own_group {
        Some(group) => counters.group_events(group).next().unwrap(),
        None => counters.open(&unit, &[own]).unwrap(),
    };
    world.ids.set([None, Some(sampled), Some(counted), Some(own)]);
    if operation.rotates() {
        counters.enable(own, 0).unwrap();
    }
    // Each is an event short of its overflow.
    world.happen(&mock, SOURCE, PERIOD - 1);
    world.happen(&mock, SAMPLED, PERIOD - 1);
    let counter = counters.counter_of(counted).unwrap();
    let state = mock.with_pmu(|pmu| pmu.state());
    let values = if counter.is_fixed() { state.fixed() } else { state.general() };
    let mask = unit.counter(counter).unwrap().mask();
    world.happen(&mock, COUNTED, mask - values[usize::from(counter.number())]);
    let lost = operation == Operation::ReprogramLost;
    if lost {
        mock.lose_registers();
        world.counted.iter().for_each(|counted| counted.set(0));
    }
    let before = counters.counters().usable;
    let fourth = general.get(3).map_or(CounterSet::NONE, |counter| counter.only());
    let more = fourth | if has_fixed { CounterSet::fixed(0) } else { CounterSet::NONE };
    let idle = general.iter().rev().find(|c| !running(&mock).contains(**c)).copied();
    let mut area = SavedCounters::<[SavedCounter; MAX_COUNTERS]>::new();

    if operation == Operation::EnableMember {
        counters.disable(sampled, 1).unwrap();
    }
    world.plan.set(Some(plan));
    match operation {
        Operation::Start | Operation::StartWithMove => counters.enable(own, 1).unwrap(),
        Operation::StartGroup => counters.enable(own_group.unwrap(), 1).unwrap(),
        Operation::Stop => counters.disable(sampled, 1).unwrap(),
        Operation::StopGroup => counters.disable(group.unwrap(), 1).unwrap(),
        Operation::DisableMember => counters.disable(sampled, 1).unwrap(),
        Operation::EnableMember => counters.enable(sampled, 1).unwrap(),
        Operation::Close => {
            let count = counters.close(sampled, 1).unwrap();
            assert!(world.fits(SAMPLED, count.value, &unit), "{context}: {count:?}");
        }
        Operation::CloseMember | Operation::CloseFirst => {
            let count = counters.close_member(sampled, 1).unwrap();
            assert!(world.fits(SAMPLED, count.value, &unit), "{context}: {count:?}");
            assert!(counters.group_events(counted).eq([counted]), "{context}");
        }
        Operation::Read => {
            // The read events passed before, or during the reading.
            for (event, id) in [(SAMPLED, sampled), (COUNTED, counted)] {
                let least = world.counted[event].get();
                let value = counters.read(id, 1).unwrap().value;
                assert!((least..=world.counted[event].get()).contains(&value), "{context}");
            }
        }
        Operation::ApplyPeriod => {
            let report = |overflow| world.told(Report::Event(overflow));
            counters.apply_period(sampled, PERIOD, 1, report).unwrap();
        }
        Operation::Rotate | Operation::RotateGroup => counters.rotate(1).unwrap(),
        Operation::SwitchOut | Operation::Switch | Operation::SwitchGroup => {
            let mut thread = [sampled, counted].map(ThreadEvent::Opened);
            counters.switch_out(&mut thread, 1, |o| world.told(Report::Event(*o))).unwrap();
            for (event, place) in [(SAMPLED, thread[0]), (COUNTED, thread[1])] {
                let ThreadEvent::SwitchedOut(event_here) = place else { panic!("{place:?}") };
                let value = event_here.count().value;
                assert!(world.fits(event, value, &unit), "{context}: {event}: {value}");
            }
            if operation == Operation::SwitchOut {
                // Nothing of it counts meanwhile.
                world.end(&mock);
                assert!(!world.runs(&mock, SAMPLED) && !world.runs(&mock, COUNTED), "{context}");
                let told = world.told[SAMPLED].get();
                world.happen(&mock, SAMPLED, 3 * PERIOD);
                assert_eq!(world.told[SAMPLED].get(), told, "{context}");
            }
            counters.switch_in(&unit, &mut thread, 2).unwrap();
            let id = |place: ThreadEvent| match place {
                ThreadEvent::Opened(id) => Some(id),
                _ => None,
            };
            let [_, _, _, own] = world.ids.get();
            world.ids.set([None, id(thread[0]), id(thread[1]), own]);
        }
        Operation::TakeMore => {
            assert_eq!(counters.take_more(&unit, more), Ok(more.without(before)), "{context}");
        }
        Operation::GiveBack => {
            if let Some(idle) = idle {
                counters.give_back(idle.only()).unwrap();
            }
        }
        Operation::OthersFixedControl => {
            // The fixed counters are all the session's: nothing is written.
            let _ = counters.set_others_fixed_control(0xF << 28, 0);
        }
        Operation::Reprogram | Operation::ReprogramLost => {
            let anew = session
                .counters_mut()
                .reprogram(|overflow| match overflow.event.row() {
                    Some(_) => world.told[SOURCE].set(world.told[SOURCE].get() + 1),
                    None => world.told(Report::Event(*overflow)),
                })
                .unwrap();
            assert_eq!(anew.len(), if lost { 3 } else { 0 }, "{context}");
        }
        Operation::Suspend | Operation::SuspendLost => {
            let report = |overflow: pmu_core::interrupt::EventOverflow| match overflow.event.row() {
                Some(_) => world.told[SOURCE].set(world.told[SOURCE].get() + 1),
                None => world.told(Report::Event(overflow)),
            };
            counters.suspend(1, |sample| report(*sample)).unwrap();
            assert_eq!(running(&mock), CounterSet::NONE, "{context}");
            if operation == Operation::SuspendLost {
                mock.lose_registers();
            }
            // The source begins a period anew.
            let told = world.told[SOURCE].get() + world.unseen[SOURCE].get();
            world.counted[SOURCE].set(told * PERIOD);
            let anew = session.counters_mut().resume(2, |sample| report(*sample)).unwrap();
            assert_eq!(anew.len(), 3, "{context}");
        }
        Operation::SaveSources => {
            let emon = *session.interface();
            let told = |overflow| world.told(Report::of(&emon, &overflow));
            session.save(&mut area, told).unwrap();
            session.restore(&area).unwrap();
        }
        Operation::StopSource => session.stop(source).unwrap(),
        Operation::ShutDown => session.shut_down().unwrap(),
    }
    // The rest of the plan may have come within the operation.
    let beyond = plan.at > world.accesses.made();
    world.end(&mock);
    if operation == Operation::ShutDown {
        assert_eq!(running(&mock), CounterSet::NONE, "{context}");
        let told: Vec<u64> = world.told.iter().map(Cell::get).collect();
        (0..4).for_each(|event| world.happen(&mock, event, 3 * PERIOD));
        assert_eq!(told, world.told.iter().map(Cell::get).collect::<Vec<_>>(), "{context}");
        return beyond;
    }
    if operation == Operation::ApplyPeriod {
        begun_anew(&world, &mock, &unit, session.counters_mut().counter_of(sampled).unwrap());
    }
    // Nothing waits for another event's interrupt; but an event that moved is told when it next happens.
    if operation != Operation::StartWithMove && !operation.rotates() {
        for event in [SOURCE, SAMPLED, OWN].into_iter().filter(|event| world.runs(&mock, *event)) {
            let due = world.counted[event].get() / PERIOD;
            let told = world.told[event].get() + world.unseen[event].get();
            assert!(told >= due, "{context}: {event} was told {told} times of {due} at first");
        }
    }
    // Stopped events are silent, and a pending overflow of theirs may have been dropped.
    let mut dropped = [0, u64::from(operation == Operation::ApplyPeriod), 0, 0];
    let stopped = match operation {
        Operation::Stop
        | Operation::StopGroup
        | Operation::DisableMember
        | Operation::Close
        | Operation::CloseMember
        | Operation::CloseFirst => Some(SAMPLED),
        Operation::StopSource => Some(SOURCE),
        _ => None,
    };
    if let Some(stopped) = stopped {
        let told = world.told[stopped].get();
        assert!(!world.runs(&mock, stopped), "{context}");
        world.happen(&mock, stopped, 3 * PERIOD);
        assert_eq!(world.told[stopped].get(), told, "{context}");
        dropped[stopped] = 1;
        match operation {
            Operation::Stop => session.counters_mut().enable(sampled, 2).unwrap(),
            Operation::StopGroup => {
                assert!(!world.runs(&mock, COUNTED), "{context}");
                session.counters_mut().enable(group.unwrap(), 2).unwrap();
            }
            Operation::DisableMember => {
                assert!(world.runs(&mock, COUNTED), "{context}");
                session.counters_mut().enable(sampled, 2).unwrap();
            }
            Operation::StopSource => {
                // A source begins a period anew.
                session.start(source).unwrap();
                world.counted[SOURCE].set(0);
                world.told[SOURCE].set(0);
                dropped[stopped] = 0;
            }
            _ => {
                let again = session.counters_mut().open(&unit, &[sampling(kinds[0])]).unwrap();
                session.counters_mut().enable(again, 2).unwrap();
                let [_, _, counted, own] = world.ids.get();
                world.ids.set([None, Some(again), counted, own]);
                world.counted[SAMPLED].set(0);
                world.told[SAMPLED].set(0);
                dropped[stopped] = 0;
            }
        }
    }
    // Everything continues: each period is reported once, each total is exact.
    let tested = |event: usize| match event {
        OWN => {
            let starts = matches!(
                operation,
                Operation::Start | Operation::StartWithMove | Operation::StartGroup
            );
            starts || operation.rotates()
        }
        _ => true,
    };
    for event in (0..4).filter(|event| tested(*event)) {
        let id = world.ids.get()[event];
        let counters = session.counters_mut();
        if let Some(id) = id
            && counters.counter_of(id).is_none()
        {
            assert!(operation.rotates(), "{context}: {event} has no counter");
            // So much later that the events that took its counter had the greater share since.
            counters.rotate(10_u64.pow(event as u32)).unwrap();
            assert!(counters.counter_of(id).is_some(), "{context}: {event}");
        }
        assert!(world.runs(&mock, event), "{context}: {event}");
        // To the middle of a period, from any point of it.
        let counted = world.counted[event].get();
        let goal = (counted / PERIOD + 3) * PERIOD + PERIOD / 2;
        world.happen(&mock, event, goal - counted);
        if event == COUNTED {
            assert_eq!(world.told[event].get(), 0, "{context}");
        } else {
            let expected = world.counted[event].get() / PERIOD;
            let told = world.told[event].get();
            let unseen = dropped[event] + world.unseen[event].get();
            assert!(
                (expected.saturating_sub(unseen)..=expected).contains(&told),
                "{context}: {event} was told {told} times of {expected}"
            );
        }
        if let Some(id) = id {
            let value = session.counters_mut().read(id, 10).unwrap().value;
            assert!(world.fits(event, value, &unit), "{context}: {event}: {value}");
        }
    }
    session.shut_down().unwrap();
    assert_eq!(running(&mock), CounterSet::NONE, "{context}");
    beyond
}

/// Asserts that the period of the event that interrupts began anew, and reported the one before if it was over then;
/// and counts on as if it had begun where that ended.
fn begun_anew(world: &Processor, mock: &Mock<'_>, unit: &CounterUnit, counter: CounterId) {
    let state = mock.with_pmu(|pmu| pmu.state());
    let values = if counter.is_fixed() { state.fixed() } else { state.general() };
    let registers = unit.counter(counter).unwrap();
    let since = values[usize::from(counter.number())].wrapping_sub(registers.preload(PERIOD));
    let before = world.counted[SAMPLED].get() - (since & registers.mask());
    let told = world.told[SAMPLED].get() + world.unseen[SAMPLED].get();
    assert!(told >= before / PERIOD, "{}: {told} of {before}", world.context);
    world.happen(mock, SAMPLED, PERIOD - (since & registers.mask()) - 1);
    assert_eq!(world.told[SAMPLED].get() + world.unseen[SAMPLED].get(), told, "{}", world.context);
    world.happen(mock, SAMPLED, 1);
    assert!(world.told[SAMPLED].get() + world.unseen[SAMPLED].get() > told, "{}", world.context);
}

/// Runs a plan on each kind of overflow reporting.
fn everywhere(deviations: Deviations, plan: impl Fn(u32) -> Plan) {
    fn every<I: EventSource<Processor = Snapshot>>(
        interface: &I,
        processor: (Configuration, bool, Deviations),
        plan: &impl Fn(u32) -> Plan,
    ) {
        for operation in Operation::ALL {
            for on_fixed in [false, true] {
                (1..).find(|at| interrupt(interface, processor, on_fixed, operation, plan(*at)));
            }
        }
    }
    for (version, freezing) in [
        (1, false),
        (2, false),
        (3, true),
        (4, false),
        (4, true),
        (5, false),
        (5, true),
        (6, false),
    ] {
        let fixed = if version > 1 { 3 } else { 0 };
        let configuration = Configuration::Intel(IntelConfiguration::new(version, 6, fixed));
        let ignored = deviations.contains(Deviation::IgnoresDebugControl);
        let emon = Emon::detect(&snapshot(configuration, deviations)).unwrap();
        every(&emon, (configuration, freezing && !ignored, deviations), &plan);
    }
    for amd in [
        AmdConfiguration::LEGACY,
        AmdConfiguration::CORE_EXTENSION,
        AmdConfiguration::perf_mon_v2(8),
    ] {
        let configuration = Configuration::Amd(amd);
        let amd64 = Amd64::detect(&snapshot(configuration, deviations)).unwrap();
        every(&amd64, (configuration, false, deviations), &plan);
    }
}

#[test]
fn all_counters_overflow_at_any_access() {
    everywhere(Deviations::NONE, |at| Plan { at, late: 0, spurious: None, second: None });
}

#[test]
fn the_interrupt_comes_later_than_the_overflow() {
    for late in [1, 2, 3, 5, 8, 13] {
        everywhere(Deviations::NONE, |at| Plan { at, late, spurious: None, second: None });
    }
}

#[test]
fn the_counters_overflow_within_an_interrupt_of_another_source() {
    for before in 0..12 {
        everywhere(Deviations::NONE, |at| Plan {
            at,
            late: 0,
            spurious: Some(before),
            second: None,
        });
    }
}

/// The second overflow may come within the interrupt of the first.
#[test]
fn a_counter_overflows_at_any_access_after_the_others() {
    for after in 1..12 {
        everywhere(Deviations::NONE, |at| Plan {
            at,
            late: 0,
            spurious: None,
            second: Some(after),
        });
    }
}

#[test]
fn nothing_is_lost_on_a_platform_that_deviates() {
    for deviations in deviations::single() {
        println!("{deviations}");
        for late in [0, 1, 3] {
            everywhere(deviations, |at| Plan { at, late, spurious: None, second: None });
        }
        for before in [0, 2] {
            everywhere(deviations, |at| Plan { at, late: 0, spurious: Some(before), second: None });
        }
        for after in [2, 4] {
            everywhere(deviations, |at| Plan { at, late: 0, spurious: None, second: Some(after) });
        }
    }
}
