//! Stepping through operations.

use core::sync::atomic::{AtomicU32, Ordering::SeqCst};

use pmu_core::access::{AccessFault, RegisterBackend};
use pmu_core::facility::{EventFacility, Facility, Interrupted, Running, Unsettled};
use pmu_core::frame::ProcessorNumber;
use pmu_core::interrupt::EventOverflow;
use pmu_core::memory::{CounterMemory, CounterSlot, EventTable};
use pmu_core::profile::{KProfileSource, Overflow, Session};
use pmu_core::thread::{SavedCounter, SavedCounters};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, EventSource, Events, service};
use pmu_kprofile::hardware::ThisProcessor;
use pmu_kprofile::trace::{Hook, TraceCallback, TraceRing};
use pmu_kprofile::{BasicProfile, PointerWidth, ProfileObject, Profiles, Rules};
use pmu_nmi_tests::steps::{self, Event, Moment, step_through};
use pmu_nmi_tests::{INTERVAL, Kind, Machine, SOURCES, amd, frame, intel};

type Memory = CounterMemory<[CounterSlot; 6]>;
type Area = SavedCounters<[SavedCounter; 6]>;
type Ring = TraceRing<3>;

const TIME: KProfileSource = KProfileSource::TIME;
/// The source that an operation starts, where it starts one.
const STARTED: usize = 2;

/// Rounds of a loop in which its instructions are interrupted: the first ones.
const ROUNDS: u8 = 16;

/// Interrupted operation: two sources run, an event short of overflowing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Start,
    Stop,
    SetInterval,
    Save,
    Restore,
    /// Saved and restored.
    Switch,
    /// Stopped, and another started on its counter.
    Replace,
    ShutDown,
    Freeze,
    StartProfile,
    StopProfile,
    /// Reprogrammed after a suspend that cleared some registers.
    Reprogram,
    /// The interrupt path of the counters, which another interrupt interrupts.
    Serve,
    /// The interrupt path itself: a timer's interrupt is dispatched, counted and recorded.
    Dispatch,
    Drain,
}

const OPERATIONS: [Operation; 15] = [
    Operation::Start,
    Operation::Stop,
    Operation::SetInterval,
    Operation::Save,
    Operation::Restore,
    Operation::Switch,
    Operation::Replace,
    Operation::ShutDown,
    Operation::Freeze,
    Operation::StartProfile,
    Operation::StopProfile,
    Operation::Reprogram,
    Operation::Serve,
    Operation::Dispatch,
    Operation::Drain,
];

/// A sampler with a status of its own, whose interrupt does not depend on a counter.
#[derive(Default)]
struct Sampler {
    waiting: AtomicU32,
    sampled: AtomicU32,
    collected: AtomicU32,
}

impl Facility for &Sampler {
    const ALONE: bool = true;

    fn collect<M: RegisterBackend>(
        &mut self,
        _: &M,
        _: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        let found = self.waiting.swap(0, SeqCst);
        self.collected.fetch_add(found, SeqCst);
        Ok(found)
    }
}

impl EventFacility for &Sampler {
    const OFFERS: bool = true;

    fn settle<M: RegisterBackend>(&self, _: &M, _: &Running<'_>) -> Result<(), Unsettled> {
        Ok(())
    }

    fn lose(&self) {}
}

