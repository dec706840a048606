//! The performance interrupt as an NMI at every register access of every operation on opened events, beside a
//! source. `nmi_accesses.rs` has the operations on sources.
//!
//! The expected counts come from the model, by the events that it was fed: every period is reported once, every total
//! is exact, and no NMI that a counter raised is left unclaimed.

mod opened;
mod world;

use core::cell::Cell;
use pmu_tests::{StateRegisters, enum_with_all};

use opened::{Mock, Table, raw, running};
use pmu::Watchdog;
use pmu_amd::Amd64;
use pmu_core::{
    Claim, CounterMemory, CounterSet, CounterSlot, CounterUnit, EventId, KProfileSource,
    MAX_COUNTERS, ProfileInterface, Report, SavedCounter, SavedCounters, ThreadEvent, WithEvents,
};
use pmu_intel::Emon;
use pmu_tests::deviations::{self, snapshot};
use pmu_virt::mock::{Deviation, Deviations};
use pmu_virt::{
    AmdConfiguration, Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Privilege,
    VirtualPmu,
};
use world::{Accesses, World};

type Memory = CounterMemory<[CounterSlot; MAX_COUNTERS]>;
const PERIOD: u64 = 0x1000;
/// Number of further periods that pass until a late interrupt is taken.
const LATE: u64 = 3;

/// The source, an event that interrupts and has a total, one that is only counted, and the operation's, which
/// interrupts.
const SOURCE: usize = 0;
const SAMPLED: usize = 1;
const COUNTED: usize = 2;
const OWN: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Every running counter overflows just before this access; accesses are counted from 1, those of the
    /// interrupts too.
    at: u32,
    /// Number of accesses after which the interrupt is delivered.
    late: u32,
    /// Number of accesses by which an NMI of another source comes earlier.
    spurious: Option<u32>,
    /// Number of accesses after which the event that interrupts overflows, too.
    second: Option<u32>,
}

impl Plan {
    /// Returns the events that overflow at once, with their counts.
    fn events(self) -> impl Iterator<Item = (usize, u64)> {
        let now = (0..4).filter(move |event| self.second.is_none() || *event != SAMPLED);
        now.map(|event| (event, 1))
    }
}

struct Processor {
    context: String,
    deviations: Deviations,
    /// The keys under which an event counts: a general counter's, and a fixed one's.
    keys: [Vec<EventKey>; 4],
    fed: FedEvents,
    counted: [Cell<u64>; 4],
    told: [Cell<u64>; 4],
    /// Periods that passed within another one, and are not reported.
    unseen: [Cell<u64>; 4],
    /// Overflowed again while it was being reported.
    again: [Cell<bool>; 4],
    /// It watches the event that interrupts.
    watchdog: Watchdog,
    verdicts: Cell<u64>,
    ids: Cell<[Option<EventId>; 4]>,
    plan: Cell<Option<Plan>>,
    accesses: Accesses,
    foreign: Cell<bool>,
    swallow: Cell<bool>,
}

impl Processor {
    fn new(context: String, deviations: Deviations, keys: [Vec<EventKey>; 4]) -> Self {
        let fed = FedEvents::new(&keys.concat()).unwrap();
        Self {
            context,
            deviations,
            keys,
            fed,
            counted: Default::default(),
            told: Default::default(),
            unseen: Default::default(),
            again: Default::default(),
            watchdog: Watchdog::new(),
            verdicts: Cell::default(),
            ids: Cell::default(),
            plan: Cell::default(),
            accesses: Accesses::default(),
            foreign: Cell::default(),
            swallow: Cell::default(),
        }
    }

    fn runs(&self, mock: &Mock<'_>, event: usize) -> bool {
        let keys = &self.keys[event];
        mock.with_pmu(|pmu| pmu.running().any(|running| keys.contains(&running.key)))
    }

    fn feed_of(&self, event: usize, count: u64) -> Feed {
        let mut feed = Feed::new(&self.fed);
        for key in &self.keys[event] {
            feed.add(self.fed.find(*key).unwrap(), Privilege::Kernel, count).unwrap();
        }
        feed
    }

    /// Plays the driver's callback, which takes its time.
    fn callback(&self, mock: &Mock<'_>, report: Report) {
        let event = self.event_of(report).0;
        if self.deviations.contains(Deviation::OverflowsWhileServiced)
            && !self.again[event].replace(true)
        {
            self.unseen[event].set(self.unseen[event].get() + 3);
            self.happen(mock, event, 2 * PERIOD);
        }
    }

    /// Returns the event of a report, and its period.
    #[track_caller]
    fn event_of(&self, report: Report) -> (usize, u64) {
        match report {
            Report::Source(overflow) => (SOURCE, overflow.events),
            Report::Event(overflow) => {
                let place = self.ids.get().iter().position(|id| *id == Some(overflow.event));
                (place.unwrap_or_else(|| panic!("{}: {overflow:?}", self.context)), overflow.period)
            }
        }
    }

