//! The vendors' drivers on the software PMU, in strict mode: on every configuration that they claim,
//! with a fault and with an interrupt at each of their accesses.
//!
//! The model decides which bits an access may hold; it is written from the manuals' tables and shares nothing with
//! the drivers.

mod virt_support;

use core::cell::{Cell, RefCell};
use pmu_tests::StateRegisters;

use pmu_amd::Amd64;
use pmu_core::{
    Availability, CounterError, CounterId, CounterMemory, CounterSet, CounterSlot, InterfaceError,
    KProfileSource, MsrFault, NoInterface, Overflow, Platform, ProfileInterface, SavedCounter,
    SavedCounters, Session, Snapshot, SourceInterface,
};
use pmu_intel::Emon;
use pmu_tests::deviations::{self, snapshot};
use pmu_virt::mock::{Deviation, Deviations, Fault, MockMachine, MockMsr, PmiFault};
use pmu_virt::{
    AmdConfiguration, Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Privilege,
    VirtualPmu,
};
use virt_support::{AMD_MATRIX, HIDDEN, intel_matrix};

type Mock<'h> = MockMsr<'h, 64>;
type Memory = CounterMemory<[CounterSlot; 8]>;
const INTERVAL: u64 = 0x1000;

/// A driver on one configuration, with which every test runs.
struct Bench<'i, I> {
    interface: &'i I,
    configuration: Configuration,
    deviations: Deviations,
    /// Two sources for which the model is fed.
    sources: [KProfileSource; 2],
    keys: [EventKey; 2],
}

trait Test {
    fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>);
}

impl<'i, I: ProfileInterface> Bench<'i, I> {
    fn new(interface: &'i I, configuration: Configuration, deviations: Deviations) -> Self {
        let rows: Vec<_> = interface
            .sources()
            .iter()
            .filter(|row| row.source() != KProfileSource::TIME && row.canonical().is_none())
            .filter(|row| interface.query(row.source()).is_supported())
            .take(2)
            .collect();
        let sources = [rows[0].source(), rows[1].source()];
        let keys =
            [rows[0].select(), rows[1].select()].map(|s| EventKey::of_select(s.select_bits()));
        assert_ne!(keys[0], keys[1]);
        for source in sources {
            interface.set_interval(source, INTERVAL).unwrap();
        }
        Self { interface, configuration, deviations, sources, keys }
    }

    fn events(&self) -> FedEvents {
        FedEvents::new(&self.keys).unwrap()
    }

    fn mock<'h>(&self) -> Mock<'h> {
        let (configuration, _) = self.processor();
        let pmu = VirtualPmu::new(configuration, self.events()).unwrap();
        Mock::strict(pmu).deviating(self.deviations)
    }

    /// The processor that is tested: it may have less than the boot processor.
    fn processor(&self) -> (Configuration, Snapshot) {
        let own = self.deviations.configuration(self.configuration);
        (own, snapshot(own, self.deviations))
    }

    fn deviates(&self, deviation: Deviation) -> bool {
        self.deviations.contains(deviation)
    }

    fn initialize<'a, 'm>(
        &'a self,
        mock: &'m Mock<'m>,
        memory: &'a Memory,
    ) -> Result<Session<'a, &'a I, &'m Mock<'m>, &'m Mock<'m>>, InterfaceError> {
        self.interface.initialize(&self.processor().1, mock, mock, memory)
    }

    /// Returns a feed of `count` of a source's event.
    fn happened(&self, source: usize, count: u64) -> Feed {
        let mut feed = Feed::new(&self.events());
        feed.add(self.events().find(self.keys[source]).unwrap(), Privilege::User, count).unwrap();
        feed
    }

    fn session<'a, 'm>(
        &'a self,
        mock: &'m Mock<'m>,
        memory: &'a Memory,
    ) -> Session<'a, &'a I, &'m Mock<'m>, &'m Mock<'m>> {
        self.initialize(mock, memory).unwrap()
    }
}

/// Runs a test on every configuration that each driver claims; and on some of them with each deviation, and
/// with a sample of their pairs.
fn everywhere(test: &impl Test) {
    for intel in intel_matrix() {
        on(Configuration::Intel(intel), Deviations::NONE, test);
    }
    for (amd, _) in AMD_MATRIX {
        on(Configuration::Amd(amd), Deviations::NONE, test);
    }
    for deviations in deviations::single().chain(deviations::pairs(16, 0xB529_7A4D)) {
        println!("{deviations}");
        for version in [1, 2, 3, 4, 5, 6] {
            let intel = IntelConfiguration::new(version, 4, if version > 1 { 3 } else { 0 });
            on(Configuration::Intel(intel), deviations, test);
        }
        for amd in [
            AmdConfiguration::LEGACY,
            AmdConfiguration::CORE_EXTENSION,
            AmdConfiguration::perf_mon_v2(8),
        ] {
            on(Configuration::Amd(amd), deviations, test);
        }
    }
}