/// Executes an operation, interrupted or not, and checks every result. If `samples`, an interrupt without an overflow
/// is that of a sampler.
fn interrupt<I: EventSource<Processor = Snapshot>>(
    machine: &Machine<I>,
    operation: Operation,
    samples: bool,
) {
    let context = format!("{operation:?}, {:?}, samples: {samples}", machine.kind);
    let sampler = Sampler::default();
    let chip = machine.chip();
    let (interface, sources) = (&machine.interface, machine.sources);
    let told = |overflow: Overflow| {
        let place = sources.iter().position(|source| *source == overflow.source);
        chip.told(place.unwrap_or(SOURCES), overflow.events);
    };
    let memory = Memory::new();
    let lists = Profiles::<4, 1>::new();
    // The callback wants rings that live forever; there are not many.
    let rings: &'static [Ring; 1] = Box::leak(Box::new([Ring::new()]));
    let trace = TraceCallback::new(Hook::SampledProfile, PointerWidth::Bits64, rings);
    let (hits, dispatched) = (AtomicU32::new(0), AtomicU32::new(0));
    let dispatch = |source| {
        let outcome = lists.interrupt(&frame(0), source);
        hits.fetch_add(outcome.hits, SeqCst);
        dispatched.fetch_add(1, SeqCst);
    };
    let serve = || {
        let report = |overflow: Overflow| {
            told(overflow);
            dispatch(overflow.source);
        };
        let of_source = |overflow: &EventOverflow| interface.overflow(overflow).map(report);
        let serviced = match samples {
            false => service(&interface, &chip, &memory, |sample| _ = of_source(&sample)),
            true => {
                let beside = Events::new(interface, EventTable::none()).with(&sampler);
                service(&beside, &chip, &memory, |sample| _ = of_source(&sample))
            }
        };
        if serviced.is_err() {
            std::process::abort();
        }
    };
    let deliver = || {
        while chip.deliver() {
            serve();
        }
    };
    let interrupt = |moment| match moment {
        Moment::Happens(Event::Overflow { .. }) => {
            (0..SOURCES).for_each(|source| _ = chip.happen(source, INTERVAL));
        }
        Moment::Happens(Event::Spurious) => {
            if samples && sampler.waiting.swap(1, SeqCst) == 0 {
                sampler.sampled.fetch_add(1, SeqCst);
            }
            chip.raise();
        }
        Moment::Happens(Event::None) => {}
        Moment::Delivered => deliver(),
    };

    let mut session =
        Session::take(&interface, &machine.processor, CounterSet::GENERAL, &chip, &memory).unwrap();
    let found = 0;
    if machine.freezes && operation != Operation::Freeze {
        session.freeze_on_interrupt().unwrap();
    }
    let number = ProcessorNumber::default();
    let buffer = [const { AtomicU32::new(0) }; 2];
    let counts = || buffer.iter().map(|count| count.load(SeqCst)).sum::<u32>();
    let basic = |source| {
        let affinity = None;
        let (process, base, size, bucket_log2, buffer) = (None, 0x1000, 8, 2, &buffer);
        BasicProfile { process, base, size, bucket_log2, buffer, source, affinity }
    };
    let profiled = match operation {
        Operation::StartProfile => sources[STARTED],
        Operation::StopProfile => sources[0],
        _ => TIME,
    };
    let hardware = ThisProcessor::new(&mut session, number);
    let object = ProfileObject::basic(Rules::LATEST, basic(profiled), &hardware).unwrap();
    let traced = [TIME, sources[1]]
        .map(|source| ProfileObject::callback(Rules::LATEST, source, &trace).unwrap());
    let start = |object: &ProfileObject<'_>, session: &mut _| {
        // SAFETY: the object lives until it is stopped, below.
        unsafe { lists.start_borrowed(object, &mut ThisProcessor::new(session, number)) }.unwrap();
    };
    let traces = matches!(operation, Operation::Dispatch | Operation::Drain);
    if operation == Operation::StopProfile || traces {
        start(&object, &mut session);
    }
    if traces {
        start(&traced[0], &mut session);
        start(&traced[1], &mut session);
        dispatch(TIME);
    }
    if operation != Operation::Freeze {
        for source in &sources[..STARTED] {
            if !session.is_running(*source) {
                session.start(*source).unwrap();
            }
        }
    }
    (0..STARTED).for_each(|source| _ = chip.happen(source, INTERVAL - 1));
    interface.set_interval(sources[0], 2 * INTERVAL).unwrap();
    let mut area = Area::new();
    if operation == Operation::Restore {
        session.save(&mut area, |_| panic!("nothing overflowed")).unwrap();
    }

    let left_over = |overflow: EventOverflow| {
        interface.overflow(&overflow).map(told);
    };
    let mut drained = 0;
    step_through(&interrupt, || match operation {
        Operation::Start => session.start(sources[STARTED]).unwrap(),
        Operation::Stop => session.stop(sources[0]).unwrap(),
        Operation::SetInterval => _ = interface.set_interval(sources[1], 2 * INTERVAL).unwrap(),
        Operation::Save => session.save(&mut area, left_over).unwrap(),
        Operation::Restore => session.restore(&area).unwrap(),
        Operation::Replace => {
            session.stop(sources[0]).unwrap();
            session.start(sources[STARTED]).unwrap();
        }
        Operation::Switch => {
            session.save(&mut area, left_over).unwrap();
            session.restore(&area).unwrap();
        }
        Operation::ShutDown => session.shut_down().unwrap(),
        Operation::Freeze => session.freeze_on_interrupt().unwrap(),
        Operation::Reprogram => {
            let anew = session.reprogram(|sample| left_over(*sample)).unwrap();
            assert!(anew.is_empty(), "{context}: registers that were not lost");
        }
        Operation::Serve => serve(),
        Operation::StartProfile => start(&object, &mut session),
        Operation::StopProfile => {
            lists.stop(&object, &mut ThisProcessor::new(&mut session, number)).unwrap();
        }
        Operation::Dispatch => dispatch(TIME),
        Operation::Drain => {
            drained += rings[0].drain().filter(|record| record.decode().is_ok()).count() as u64;
        }
    });

    // An overflow of the source that was stopped may have been dropped.
    for source in 0..SOURCES {
        match operation {
            Operation::Stop | Operation::Replace | Operation::StopProfile if source == 0 => {
                _ = chip.forgive(source)
            }
            Operation::ShutDown => _ = chip.forgive(source),
            _ => assert_eq!(chip.untold(source), 0, "{context}: {source} lost"),
        }
    }
    assert_eq!(chip.wrong(), 0, "{context}: invented, or with wrong events");
    let [sampled, collected] = [&sampler.sampled, &sampler.collected].map(|n| n.load(SeqCst));
    assert_eq!(collected, sampled, "{context}: a sample is lost");
    assert_eq!(chip.counted(), sources.map(|source| session.is_running(source)), "{context}");
    if operation == Operation::Save {
        session.restore(&area).unwrap();
    }
    if matches!(operation, Operation::Stop | Operation::StopProfile) {
        // The counter's next source inherits no overflow.
        session.start(sources[STARTED]).unwrap();
        chip.raise();
        deliver();
    }
    // Running sources continue, and stopped ones are silent.
    for (source, name) in sources.into_iter().enumerate() {
        let (before, hits_before) = (chip.tellings()[source], hits.load(SeqCst));
        let mut left = 4 * INTERVAL;
        while left > 0 {
            left = chip.happen(source, left);
            deliver();
        }
        assert_eq!((chip.untold(source), chip.wrong()), (0, 0), "{context}: afterwards");
        let told = chip.tellings()[source] - before;
        let runs = session.is_running(name);
        assert!(if runs { told >= 2 } else { told == 0 }, "{context}: {source} told {told}");
        let on_lists = (name == profiled && object.is_started())
            || traced.iter().any(|object| object.is_started() && object.source() == name);
        let hit = u64::from(hits.load(SeqCst) - hits_before);
        assert_eq!(hit, if on_lists { told } else { 0 }, "{context}: {source}");
    }
    drained += rings[0].drain().count() as u64;
    let recorded = hits.load(SeqCst) - counts();
    if traces {
        // Each time a basic object and a callback, or a callback.
        assert_eq!(drained + trace.dropped(), recorded.into(), "{context}: records");
    } else {
        assert_eq!(recorded, 0, "{context}: not in the buffer");
    }
    let statistics = lists.statistics();
    assert_eq!((statistics.seen, statistics.outside), (dispatched.load(SeqCst).into(), 0));
    let counted = counts();
    for object in traced.iter().chain([&object]).filter(|object| object.is_started()) {
        lists.stop(object, &mut ThisProcessor::new(&mut session, number)).unwrap();
    }
    session.shut_down().unwrap();
    assert_eq!(chip.counted(), [false; SOURCES], "{context}");
    chip.raise();
    deliver();
    assert_eq!(chip.global(), (found, false), "{context}: not as it was found");
    assert_eq!(counts(), counted, "{context}: counted after stop");
}

