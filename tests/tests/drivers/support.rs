//! The vendors' drivers on the software PMU: every configuration that they detect, and every deviating platform.

use pmu_amd::Amd64;
use pmu_core::profile::{
    InterfaceError, KProfileSource, ProfileInterface, Session, SourceInterface,
};
use pmu_core::{CounterMemory, CounterSet, CounterSlot, Platform, Snapshot};
use pmu_intel::Emon;
use pmu_tests::deviations::{self, snapshot};
use pmu_tests::software_pmu::{AMD_MATRIX, intel_matrix};
use pmu_virt::mock::{Deviation, Deviations, MockMsr};
use pmu_virt::{
    AmdConfiguration, Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Privilege,
    VirtualPmu,
};

pub(crate) type Mock<'h> = MockMsr<'h, 64>;
pub(crate) type Memory = CounterMemory<[CounterSlot; 8]>;
pub(crate) const INTERVAL: u64 = 0x1000;

/// A driver on one configuration, with which every test runs.
pub(crate) struct Bench<'i, I> {
    pub(crate) interface: &'i I,
    pub(crate) configuration: Configuration,
    pub(crate) deviations: Deviations,
    /// Two sources for which the model is fed.
    pub(crate) sources: [KProfileSource; 2],
    pub(crate) keys: [EventKey; 2],
}

pub(crate) trait Test {
    fn run<I: ProfileInterface<Processor = Snapshot>>(&self, bench: &Bench<'_, I>);
}

impl<'i, I: ProfileInterface<Processor = Snapshot>> Bench<'i, I> {
    pub(crate) fn new(
        interface: &'i I,
        configuration: Configuration,
        deviations: Deviations,
    ) -> Self {
        let rows: Vec<_> = interface
            .sources()
            .iter()
            .filter(|row| row.source() != KProfileSource::TIME && row.canonical().is_none())
            .filter(|row| interface.query(row.source()).is_supported())
            .take(2)
            .collect();
        let sources = [rows[0].source(), rows[1].source()];
        let keys = [rows[0].select(), rows[1].select()]
            .map(|select| EventKey::of_select(configuration.vendor(), select.select_bits()));
        assert_ne!(keys[0], keys[1]);
        for source in sources {
            interface.set_interval(source, INTERVAL).unwrap();
        }
        Self { interface, configuration, deviations, sources, keys }
    }

    pub(crate) fn events(&self) -> FedEvents {
        FedEvents::new(&self.keys).unwrap()
    }

    pub(crate) fn mock<'h>(&self) -> Mock<'h> {
        let (configuration, _) = self.processor();
        let pmu = VirtualPmu::new(configuration, self.events()).unwrap();
        Mock::strict(pmu).deviating(self.deviations)
    }

    /// The processor that is tested: it may have less than the boot processor.
    pub(crate) fn processor(&self) -> (Configuration, Snapshot) {
        let own = self.deviations.configuration(self.configuration);
        (own, snapshot(own, self.deviations))
    }

    pub(crate) fn deviates(&self, deviation: Deviation) -> bool {
        self.deviations.contains(deviation)
    }

    pub(crate) fn initialize<'a, 'm>(
        &'a self,
        mock: &'m Mock<'m>,
        memory: &'a Memory,
    ) -> Result<Session<'a, &'a I, &'m Mock<'m>, &'m Mock<'m>>, InterfaceError> {
        self.interface.initialize(&self.processor().1, mock, mock, memory)
    }

    /// Returns a feed of `count` of a source's event.
    pub(crate) fn happened(&self, source: usize, count: u64) -> Feed {
        let mut feed = Feed::new(&self.events());
        feed.add(self.events().find(self.keys[source]).unwrap(), Privilege::User, count).unwrap();
        feed
    }