/// Runs a test as [`everywhere`] does, without a deviation under which it makes no sense.
fn everywhere_but(unwanted: Deviation, test: &impl Test) {
    struct But<'t, T>(Deviation, &'t T);
    impl<T: Test> Test for But<'_, T> {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            if !bench.deviates(self.0) {
                self.1.run(bench);
            }
        }
    }
    everywhere(&But(unwanted, test));
}

/// Runs a test with the driver of a configuration.
fn on(configuration: Configuration, deviations: Deviations, test: &impl Test) {
    let snapshot = snapshot(configuration, deviations);
    match configuration {
        Configuration::Intel(intel) => {
            let frozen = deviations.contains(Deviation::LeftFrozen) && intel.version >= 4;
            if frozen && deviations.contains(Deviation::NarrowAcknowledge) {
                // Refused: see `counters_that_stay_frozen_are_refused`.
                return;
            }
            let emon = Emon::detect(&snapshot).unwrap();
            assert_eq!(
                (emon.unit().counters() & CounterSet::GENERAL).bits(),
                u64::from(intel.general)
            );
            test.run(&Bench::new(&emon, configuration, deviations));
        }
        _ => {
            let frozen = matches!(configuration, Configuration::Amd(amd) if amd != AmdConfiguration::CORE_EXTENSION && amd != AmdConfiguration::LEGACY)
                && deviations.contains(Deviation::LeftFrozen);
            if frozen && deviations.contains(Deviation::NarrowAcknowledge) {
                return;
            }
            let amd64 = Amd64::detect(&snapshot).unwrap();
            test.run(&Bench::new(&amd64, configuration, deviations));
        }
    }
}

/// Asserts that a counter that cannot be released does not count, and is reported.
#[test]
fn counters_that_stay_frozen_are_refused() {
    let deviations = Deviations::of(&[Deviation::LeftFrozen, Deviation::NarrowAcknowledge]);
    for version in [4, 5] {
        let configuration = Configuration::Intel(IntelConfiguration::new(version, 4, 0));
        let emon = Emon::detect(&snapshot(configuration, deviations)).unwrap();
        let bench = Bench::new(&emon, configuration, deviations);
        let (mock, memory) = (bench.mock(), Memory::new());
        let outcome = bench.initialize(&mock, &memory).map(|_| ());
        let refused = matches!(
            outcome,
            Err(InterfaceError::Counters(CounterError::Access(MsrFault { register: 0x390, .. })))
        );
        assert!(refused, "{outcome:?}");
    }
}

/// Returns the number of counters that really run.
fn running(mock: &Mock<'_>) -> usize {
    mock.with_pmu(|pmu| pmu.running().count())
}

/// Returns whether the hardware has a counter running for the event.
fn counts(mock: &Mock<'_>, key: EventKey) -> bool {
    mock.with_pmu(|pmu| pmu.running().any(|event| event.key == key))
}

/// Asserts that the driver's reports of its sources agree with the counters.
#[track_caller]
fn assert_truthful<I: ProfileInterface, P: Platform>(
    bench: &Bench<'_, I>,
    session: &Session<'_, &I, &Mock<'_>, P>,
    mock: &Mock<'_>,
    context: &str,
) {
    for (source, key) in bench.sources.into_iter().zip(bench.keys) {
        assert_eq!(
            session.is_running(source),
            counts(mock, key),
            "{context}: {source} on {:?}",
            bench.configuration
        );
    }
}