/// Interrupts every operation at each of its instructions.
fn every_instruction<I: EventSource<Processor = Snapshot>>(machine: &Machine<I>, samples: bool) {
    let operations = OPERATIONS
        .into_iter()
        .filter(|operation| *operation != Operation::Freeze || machine.freezes)
        .filter(|operation| !samples || OF_SAMPLER.contains(operation));
    steps::every_instruction(machine, operations, ROUNDS, 3, |operation| {
        interrupt(machine, operation, samples)
    });
}

#[test]
fn an_interrupt_at_any_instruction_does_no_harm() {
    every_instruction(&intel(1, false), false);
    every_instruction(&intel(2, false), false);
    every_instruction(&intel(3, true), false);
    every_instruction(&intel(4, true), false);
    every_instruction(&amd(Kind::Legacy), false);
    every_instruction(&amd(Kind::Core(false)), false);
    every_instruction(&amd(Kind::Core(true)), false);
}

/// Operations at whose every instruction a sampler interrupts.
const OF_SAMPLER: [Operation; 5] = [
    Operation::Start,
    Operation::Switch,
    Operation::ShutDown,
    Operation::Reprogram,
    Operation::Serve,
];

#[test]
fn a_samplers_interrupt_at_any_instruction_is_served() {
    every_instruction(&intel(2, false), true);
    every_instruction(&intel(4, true), true);
    every_instruction(&amd(Kind::Legacy), true);
    every_instruction(&amd(Kind::Core(true)), true);
}