    /// Returns whether a total is exact. If the counters run while they are serviced, periods that pass between
    /// reading and loading are not in the total of an event that interrupts.
    fn fits(&self, event: usize, value: u64, unit: &CounterUnit) -> bool {
        let counted = self.counted[event].get();
        // The last processor has counters that should freeze, and do not.
        let run = unit.global().is_none_or(|global| !global.stop_while_serviced)
            || self.deviations.contains(Deviation::NarrowAcknowledge);
        let lossy = event != COUNTED && run;
        let most = if lossy { self.unseen[event].get() } else { 0 };
        (0..=most).any(|lost| value + lost * PERIOD == counted)
    }

    /// Lets the rest of the plan happen. Returns whether there was any.
    fn end(&self, mock: &Mock<'_>) -> bool {
        let Some(plan) = self.plan.take() else { return false };
        self.accesses.deliver_late(mock);
        let access = self.accesses.made();
        let left = plan.at > access;
        if left {
            self.overflow_all(mock, plan.events(), 0);
        }
        if plan.second.is_some_and(|after| plan.at + after > access) {
            self.happen(mock, SAMPLED, 1);
        }
        left
    }

    fn claimed(&self, claim: Claim) {
        let claims = claim.interrupts() + u32::from(self.foreign.take());
        if claims > 1 {
            self.swallow.set(true);
        }
        assert!(
            claims > 0 || self.swallow.take(),
            "{}: an NMI that no handler claims",
            self.context
        );
    }

    /// No tick comes: the watched event has one period, and is late at each further one.
    fn is_late(&self, event: EventId) -> bool {
        let watched = self.ids.get()[SAMPLED].and_then(EventId::place) == event.place();
        watched && self.verdicts.replace(1) > 0
    }

    #[track_caller]
    fn told(&self, report: Report) {
        if let Report::Event(overflow) = report
            && self.watchdog.is_stuck(overflow.event) != self.is_late(overflow.event)
        {
            panic!("{}: {overflow:?}: the watchdog", self.context);
        }
        let (event, period) = self.event_of(report);
        assert_eq!(period, PERIOD, "{}: {event}", self.context);
        self.told[event].set(self.told[event].get() + 1);
    }
}

impl World<64> for Processor {
    type Plan = Plan;

    fn accesses(&self) -> &Accesses {
        &self.accesses
    }

    fn plan(&self) -> Option<Plan> {
        self.plan.get()
    }

    fn disturb(&self, mock: &Mock<'_>, plan: Plan, access: u32) {
        let Plan { at, late, spurious, second } = plan;
        if access == at {
            self.overflow_all(mock, plan.events(), late);
        }
        if second.is_some_and(|after| access == at + after) {
            self.happen(mock, SAMPLED, 1);
        }
        if spurious.is_some_and(|before| access + before == at) {
            self.foreign.set(true);
            mock.interrupt_from_elsewhere();
        }
    }

    /// Where interrupts come late, some more events pass.
    fn pass(&self, mock: &Mock<'_>, event: usize, count: u64) -> (u64, bool) {
        let counted = |more: u64| {
            if self.runs(mock, event) {
                self.counted[event].set(self.counted[event].get() + more);
            }
        };
        let mut feed = self.feed_of(event, count);
        let runs = self.runs(mock, event);
        let advanced = mock.pass(&mut feed);
        let left = feed.count(self.fed.find(self.keys[event][0]).unwrap(), Privilege::Kernel);
        if runs {
            self.counted[event].set(self.counted[event].get() + count - left);
        }
        if advanced.pmi && self.deviations.contains(Deviation::ServicesLate) {
            counted(LATE * PERIOD);
            self.unseen[event].set(self.unseen[event].get() + LATE + 1);
            let passed = mock.pass(&mut self.feed_of(event, LATE * PERIOD));
            assert_eq!(passed.overflowed, 0, "a counter wraps once");
        }
        (left, advanced.pmi)
    }
}

enum_with_all! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Operation {
        Start,
        StartWithMove,
        Stop,
        Close,
        Read,
        Rotate,
        SwitchOut,
        Switch,
        TakeMore,
        GiveUp,
        OthersFixedControl,
        Reprogram,
        ReprogramLost,
        SaveSources,
        StopSource,
        ShutDown,
    }
}

impl Operation {
    /// Returns whether it needs one more event or counter than the three that run.
    fn needs_a_fourth_counter(self) -> bool {
        matches!(self, Self::Start | Self::StartWithMove | Self::TakeMore)
    }

    fn leaves_counters_out(self) -> bool {
        matches!(self, Self::Rotate | Self::TakeMore)
    }
}