#[test]
fn a_driver_starts_counts_interrupts_and_stops() {
    struct Lifecycle;
    impl Test for Lifecycle {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            let memory = Memory::new();
            let reported = RefCell::new(Vec::<Overflow>::new());
            let handler = |mock: &Mock<'_>| {
                let push = |overflow| reported.borrow_mut().push(overflow);
                bench.interface.service(mock, mock, &memory, push).unwrap();
            };
            let mock = bench.mock();
            mock.on_interrupt(&handler);
            let before = mock.with_pmu(|pmu| pmu.state());
            let mut session = bench.initialize(&mock, &memory).unwrap();
            let usable = session.counters().usable.bits();
            let source = bench.sources[0];
            assert_eq!(session.query(source).availability, Availability::Proven);
            assert_eq!(running(&mock), 0);

            session.start(source).unwrap();
            assert_truthful(bench, &session, &mock, "started");
            mock.advance(&mut bench.happened(0, INTERVAL - 1));
            assert_eq!(session.read(source), Ok(INTERVAL - 1));
            assert!(reported.borrow().is_empty());
            mock.advance(&mut bench.happened(0, 1));
            (0..3).for_each(|_| mock.advance(&mut bench.happened(0, INTERVAL)));
            assert_eq!(session.read(source), Ok(0));
            let overflow =
                Overflow { source, events: INTERVAL, counter: CounterId::general(0).unwrap() };
            assert_eq!(*reported.borrow(), [overflow; 4]);
            // Beyond one for each overflow, some are raised by unmasking.
            let interrupts = mock.interrupts();
            let exact = !bench.deviates(Deviation::RaisesOnUnmask);
            assert!(if exact { interrupts == 4 } else { interrupts >= 4 }, "{interrupts}");
            assert_truthful(bench, &session, &mock, "interrupted");

            session.stop(source).unwrap();
            assert_truthful(bench, &session, &mock, "stopped");
            mock.advance(&mut bench.happened(0, 2 * INTERVAL));
            assert_eq!(mock.interrupts(), interrupts);
            session.shut_down().unwrap();
            assert_eq!(running(&mock), 0);
            let after = mock.with_pmu(|pmu| pmu.state());
            assert_eq!(after.global_control(), before.global_control());
            assert_eq!(mock.breach(), None);
            // A driver of the legacy counters has no status.
            if bench.interface.unit().global().is_some() {
                assert_eq!(after.global_status() & usable, 0);
            }
        }
    }
    everywhere(&Lifecycle);
}

/// Firmware, or a kernel before, may have left the bit set that makes the processor freeze its counters,
/// and the counters frozen (SDM vol. 3B, "Freezing LBR and Performance Counters on PMI").
#[test]
fn counters_that_freeze_though_nobody_asked_go_on() {
    const IA32_DEBUGCTL: u32 = 0x1D9;
    const FREEZE_PERFMON_ON_PMI: u64 = 1 << 12;
    for intel in intel_matrix().filter(|intel| intel.version > 1) {
        let configuration = Configuration::Intel(intel);
        let emon = Emon::detect(&snapshot(configuration, Deviations::NONE)).unwrap();
        let bench = Bench::new(&emon, configuration, Deviations::NONE);
        let (memory, reported) = (Memory::new(), RefCell::new(0));
        let handler = |mock: &Mock<'_>| {
            let count = |_| *reported.borrow_mut() += 1;
            emon.service(mock, mock, &memory, count).unwrap();
        };
        let mock = bench.mock();
        mock.on_interrupt(&handler);
        let _ = mock.with_pmu(|pmu| pmu.write(IA32_DEBUGCTL, FREEZE_PERFMON_ON_PMI));
        let mut session = bench.session(&mock, &memory);
        session.start(bench.sources[0]).unwrap();
        for intervals in 1..=3 {
            mock.advance(&mut bench.happened(0, INTERVAL));
            assert_eq!(*reported.borrow(), intervals, "{intel:?}");
        }
        session.shut_down().unwrap();
        assert_eq!(mock.breach(), None);
    }
}

#[test]
fn every_counter_takes_a_source_and_interrupts_for_its_own() {
    struct Full;
    impl Test for Full {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            let memory = Memory::new();
            let reported = RefCell::new(Vec::new());
            let handler = |mock: &Mock<'_>| {
                let push = |overflow: Overflow| reported.borrow_mut().push(overflow.source);
                bench.interface.service(mock, mock, &memory, push).unwrap();
            };
            let mock = bench.mock();
            mock.on_interrupt(&handler);
            let mut session = bench.initialize(&mock, &memory).unwrap();
            let mut started = vec![];
            for row in bench.interface.sources() {
                let source = row.source();
                if source == KProfileSource::TIME || !session.query(source).is_supported() {
                    continue;
                }
                match session.start(source) {
                    Ok(()) => started.push(source),
                    Err(error) => {
                        assert_eq!(error, InterfaceError::NoFreeCounter(source));
                        break;
                    }
                }
            }
            assert!(started.len() <= bench.interface.unit().counters().len());
            assert_eq!(running(&mock), started.len());
            for (index, source) in bench.sources.into_iter().enumerate() {
                reported.borrow_mut().clear();
                mock.advance(&mut bench.happened(index, 0x1_0000));
                let expected = session.is_running(source);
                assert_eq!(reported.borrow().contains(&source), expected);
            }
            session.shut_down().unwrap();
            assert_eq!(running(&mock), 0);
        }
    }
    everywhere(&Full);
}

