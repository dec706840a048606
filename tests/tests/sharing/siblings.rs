//! Two logical processors of a core, whose memory events corrupt each other's counters: they are scheduled exclusively.

use pmu_core::error::CounterError;
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::registers::CounterId;
use pmu_core::shared_core::{CoreCounters, CoreThread, OnSharedCore};
use pmu_core::thread::ThreadEvent;
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSession, CounterSet, CounterUnit, Event, EventId, EventStatus, Events};
use pmu_intel::SiblingErratum;
use pmu_tests::Reason;
use pmu_tests::opened::*;
use pmu_virt::mock::{Deviations, Fault};

type Sibling<'a, 'm> =
    CounterSession<'a, Events<'a, CounterUnit, OnSharedCore<'a>>, &'m Mock<'static>>;

/// Of [`KINDS`]: 2 to 5 are memory events, 0xD0 to 0xD3; 6 and 7 are not.
fn is_of_memory(kind: usize) -> bool {
    (2..6).contains(&kind)
}

/// A core of two logical processors.
struct Core<'p> {
    processor: &'p Processor,
    counters: CoreCounters,
    memories: [Memory; 2],
    tables: [Table; 2],
    mocks: [Mock<'static>; 2],
}

impl<'p> Core<'p> {
    fn new(processor: &'p Processor) -> Self {
        Self {
            processor,
            counters: CoreCounters::new(),
            memories: [Memory::new(), Memory::new()],
            tables: [Table::new(), Table::new()],
            mocks: [processor.mock(), processor.mock()],
        }
    }

    /// Takes the counters of both logical processors.
    fn take(&self) -> [Sibling<'_, '_>; 2] {
        [0, 1].map(|number| {
            let (unit, mock) = (&self.processor.unit, &self.mocks[number]);
            let thread = CoreThread::new(&self.counters, number == 1, SiblingErratum::EVENTS);
            let source =
                Events::new(unit, &self.tables[number]).with(OnSharedCore::new(thread, ()));
            let memory = &self.memories[number];
            CounterSession::take(source, unit, CounterSet::ALL, mock, memory).unwrap()
        })
    }
}

fn open(counters: &mut Sibling<'_, '_>, processor: &Processor, event: Event) -> EventId {
    counters.open(&processor.unit, &[event]).unwrap()
}

fn on(counter: u8) -> CounterSet {
    CounterId::general(counter).unwrap().only()
}