/// Interrupts an operation. Returns whether the plan went beyond its end.
fn interrupt<I: ProfileInterface>(
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
    let key_of = |row: &pmu_core::ProfileSource| EventKey::of_select(row.select().select_bits());
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
    let both = WithEvents::new(interface, &table);
    let handler = |mock: &Mock<'_>| {
        let told = |report| {
            world.told(report);
            world.callback(mock, report);
        };
        let serviced = both.service(mock, mock, &memory, told).unwrap();
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
        Operation::Rotate => general[..3].iter().copied().collect(),
        Operation::TakeMore => {
            general[..3].iter().copied().collect::<CounterSet>() | CounterSet::fixed(1)
        }
        _ => CounterSet::ALL,
    };
    let mut session = both.initialize(&snapshot, only, &mock, &mock, &memory).unwrap();
    let unresponsive = session.counters().unresponsive;
    assert_eq!(unresponsive, CounterSet::from_bits(dead) & only, "{context}");
    if freezing {
        session.freeze_on_interrupt().unwrap();
    }
    session.start(source).unwrap();
    let counters = session.counters_mut();
    let sampling = |kind| raw(kind).every(PERIOD).with_total().rotating();
    let sampled = counters.open_event(&unit, &sampling(kinds[0])).unwrap();
    let counted = counters.open_event(&unit, &raw(kinds[1])).unwrap();
    world.watchdog.watch(sampled);
    counters.start_event(sampled, 0).unwrap();
    counters.start_event(counted, 0).unwrap();
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
    let own = counters.open_event(&unit, &own).unwrap();
    world.ids.set([None, Some(sampled), Some(counted), Some(own)]);
    if matches!(operation, Operation::Rotate) {
        counters.start_event(own, 0).unwrap();
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

    world.plan.set(Some(plan));
    match operation {
        Operation::Start | Operation::StartWithMove => counters.start_event(own, 1).unwrap(),
        Operation::Stop => counters.stop_event(sampled, 1).unwrap(),
        Operation::Close => {
            let count = counters.close_event(sampled, 1).unwrap();
            assert!(world.fits(SAMPLED, count.value, &unit), "{context}: {count:?}");
        }
        Operation::Read => {
            // The read events passed before, or during the reading.
            for (event, id) in [(SAMPLED, sampled), (COUNTED, counted)] {
                let least = world.counted[event].get();
                let value = counters.read_event(id, 1).unwrap().value;
                assert!((least..=world.counted[event].get()).contains(&value), "{context}");
            }
        }
        Operation::Rotate => counters.rotate(1).unwrap(),
        Operation::SwitchOut | Operation::Switch => {
            let mut thread = [sampled, counted].map(ThreadEvent::Opened);
            counters.switch_out(&mut thread, 1, |o| world.told(Report::Event(o))).unwrap();
            for (event, place) in [(SAMPLED, thread[0]), (COUNTED, thread[1])] {
                let ThreadEvent::Switched(event_here) = place else { panic!("{place:?}") };
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
        Operation::GiveUp => {
            if let Some(idle) = idle {
                counters.give_up(idle.only()).unwrap();
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
                    None => world.told(Report::Event(overflow)),
                })
                .unwrap();
            assert_eq!(anew.len(), if lost { 3 } else { 0 }, "{context}");
        }
        Operation::SaveSources => {
            session.save(&mut area, |overflow| world.told(Report::Source(overflow))).unwrap();
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
    // Nothing waits for another event's interrupt; but an event that moved is told when it next happens.
    if !matches!(operation, Operation::StartWithMove | Operation::Rotate) {
        for event in [SOURCE, SAMPLED, OWN].into_iter().filter(|event| world.runs(&mock, *event)) {
            let due = world.counted[event].get() / PERIOD;
            let told = world.told[event].get() + world.unseen[event].get();
            assert!(told >= due, "{context}: {event} was told {told} times of {due} at first");
        }
    }
    // Stopped events are silent, and a pending overflow of theirs may have been dropped.
    let mut dropped = [0; 4];
    let stopped = match operation {
        Operation::Stop | Operation::Close => Some(SAMPLED),
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
            Operation::Stop => session.counters_mut().start_event(sampled, 2).unwrap(),
            Operation::StopSource => {
                // A source begins a period anew.
                session.start(source).unwrap();
                world.counted[SOURCE].set(0);
                world.told[SOURCE].set(0);
                dropped[stopped] = 0;
            }
            _ => {
                let again = session.counters_mut().open_event(&unit, &sampling(kinds[0])).unwrap();
                session.counters_mut().start_event(again, 2).unwrap();
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
        OWN => matches!(operation, Operation::Start | Operation::StartWithMove | Operation::Rotate),
        _ => true,
    };
    for event in (0..4).filter(|event| tested(*event)) {
        let id = world.ids.get()[event];
        let counters = session.counters_mut();
        if let Some(id) = id
            && counters.counter_of(id).is_none()
        {
            assert_eq!(operation, Operation::Rotate, "{context}: {event} has no counter");
            counters.rotate(9).unwrap();
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
            let value = session.counters_mut().read_event(id, 10).unwrap().value;
            assert!(world.fits(event, value, &unit), "{context}: {event}: {value}");
        }
    }
    session.shut_down().unwrap();
    assert_eq!(running(&mock), CounterSet::NONE, "{context}");
    beyond
}

/// Runs a plan on each kind of overflow reporting.
fn everywhere(deviations: Deviations, plan: impl Fn(u32) -> Plan) {
    fn every<I: ProfileInterface>(
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