/// A driver's operation, on a session that is ready for it.
type Operation<I> = for<'a, 'm> fn(
    &Bench<'_, I>,
    &mut Session<'a, &'a I, &'m Mock<'m>, &'m Mock<'m>>,
) -> Result<(), InterfaceError>;

/// Each operation, with what comes before it.
fn operations<I: ProfileInterface>() -> [(&'static str, Operation<I>, Operation<I>); 4] {
    fn nothing<I: ProfileInterface>(
        _: &Bench<'_, I>,
        _: &mut Session<'_, &I, &Mock<'_>, &Mock<'_>>,
    ) -> Result<(), InterfaceError> {
        Ok(())
    }
    fn start<I: ProfileInterface>(
        bench: &Bench<'_, I>,
        session: &mut Session<'_, &I, &Mock<'_>, &Mock<'_>>,
    ) -> Result<(), InterfaceError> {
        session.start(bench.sources[0])
    }
    fn stop<I: ProfileInterface>(
        bench: &Bench<'_, I>,
        session: &mut Session<'_, &I, &Mock<'_>, &Mock<'_>>,
    ) -> Result<(), InterfaceError> {
        session.stop(bench.sources[0])
    }
    fn read<I: ProfileInterface>(
        bench: &Bench<'_, I>,
        session: &mut Session<'_, &I, &Mock<'_>, &Mock<'_>>,
    ) -> Result<(), InterfaceError> {
        session.read(bench.sources[0]).map(|_| ())
    }
    fn shut_down<I: ProfileInterface>(
        _: &Bench<'_, I>,
        session: &mut Session<'_, &I, &Mock<'_>, &Mock<'_>>,
    ) -> Result<(), InterfaceError> {
        session.shut_down()
    }
    [
        ("start", nothing::<I>, start::<I>),
        ("stop", start::<I>, stop::<I>),
        ("read", start::<I>, read::<I>),
        ("shut down", start::<I>, shut_down::<I>),
    ]
}

/// Returns the number of accesses of an operation without a fault.
fn accesses_of<I: ProfileInterface>(
    bench: &Bench<'_, I>,
    before: Operation<I>,
    operation: Operation<I>,
) -> u32 {
    let (mock, memory) = (bench.mock(), Memory::new());
    let mut session = bench.session(&mock, &memory);
    before(bench, &mut session).unwrap();
    mock.clear();
    operation(bench, &mut session).unwrap();
    mock.accesses().total()
}

/// Returns the registers of the accesses that faulted.
fn faulted(mock: &Mock<'_>) -> Vec<u32> {
    mock.trace().records().filter(|r| r.outcome.is_err()).map(|r| r.register).collect()
}

#[test]
fn after_a_fault_that_passes_a_source_is_started_or_stopped_and_never_half() {
    struct Transient;
    impl Test for Transient {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            for (name, before, operation) in operations::<I>() {
                for access in 1..=accesses_of(bench, before, operation) {
                    let (mock, memory) = (bench.mock(), Memory::new());
                    let mut session = bench.session(&mock, &memory);
                    before(bench, &mut session).unwrap();
                    mock.clear();
                    mock.inject(Fault::At(access));
                    let outcome = operation(bench, &mut session);
                    let context = format!("{name}, access {access}: {outcome:?}");
                    assert!(
                        !matches!(outcome, Err(InterfaceError::Counters(CounterError::Faulted(_)))),
                        "{context}"
                    );
                    if let Err(InterfaceError::Counters(CounterError::Access(MsrFault {
                        register,
                        ..
                    }))) = outcome
                    {
                        assert_eq!(faulted(&mock), [register], "{context}");
                    }
                    mock.inject(Fault::None);
                    assert_truthful(bench, &session, &mock, &context);
                    // And it works on.
                    if !session.is_running(bench.sources[0]) && name != "shut down" {
                        session.start(bench.sources[0]).unwrap();
                        assert_truthful(bench, &session, &mock, &context);
                    }
                    session.shut_down().unwrap();
                    assert_eq!(running(&mock), 0, "{context}");
                }
            }
        }
    }
    everywhere(&Transient);
}

