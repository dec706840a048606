//! The performance interrupt as an NMI at every register access of every operation, on the software PMU, and
//! on platforms that deviate from the manuals.
//!
//! The expected overflows come from the model, by the events that it was fed. The driver's reports must be the same:
//! no overflow lost, none invented, none outside a buffer, no counter running without a source, and no report of a
//! stopped source. No NMI that a counter raised is left unclaimed.

use super::sources::*;
use super::world::World;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};
use pmu_core::error::CounterError;
use pmu_core::frame::ProcessorNumber;
use pmu_core::interrupt::EventOverflow;
use pmu_core::profile::{InterfaceError, Overflow, Session};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, EventSource};
use pmu_intel::Emon;
use pmu_kprofile::hardware::ThisProcessor;
use pmu_kprofile::{BasicProfile, ProfileObject, Profiles, Rules};
use pmu_tests::deviations::{self, snapshot};
use pmu_tests::reports::service_sources;
use pmu_tests::{StateRegisters, enum_with_all};
use pmu_virt::EventKey;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviation, Deviations};

enum_with_all! {
    /// Interrupted operation, on a processor where two sources run and are an event short of overflowing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Operation {
        /// The counters are taken, as the predecessor left them.
        Initialize,
        Start,
        Stop,
        Read,
        SetInterval,
        /// Takes the new interval, or not, on the way.
        Save,
        Restore,
        /// Saved and restored.
        Switch,
        /// Stopped, and another started on its counter.
        Replace,
        ShutDown,
        StartProfile,
        StopProfile,
        /// After the registers were lost, on platforms that lose them.
        Reprogram,
    }
}

