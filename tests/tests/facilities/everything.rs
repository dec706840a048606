//! Processors and a kernel whose events ask for all facilities: precise records, sampled ops and fetches, branches,
//! counter reload, and parts of issue slots.

use core::cell::{Cell, RefCell};
use core::sync::atomic::AtomicU64;

use pmu_amd::ibs::{Ibs, IbsMemory, IbsSampling, IbsUnits};
use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, BranchUnit, Branches};
use pmu_core::error::CounterError;
use pmu_core::facility::DivisionMemory;
use pmu_core::lending::WindowError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::precise::Precision;
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::reload::{AutoCounterReload, CounterReload, ReloadMemory};
use pmu_core::x86::Snapshot;
use pmu_core::{
    CounterSession, CounterSet, CounterUnit, Event, EventCount, EventId, Events, Sample, service,
};
use pmu_intel::precise::{Pebs, PreciseMemory, PreciseUnit};
use pmu_intel::topdown::{TopDown, TopDownUnit};
use pmu_tests::Reason;
use pmu_tests::StateRegisters;
use pmu_tests::opened::{KINDS, raw};
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::ibs::{FedFetch, FedOp, IbsConfiguration, VirtualIbs};
use pmu_virt::mock::{Deviations, MockMsr, ProcessMemory};
use pmu_virt::precise::{FedRecord, GuestMemory, PreciseConfiguration, VirtualPrecise};
use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
use pmu_virt::topdown::{TopDownMix, VirtualTopDown};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

