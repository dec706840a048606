//! Opened events that are interrupted.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use pmu::Watchdog;
use pmu_core::interrupt::EventOverflow;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::profile::{Overflow, Session};
use pmu_core::registers::{EventSelect, MAX_COUNTERS};
use pmu_core::thread::{SavedCounter, SavedCounters, ThreadEvent};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, Event, EventId, EventSource, Events, GenericEvent, service};
use pmu_nmi_tests::steps::{self, Event as Interrupt, Moment, step_through};
use pmu_nmi_tests::{Chip, Kind, Machine, amd, intel};

type Memory = CounterMemory<[CounterSlot; MAX_COUNTERS]>;
type Table = EventTable<[EventEntry; 4]>;
type Area = SavedCounters<[SavedCounter; MAX_COUNTERS]>;

const PERIOD: u64 = 0x1000;
/// Rounds of a loop in which its instructions are interrupted: the first ones.
const ROUNDS: u8 = 2;

/// A source; an event that interrupts; one that is only counted; and the operation's, which interrupts. An opened
/// event's place in the table is one less.
const SOURCE: usize = 0;
const SAMPLED: usize = 1;
const COUNTED: usize = 2;
const OWN: usize = 3;
const EVENTS: usize = 4;

/// Instructions retired, which are fixed counter 0's, and three events of general counters.
const INSTRUCTIONS: u64 = 0xC0;
const GENERAL: [u64; 3] = [0x01D1, 0x01D2, 0x01D3];

/// The bits of a select that name the event.
const EVENT_BITS: u64 = 0xF_0000_FFFF;

/// The events on their counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// The one that interrupts is on a general counter; the one that is counted on a fixed one, where there are
    /// some, and an event short of its first wrap.
    Sampling,
    /// The one that interrupts is the watchdog's, on a fixed counter, where there are some; the one that is
    /// counted is on a general counter, and an event short of its second wrap.
    Watching,
}
use Setting::{Sampling, Watching};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Start,
    /// The event that interrupts makes room for another; the one that is only counted does.
    Move,
    MoveCounted,
    /// The one that is only counted makes room on a fixed counter.
    MoveFixed,
    /// Both events.
    Stop,
    Close,
    Read,
    SetPeriod,
    Rotate,
    /// Taken from the processor, and given to it again.
    Switch,
    /// The operation's event in a group: alone, or with another where there are fixed counters.
    StartGroup,
    StopGroup,
    TakeMore,
    GiveBack,
    OthersControl,
    /// Nothing was lost.
    Reprogram,
    StopSource,
    /// Saved and restored.
    SwitchSources,
    Touch,
    /// The interrupt path, which another interrupt interrupts.
    Serve,
    ShutDown,
}
use Operation::*;

const OPERATIONS: [(Operation, Setting); 26] = [
    (Start, Sampling),
    (Start, Watching),
    (Move, Sampling),
    (MoveCounted, Watching),
    (MoveFixed, Sampling),
    (Stop, Sampling),
    (Close, Watching),
    (Read, Sampling),
    (Read, Watching),
    (SetPeriod, Sampling),
    (Rotate, Sampling),
    (Switch, Sampling),
    (Switch, Watching),
    (StartGroup, Watching),
    (StopGroup, Watching),
    (TakeMore, Sampling),
    (GiveBack, Sampling),
    (OthersControl, Sampling),
    (Reprogram, Sampling),
    (Reprogram, Watching),
    (StopSource, Sampling),
    (SwitchSources, Sampling),
    (Touch, Watching),
    (Serve, Sampling),
    (Serve, Watching),
    (ShutDown, Watching),
];

/// The driver's reports.
#[derive(Default)]
struct Reports {
    count: [AtomicU64; EVENTS],
    /// Sums of their periods.
    sum: [AtomicU64; EVENTS],
    /// Reports at which the watchdog found the processor stuck.
    stuck: AtomicU64,
    /// Reports of events that do not exist.
    wrong: AtomicU32,
}

impl Reports {
    fn add(&self, source: Option<Overflow>, overflow: &EventOverflow, watchdog: &Watchdog) {
        let (place, period) = match source {
            Some(overflow) => (SOURCE, overflow.events),
            None => {
                let stuck = watchdog.is_stuck(overflow.event);
                self.stuck.fetch_add(stuck.into(), SeqCst);
                (overflow.event.index().map_or(EVENTS, |place| place + 1), overflow.period)
            }
        };
        match (self.count.get(place), self.sum.get(place)) {
            (Some(count), Some(sum)) if period % PERIOD == 0 => {
                count.fetch_add(1, SeqCst);
                sum.fetch_add(period, SeqCst);
            }
            _ => _ = self.wrong.fetch_add(1, SeqCst),
        }
    }