/// Interrupts an operation according to the plan, and checks every result. Returns whether the plan went beyond the
/// operation's end.
fn interrupt<I: EventSource<Processor = Snapshot>>(
    bench: &Bench<'_, I>,
    operation: Operation,
    plan: Plan,
) -> bool {
    let context = format!(
        "{operation:?}, {plan:?}, {:?}, {}, {}",
        bench.configuration, bench.freezing, bench.deviations
    );
    let deviates = |deviation| bench.deviations.contains(deviation);
    let (memory, lists) = (Memory::new(), Profiles::<1, 1>::new());
    let hits = Cell::new(0);
    let world = Sources::new(bench, &context);
    let handler = |mock: &Mock<'_>| {
        let foreign = world.foreign.take();
        let dispatch = |overflow: Overflow| {
            world.told(overflow);
            let dispatched = lists.interrupt(&FRAME, overflow.source);
            assert_eq!(dispatched.outside, 0);
            hits.set(hits.get() + dispatched.hits);
            world.callback(mock, overflow);
        };
        let serviced = service_sources(&bench.interface, mock, &memory, dispatch).unwrap();
        world.claimed(serviced.claim, foreign);
    };
    for source in bench.sources {
        bench.interface.set_interval(source, INTERVAL).unwrap();
    }
    let (configuration, processor) = bench.processor();
    let before_access = |mock: &Mock<'_>| world.step(mock);
    let mock = world.mock(configuration);
    mock.on_interrupt(&handler);
    mock.on_access(&before_access);
    if !deviates(Deviation::LeftRunning) {
        // No other owner's counters run, where that can be controlled.
        for control in [0x38F, 0xC000_0301] {
            let _ = mock.with_pmu(|pmu| pmu.write(control, 0));
        }
    }
    let found = mock.with_pmu(|pmu| pmu.state());
    let taking = operation == Operation::Initialize;
    if taking {
        // As the predecessor left it.
        mock.set_performance_entry(0x400);
        world.booking.set(false);
        world.plan.set(Some(plan));
    }
    let session = Session::take(&bench.interface, &processor, CounterSet::GENERAL, &mock, &memory);
    let stays_frozen =
        found.global_status() >> 59 & 1 != 0 && deviates(Deviation::NarrowAcknowledge);
    if stays_frozen {
        assert!(
            matches!(session, Err(InterfaceError::Counters(CounterError::Unchanged(_)))),
            "{context}"
        );
        return true;
    }
    let mut session = session.unwrap();
    let mut beyond = world.end(&mock);
    world.booking.set(true);
    let dead = deviates(Deviation::DeadCounter);
    assert_eq!(session.counters().unresponsive.bits(), u64::from(dead) << 1, "{context}");
    if bench.freezing {
        let freezes = session.freeze_on_interrupt();
        let ignored = Err(InterfaceError::Counters(CounterError::FreezeUnsupported));
        assert_eq!(freezes, if bench.freezes() { Ok(()) } else { ignored }, "{context}");
    }
    let buffer = [const { AtomicU32::new(0) }; 2];
    let counts = || buffer.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u32>();
    let profiled =
        if operation == Operation::StopProfile { bench.sources[0] } else { bench.sources[STARTED] };
    let request = BasicProfile {
        process: None,
        base: 0x1000,
        size: 8,
        bucket_log2: 2,
        buffer: &buffer,
        source: profiled,
        affinity: None,
    };
    let number = ProcessorNumber::default();
    let object =
        ProfileObject::basic(Rules::LATEST, request, &ThisProcessor::new(&mut session, number))
            .unwrap();

    for source in &bench.sources[..STARTED] {
        if operation == Operation::StopProfile && *source == profiled {
            // SAFETY: the object lives until it is stopped.
            unsafe { lists.start_borrowed(&object, &mut ThisProcessor::new(&mut session, number)) }
                .unwrap();
        } else {
            session.start(*source).unwrap();
        }
    }
    (0..STARTED).for_each(|source| world.happen(&mock, source, INTERVAL - 1));
    // Every counter that overflows from now on takes the new interval.
    bench.interface.set_interval(bench.sources[0], 2 * INTERVAL).unwrap();
    let mut area = Area::new();
    if operation == Operation::Restore {
        session.save(&mut area, |overflow| panic!("{overflow:?}")).unwrap();
    }
    let lost = operation == Operation::Reprogram && deviates(Deviation::LosesRegisters);
    if lost {
        mock.lose_registers();
        world.books.iter().for_each(|book| book.since.set(0));
    }

    if !taking {
        world.plan.set(Some(plan));
    }
    let told = |overflow: EventOverflow| {
        world.told(bench.interface.overflow(&overflow).expect("a source's"));
    };
    match operation {
        Operation::Initialize => {}
        Operation::Start => session.start(bench.sources[STARTED]).unwrap(),
        Operation::Stop => session.stop(bench.sources[0]).unwrap(),
        Operation::Read => {
            let read = session.read(bench.sources[0]).unwrap();
            let late = if deviates(Deviation::ServicesLate) { LATE } else { 0 };
            assert!(read <= (2 + late) * INTERVAL, "{context}: {read:#X} events read");
        }
        Operation::SetInterval => {
            bench.interface.set_interval(bench.sources[1], 2 * INTERVAL).unwrap();
        }
        Operation::Save => session.save(&mut area, told).unwrap(),
        Operation::Restore => session.restore(&area).unwrap(),
        Operation::Replace => {
            session.stop(bench.sources[0]).unwrap();
            session.start(bench.sources[STARTED]).unwrap();
        }
        Operation::Switch => {
            session.save(&mut area, told).unwrap();
            session.restore(&area).unwrap();
        }
        Operation::ShutDown => session.shut_down().unwrap(),
        Operation::StartProfile => {
            // SAFETY: the object lives until it is stopped.
            unsafe { lists.start_borrowed(&object, &mut ThisProcessor::new(&mut session, number)) }
                .unwrap();
        }
        Operation::StopProfile => {
            lists.stop(&object, &mut ThisProcessor::new(&mut session, number)).unwrap();
        }
        Operation::Reprogram => {
            let anew = session.reprogram(|sample| told(*sample)).unwrap();
            let expected = if lost { STARTED } else { 0 };
            assert_eq!(anew.len(), expected, "{context}: {anew:?} lost their counts");
        }
    }
    let stopped = |source| match operation {
        Operation::Stop | Operation::Replace | Operation::StopProfile => source == 0,
        Operation::ShutDown => true,
        _ => false,
    };
    // An overflow of the source that was stopped may have been dropped, before it was stopped.
    for (source, book) in world.books.iter().enumerate() {
        if stopped(source) {
            book.untold.borrow_mut().clear();
        }
    }
    beyond |= world.end(&mock);
    let all_told = |when: &str| {
        for (source, book) in world.books.iter().enumerate() {
            assert_eq!(book.untold.borrow().len(), 0, "{context}: {source} lost, {when}");
        }
    };
    all_told("by the operation");
    assert_eq!(counts(), hits.get(), "{context}: not in the buffer");

    // The running counters are those that the driver reports.
    assert_eq!(
        world.counted(&mock),
        bench.sources.map(|source| session.is_running(source)),
        "{context}"
    );
    if operation == Operation::Save {
        (0..SOURCES).for_each(|source| world.happen(&mock, source, 2 * INTERVAL));
        all_told("while saved");
        session.restore(&area).unwrap();
    }
    if matches!(operation, Operation::Stop | Operation::StopProfile) {
        // The counter's next source inherits no overflow.
        session.start(bench.sources[STARTED]).unwrap();
        world.interrupt(&mock);
    }
    // Running sources continue, and stopped ones are silent.
    for source in 0..SOURCES {
        let (before, hits_before) = (world.books[source].told.get(), hits.get());
        world.happen(&mock, source, 8 * INTERVAL);
        all_told("afterwards");
        let told = world.books[source].told.get() - before;
        let runs = session.is_running(bench.sources[source]);
        assert_eq!(told >= 2, runs, "{context}: {told} overflows of {source} afterwards");
        assert!(runs || told == 0, "{context}: {source} is not silent");
        let profiles = bench.sources[source] == profiled && object.is_started();
        let hit = u64::from(hits.get() - hits_before);
        assert_eq!(hit, if profiles { told } else { 0 }, "{context}");
        assert_eq!(counts(), hits.get(), "{context}: not in the buffer");
    }
    // Another's NMI, of which no handler knows, is not claimed, or twice at most: for some may come late.
    world.swallow.set(false);
    world.expects_unknown.set(true);
    (0..3).for_each(|_| _ = mock.interrupt_from_elsewhere());
    assert!(world.unknown.get() > 0, "{context}: unknown NMIs are claimed");
    world.expects_unknown.set(false);
    if object.is_started() {
        lists.stop(&object, &mut ThisProcessor::new(&mut session, number)).unwrap();
    }
    session.shut_down().unwrap();
    assert_eq!(world.counted(&mock), [false; SOURCES], "{context}");
    // A late interrupt changes nothing.
    world.interrupt(&mock);
    let state = mock.with_pmu(|pmu| pmu.state());
    assert_eq!(state.global_control(), found.global_control(), "{context}: not as it was found");
    assert_eq!(state.global_status() >> 59 & 1, 0, "{context}: left frozen");
    beyond
}