pub(crate) type Mock = MockMsr<'static, 64>;
type Msr = &'static Mock;
type Precise = (Option<Pebs<'static>>, Option<Ibs<'static>>);
type Sampled = ((Precise, Branches<'static>), Option<AutoCounterReload<'static>>);
type All = (Sampled, Option<TopDown<'static>>);
type Source = Events<'static, CounterUnit, All>;
type Session = CounterSession<'static, Source, Msr>;
pub(crate) type Outcome = Result<(), Failure>;

#[derive(Debug)]
#[expect(dead_code, reason = "messages show the reasons")]
pub(crate) enum Failure {
    Counters(CounterError),
    WindowEnd(WindowError),
}

impl Failure {
    /// Returns whether counters faulted. As documented, their events run again only after a reprogramming, and a start.
    pub(crate) fn stops_events(&self) -> bool {
        matches!(self, Self::WindowEnd(_) | Self::Counters(CounterError::StateUnknown(_)))
    }
}

impl From<CounterError> for Failure {
    fn from(error: CounterError) -> Self {
        Self::Counters(error)
    }
}

impl From<WindowError> for Failure {
    fn from(error: WindowError) -> Self {
        Self::WindowEnd(error)
    }
}

pub(crate) const PERIOD: u64 = 10_000;
/// Kinds of the events: with records and branches, with branches alone, a group whose second event reloads both, and
/// sampled ops and fetches.
pub(crate) const RECORDED: usize = 0;
pub(crate) const SAMPLED: usize = 2;
const RELOADED: usize = 3;
const RELOADING: usize = 4;
const OPS: usize = 5;
const FETCHES: usize = 6;
/// The tag of the slots and their parts, which are no samples.
const OTHERS: u64 = 7;
const SLOTS: EventKey = EventKey::fixed(3).unwrap();
const MIX: TopDownMix = TopDownMix { shares: [100, 20, 60, 75, 50, 15, 30, 70] };

/// The physical address of the buffer, and its words.
const PHYSICAL: u64 = 0x10_0000;
const WORDS: usize = 2048;

/// A processor, and the memory that a kernel lends for it.
pub(crate) struct Machine {
    pub(crate) name: String,
    freezes: bool,
    pub(crate) mock: Msr,
    counter_unit: CounterUnit,
    branch_unit: BranchUnit,
    precise_unit: Option<PreciseUnit>,
    sampling: Option<IbsUnits>,
    reload: Option<CounterReload>,
    top_down: Option<TopDownUnit>,
    counters: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    table: EventTable<[EventEntry; 16]>,
    division: DivisionMemory,
    branches: BranchMemory<[BranchSlot; 32]>,
    reloads: ReloadMemory,
    records: &'static PreciseMemory,
    sampled: IbsMemory,
    /// Samples of each kind that have all that their events asked for, and others.
    pub(crate) whole: [Cell<u64>; 8],
    partial: Cell<u64>,
    newest: Cell<u64>,
}

type Kind = (u8, BranchConfiguration, Option<PreciseConfiguration>);

/// Returns the events that happen.
fn events() -> FedEvents {
    let kinds = KINDS.map(|(event, unit_mask)| EventKey::general(event.into(), unit_mask));
    FedEvents::new(&[&kinds[..], &[SLOTS]].concat()).unwrap()
}

/// Returns a feed of `count` of an event in user mode.
pub(crate) fn happened(kind: usize, count: u64) -> Feed {
    let (event, unit_mask) = KINDS[kind];
    let events = events();
    let mut feed = Feed::new(&events);
    let key = EventKey::general(event.into(), unit_mask);
    feed.add(events.find(key).unwrap(), Privilege::User, count).unwrap();
    feed
}

/// Returns new processors: each kind of branch records and precise records; versions 0 and 1 stand for Zen 4 and 6.
pub(crate) fn machines() -> Vec<fn(bool, Deviations) -> &'static Machine> {
    macro_rules! each {
        ($($kind:expr),* $(,)?) => { vec![$(|freezes, deviations| Machine::new($kind, freezes, deviations)),*] };
    }
    each![
        (2, BranchConfiguration::Legacy { format: 3 }, Some(PreciseConfiguration::debug_store(0))),
        (3, BranchConfiguration::Legacy { format: 3 }, Some(PreciseConfiguration::debug_store(1))),
        (3, BranchConfiguration::Legacy { format: 4 }, Some(PreciseConfiguration::debug_store(2))),
        (4, BranchConfiguration::Legacy { format: 5 }, Some(PreciseConfiguration::debug_store(3))),
        (5, BranchConfiguration::ARCHITECTURAL, Some(PreciseConfiguration::debug_store(4))),
        (5, BranchConfiguration::ARCHITECTURAL, Some(PreciseConfiguration::debug_store(5))),
        (5, BranchConfiguration::ARCHITECTURAL, Some(PreciseConfiguration::debug_store(6))),
        (6, BranchConfiguration::ARCHITECTURAL, Some(PreciseConfiguration::ARCHITECTURAL)),
        (0, BranchConfiguration::AMD, None),
        (1, BranchConfiguration::AMD, None),
    ]
}

impl Machine {
    fn new(
        (version, branches, precise): Kind,
        freezes: bool,
        deviations: Deviations,
    ) -> &'static Self {
        let records: &'static PreciseMemory<[AtomicU64; WORDS]> =
            Box::leak(Box::new(PreciseMemory::new()));
        let records: &'static PreciseMemory = records;
        // SAFETY: the area and the buffer, one page behind it, consist of atomics.
        let ram = unsafe { ProcessMemory::default().with(records, PHYSICAL - 0x1000) };
        let ram: &'static RefCell<dyn GuestMemory> = Box::leak(Box::new(RefCell::new(ram)));
        let configuration = match version {
            0 | 1 => Configuration::Amd(AmdConfiguration::perf_mon_v2(6)),
            version => {
                let fixed = if version >= 5 { 4 } else { 3 };
                Configuration::Intel(IntelConfiguration::new(version, 4, fixed))
            }
        };
        let instruction: &'static dyn Fn(u64) -> FedRecord<'static> =
            &|number| FedRecord::new(0x40_1000 + 16 * number);
        let mut mock = Mock::strict(VirtualPmu::new(configuration, events()).unwrap())
            .with_branches(VirtualBranches::new(&configuration, branches).unwrap());
        if let Some(precise) = precise {
            let precise = VirtualPrecise::new(&configuration, precise).unwrap();
            mock = mock.with_precise(precise, ram, instruction);
        }
        if version < 2 {
            let ibs = [IbsConfiguration::ZEN_4, IbsConfiguration::ZEN_6][usize::from(version)];
            mock = mock.with_sampling(VirtualIbs::new(ibs));
        }
        if version == 6 {
            let reload = ReloadConfiguration::of(0xF, 0);
            mock = mock.with_reload(VirtualReload::new(&configuration, reload).unwrap());
        }
        if version >= 5 {
            mock = mock.with_top_down(VirtualTopDown::new(&configuration, version == 6).unwrap());
        }
        let mock: Msr = Box::leak(Box::new(mock.deviating(deviations)));
        for control in [0x38F, 0xC000_0301] {
            let _ = mock.with_pmu(|pmu| pmu.write(control, 0));
        }
        let snapshot: Snapshot = mock.snapshot();
        let (counter_unit, branch_unit) = match version {
            0 | 1 => (pmu_amd::counters(&snapshot), pmu_amd::branches(&snapshot).unwrap()),
            _ => (pmu_intel::counters(&snapshot), pmu_intel::branches(&snapshot, mock).unwrap()),
        };
        let precise_unit = precise.map(|_| PreciseUnit::detect(&snapshot, mock).unwrap());
        let reload = (version == 6).then(|| pmu_intel::counter_reload(&snapshot).unwrap());
        let top_down = (version >= 5).then(|| TopDownUnit::of(&snapshot, mock).unwrap());
        let machine: &'static Self = Box::leak(Box::new(Self {
            name: format!(
                "version {version}, {branches:?}, {precise:?}, freezes: {freezes}, {deviations}"
            ),
            freezes: freezes && version > 1,
            mock,
            counter_unit,
            branch_unit,
            precise_unit,
            sampling: IbsUnits::of(&snapshot),
            reload,
            top_down,
            counters: CounterMemory::new(),
            table: EventTable::new(),
            division: DivisionMemory::new(),
            branches: BranchMemory::new(),
            reloads: ReloadMemory::new(),
            records,
            sampled: IbsMemory::new(),
            whole: Default::default(),
            partial: Cell::default(),
            newest: Cell::new(0x7_0000),
        }));
        let handler = |mock: &Mock| {
            let report = |sample: Sample<'_, All>| machine.note(&sample);
            let _ = service(&machine.source(), mock, &machine.counters, report);
        };
        mock.on_interrupt(Box::leak(Box::new(handler)));
        machine
    }

    fn source(&'static self) -> Source {
        let pebs = self.precise_unit.as_ref().map(|unit| {
            // SAFETY: the mock writes to the lent memory alone, which lasts.
            unsafe { Pebs::new(unit, self.records, Some(PHYSICAL)) }.unwrap()
        });
        let branches = Branches::new(&self.branch_unit, &self.branches);
        let reload = self.reload.as_ref();
        let reload = reload.map(|reload| AutoCounterReload::new(reload, &self.reloads));
        let opened = Events::new(&self.counter_unit, &self.table as &EventTable);
        let ibs = self.sampling.as_ref().map(|units| Ibs::new(units, &self.sampled));
        let top_down = self.top_down.as_ref().map(|unit| TopDown::new(unit, &self.division));
        opened.with(((((pebs, ibs), branches), reload), top_down))
    }

    /// Takes a branch, which samples have from now on.
    pub(crate) fn branch(&self) {
        let from = self.newest.get() + 16;
        let branch =
            FedBranch::new(from, from + 0x1000, FedBranchKind::Conditional, Privilege::User);
        self.mock.branch(&branch);
        self.newest.set(from);
    }

    fn note(&self, sample: &Sample<'_, All>) {
        let kind = sample.tag as usize;
        let has_record = sample.instruction().is_some();
        let newest = sample.branches().next().map(|branch| branch.from);
        let is_whole = match kind {
            RECORDED if self.precise_unit.is_some() => {
                has_record && newest == Some(self.newest.get())
            }
            RECORDED | SAMPLED => newest == Some(self.newest.get()),
            OPS => sample.instruction().is_some_and(|op| op.fetch.is_none()),
            FETCHES => sample.instruction().is_some_and(|fetch| fetch.fetch.is_some()),
            _ => true,
        };
        let seen = if is_whole { &self.whole[kind] } else { &self.partial };
        seen.set(seen.get() + 1);
    }
}

