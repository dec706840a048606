//! Branch records beside counters and a precise event, and a fault that lasts from each access of each call on. When
//! the fault is gone, a repeat of the call makes everything well; if counters faulted, a reprogramming and a start do.

use core::cell::{Cell, RefCell};
use core::sync::atomic::AtomicU64;

use pmu_core::branch_recording::{BranchError, BranchRecorder};
use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, BranchUnit, Branches};
use pmu_core::error::CounterError;
use pmu_core::interrupt::EventOverflow;
use pmu_core::lending::WindowError;
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::precise::Precision;
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{CounterSession, CounterSet, CounterUnit, EventId, Events, service};
use pmu_intel::precise::{Pebs, PreciseMemory, PreciseUnit};
use pmu_tests::Reason;
use pmu_tests::StateRegisters;
use pmu_tests::opened::{fed_events, happened, raw};
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::{Fault, MockMsr, ProcessMemory};
use pmu_virt::precise::{FedRecord, GuestMemory, PreciseConfiguration, VirtualPrecise};
use pmu_virt::{Privilege, VirtualPmu};

type Mock = MockMsr<'static, 64>;
type Msr = &'static Mock;
type Source = Events<'static, CounterUnit, (Pebs<'static>, Branches<'static>)>;
type Session = CounterSession<'static, Source, Msr>;
type Outcome = Result<(), Failure>;

/// The part whose call failed.
#[derive(Debug)]
#[expect(dead_code, reason = "messages show the reasons")]
enum Failure {
    Counters(CounterError),
    WindowEnd(WindowError),
    Branches(BranchError),
}

impl Failure {
    /// Returns whether counters faulted. As documented, their events run again only after a reprogramming, and a start.
    fn stops_events(&self) -> bool {
        use CounterError::StateUnknown;
        matches!(self, Self::WindowEnd(_) | Self::Counters(StateUnknown(_)))
    }
}

const PERIOD: u64 = 10_000;
/// Numbers of the events that are sampled by interrupts, and by records.
const SAMPLED: usize = 2;
const RECORDED: usize = 0;
/// The physical address of the buffer, and its words.
const PHYSICAL: u64 = 0x10_0000;
const WORDS: usize = 2048;

/// A processor, and the memory that a kernel lends for it.
struct Machine {
    name: String,
    freezes: bool,
    mock: Msr,
    counter_unit: CounterUnit,
    branch_unit: BranchUnit,
    precise_unit: PreciseUnit,
    counters: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    table: EventTable<[EventEntry; 4]>,
    branches: BranchMemory<[BranchSlot; 32]>,
    records: &'static PreciseMemory,
    samples: Cell<u64>,
    recorded: Cell<u64>,
}

/// A kernel's counters and branch records, as far as they are taken and started.
struct World {
    machine: &'static Machine,
    session: Option<Session>,
    branches: Option<BranchRecorder<'static, Msr>>,
    /// The events that are sampled by interrupts, and by records.
    events: Option<[EventId; 2]>,
}

macro_rules! failures {
    ($($part:ident of $error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::$part(error)
            }
        }
    )*};
}
failures!(
    Counters of CounterError, WindowEnd of WindowError, Branches of BranchError
);

/// Returns new processors: branch records and precise records of each kind, freezing and not.
fn machines() -> Vec<&'static Machine> {
    let kinds = [
        (3, BranchConfiguration::Legacy { format: 4 }, PreciseConfiguration::debug_store(2)),
        (4, BranchConfiguration::Legacy { format: 5 }, PreciseConfiguration::debug_store(3)),
        (5, BranchConfiguration::ARCHITECTURAL, PreciseConfiguration::debug_store(4)),
        (6, BranchConfiguration::ARCHITECTURAL, PreciseConfiguration::ARCHITECTURAL),
    ];
    let both = kinds.into_iter().flat_map(|kind| [(kind, true), (kind, false)]);
    both.map(|(kind, freezes)| Machine::new(kind, freezes)).collect()
}