#[test]
fn after_a_fault_that_stays_the_register_is_named_and_nothing_false_is_said() {
    struct Persistent;
    impl Test for Persistent {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            for (name, before, operation) in operations::<I>() {
                for access in 1..=accesses_of(bench, before, operation) {
                    let (mock, memory) = (bench.mock(), Memory::new());
                    let mut session = bench.session(&mock, &memory);
                    before(bench, &mut session).unwrap();
                    mock.clear();
                    mock.inject(Fault::From(access));
                    let outcome = operation(bench, &mut session);
                    let context = format!("{name}, from access {access}: {outcome:?}");
                    match outcome {
                        Ok(()) => panic!("{context}: the fault went unnoticed"),
                        Err(InterfaceError::Counters(CounterError::Access(fault))) => {
                            // Nothing was changed.
                            assert!(faulted(&mock).contains(&fault.register), "{context}");
                            let was_running = name != "start";
                            assert_eq!(session.is_running(bench.sources[0]), was_running);
                            assert_truthful(bench, &session, &mock, &context);
                        }
                        Err(InterfaceError::Counters(CounterError::Faulted(fault))) => {
                            assert!(faulted(&mock).contains(&fault.register), "{context}");
                            // It counts for no source, and is not used again.
                            assert!(!session.is_running(bench.sources[0]), "{context}");
                            let not_started = InterfaceError::NotStarted(bench.sources[0]);
                            assert_eq!(session.read(bench.sources[0]), Err(not_started));
                            assert_eq!(session.stop(bench.sources[0]), Err(not_started));
                        }
                        Err(other) => panic!("{context}: {other:?}"),
                    }
                    // Once the registers answer again, everything can be stopped.
                    mock.inject(Fault::None);
                    session.shut_down().unwrap();
                    assert_eq!(running(&mock), 0, "{context}");
                }
            }
        }
    }
    everywhere(&Persistent);
}

/// A missing register of a counter costs that counter; a missing register of all counters is named.
#[test]
fn a_missing_register_is_named_at_initialization() {
    struct Missing;
    impl Test for Missing {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            let (used, usable) = {
                let (mock, memory) = (bench.mock(), Memory::new());
                let usable = bench.session(&mock, &memory).counters().usable;
                let mut used: Vec<u32> = mock
                    .trace()
                    .records()
                    .filter(|r| r.operation != pmu_core::MsrOperation::ReadPmc)
                    .map(|r| r.register)
                    .collect();
                used.sort_unstable();
                used.dedup();
                (used, usable)
            };
            let counters = bench.interface.unit().iter().map(|(number, counter)| {
                (number, [counter.control().register().get(), counter.value_register().get()])
            });
            let counters: Vec<_> = counters.collect();
            for register in used {
                let (mock, memory) = (bench.mock(), Memory::new());
                mock.inject(Fault::Register(register));
                let context =
                    format!("{register:#X}, {:?}, {}", bench.configuration, bench.deviations);
                let outcome = bench.initialize(&mock, &memory).map(|session| session.counters());
                let of_counter = counters.iter().find(|(_, own)| own.contains(&register));
                match (outcome, of_counter) {
                    (Ok(found), Some((number, _))) => {
                        assert_eq!(found.usable, usable.without(number.only()), "{context}");
                        assert!(
                            found.unresponsive.contains(*number) || !usable.contains(*number),
                            "{context}"
                        );
                    }
                    (
                        Err(InterfaceError::Counters(CounterError::Unresponsive)),
                        Some((number, _)),
                    ) => {
                        assert!(usable.without(number.only()).is_empty(), "{context}");
                    }
                    (Err(InterfaceError::Counters(CounterError::Access(fault))), None) => {
                        assert_eq!(fault.register, register);
                    }
                    // Without these there are no full-width writes, and no PEBS to disable.
                    (Ok(found), None) => {
                        assert!(matches!(register, 0x1A0 | 0x345 | 0x3F1), "{context}");
                        assert_eq!(found.usable, usable, "{context}");
                    }
                    other => panic!("{context}: {other:?}"),
                }
                assert_eq!(running(&mock), 0);
            }
        }
    }
    // A counter that firmware left running and whose select is missing cannot be stopped.
    everywhere_but(Deviation::LeftRunning, &Missing);
}