/// A kernel's session, as far as it is taken and its events are started.
pub(crate) struct World {
    pub(crate) machine: &'static Machine,
    session: Option<Session>,
    events: Option<(Vec<EventId>, [Option<EventId>; 2])>,
}

/// The calls of the life. Each does what is still to be done, so that a repeat goes on where the first one failed.
impl World {
    pub(crate) fn new(machine: &'static Machine) -> Self {
        Self { machine, session: None, events: None }
    }

    fn session(&mut self) -> &mut Session {
        self.session.as_mut().unwrap()
    }

    pub(crate) fn take(&mut self) -> Outcome {
        let machine = self.machine;
        if self.session.is_none() {
            let (source, unit, all) = (machine.source(), &machine.counter_unit, CounterSet::ALL);
            let (mock, memory) = (machine.mock, &machine.counters);
            self.session = Some(CounterSession::take(source, unit, all, mock, memory)?);
        }
        Ok(())
    }

    /// Opens the events, with their kinds as tags.
    fn open(&mut self) -> (Vec<EventId>, [Option<EventId>; 2]) {
        let machine = self.machine;
        let event =
            |kind: usize| -> Event { raw(kind).user_only().every(PERIOD).tagged(kind as u64) };
        let mut alone = [(SAMPLED, 0b1000), (RECORDED, 1)]
            .map(|(kind, on)| {
                let event =
                    event(kind).on(CounterSet::from_bits(on)).with_branches(BranchFilter::USER);
                let is_precise = kind == RECORDED && machine.precise_unit.is_some();
                let precise = event.precise(Precision::ConstantSkid);
                let event = if is_precise { precise } else { event };
                self.session().open(&machine.counter_unit, &[event]).unwrap()
            })
            .to_vec();
        let group = machine.reload.is_some().then(|| {
            let reloaded = [RELOADED, RELOADING].map(|kind| event(kind).reloaded_by(0b10));
            self.session().open(&machine.counter_unit, &reloaded).unwrap()
        });
        if machine.sampling.is_some() {
            for (kind, request) in [(OPS, IbsSampling::ops()), (FETCHES, IbsSampling::fetches())] {
                let event = request.event().every(PERIOD).tagged(kind as u64);
                alone.push(self.session().open(&machine.counter_unit, &[event]).unwrap());
            }
        }
        let slots = machine.top_down.as_ref().map(|unit| {
            let events = unit.events(self.session().counters().usable);
            let events = events.each(|event| event.user_only().tagged(OTHERS));
            self.session().open(&machine.counter_unit, &events).unwrap()
        });
        (alone, [group, slots])
    }