impl Machine {
    fn new(
        (version, branches, precise): (u8, BranchConfiguration, PreciseConfiguration),
        freezes: bool,
    ) -> &'static Self {
        let records: &'static PreciseMemory<[AtomicU64; WORDS]> =
            Box::leak(Box::new(PreciseMemory::new()));
        let records: &'static PreciseMemory = records;
        // SAFETY: the area and the buffer, one page behind it, consist of atomics.
        let ram = unsafe { ProcessMemory::default().with(records, PHYSICAL - 0x1000) };
        let ram: &'static RefCell<dyn GuestMemory> = Box::leak(Box::new(RefCell::new(ram)));
        let configuration = Configuration::Intel(IntelConfiguration::new(version, 4, 3));
        let instruction: &'static dyn Fn(u64) -> FedRecord<'static> =
            &|number| FedRecord::new(0x40_1000 + 16 * number);
        let mock = Mock::strict(VirtualPmu::new(configuration, fed_events()).unwrap())
            .with_branches(VirtualBranches::new(&configuration, branches).unwrap())
            .with_precise(VirtualPrecise::new(&configuration, precise).unwrap(), ram, instruction);
        let mock: Msr = Box::leak(Box::new(mock));
        let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
        let snapshot = mock.snapshot();
        let machine: &'static Self = Box::leak(Box::new(Self {
            name: format!("version {version}, {branches:?}, {:?}, {freezes}", precise.records),
            freezes,
            mock,
            counter_unit: pmu_intel::counters(&snapshot),
            branch_unit: pmu_intel::branches(&snapshot, mock).unwrap(),
            precise_unit: PreciseUnit::detect(&snapshot, mock).unwrap(),
            counters: CounterMemory::new(),
            table: EventTable::new(),
            branches: BranchMemory::new(),
            records,
            samples: Cell::default(),
            recorded: Cell::default(),
        }));
        mock.on_interrupt(Box::leak(Box::new(|_: &Mock| machine.interrupted())));
        machine
    }

    fn source(&'static self) -> Source {
        // SAFETY: the mock writes to the lent memory alone, which lasts.
        let pebs = unsafe { Pebs::new(&self.precise_unit, self.records, Some(PHYSICAL)) };
        let branches = Branches::new(&self.branch_unit, &self.branches);
        Events::new(&self.counter_unit, &self.table as &EventTable).with((pebs.unwrap(), branches))
    }

    fn interrupted(&'static self) {
        let (source, mock) = (self.source(), &self.mock);
        service(&source, mock, &self.counters, |sample| self.note(*sample)).unwrap();
    }

    fn note(&self, overflow: EventOverflow) {
        let seen = if overflow.tag == RECORDED as u64 { &self.recorded } else { &self.samples };
        seen.set(seen.get() + 1);
    }
}

/// The calls of the life. Each does what is still to be done, so that a repeat goes on where the first one failed.
impl World {
    fn new(machine: &'static Machine) -> Self {
        Self { machine, session: None, branches: None, events: None }
    }

    fn take(&mut self) -> Outcome {
        let machine = self.machine;
        let (unit, mock) = (&machine.counter_unit, machine.mock);
        if self.session.is_none() {
            let (source, all, memory) = (machine.source(), CounterSet::ALL, &machine.counters);
            let taken = CounterSession::take(source, unit, all, mock, memory);
            self.session = Some(taken?);
        }
        if self.branches.is_none() {
            let taken = BranchRecorder::take(&machine.branch_unit, mock, &machine.branches);
            self.branches = Some(taken?);
        }
        Ok(())
    }

    fn parts(&mut self) -> (&mut Session, &mut BranchRecorder<'static, Msr>) {
        (self.session.as_mut().unwrap(), self.branches.as_mut().unwrap())
    }