#[test]
fn a_fault_at_any_access_of_initialization_leaves_no_counter_running() {
    struct Initialize;
    impl Test for Initialize {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            let (accesses, usable) = {
                let (mock, memory) = (bench.mock(), Memory::new());
                let usable = bench.session(&mock, &memory).counters().usable;
                (mock.accesses().total(), usable)
            };
            for access in 1..=accesses {
                for fault in [Fault::At(access), Fault::From(access)] {
                    let (mock, memory) = (bench.mock(), Memory::new());
                    mock.inject(fault);
                    let context =
                        format!("{fault:?}, {:?}, {}", bench.configuration, bench.deviations);
                    match (bench.initialize(&mock, &memory).map(|s| s.counters()), fault) {
                        // A transient fault is survived.
                        (Ok(found), Fault::At(_)) => assert_eq!(found.usable, usable, "{context}"),
                        (
                            Err(InterfaceError::Counters(CounterError::Access(fault))),
                            Fault::From(_),
                        ) => {
                            assert!(faulted(&mock).contains(&fault.register), "{context}");
                        }
                        (
                            Err(InterfaceError::Counters(CounterError::Unresponsive)),
                            Fault::From(_),
                        ) => {}
                        // Once proven, a counter that cannot be written is still a counter.
                        (Ok(found), Fault::From(_)) => {
                            assert!(bench.interface.unit().global().is_none(), "{context}");
                            assert!(found.usable.without(usable).is_empty(), "{context}");
                        }
                        (other, _) => panic!("{context}: {other:?}"),
                    }
                    assert_eq!(running(&mock), 0);
                    // Once it has passed, initialization succeeds.
                    mock.inject(Fault::None);
                    let memory = Memory::new();
                    bench.session(&mock, &memory).shut_down().unwrap();
                }
            }
        }
    }
    everywhere_but(Deviation::LeftRunning, &Initialize);
}

/// Services one interrupt with a fault at each of its accesses; `then` gets the outcome, and the number of interrupts
/// of another interval.
fn service_with_faults<I: ProfileInterface>(
    bench: &Bench<'_, I>,
    fault_at: fn(u32) -> Fault,
    then: impl Fn(&Mock<'_>, &Session<'_, &I, &Mock<'_>, &Mock<'_>>, Result<(), MsrFault>, &str),
) {
    let accesses = Cell::new(0);
    for access in 0.. {
        let memory = Memory::new();
        let outcome = Cell::new(Ok(()));
        let fault = Cell::new(if access == 0 { Fault::None } else { fault_at(access) });
        let handler = |mock: &Mock<'_>| {
            if mock.interrupts() == 1 {
                mock.clear();
            }
            mock.inject(fault.take());
            let serviced = bench.interface.service(mock, mock, &memory, |_| ());
            mock.inject(Fault::None);
            outcome.set(outcome.get().and(serviced.map(|_| ())));
            if access == 0 && mock.interrupts() == 1 {
                accesses.set(mock.accesses().total());
            }
        };
        let mock = bench.mock();
        mock.on_interrupt(&handler);
        let mut session = bench.initialize(&mock, &memory).unwrap();
        session.start(bench.sources[0]).unwrap();
        mock.advance(&mut bench.happened(0, INTERVAL));
        let context =
            format!("service, access {access}: {:?}, {}", outcome.get(), bench.deviations);
        assert!(mock.interrupts() >= 1, "{context}");
        then(&mock, &session, outcome.get(), &context);
        session.shut_down().unwrap();
        assert_eq!(running(&mock), 0, "{context}");
        if access == accesses.get() {
            break;
        }
    }
}

#[test]
fn a_fault_in_the_interrupt_path_is_reported_with_its_register() {
    struct Service;
    impl Test for Service {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            service_with_faults(bench, Fault::At, |mock, _, outcome, context| match outcome {
                Ok(()) => assert_eq!(faulted(mock).len(), usize::from(!context.contains(" 0:"))),
                Err(fault) => assert_eq!(faulted(mock), [fault.register], "{context}"),
            });
        }
    }
    everywhere(&Service);
}

#[test]
fn after_a_fault_that_passes_the_interrupt_path_goes_on() {
    struct GoesOn;
    impl Test for GoesOn {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            service_with_faults(bench, Fault::At, |mock, session, _, context| {
                assert_truthful(bench, session, mock, context);
                mock.advance(&mut bench.happened(0, INTERVAL));
                assert_eq!(mock.interrupts(), 2, "{context}");
            });
        }
    }
    everywhere(&GoesOn);
}

/// A register that no longer answers is named. A source that is reported as running counts and interrupts; any other
/// does not.
#[test]
fn after_a_fault_that_stays_the_interrupt_path_says_nothing_false() {
    struct Truthful;
    impl Test for Truthful {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            service_with_faults(bench, Fault::From, |mock, session, outcome, context| {
                assert_eq!(outcome.is_err(), !context.contains(" 0:"), "{context}");
                if let Err(fault) = outcome {
                    assert!(faulted(mock).contains(&fault.register), "{context}");
                }
                let said = session.is_running(bench.sources[0]);
                let before = mock.interrupts();
                mock.advance(&mut bench.happened(0, INTERVAL));
                let interrupted = mock.interrupts() - before;
                if said {
                    assert!(interrupted >= 1, "{context}");
                }
            });
        }
    }
    everywhere(&Truthful);
}

