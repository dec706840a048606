//! The vendors' drivers on the software PMU: every configuration that they detect, and every deviating platform.

use pmu_amd::Amd64;
use pmu_arm::Pmuv3;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{InterfaceError, KProfileSource, Session};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, EventSource, Hardware};
use pmu_intel::Emon;
use pmu_tests::arm::identify;
use pmu_tests::deviations::{self, snapshot};
use pmu_tests::software_pmu::{AMD_MATRIX, intel_matrix};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration};
use pmu_virt::mock::{Deviation, Deviations, MockMsr, MockPmuv3};
use pmu_virt::{EventKey, FedEvents, VirtualPmu};

pub(crate) use crate::mock::{ArmMock, Key, Mock};

pub(crate) type Memory = CounterMemory<[CounterSlot; 8]>;
pub(crate) const INTERVAL: u64 = 0x1000;

/// The processor that a driver is tested on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Processor {
    X86(Configuration),
    Arm { is_long: bool, level: u8 },
}

/// A driver on one configuration, with which every test runs.
pub(crate) struct Bench<'i, I: EventSource> {
    pub(crate) interface: &'i I,
    pub(crate) configuration: Processor,
    /// The processor that is tested: it may have less than the boot processor.
    pub(crate) processor: I::Processor,
    pub(crate) deviations: Deviations,
    /// Two sources whose events happen.
    pub(crate) sources: [KProfileSource; 2],
    pub(crate) keys: [Key; 2],
}

pub(crate) trait Test {
    fn run<I: EventSource>(&self, bench: &Bench<'_, I>);
}

impl<'i, I: EventSource> Bench<'i, I> {
    pub(crate) fn new(
        interface: &'i I,
        configuration: Processor,
        processor: I::Processor,
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
        let keys = [rows[0].select(), rows[1].select()].map(|select| match configuration {
            Processor::X86(of) => Key::X86(EventKey::of_select(of.vendor(), select.select_bits())),
            Processor::Arm { .. } => Key::Arm(select.select_bits() & 0xFFFF),
        });
        assert_ne!(keys[0], keys[1]);
        for source in sources {
            interface.set_interval(source, INTERVAL).unwrap();
        }
        Self { interface, configuration, processor, deviations, sources, keys }
    }

    pub(crate) fn mock<'h>(&self) -> Mock<'h> {
        match self.x86_mock() {
            Some((mock, events)) => Mock::X86(Box::new(mock), events),
            None => Mock::Arm(Box::new(ArmMock::new(self.model()))),
        }
    }

    /// Returns the mock of an x86 processor, and the events that it is fed.
    pub(crate) fn x86_mock<'h>(&self) -> Option<(MockMsr<'h, 64>, FedEvents)> {
        let Processor::X86(boot) = self.configuration else { return None };
        let keys = self.keys.map(|key| match key {
            Key::X86(key) => key,
            Key::Arm(event) => panic!("{event:#x} of x86"),
        });
        let events = FedEvents::new(&keys).unwrap();
        let pmu = VirtualPmu::new(self.deviations.configuration(boot), events).unwrap();
        Some((MockMsr::strict(pmu).deviating(self.deviations), events))
    }

    fn model(&self) -> MockPmuv3 {
        let Processor::Arm { is_long, level } = self.configuration else { panic!("of x86") };
        MockPmuv3::new(is_long, level)
    }

    pub(crate) fn deviates(&self, deviation: Deviation) -> bool {
        self.deviations.contains(deviation)
    }

    pub(crate) fn initialize<'a, 'm>(
        &'a self,
        mock: &'m Mock<'m>,
        memory: &'a Memory,
    ) -> Result<Session<'a, &'a I, &'m Mock<'m>>, InterfaceError> {
        Session::take(self.interface, &self.processor, CounterSet::GENERAL, mock, memory)
    }

    /// Lets the event of one of the sources happen in user mode.
    pub(crate) fn advance(&self, mock: &Mock<'_>, source: usize, count: u64) {
        mock.advance(self.keys[source], count);
    }

    pub(crate) fn session<'a, 'm>(
        &'a self,
        mock: &'m Mock<'m>,
        memory: &'a Memory,
    ) -> Session<'a, &'a I, &'m Mock<'m>> {
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
    for (is_long, level) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        let processor = identify(&MockPmuv3::new(is_long, level));
        let pmuv3 = Pmuv3::detect(&processor);
        let configuration = Processor::Arm { is_long, level };
        test.run(&Bench::new(&pmuv3, configuration, processor, Deviations::NONE));
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
        fn run<I: EventSource>(&self, bench: &Bench<'_, I>) {
            if !bench.deviates(self.0) {
                self.1.run(bench);
            }
        }
    }
    everywhere(&But(unwanted, test));
}