/// Another owner's fixed counter, which interrupts and which its owner acknowledges, overflows at any access of the
/// operations that switch freezing on and restore it.
#[test]
fn a_strangers_interrupt_leaves_no_counter_frozen() {
    const GLOBAL_CONTROL: u32 = 0x38F;
    for version in [3, 4, 5] {
        let configuration = Configuration::Intel(IntelConfiguration::new(version, 4, 3));
        let processor = snapshot(configuration, Deviations::NONE);
        let emon = Emon::detect(&processor).unwrap();
        let mut bench = Bench::new(&emon, configuration, Deviations::NONE, true);
        bench.keys[STARTED] = EventKey::fixed(2).unwrap();
        for (at, late, shuts_down) in
            (1..16).flat_map(|at| (0..3).flat_map(move |l| [(at, l, false), (at, l, true)]))
        {
            let context = format!("version {version}, {at}, late {late}, {shuts_down}");
            let memory = Memory::new();
            let strangers = Cell::new(0);
            let world = Sources::new(&bench, &context);
            let handler = |mock: &Mock<'_>| {
                let serviced = service_sources(&emon, mock, &memory, |o| panic!("{o:?}")).unwrap();
                // The owner of the fixed counter.
                let foreign = mock.with_pmu(|pmu| {
                    let foreign = pmu.state().global_status() >> 34 & 1 != 0;
                    if foreign {
                        let _ = pmu.write(0x390, 1 << 34);
                        strangers.set(strangers.get() + 1);
                    }
                    foreign
                });
                world.claimed(serviced.claim, foreign);
            };
            let before_access = |mock: &Mock<'_>| world.step(mock);
            let mock = world.mock(configuration);
            mock.on_interrupt(&handler);
            mock.on_access(&before_access);
            mock.with_pmu(|pmu| {
                // Counts everywhere, and interrupts.
                let _ = pmu.write(0x38D, 0xB00);
                let _ = pmu.write(GLOBAL_CONTROL, 1 << 34);
                let _ = pmu.write(0x30B, u64::MAX >> 16);
            });
            let mut session =
                Session::take(&emon, &processor, CounterSet::GENERAL, &mock, &memory).unwrap();
            if shuts_down {
                session.freeze_on_interrupt().unwrap();
            }
            world.plan.set(Some(Plan::All { at, late }));
            if shuts_down {
                session.shut_down().unwrap();
            } else {
                session.freeze_on_interrupt().unwrap();
            }
            world.end(&mock);
            assert_eq!(strangers.get(), 1, "{context}");
            let state = mock.with_pmu(|pmu| pmu.state());
            assert_eq!(state.global_status() >> 59 & 1, 0, "{context}: frozen");
            let own = if shuts_down { 0 } else { 0xF };
            assert_eq!(state.global_control(), 1 << 34 | own, "{context}");
        }
    }
}