    pub(crate) fn start(&mut self) -> Outcome {
        if self.machine.freezes {
            self.session().freeze_on_interrupt()?;
        }
        let (events, groups) = self.events.take().unwrap_or_else(|| self.open());
        self.events = Some((events.clone(), groups));
        let session = self.session();
        let is_off = |session: &Session, event| session.counter_of(event).is_none();
        for event in events {
            if is_off(session, event) {
                // It may be started, and its counter lost.
                let _ = session.disable(event, 0);
                session.enable(event, 0).reason()?;
            }
        }
        for group in groups.into_iter().flatten() {
            // A part has no counter.
            let first = session.group_events(group).next().unwrap();
            let counted =
                session.group_events(group).filter(|_| session.event_tag(first) != Ok(OTHERS));
            if counted.chain([first]).any(|event| is_off(session, event)) {
                let _ = session.disable(group, 0);
                session.enable(group, 0).map_err(|error| error.reason)?;
            }
        }
        Ok(())
    }

    pub(crate) fn lend(&mut self) -> Outcome {
        let machine = self.machine;
        let window = self.session().lend(0, |sample| machine.note(&sample))?;
        Ok(window.end(0)?)
    }

    pub(crate) fn reprogram(&mut self) -> Outcome {
        let machine = self.machine;
        Ok(self.session().reprogram(|sample| machine.note(&sample)).map(|_| ())?)
    }

    pub(crate) fn suspend(&mut self) -> Outcome {
        let machine = self.machine;
        Ok(self.session().suspend(0, |sample| machine.note(&sample))?)
    }

    pub(crate) fn resume(&mut self) -> Outcome {
        let machine = self.machine;
        Ok(self.session().resume(0, |sample| machine.note(&sample)).map(|_| ())?)
    }

    pub(crate) fn shut_down(&mut self) -> Outcome {
        if let Some(session) = &mut self.session {
            session.shut_down()?;
            (self.session, self.events) = (None, None);
        }
        Ok(())
    }