#[test]
fn an_interrupt_at_any_access_of_an_operation_does_no_harm() {
    struct Interrupted;
    impl Test for Interrupted {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            for (name, before, operation) in operations::<I>() {
                for access in 1..=accesses_of(bench, before, operation) {
                    let memory = Memory::new();
                    let strangers = Cell::new(0);
                    let handler = |mock: &Mock<'_>| {
                        bench
                            .interface
                            .service(mock, mock, &memory, |overflow| {
                                let own = overflow.source == bench.sources[0];
                                strangers.set(strangers.get() + u32::from(!own));
                            })
                            .unwrap();
                    };
                    let mock = bench.mock();
                    mock.on_interrupt(&handler);
                    let mut session = bench.initialize(&mock, &memory).unwrap();
                    before(bench, &mut session).unwrap();
                    mock.interrupt_at(access);
                    operation(bench, &mut session).unwrap();
                    let context = format!("{name}, interrupted at access {access}");
                    assert_eq!((mock.interrupts(), strangers.get()), (1, 0), "{context}");
                    assert_truthful(bench, &session, &mock, &context);
                    if name == "start" || name == "read" {
                        mock.advance(&mut bench.happened(0, INTERVAL));
                        assert_eq!(mock.interrupts(), 2, "{context}");
                    }
                    session.shut_down().unwrap();
                }
            }
        }
    }
    everywhere(&Interrupted);
}

#[test]
fn a_late_interrupt_is_serviced_and_a_lost_one_leaves_the_source_running() {
    struct Delivery;
    impl Test for Delivery {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            let memory = Memory::new();
            let overflows = Cell::new(0);
            let handler = |mock: &Mock<'_>| {
                let count = |_| overflows.set(overflows.get() + 1);
                bench.interface.service(mock, mock, &memory, count).unwrap();
            };
            let mock = bench.mock();
            mock.on_interrupt(&handler);
            let mut session = bench.initialize(&mock, &memory).unwrap();
            session.start(bench.sources[0]).unwrap();
            mock.inject_pmi(PmiFault::Late(2));
            mock.advance(&mut bench.happened(0, INTERVAL));
            assert_eq!((mock.interrupts(), overflows.get()), (0, 0));
            // Two accesses pass, the interrupt comes before the third.
            session.read(bench.sources[0]).unwrap();
            assert_eq!(mock.interrupts(), 0);
            session.read(bench.sources[0]).unwrap();
            assert_eq!((mock.interrupts(), overflows.get()), (1, 1));

            mock.inject_pmi(PmiFault::Lost);
            mock.advance(&mut bench.happened(0, INTERVAL));
            assert_eq!(mock.interrupts(), 1);
            if !bench.deviates(Deviation::LeftFrozen) {
                assert_truthful(bench, &session, &mock, "lost");
            }
            session.stop(bench.sources[0]).unwrap();
            if bench.interface.unit().global().is_some() {
                let status = mock.with_pmu(|pmu| pmu.state()).global_status();
                assert_eq!(status & session.counters().usable.bits(), 0, "no stale status");
            }
        }
    }
    everywhere(&Delivery);
}

#[test]
fn a_counter_that_ignores_writes_is_left_out() {
    struct Ignored;
    impl Test for Ignored {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            let usable = {
                let (mock, memory) = (bench.mock(), Memory::new());
                bench.session(&mock, &memory).counters().usable
            };
            let counters = bench.interface.unit().iter();
            for (number, counter) in counters.filter(|(number, _)| usable.contains(*number)) {
                let (mock, memory) = (bench.mock(), Memory::new());
                mock.inject(Fault::Ignored(counter.value_register().get()));
                match bench.initialize(&mock, &memory).map(|session| session.counters()) {
                    Ok(found) => {
                        assert_eq!(found.usable, usable.without(number.only()));
                        assert!(found.unresponsive.contains(number));
                    }
                    Err(error) => {
                        assert_eq!(error, InterfaceError::Counters(CounterError::Unresponsive));
                        assert_eq!(usable, number.only(), "the only one");
                    }
                }
            }
        }
    }
    everywhere(&Ignored);
}