    fn count(&self, event: usize) -> u64 {
        self.count[event].load(SeqCst)
    }
}

fn raw(select: u64) -> Event {
    Event::raw(EventSelect::from_bits(select))
}

/// Executes an operation, interrupted or not, and checks every result.
fn interrupt<I: EventSource<Processor = Snapshot>>(
    machine: &Machine<I>,
    (operation, setting): (Operation, Setting),
) {
    let context = format!("{operation:?}, {setting:?}, {:?}", machine.kind);
    let interface = &machine.interface;
    let unit = interface.unit_of(&machine.processor);
    let fixed = unit.counters() & CounterSet::FIXED;
    let general: Vec<_> = (unit.counters() & CounterSet::GENERAL).iter().collect();
    let cycles = unit.generic(GenericEvent::Cycles).expect("cycles").select_bits();
    // A source whose event is none of the others.
    let others = [INSTRUCTIONS, cycles & EVENT_BITS];
    let row = machine.interface.sources().iter().find(|row| {
        let select = row.select().select_bits() & EVENT_BITS;
        machine.sources.contains(&row.source()) && !others.contains(&select)
    });
    let (source, select) = row.map(|row| (row.source(), row.select().select_bits())).unwrap();
    interface.set_interval(source, PERIOD).unwrap();
    let (sampled, counted) = match setting {
        Sampling => (raw(GENERAL[0]).every(PERIOD), raw(INSTRUCTIONS)),
        Watching => (Watchdog::event(&unit, PERIOD / 4, 4).unwrap(), raw(GENERAL[0])),
    };
    let selects = match setting {
        Sampling => [select, GENERAL[0], INSTRUCTIONS, GENERAL[1]],
        Watching => [select, cycles, GENERAL[0], GENERAL[1]],
    };
    let sampled = sampled.with_total().rotating();
    let chip = Chip::new(machine.kind, selects);
    let (memory, table, watchdog) = (Memory::new(), Table::new(), Watchdog::new());
    let table: &EventTable = &table;
    let reports = Reports::default();
    let both = Events::new(interface, table);
    let report = |overflow: &EventOverflow| {
        reports.add(both.overflow(overflow), overflow, &watchdog);
    };
    let serve = || {
        if service(&both, &chip, &memory, |sample| report(&sample)).is_err() {
            std::process::abort();
        }
    };
    let deliver = || {
        while chip.deliver() {
            serve();
        }
    };
    let interrupt = |moment| match moment {
        Moment::Happens(Interrupt::Overflow { .. }) => {
            (0..EVENTS).for_each(|event| _ = chip.happen(event, PERIOD));
        }
        Moment::Happens(Interrupt::Spurious) => chip.raise(),
        Moment::Happens(Interrupt::None) => {}
        Moment::Delivered => deliver(),
    };
    // Lets `count` of an event happen.
    let pass = |event: usize, count: u64| {
        let mut left = count;
        while left > 0 {
            left = chip.happen(event, left);
            deliver();
        }
    };

    let on_general = 2 + usize::from(setting == Watching || fixed.is_empty())
        - usize::from(setting == Watching && !fixed.is_empty());
    let first = |count: usize| general[..count].iter().copied().collect::<CounterSet>();
    let only = match operation {
        Rotate => first(on_general) | fixed,
        TakeMore => first(3) | (fixed & CounterSet::fixed(0b011)),
        OthersControl => first(3) | fixed,
        _ => CounterSet::ALL,
    };
    let mut session = Session::take(both, &machine.processor, only, &chip, &memory).unwrap();
    if machine.freezes {
        session.freeze_on_interrupt().unwrap();
    }
    session.start(source).unwrap();
    let counters = session.counters_mut();
    let sampled_id = counters.open(&unit, &[sampled]).unwrap();
    let counted_id = counters.open(&unit, &[counted]).unwrap();
    if setting == Watching {
        watchdog.watch(sampled_id);
    }
    counters.enable(sampled_id, 0).unwrap();
    counters.enable(counted_id, 0).unwrap();
    let on = |event| counters.counter_of(event).unwrap().only();
    let own = raw(GENERAL[1]).every(PERIOD).with_total().rotating();
    let own = match operation {
        Move => own.on(on(sampled_id)),
        MoveCounted => own.on(on(counted_id)),
        MoveFixed => raw(INSTRUCTIONS).every(PERIOD).on(CounterSet::fixed(1)),
        _ => own,
    };
    let (own_id, group) = if matches!(operation, StartGroup | StopGroup) {
        let both = [own, raw(GENERAL[2])];
        let group = if fixed.is_empty() { &both[..1] } else { &both };
        let group = counters.open(&unit, group).unwrap();
        let own_id = counters.group_events(group).next().unwrap();
        (own_id, Some(group))
    } else {
        (counters.open(&unit, &[own]).unwrap(), None)
    };
    let ids = [None, Some(sampled_id), Some(counted_id), Some(own_id)];
    for (place, id) in ids.into_iter().enumerate() {
        assert_eq!(id.and_then(EventId::index), place.checked_sub(1), "{context}");
    }
    if operation == StopGroup {
        counters.enable(group.unwrap(), 0).unwrap();
        pass(OWN, chip.room(OWN).unwrap() - 1);
    }
    if operation == Rotate {
        counters.enable(own_id, 0).unwrap();
        assert_eq!(counters.counter_of(own_id), None, "{context}: does not wait");
    }
    if setting == Watching {
        pass(COUNTED, chip.room(COUNTED).unwrap());
    }
    if operation == Touch {
        // The time that it has at first is over.
        pass(SAMPLED, PERIOD);
    }
    // Each is an event short of its overflow.
    for event in [SOURCE, SAMPLED, COUNTED] {
        pass(event, chip.room(event).unwrap() - 1);
    }
    let idle = general.iter().rev().copied().find(|counter| {
        [Some(sampled_id), Some(counted_id)]
            .iter()
            .flatten()
            .all(|id| counters.counter_of(*id) != Some(*counter))
    });
    let idle = idle.unwrap().only();
    let before = counters.counters().usable;
    let more = unit.counters().without(before);
    let mut area = Area::new();
    let mut thread = [sampled_id, counted_id].map(ThreadEvent::Opened);
    let mut values = [None; 2];
    let mut least = [0; 2];

    step_through(&interrupt, || match operation {
        Start | Move | MoveCounted | MoveFixed => session.counters_mut().enable(own_id, 1).unwrap(),
        Stop => {
            session.counters_mut().disable(sampled_id, 1).unwrap();
            session.counters_mut().disable(counted_id, 1).unwrap();
        }
        Close => {
            values[0] = Some(session.counters_mut().close(sampled_id, 1).unwrap().value);
            values[1] = Some(session.counters_mut().close(counted_id, 1).unwrap().value);
        }
        Read => {
            least = [SAMPLED, COUNTED].map(|event| chip.total(event));
            values[0] = Some(session.counters_mut().read(sampled_id, 1).unwrap().value);
            values[1] = Some(session.counters_mut().read(counted_id, 1).unwrap().value);
        }
        SetPeriod => table.set_period(sampled_id, 2 * PERIOD).unwrap(),
        Rotate => session.counters_mut().rotate(1).unwrap(),
        Switch => {
            session.counters_mut().switch_out(&mut thread, 1, |sample| report(&sample)).unwrap();
            session.counters_mut().switch_in(&unit, &mut thread, 2).unwrap();
        }
        StartGroup => session.counters_mut().enable(group.unwrap(), 1).unwrap(),
        StopGroup => session.counters_mut().disable(group.unwrap(), 1).unwrap(),
        Reprogram => {
            let anew = session.reprogram(|sample| report(&sample)).unwrap();
            assert!(anew.is_empty(), "{context}: registers that were not lost");
        }
        TakeMore => {
            assert_eq!(session.counters_mut().take_more(&unit, more), Ok(more), "{context}")
        }
        GiveBack => session.counters_mut().give_back(idle).unwrap(),
        OthersControl => {
            session.counters_mut().set_others_control(more.bits(), true).unwrap();
            session.counters_mut().set_others_control(more.bits(), false).unwrap();
            session.counters_mut().set_others_control(more.bits(), true).unwrap();
        }
        StopSource => session.stop(source).unwrap(),
        SwitchSources => {
            session.save(&mut area, |overflow| report(&overflow)).unwrap();
            session.restore(&area).unwrap();
        }
        Touch => watchdog.touch(),
        Serve => serve(),
        ShutDown => session.shut_down().unwrap(),
    });

    assert_eq!(reports.wrong.load(SeqCst), 0, "{context}: reports of no event");
    let running = |event: usize| match (operation, event) {
        (Stop | Close, SAMPLED | COUNTED) | (StopSource, SOURCE) | (ShutDown, _) => false,
        (Rotate, SAMPLED) => false,
        (Start | Move | MoveCounted | Rotate | StartGroup, OWN) => true,
        (_, OWN) => false,
        _ => true,
    };
    assert_eq!(chip.counted(), [0, 1, 2, 3].map(running), "{context}");
    // Stopped events do not happen.
    for event in (0..EVENTS).filter(|event| !running(*event)) {
        let told = reports.count(event);
        pass(event, 3 * PERIOD);
        chip.raise();
        deliver();
        assert_eq!(reports.count(event), told, "{context}: {event} is told of");
    }
    match operation {
        // All of it happened before they were stopped.
        Close => {
            let totals = [SAMPLED, COUNTED].map(|event| Some(chip.total(event)));
            assert_eq!(values, totals, "{context}: totals");
        }
        Read => {
            for (place, event) in [SAMPLED, COUNTED].into_iter().enumerate() {
                let value = values[place].unwrap();
                assert!((least[place]..=chip.total(event)).contains(&value), "{context}: {value}");
            }
        }
        OthersControl => {
            let bits = (before | more).bits();
            assert_eq!(chip.global(), (bits, false), "{context}");
        }
        ShutDown => {
            assert_eq!(chip.global(), (0, false), "{context}: not as it was found");
            return;
        }
        _ => {}
    }
    let counters = session.counters_mut();
    match operation {
        Stop => {
            counters.enable(sampled_id, 2).unwrap();
            counters.enable(counted_id, 2).unwrap();
        }
        // A source begins a period anew.
        StopSource => session.start(source).unwrap(),
        GiveBack => assert_eq!(counters.counters().usable, before.without(idle), "{context}"),
        Switch => {
            assert_eq!(thread, [sampled_id, counted_id].map(ThreadEvent::Opened), "{context}");
        }
        _ => {}
    }
    // Running events continue: each overflow is reported once, at the end of its period.
    let counters = session.counters_mut();
    for event in [SOURCE, OWN, SAMPLED, COUNTED] {
        match (operation, event) {
            (Close, SAMPLED | COUNTED) => continue,
            (Rotate, SAMPLED) => counters.rotate(3).unwrap(),
            _ if event == OWN && !running(OWN) => continue,
            _ => {}
        }
        let id = ids[event];
        if event == COUNTED {
            pass(COUNTED, 5 * PERIOD + 1);
            assert_eq!(reports.count(COUNTED), 0, "{context}: what is only counted is told of");
        } else {
            let (told, most) = (reports.count(event), chip.total(event) + 8 * PERIOD);
            while reports.count(event) < told + 3 && chip.total(event) < most {
                pass(event, chip.room(event).expect("it runs"));
            }
            let untold = chip.total(event).wrapping_sub(reports.sum[event].load(SeqCst));
            let expected: &[u64] = match (operation, event) {
                // A pending overflow was dropped.
                (Stop, SAMPLED) => &[0, PERIOD],
                (StopSource, SOURCE) => &[0, PERIOD, PERIOD - 1],
                // A pending overflow was reported at the next event.
                (Move | Rotate, SAMPLED) => &[0, 1],
                _ => &[0],
            };
            assert!(expected.contains(&untold), "{context}: {event}: {untold} not told of");
        }
        if let Some(id) = id {
            let value = counters.read(id, 10).unwrap().value;
            assert_eq!(value, chip.total(event), "{context}: {event}'s total");
        }
    }
    if setting == Watching {
        // One tick at first, another in between: each was good for one overflow.
        let ticks = if operation == Touch { 2 } else { 1 };
        let stuck = reports.count(SAMPLED).saturating_sub(ticks);
        assert_eq!(reports.stuck.load(SeqCst), stuck, "{context}: stuck");
    }
    assert_eq!(reports.wrong.load(SeqCst), 0, "{context}: reports of no event");
    session.shut_down().unwrap();
    assert_eq!(chip.counted(), [false; EVENTS], "{context}");
}

fn every_instruction<I: EventSource<Processor = Snapshot>>(machine: &Machine<I>) {
    let has_global = !matches!(machine.kind, Kind::Legacy | Kind::Core(false) | Kind::Intel(1));
    let has_fixed = matches!(machine.kind, Kind::Intel(2..));
    let operations = OPERATIONS.into_iter().filter(|(operation, _)| match operation {
        MoveFixed => has_fixed,
        OthersControl => has_global,
        _ => true,
    });
    steps::every_instruction(machine, operations, ROUNDS, 2, |operation| {
        interrupt(machine, operation)
    });
}

#[test]
fn an_interrupt_at_any_instruction_of_opened_events_does_no_harm() {
    every_instruction(&intel(1, false));
    every_instruction(&intel(2, false));
    every_instruction(&intel(3, true));
    every_instruction(&intel(4, true));
    every_instruction(&amd(Kind::Legacy));
    every_instruction(&amd(Kind::Core(false)));
    every_instruction(&amd(Kind::Core(true)));
}