    /// Lets branches and events happen, and returns what was not noticed.
    pub(crate) fn missing(&mut self) -> Vec<&'static str> {
        let (machine, mock) = (self.machine, self.machine.mock);
        machine.branch();
        let sampled = |kind: usize, count: u64| {
            let before = machine.whole[kind].get();
            mock.advance(&mut happened(kind, count));
            machine.whole[kind].get() - before
        };
        machine.partial.set(0);
        let mut missing = vec![];
        for (name, kind) in [("branches", SAMPLED), ("records", RECORDED)] {
            if sampled(kind, 2 * PERIOD) != 2 {
                missing.push(name);
            }
        }
        if machine.sampling.is_some() {
            for (name, kind) in [("ops", OPS), ("fetches", FETCHES)] {
                let before = machine.whole[kind].get();
                for number in 0..2 * PERIOD {
                    let _ = match kind {
                        OPS => mock.execute(&FedOp::new(0x40_1000 + number)),
                        _ => mock.fetch(&FedFetch::new(0x40_1000 + number)),
                    };
                }
                // Each period of ops begins at a random op of the first 128.
                if !(2..=3).contains(&(machine.whole[kind].get() - before)) {
                    missing.push(name);
                }
            }
        }
        if machine.reload.is_some() {
            let reload = [
                sampled(RELOADING, PERIOD),
                sampled(RELOADED, PERIOD - 1),
                sampled(RELOADING, PERIOD),
                sampled(RELOADED, PERIOD - 1),
                sampled(RELOADED, 1),
            ];
            if reload != [0, 0, 0, 0, 1] {
                missing.push("reloads");
            }
        }
        if let Some(slots) = self.events.as_ref().and_then(|(_, [_, slots])| *slots) {
            let unit = machine.top_down.unwrap();
            let read = |session: &Session| {
                let mut counts = [EventCount::default(); 9];
                let read = session.read_group(slots, 0, &mut counts);
                read.map(|read| counts[..read].to_vec()).unwrap_or_default()
            };
            let before = read(self.session());
            mock.set_mix(MIX);
            let events = events();
            let mut feed = Feed::new(&events);
            feed.add(events.find(SLOTS).unwrap(), Privilege::User, 510).unwrap();
            mock.advance(&mut feed);
            let after = read(self.session());
            let more: Vec<_> = after
                .iter()
                .zip(&before)
                .map(|(after, before)| after.value - before.value)
                .collect();
            // The slots, and twice each share.
            let mut wanted = vec![510];
            wanted.extend(MIX.shares.map(|share| 2 * u64::from(share)));
            wanted.truncate(if unit.has_level_2() { 9 } else { 5 });
            if more != wanted {
                missing.push("parts of slots");
            }
        }
        if machine.partial.get() != 0 {
            missing.push("parts of samples");
        }
        missing
    }

    /// Shuts the session down. Nothing is left on the processor.
    #[track_caller]
    pub(crate) fn end(&mut self, what: &str) {
        self.shut_down().expect(what);
        let mock = self.machine.mock;
        let state = mock.with_pmu(|pmu| pmu.state());
        assert_eq!((state.selects(), state.fixed_control()), ([0; 8], 0), "{what}");
        assert_eq!((state.global_status(), state.debug_control()), (0, 0), "{what}");
        let metrics = mock.with_metrics(|metrics| metrics.metrics());
        assert_eq!(metrics.unwrap_or_default(), 0, "{what}");
        let records = mock.with_precise_records(|records| (records.enabled(), records.due()));
        assert_eq!(records.unwrap_or_default(), (0, 0), "{what}");
        let branches = mock.with_branch_records(|records| records.is_recording());
        assert_eq!(branches, Some(false), "{what}");
        let samples = mock.with_sampling_unit(|units| units.is_enabled());
        assert!(!samples.unwrap_or(false), "{what}");
        assert_eq!(mock.breach(), None, "{what}");
    }
}

/// Nothing is to be done.
pub(crate) fn nothing(_: &mut World) -> Outcome {
    Ok(())
}

pub(crate) fn started(world: &mut World) -> Outcome {
    world.take()?;
    world.start()
}

/// The registers lose their contents.
pub(crate) fn lost(world: &mut World) -> Outcome {
    world.machine.mock.lose_registers();
    world.machine.mock.set_performance_entry(0x400);
    Ok(())
}

pub(crate) fn suspended(world: &mut World) -> Outcome {
    started(world)?;
    world.suspend()?;
    lost(world)
}

pub(crate) fn resumed(world: &mut World) -> Outcome {
    lost(world)?;
    world.resume()
}

pub(crate) fn registers_lost(world: &mut World) -> Outcome {
    started(world)?;
    lost(world)
}