/// The models by their specification updates, which the erratum's documentation names.
#[test]
fn the_erratum_is_that_of_sandy_bridge_to_haswell() {
    let of = |family: u32, model: u32| {
        let signature = family << 8 | (model >> 4) << 16 | (model & 0xF) << 4;
        let snapshot = Snapshot::capture(move |leaf: u32, _| {
            let [eax, ebx, ecx, edx] = match leaf {
                0 => [1, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
                _ => [signature, 0, 0, 0],
            };
            pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
        });
        SiblingErratum::detect(&snapshot).map(SiblingErratum::id)
    };
    for (id, models) in [
        ("BJ122", &[0x2A, 0x2D][..]),
        ("BV98", &[0x3A, 0x3E]),
        ("HSD29", &[0x3C, 0x3F, 0x45, 0x46]),
    ] {
        assert!(models.iter().all(|model| of(6, *model) == Some(id)), "{id}");
    }
    let affected = (0..=0xFF).filter(|model| of(6, *model).is_some()).count();
    assert_eq!((affected, of(15, 0x2A)), (8, None));
}

#[test]
fn a_memory_event_and_the_siblings_events_never_have_counters_of_one_number() {
    let processor = plain(3);
    let core = Core::new(&processor);
    let [mut first, mut second] = core.take();
    // The sibling's plain event is on counter 0: a memory event takes another.
    let plain = open(&mut second, &processor, raw(6).on(on(0)));
    second.enable(plain, 0).unwrap();
    let narrow = open(&mut first, &processor, raw(2).on(on(0)));
    assert_eq!(first.enable(narrow, 0).reason(), Err(CounterError::NoFreeCounter));
    let loads = open(&mut first, &processor, raw(2));
    first.enable(loads, 0).unwrap();
    assert_eq!(first.counter_of(loads).map(CounterId::bit), Some(1));
    // A plain one shares counter 0 with the sibling; none of the sibling's gets counter 1.
    let beside = open(&mut first, &processor, raw(7).on(on(0)));
    first.enable(beside, 0).unwrap();
    let refused = open(&mut second, &processor, raw(7).on(on(1)));
    assert_eq!(second.enable(refused, 0).reason(), Err(CounterError::NoFreeCounter));
    let moved = open(&mut second, &processor, raw(7));
    second.enable(moved, 0).unwrap();
    assert_eq!(second.counter_of(moved).map(CounterId::bit), Some(2));
    // Fixed counters are not affected, and a free counter alone is not enough to know.
    let fixed = open(&mut second, &processor, raw(0));
    second.enable(fixed, 0).unwrap();
    assert!(second.counter_of(fixed).is_some_and(CounterId::is_fixed));
    let if_free = second.enable_if_free(refused, 0);
    assert_eq!(if_free, Err(CounterError::NoCounterForEvent));
    // A memory event that stops leaves its counter's number to the sibling.
    first.disable(loads, 1).unwrap();
    second.enable(refused, 1).unwrap();
    assert_eq!(second.counter_of(refused).map(|on| on.bit()), Some(1));
    // Counter 3 is left for a memory event, and counters of the sibling that has ended.
    first.enable(loads, 2).unwrap();
    assert_eq!(first.counter_of(loads).map(CounterId::bit), Some(3));
    second.shut_down().unwrap();
    first.close(beside, 3).unwrap();
    first.enable(narrow, 3).unwrap();
    first.shut_down().unwrap();
}

/// A memory event that rotates waits while the sibling has its counter; a thread's that does not is in error.
#[test]
fn a_memory_event_waits_for_the_sibling() {
    let processor = plain(3);
    let core = Core::new(&processor);
    let [mut first, mut second] = core.take();
    let blocking = open(&mut second, &processor, raw(3).on(on(2)));
    second.enable(blocking, 0).unwrap();
    let waits = open(&mut first, &processor, raw(2).on(on(2)).rotating());
    first.enable(waits, 0).unwrap();
    assert_eq!(first.event_status(waits), Ok(EventStatus::Inactive));
    first.rotate(1).unwrap();
    assert_eq!(first.event_status(waits), Ok(EventStatus::Inactive));
    // The blocking event's thread is switched out, and back in beside the other one.
    let mut thread = [ThreadEvent::Opened(blocking)];
    second.switch_out(&mut thread, 2, |o| panic!("{o:?}")).unwrap();
    first.rotate(2).unwrap();
    assert_eq!(first.counter_of(waits).map(CounterId::bit), Some(2));
    let refused = second.switch_in(&processor.unit, &mut thread, 3).unwrap_err();
    assert_eq!(refused.reason, CounterError::NoFreeCounter);
    let ThreadEvent::Opened(blocking) = thread[0] else { panic!("{thread:?}") };
    assert_eq!(second.event_status(blocking), Ok(EventStatus::Error));
    first.shut_down().unwrap();
    second.enable(blocking, 4).unwrap();
    second.shut_down().unwrap();
}

/// Random operations on both: the rule, from what their sessions say, and from the rule alone whether there was room.
#[test]
fn random_operations_of_two_siblings_keep_the_rule() {
    for seed in 1..=200 {
        let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
        let processor = plain(3);
        let core = Core::new(&processor);
        let mut sessions = core.take();
        let mut events: [Vec<(EventId, usize, CounterSet)>; 2] = Default::default();
        for (session, events) in sessions.iter_mut().zip(&mut events) {
            for _ in 0..8 {
                let kind = 2 + random.below(6) as usize;
                let event = raw(kind);
                let event = if random.below(2) == 0 { event.rotating() } else { event };
                let on = CounterSet::from_bits(1 + random.below(15));
                events.push((open(session, &processor, event.on(on)), kind, on));
            }
        }
        // The counters of a session, and those of its memory events.
        let use_of = |sessions: &[Sibling<'_, '_>; 2], which: usize| {
            let mut used = [CounterSet::NONE; 2];
            for (id, kind, _) in &events[which] {
                if let Some(counter) = sessions[which].counter_of(*id) {
                    used[0] = used[0] | counter.only();
                    used[1] = if is_of_memory(*kind) { used[1] | counter.only() } else { used[1] };
                }
            }
            used
        };
        for now in 1..60 {
            let which = random.below(2) as usize;
            let (id, kind, on) = events[which][random.below(8) as usize];
            match random.below(4) {
                0 => sessions[which].rotate(now).unwrap(),
                _ if sessions[which].is_enabled(id) => sessions[which].disable(id, now).unwrap(),
                _ => {
                    let started = sessions[which].enable(id, now);
                    if sessions[which].counter_of(id).is_none() {
                        let [own, _] = use_of(&sessions, which);
                        let [all, memory] = use_of(&sessions, 1 - which);
                        let others = if is_of_memory(kind) { all } else { memory };
                        let free = on.without(own).without(others);
                        assert!(free.is_empty(), "{seed}, {now}: {started:?}: {free:?} is free");
                    }
                    let fits =
                        started.is_ok() || started.reason() == Err(CounterError::NoFreeCounter);
                    assert!(fits, "{seed}, {now}: {kind}: {started:?}");
                }
            }
            let ([all, memory], [others, of_others]) = (use_of(&sessions, 0), use_of(&sessions, 1));
            assert!((memory & others | of_others & all).is_empty(), "{seed}, {now}");
        }
        sessions.into_iter().for_each(|mut session| session.shut_down().unwrap());
    }
}

/// After a fault at each access of a memory event's start, its counter is the event's or the sibling's, not both.
#[test]
fn a_fault_at_each_access_leaves_no_counter_to_both() {
    let processor = plain(3);
    for access in 1.. {
        let mut reached = false;
        for fault in [Fault::At(access), Fault::From(access)] {
            let core = Core::new(&processor);
            let [mut first, mut second] = core.take();
            let loads = open(&mut first, &processor, raw(2).on(on(0)));
            core.mocks[0].clear();
            core.mocks[0].inject(fault);
            let started = first.enable(loads, 0);
            reached = core.mocks[0].accesses().total() >= access;
            let runs = running(&core.mocks[0]).contains(CounterId::general(0).unwrap());
            core.mocks[0].inject(Fault::None);
            let other = open(&mut second, &processor, raw(6).on(on(0)));
            let beside = second.enable(other, 0);
            assert!(!(runs && beside.is_ok()), "{fault:?}: {started:?}");
            assert!(started.is_ok() || matches!(fault, Fault::From(_)), "{fault:?}");
            first.shut_down().unwrap();
            if beside.is_err() {
                second.enable(other, 1).unwrap();
            }
            second.shut_down().unwrap();
        }
        if !reached {
            assert!(access > 2);
            break;
        }
    }
}

/// Without the wrapper of the source, nothing changes.
#[test]
fn the_other_sources_share_nothing() {
    for processor in processors(Deviations::NONE) {
        let (memory, table, mock) = (Memory::new(), Table::new(), processor.mock());
        let mut counters = processor.take(&mock, &memory, &table);
        let loads = counters.open(&processor.unit, &[raw(2)]).unwrap();
        counters.enable_if_free(loads, 0).unwrap();
        counters.shut_down().unwrap();
    }
}

/// The same with the sources of a machine.
#[test]
fn sources_and_events_of_a_machine_are_scheduled_exclusively() {
    let processor = plain(3);
    let machine = pmu::Machine::detect(&processor.snapshot);
    let core = Core::new(&processor);
    let threads =
        [false, true].map(|second| CoreThread::new(&core.counters, second, SiblingErratum::EVENTS));
    let take = |place: usize| {
        let (mock, memory) = (&core.mocks[place], &core.memories[place]);
        let events = Events::new(&machine, &core.tables[place]);
        let events = events.with(OnSharedCore::new(threads[place], ()));
        Session::take(events, &processor.snapshot, CounterSet::ALL, mock, memory).unwrap()
    };
    let [mut first, mut second] = [0, 1].map(take);
    let source = KProfileSource::BRANCH_MISPREDICTIONS;
    first.start(source).unwrap();
    let used = running(&core.mocks[0]);
    assert_eq!(used.len(), 1);
    let counters = second.counters_mut();
    let mut open = |on| counters.open(&processor.unit, &[raw(2).on(on)]).unwrap();
    let [beside, other] = [open(used), open(CounterSet::GENERAL)];
    assert_eq!(counters.enable(beside, 0).reason(), Err(CounterError::NoFreeCounter));
    counters.enable(other, 0).unwrap();
    let others = counters.counter_of(other).unwrap().only();
    assert!((others & used).is_empty());
    // The source's next counter is not the memory event's.
    first.stop(source).unwrap();
    counters.disable(other, 0).unwrap();
    counters.enable(beside, 0).unwrap();
    first.start(source).unwrap();
    assert!((running(&core.mocks[0]) & used).is_empty());
    first.shut_down().unwrap();
    second.shut_down().unwrap();
}