    fn start(&mut self) -> Outcome {
        let (machine, events) = (self.machine, self.events);
        let (session, branches) = self.parts();
        if machine.freezes {
            session.freeze_on_interrupt()?;
            if machine.branch_unit.can_freeze() {
                branches.freeze_on_interrupt()?;
            }
        }
        let events = events.unwrap_or_else(|| {
            [(SAMPLED, 0b1000), (RECORDED, 1)].map(|(kind, on)| {
                let event = raw(kind).on(CounterSet::from_bits(on)).user_only().every(PERIOD);
                let event = event.tagged(kind as u64);
                let is_precise = kind == RECORDED;
                let precise = event.precise(Precision::ConstantSkid);
                let event = if is_precise { precise } else { event };
                session.open(&machine.counter_unit, &[event]).unwrap()
            })
        });
        let mut started = Ok(());
        for event in events {
            if started.is_ok() && session.counter_of(event).is_none() {
                // It may be started, and its counter lost.
                let _ = session.disable(event, 0);
                started = session.enable(event, 0).reason().map_err(Failure::from);
            }
        }
        let done = started.and_then(|()| {
            if !branches.is_recording() {
                branches.start(BranchFilter::USER)?;
            }
            Ok(())
        });
        self.events = Some(events);
        done
    }

    /// Lends the counters, and ends the window.
    fn lend(&mut self) -> Outcome {
        let machine = self.machine;
        let (session, _) = self.parts();
        let window = session.lend(0, |sample| machine.note(*sample))?;
        Ok(window.end(0)?)
    }

    fn reprogram(&mut self) -> Outcome {
        let machine = self.machine;
        let (session, _) = self.parts();
        session.reprogram(|sample| machine.note(*sample))?;
        Ok(())
    }

    fn suspend(&mut self) -> Outcome {
        let machine = self.machine;
        let (session, _) = self.parts();
        Ok(session.suspend(0, |sample| machine.note(*sample))?)
    }

    fn resume(&mut self) -> Outcome {
        let machine = self.machine;
        let (session, _) = self.parts();
        session.resume(0, |sample| machine.note(*sample))?;
        Ok(())
    }

    fn shut_down(&mut self) -> Outcome {
        if let Some(branches) = &mut self.branches {
            branches.shut_down()?;
            self.branches = None;
        }
        if let Some(session) = &mut self.session {
            session.shut_down()?;
            (self.session, self.events) = (None, None);
        }
        Ok(())
    }

    /// Lets branches and events happen, and returns what was not noticed.
    #[track_caller]
    fn missing(&mut self) -> Vec<&'static str> {
        let (machine, mock) = (self.machine, self.machine.mock);
        let (_, branches) = self.parts();
        let mut missing = vec![];
        let newest =
            FedBranch::new(0x7_0000, 0x7_1000, FedBranchKind::Conditional, Privilege::User);
        mock.branch(&newest);
        if branches.is_recording() {
            // A read stops the recording.
            let found = branches.read().unwrap().iter().next().map(|branch| branch.from);
            assert_eq!(found, Some(newest.from));
            branches.restart().unwrap();
        } else {
            missing.push("branches");
        }
        // The rest of a period, and another one.
        let seen =
            [("samples", SAMPLED, &machine.samples), ("records", RECORDED, &machine.recorded)];
        for (name, kind, seen) in seen {
            let before = seen.get();
            mock.advance(&mut happened(kind, 2 * PERIOD));
            match seen.get() - before {
                2 => {}
                0 => missing.push(name),
                other => panic!("{other} {name}"),
            }
        }
        missing
    }

    /// Shuts everything down. Nothing is left on the processor.
    #[track_caller]
    fn end(&mut self, what: &str) {
        self.shut_down().expect(what);
        let mock = self.machine.mock;
        let state = mock.with_pmu(|pmu| pmu.state());
        assert_eq!((state.selects(), state.fixed_control()), ([0; 8], 0), "{what}");
        assert_eq!((state.global_status(), state.debug_control()), (0, 0), "{what}");
        let records = mock.with_precise_records(|records| (records.enabled(), records.due()));
        assert_eq!(records, Some((0, 0)), "{what}");
        let branches = mock.with_branch_records(|records| records.is_recording());
        assert_eq!(branches, Some(false), "{what}");
        assert_eq!(mock.breach(), None, "{what}");
    }
}