#[test]
fn a_hidden_pmu_is_claimed_by_nobody_or_found_out() {
    let intel = Emon::detect(&snapshot(HIDDEN[0], Deviations::NONE)).map(|_| ());
    assert_eq!(intel, Err(NoInterface::NoPerformanceMonitoring));
    // AMD's legacy counters are declared by no bit; the driver finds them dead.
    let hidden = snapshot(HIDDEN[1], Deviations::NONE);
    let amd64 = Amd64::detect(&hidden).unwrap();
    let mock = Mock::new(VirtualPmu::new(HIDDEN[1], FedEvents::NONE).unwrap());
    let memory = Memory::new();
    let outcome = amd64.initialize(&hidden, &mock, &mock, &memory).map(|_| ());
    assert_eq!(outcome, Err(InterfaceError::Counters(CounterError::Unresponsive)));
}

#[test]
fn each_processor_of_a_machine_has_its_own_counters() {
    struct Machine;
    impl Test for Machine {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            let machine = MockMachine::new([bench.mock(), bench.mock()]);
            let memory = [Memory::new(), Memory::new()];
            let processors = [0, 1].map(|n| machine.processor(n).unwrap());
            let mut sessions = [0, 1].map(|n| {
                machine.run_on(n);
                let snapshot = bench.processor().1;
                bench.interface.initialize(&snapshot, &machine, processors[n], &memory[n]).unwrap()
            });
            sessions[1].start(bench.sources[0]).unwrap();
            assert_eq!(processors.map(running), [0, 1]);
            machine.run_on(0);
            sessions[0].start(bench.sources[1]).unwrap();
            assert!(counts(processors[0], bench.keys[1]) && counts(processors[1], bench.keys[0]));
            machine.run_on(2);
            let gone = sessions[0].read(bench.sources[1]);
            assert!(matches!(gone, Err(InterfaceError::Counters(CounterError::Access(_)))));
        }
    }
    everywhere(&Machine);
}

/// A session's operations beside starting and stopping, with a transient and with a permanent fault at each of their
/// accesses.
#[test]
fn a_fault_at_any_access_of_a_switch_or_of_freezing_leaves_nothing_half() {
    type Area = SavedCounters<[SavedCounter; 8]>;
    struct Switch;
    impl Test for Switch {
        fn run<I: ProfileInterface>(&self, bench: &Bench<'_, I>) {
            for name in ["save", "restore", "restore after another", "freeze"] {
                for fault_at in [Fault::At as fn(u32) -> Fault, Fault::From] {
                    for access in 1.. {
                        let (mock, memory) = (bench.mock(), Memory::new());
                        let mut session = bench.session(&mock, &memory);
                        let (mut area, mut another) = (Area::new(), Area::new());
                        if name != "freeze" {
                            session.start(bench.sources[0]).unwrap();
                        }
                        if name.starts_with("restore") {
                            session.save(&mut area, |_| ()).unwrap();
                        }
                        if name == "restore after another" {
                            session.start(bench.sources[1]).unwrap();
                            session.save(&mut another, |_| ()).unwrap();
                        }
                        mock.clear();
                        mock.inject(fault_at(access));
                        let outcome = match name {
                            "save" => session.save(&mut area, |_| ()),
                            "freeze" => session.freeze_on_interrupt(),
                            _ => session.restore(&area),
                        };
                        let (made, failed) = (mock.accesses().total(), faulted(&mock));
                        mock.inject(Fault::None);
                        let context = format!("{name}, {:?}: {outcome:?}", fault_at(access));
                        if outcome == Err(InterfaceError::Counters(CounterError::FreezeUnsupported))
                        {
                            break;
                        }
                        if access > made {
                            assert_eq!(outcome, Ok(()), "{context}");
                            break;
                        }
                        match outcome {
                            // A transient fault is survived, or undone; a permanent one is reported.
                            Ok(()) => assert_eq!(fault_at(access), Fault::At(access), "{context}"),
                            Err(InterfaceError::Counters(CounterError::Access(fault))) => {
                                assert!(failed.contains(&fault.register), "{context}");
                                assert_truthful(bench, &session, &mock, &context);
                            }
                            Err(InterfaceError::Counters(CounterError::Faulted(fault))) => {
                                assert!(failed.contains(&fault.register), "{context}");
                                assert_eq!(fault_at(access), Fault::From(access), "{context}");
                            }
                            Err(_) => panic!("{context}"),
                        }
                        session.shut_down().unwrap();
                        assert_eq!(running(&mock), 0, "{context}");
                    }
                }
            }
        }
    }
    everywhere(&Switch);
}