/// Returns the bench of an x86 driver.
pub(crate) fn x86<I: EventSource<Processor = Snapshot>>(
    interface: &I,
    configuration: Configuration,
    deviations: Deviations,
) -> Bench<'_, I> {
    let own = snapshot(deviations.configuration(configuration), deviations);
    Bench::new(interface, Processor::X86(configuration), own, deviations)
}

/// Runs a test with the driver of a configuration.
pub(crate) fn on(configuration: Configuration, deviations: Deviations, test: &impl Test) {
    let boot = snapshot(configuration, deviations);
    match configuration {
        Configuration::Intel(intel) => {
            let frozen = deviations.contains(Deviation::LeftFrozen) && intel.version >= 4;
            if frozen && deviations.contains(Deviation::NarrowAcknowledge) {
                // Refused: see `counters_that_stay_frozen_are_refused`.
                return;
            }
            let emon = Emon::detect(&boot).unwrap();
            assert_eq!(
                (emon.unit().counters() & CounterSet::GENERAL).bits(),
                u64::from(intel.general)
            );
            test.run(&x86(&emon, configuration, deviations));
        }
        _ => {
            let without_status = [AmdConfiguration::LEGACY, AmdConfiguration::CORE_EXTENSION];
            let has_status = !without_status.map(Configuration::Amd).contains(&configuration);
            let frozen = has_status && deviations.contains(Deviation::LeftFrozen);
            if frozen && deviations.contains(Deviation::NarrowAcknowledge) {
                return;
            }
            let amd64 = Amd64::detect(&boot).unwrap();
            test.run(&x86(&amd64, configuration, deviations));
        }
    }
}

/// Asserts that the driver's reports of its sources agree with the counters.
#[track_caller]
pub(crate) fn assert_truthful<I: EventSource, H: Hardware>(
    bench: &Bench<'_, I>,
    session: &Session<'_, &I, H>,
    mock: &Mock<'_>,
    context: &str,
) {
    for (source, key) in bench.sources.into_iter().zip(bench.keys) {
        assert_eq!(
            session.is_running(source),
            mock.counts(key),
            "{context}: {source} on {:?}",
            bench.configuration
        );
    }
}

/// A driver's operation, on a session that is ready for it.
pub(crate) type Operation<I> = for<'a, 'm> fn(
    &Bench<'_, I>,
    &mut Session<'a, &'a I, &'m Mock<'m>>,
) -> Result<(), InterfaceError>;

/// Each operation, with what comes before it.
pub(crate) fn operations<I: EventSource>() -> [(&'static str, Operation<I>, Operation<I>); 4] {
    fn nothing<I: EventSource>(
        _: &Bench<'_, I>,
        _: &mut Session<'_, &I, &Mock<'_>>,
    ) -> Result<(), InterfaceError> {
        Ok(())
    }
    fn start<I: EventSource>(
        bench: &Bench<'_, I>,
        session: &mut Session<'_, &I, &Mock<'_>>,
    ) -> Result<(), InterfaceError> {
        session.start(bench.sources[0])
    }
    fn stop<I: EventSource>(
        bench: &Bench<'_, I>,
        session: &mut Session<'_, &I, &Mock<'_>>,
    ) -> Result<(), InterfaceError> {
        session.stop(bench.sources[0])
    }
    fn read<I: EventSource>(
        bench: &Bench<'_, I>,
        session: &mut Session<'_, &I, &Mock<'_>>,
    ) -> Result<(), InterfaceError> {
        session.read(bench.sources[0]).map(|_| ())
    }
    fn shut_down<I: EventSource>(
        _: &Bench<'_, I>,
        session: &mut Session<'_, &I, &Mock<'_>>,
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
pub(crate) fn accesses_of<I: EventSource>(
    bench: &Bench<'_, I>,
    before: Operation<I>,
    operation: Operation<I>,
) -> u32 {
    let (mock, memory) = (bench.mock(), Memory::new());
    let mut session = bench.session(&mock, &memory);
    before(bench, &mut session).unwrap();
    mock.clear();
    operation(bench, &mut session).unwrap();
    mock.accesses()
}