/// Makes a call with a fault that lasts from each access on, and once more without. `prepare` comes before it, `then`
/// behind it.
fn with_a_lasting_fault([prepare, call, then]: [fn(&mut World) -> Outcome; 3]) {
    for number in 0..machines().len() {
        let mut failed = 0;
        for access in 1.. {
            let machine = machines().swap_remove(number);
            let mut world = World::new(machine);
            prepare(&mut world).unwrap();
            machine.mock.inject(Fault::From(access));
            let first = call(&mut world);
            machine.mock.inject(Fault::None);
            let what = format!("{}, from access {access}: {first:?}", machine.name);
            if let Err(failure) = &first {
                failed += 1;
                let again = call(&mut world).and_then(|()| then(&mut world));
                assert!(again.is_ok() || failure.stops_events(), "{what}: {again:?}");
                let missing = if again.is_ok() { world.missing() } else { vec![] };
                // A recording of branches that could not go on is over.
                let is_told = missing.is_empty()
                    || failure.stops_events()
                    || matches!(failure, Failure::Branches(_)) && missing == ["branches"];
                assert!(is_told, "{what}: no {missing:?}");
                if again.is_err() || !missing.is_empty() {
                    world.reprogram().expect(&what);
                    world.start().expect(&what);
                }
                assert!(world.missing().is_empty(), "{what}");
            }
            if first.is_ok() {
                then(&mut world).expect(&what);
                world.end(&what);
                break;
            }
            world.end(&what);
        }
        assert!(failed > 2, "{failed}");
    }
}

/// Nothing is to be done.
fn nothing(_: &mut World) -> Outcome {
    Ok(())
}

fn started(world: &mut World) -> Outcome {
    world.take()?;
    world.start()
}

/// The registers lose their contents.
fn lost(world: &mut World) -> Outcome {
    world.machine.mock.lose_registers();
    world.machine.mock.set_performance_entry(0x400);
    Ok(())
}

#[test]
fn after_a_lasting_fault_of_a_take_a_repeat_takes_everything() {
    with_a_lasting_fault([nothing, World::take, World::start]);
}

#[test]
fn after_a_lasting_fault_of_a_start_a_repeat_starts_everything() {
    with_a_lasting_fault([World::take, World::start, nothing]);
}

#[test]
fn after_a_lasting_fault_of_a_window_another_window_brings_everything_back() {
    with_a_lasting_fault([started, World::lend, nothing]);
}

#[test]
fn after_a_lasting_fault_of_a_suspend_a_repeat_suspends_everything() {
    let resumed = |world: &mut World| {
        lost(world)?;
        world.resume()
    };
    with_a_lasting_fault([started, World::suspend, resumed]);
}

#[test]
fn after_a_lasting_fault_of_a_resume_a_repeat_resumes_everything() {
    let suspended = |world: &mut World| {
        started(world)?;
        world.suspend()?;
        lost(world)
    };
    with_a_lasting_fault([suspended, World::resume, nothing]);
}

#[test]
fn after_a_lasting_fault_of_a_reprogramming_a_repeat_programs_everything() {
    let prepare = |world: &mut World| {
        started(world)?;
        lost(world)
    };
    with_a_lasting_fault([prepare, World::reprogram, nothing]);
}

#[test]
fn after_a_lasting_fault_of_a_shut_down_a_repeat_leaves_nothing() {
    with_a_lasting_fault([started, World::shut_down, started]);
}