/// Runs through a kind of plan, until it goes beyond the end of the operation.
fn at_every_access(plan: impl Fn(u32) -> Plan) -> impl Test {
    struct Every<F>(F);
    impl<F: Fn(u32) -> Plan> Test for Every<F> {
        fn run<I: EventSource<Processor = Snapshot>>(&self, bench: &Bench<'_, I>) {
            for operation in Operation::ALL {
                (1..).find(|access| interrupt(bench, operation, (self.0)(*access)));
            }
        }
    }
    Every(plan)
}

#[test]
fn all_counters_overflow_at_any_access() {
    everywhere(Deviations::NONE, &at_every_access(|at| Plan::All { at, late: 0 }));
}

#[test]
fn the_interrupt_comes_later_than_the_overflow() {
    for late in [1, 2, 3, 5, 8, 13, 21] {
        everywhere(Deviations::NONE, &at_every_access(|at| Plan::All { at, late }));
    }
}

/// Runs through the plans of two events at most a given number of accesses apart.
fn at_any_two_accesses(plan: impl Fn(u32, u32) -> Plan) {
    for distance in 0..16 {
        everywhere(Deviations::NONE, &at_every_access(|first| plan(first, first + distance)));
    }
}

/// The second may come within the interrupt of the first.
#[test]
fn counters_overflow_one_after_the_other_at_any_two_accesses() {
    at_any_two_accesses(|first, second| Plan::OneByOne { first, second });
}

#[test]
fn a_counter_overflows_within_an_interrupt_of_another_source() {
    at_any_two_accesses(|at, second| Plan::Spurious { at, second });
}

/// Every kind of plan, on a platform.
fn on_platform(deviations: Deviations, lates: &[u32], distances: &[u32]) {
    for &late in lates {
        everywhere(deviations, &at_every_access(|at| Plan::All { at, late }));
    }
    for &distance in distances {
        let one = |first| Plan::OneByOne { first, second: first + distance };
        everywhere(deviations, &at_every_access(one));
        let spurious = |at| Plan::Spurious { at, second: at + distance };
        everywhere(deviations, &at_every_access(spurious));
    }
}

/// Each deviation of real platforms that lost overflows, by its name.
#[test]
fn nothing_is_lost_on_a_platform_that_deviates() {
    for deviations in deviations::single() {
        println!("{deviations}");
        on_platform(deviations, &[0, 1, 2, 3, 5], &[0, 1, 2, 3, 5]);
    }
}

/// A sample of the pairs; with `PMU_TEST_ALL_PAIRS` set, all of them.
#[test]
fn nothing_is_lost_on_a_platform_that_deviates_twice() {
    for deviations in deviations::pairs(16, 0x9E37_79B9) {
        println!("{deviations}");
        on_platform(deviations, &[0, 2], &[0, 2]);
    }
}