    pub(crate) fn session<'a, 'm>(
        &'a self,
        mock: &'m Mock<'m>,
        memory: &'a Memory,
    ) -> Session<'a, &'a I, &'m Mock<'m>, &'m Mock<'m>> {
        self.initialize(mock, memory).unwrap()
    }
}

/// Runs a test on every configuration that each driver claims; and on some of them with each deviation, and
/// with a sample of their pairs.
pub(crate) fn everywhere(test: &impl Test) {
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
pub(crate) fn everywhere_but(unwanted: Deviation, test: &impl Test) {
    struct But<'t, T>(Deviation, &'t T);
    impl<T: Test> Test for But<'_, T> {
        fn run<I: ProfileInterface<Processor = Snapshot>>(&self, bench: &Bench<'_, I>) {
            if !bench.deviates(self.0) {
                self.1.run(bench);
            }
        }
    }
    everywhere(&But(unwanted, test));
}

/// Runs a test with the driver of a configuration.
pub(crate) fn on(configuration: Configuration, deviations: Deviations, test: &impl Test) {
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
            let without_status = [AmdConfiguration::LEGACY, AmdConfiguration::CORE_EXTENSION];
            let has_status = !without_status.map(Configuration::Amd).contains(&configuration);
            let frozen = has_status && deviations.contains(Deviation::LeftFrozen);
            if frozen && deviations.contains(Deviation::NarrowAcknowledge) {
                return;
            }
            let amd64 = Amd64::detect(&snapshot).unwrap();
            test.run(&Bench::new(&amd64, configuration, deviations));
        }
    }
}

/// Returns the number of counters that really run.
pub(crate) fn running(mock: &Mock<'_>) -> usize {
    mock.with_pmu(|pmu| pmu.running().count())
}

/// Returns whether the hardware has a counter running for the event.
pub(crate) fn counts(mock: &Mock<'_>, key: EventKey) -> bool {
    mock.with_pmu(|pmu| pmu.running().any(|event| event.key == key))
}

/// Asserts that the driver's reports of its sources agree with the counters.
#[track_caller]
pub(crate) fn assert_truthful<I: ProfileInterface<Processor = Snapshot>, P: Platform>(
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

/// A driver's operation, on a session that is ready for it.
pub(crate) type Operation<I> = for<'a, 'm> fn(
    &Bench<'_, I>,
    &mut Session<'a, &'a I, &'m Mock<'m>, &'m Mock<'m>>,
) -> Result<(), InterfaceError>;

/// Each operation, with what comes before it.
pub(crate) fn operations<I: ProfileInterface<Processor = Snapshot>>()
-> [(&'static str, Operation<I>, Operation<I>); 4] {
    fn nothing<I: ProfileInterface<Processor = Snapshot>>(
        _: &Bench<'_, I>,
        _: &mut Session<'_, &I, &Mock<'_>, &Mock<'_>>,
    ) -> Result<(), InterfaceError> {
        Ok(())
    }
    fn start<I: ProfileInterface<Processor = Snapshot>>(
        bench: &Bench<'_, I>,
        session: &mut Session<'_, &I, &Mock<'_>, &Mock<'_>>,
    ) -> Result<(), InterfaceError> {
        session.start(bench.sources[0])
    }
    fn stop<I: ProfileInterface<Processor = Snapshot>>(
        bench: &Bench<'_, I>,
        session: &mut Session<'_, &I, &Mock<'_>, &Mock<'_>>,
    ) -> Result<(), InterfaceError> {
        session.stop(bench.sources[0])
    }
    fn read<I: ProfileInterface<Processor = Snapshot>>(
        bench: &Bench<'_, I>,
        session: &mut Session<'_, &I, &Mock<'_>, &Mock<'_>>,
    ) -> Result<(), InterfaceError> {
        session.read(bench.sources[0]).map(|_| ())
    }
    fn shut_down<I: ProfileInterface<Processor = Snapshot>>(
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
pub(crate) fn accesses_of<I: ProfileInterface<Processor = Snapshot>>(
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
