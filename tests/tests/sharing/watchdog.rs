//! The hard-lockup detector, on the software PMU.

use core::cell::Cell;

use pmu::core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu::core::registers::{CounterId, MAX_COUNTERS};
use pmu::core::x86::Snapshot;
use pmu::core::{
    CounterSession, CounterSet, CounterUnit, Event, EventSource, Events, GenericEvent, service,
};
use pmu::{Machine, Watchdog};
use pmu_tests::deviations::snapshot;
use pmu_tests::software_pmu::*;
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::mock::{Deviations, Fault, MockMsr};
use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};

type Mock<'h> = MockMsr<'h, 8>;

/// AMD's "cycles not in halt".
const AMD_CYCLES: EventKey = EventKey::general(0x76, 0x00);

fn fed() -> FedEvents {
    FedEvents::new(&[CYCLES, EventKey::fixed(2).unwrap(), AMD_CYCLES]).unwrap()
}

fn unit_of(processor: &Snapshot) -> CounterUnit {
    *Machine::detect(processor).unit()
}

/// A processor that has the watchdog's event on its counter, and the verdicts of its handler.
struct Processor {
    unit: CounterUnit,
    memory: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    events: EventTable<[EventEntry; 2]>,
    watchdog: Watchdog,
    configuration: Configuration,
    deviations: Deviations,
}

impl Processor {
    fn new(configuration: Configuration) -> Self {
        Self::on_platform(configuration, Deviations::NONE)
    }

    fn on_platform(configuration: Configuration, deviations: Deviations) -> Self {
        let unit = unit_of(&snapshot(configuration, deviations));
        let (memory, events) = (CounterMemory::new(), EventTable::new());
        Self { unit, memory, events, watchdog: Watchdog::new(), configuration, deviations }
    }

    /// Opens `event` and watches it; then lets `cycles` of the key pass for each of `ticks`, in steps, ticking
    /// after a step where `ticks` says so. Returns on which counter it was, and the verdict of each overflow.
    fn run(
        &self,
        event: &Event,
        key: EventKey,
        steps: &[(u64, bool)],
    ) -> (CounterId, Vec<bool>, u32) {
        let verdicts = Cell::new(Vec::new());
        let unexpected = Cell::new(0);
        let source = Events::new(&self.unit, &self.events);
        let handler = |mock: &Mock<'_>| {
            let serviced = service(&source, mock, &self.memory, |overflow| {
                let mut told = verdicts.take();
                told.push(self.watchdog.is_stuck(overflow.event));
                verdicts.set(told);
            });
            unexpected.set(unexpected.get() + u32::from(serviced.is_err()));
        };
        let configuration = self.deviations.configuration(self.configuration);
        let pmu = VirtualPmu::new(configuration, fed()).unwrap();
        let mock = match self.deviations {
            Deviations::NONE => Mock::strict(pmu),
            deviations => Mock::new(pmu).deviating(deviations),
        };
        mock.on_interrupt(&handler);
        let mut counters =
            CounterSession::take(source, &self.unit, CounterSet::ALL, &mock, &self.memory).unwrap();
        let id = counters.open(&self.unit, &[*event]).unwrap();
        self.watchdog.watch(id);
        counters.enable(id, 0).unwrap();
        let counter = counters.counter_of(id).unwrap();
        for (count, ticks) in steps {
            let mut feed = Feed::new(&fed());
            feed.add(fed().find(key).unwrap(), Privilege::Kernel, *count).unwrap();
            mock.advance(&mut feed);
            if *ticks {
                self.watchdog.touch();
            }
        }
        counters.shut_down().unwrap();
        assert_eq!(unexpected.get(), 0);
        (counter, verdicts.take(), mock.interrupts())
    }
}

#[test]
fn a_processor_that_does_not_tick_is_stuck_and_its_neighbor_is_not() {
    let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    let [stuck, well] = [Processor::new(configuration), Processor::new(configuration)];
    let event = Watchdog::event(&stuck.unit, 1_000_000, 10).unwrap();
    let second = 1_000_000;
    // 25 seconds with a tick each second; then 20 without; then a tick again.
    let alive = [(second, true); 25];
    let locked = [(second, false); 20];
    let mut steps = Vec::new();
    for part in [&alive[..], &locked, &[(second, true)], &[(second, true); 4]] {
        steps.extend_from_slice(part);
    }
    let (counter, verdicts, _) = stuck.run(&event, EventKey::fixed(1).unwrap(), &steps);
    assert_eq!(CounterId::fixed(1), Some(counter), "cycles are fixed counter 1's");
    // Overflows at 10, 20, 30 (the last tick was at 25), 40 (none), 50 (one at 46).
    assert_eq!(verdicts, [false, false, false, true, false]);
    let (_, verdicts, _) = well.run(&event, EventKey::fixed(1).unwrap(), &[(second, true); 50]);
    assert_eq!(verdicts, [false; 5]);
}

#[test]
fn a_processor_that_never_ticked_has_one_period_and_is_told_at_each_further_one() {
    let processor = Processor::new(Configuration::Intel(IntelConfiguration::new(2, 2, 0)));
    let event = Watchdog::event(&processor.unit, 1_000_000, 1).unwrap();
    let (counter, verdicts, _) = processor.run(&event, CYCLES, &[(4_000_000, false)]);
    assert_eq!(Some(counter), CounterId::general(0), "no fixed counter here");
    assert_eq!(verdicts, [false, true, true, true]);
}

#[test]
fn a_period_beyond_the_counters_reach_is_told_once_at_its_end() {
    // No full-width writes: a counter is loaded with 31 bits at most, on the fixed one as on a general one. 12 s of
    // 3 GHz are 18 such chunks.
    let narrow = Configuration::Intel(
        IntelConfiguration::new(4, 4, 0)
            .with(|intel| intel.set(IntelFeature::FullWidthWrites, false)),
    );
    let processor = Processor::new(narrow);
    let event = Watchdog::event(&processor.unit, 3_000_000_000, 12).unwrap();
    assert_eq!(event.period(), Some(36_000_000_000));
    let steps = [(35_999_999_999, false), (1, false), (35_999_999_999, false), (1, false)];
    let (counter, verdicts, interrupts) = processor.run(&event, CYCLES, &steps);
    assert!(!counter.is_fixed());
    assert_eq!(verdicts, [false, true]);
    assert!(interrupts > 2 * 16, "{interrupts}");
    // The same where one load is enough.
    let wide = Processor::new(Configuration::Intel(IntelConfiguration::new(4, 4, 3)));
    let (counter, verdicts, interrupts) = wide.run(&event, EventKey::fixed(1).unwrap(), &steps);
    assert_eq!((counter.is_fixed(), verdicts, interrupts), (true, vec![false, true], 2));
}

#[test]
fn it_runs_on_amds_counters_with_a_status_and_without() {
    for amd in [AmdConfiguration::CORE_EXTENSION, AmdConfiguration::perf_mon_v2(6)] {
        let processor = Processor::new(Configuration::Amd(amd));
        let event = Watchdog::event(&processor.unit, 4_000_000_000, 10).unwrap();
        let steps = [(40_000_000_000, false); 3];
        let (_, verdicts, _) = processor.run(&event, AMD_CYCLES, &steps);
        assert_eq!(verdicts, [false, true, true], "{amd:?}");
    }
}

#[test]
fn only_the_watched_event_is_the_watchdogs() {
    let watchdog = Watchdog::new();
    let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    let processor = Processor::new(configuration);
    let mock = Mock::strict(VirtualPmu::new(configuration, fed()).unwrap());
    let source = Events::new(&processor.unit, &processor.events);
    let mut counters =
        CounterSession::take(source, &processor.unit, CounterSet::ALL, &mock, &processor.memory)
            .unwrap();
    let cycles = Event::generic(GenericEvent::Cycles);
    let [watched, other] = [(); 2].map(|()| counters.open(&processor.unit, &[cycles]).unwrap());
    assert!(!watchdog.is_stuck(watched), "nothing is watched yet");
    watchdog.watch(watched);
    assert!(!watchdog.is_stuck(watched));
    assert!(!watchdog.is_stuck(other), "and it took no touch");
    assert!(watchdog.is_stuck(watched));
    watchdog.touch();
    assert!(!watchdog.is_stuck(other));
    assert!(!watchdog.is_stuck(watched));
    assert!(watchdog.is_stuck(watched));
}

/// Another event may have the identity of the one that was watched.
#[test]
fn a_watchdog_that_watches_no_more_bites_no_other_event() {
    let processor = Processor::new(Configuration::Intel(IntelConfiguration::new(2, 4, 3)));
    let source = Events::new(&processor.unit, &processor.events);
    let mock = Mock::strict(VirtualPmu::new(processor.configuration, fed()).unwrap());
    let (unit, memory) = (&processor.unit, &processor.memory);
    let mut counters = CounterSession::take(source, unit, CounterSet::ALL, &mock, memory).unwrap();
    let event = Event::generic(GenericEvent::Cycles).every(0x1000);
    let watched = counters.open(unit, &[event]).unwrap();
    processor.watchdog.watch(watched);
    processor.watchdog.unwatch();
    counters.close(watched, 0).unwrap();
    let other = counters.open(unit, &[event]).unwrap();
    assert_eq!(other, watched);
    assert!((0..3).all(|_| !processor.watchdog.is_stuck(other)));
    counters.shut_down().unwrap();
}

#[test]
fn the_event_is_cycles_or_reference_cycles_or_none() {
    let period = |event: Option<Event>| event.map(|event| (event.name(), event.period()));
    let intel = |ebx: u32| {
        unit_of(&Snapshot::capture(move |leaf: u32, _: u32| {
            let (eax, ebx, ecx, edx) = match leaf {
                0 => (0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69),
                0x0A => (0x0730_0404, ebx, 0, 0x603),
                _ => (0, 0, 0, 0),
            };
            pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
        }))
    };
    let of = |unit: &CounterUnit| period(Watchdog::event(unit, 3_000_000_000, 10));
    let expected = |name| Some((Some(name), Some(30_000_000_000)));
    assert_eq!(of(&intel(0)), expected(GenericEvent::Cycles));
    assert_eq!(of(&intel(1)), expected(GenericEvent::ReferenceCycles));
    assert_eq!(of(&intel(0b101)), None);
    assert_eq!(of(&CounterUnit::NONE), None);
    let unit = intel(0);
    for (hertz, seconds) in [(0, 10), (1, 0), (u64::MAX, 2), (1 << 63, 1)] {
        assert_eq!(Watchdog::event(&unit, hertz, seconds), None);
    }
}

/// Cycles are counted on general counters: those that platforms do without, or leave running.
#[test]
fn on_no_platform_is_a_lockup_missed_or_a_ticking_processor_told() {
    let intel = |version, fixed| Configuration::Intel(IntelConfiguration::new(version, 4, fixed));
    let amd = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    let legacy = Configuration::Amd(AmdConfiguration::LEGACY);
    let fixed = EventKey::fixed(1).unwrap();
    for (configuration, key) in [
        (intel(1, 0), CYCLES),
        (intel(2, 0), CYCLES),
        (intel(4, 3), fixed),
        (amd, AMD_CYCLES),
        (legacy, AMD_CYCLES),
    ] {
        for deviations in pmu_tests::deviations::single() {
            let told = |ticks| {
                let processor = Processor::on_platform(configuration, deviations);
                let event = Watchdog::event(&processor.unit, 1_000_000, 10).unwrap();
                let mut steps = vec![(1_000_000, true); 25];
                steps.extend([(1_000_000, ticks); 40]);
                processor.run(&event, key, &steps).1
            };
            let place = format!("{configuration:?} on {deviations}");
            assert!(!told(true).contains(&true), "{place}");
            assert!(told(false).contains(&true), "{place}");
        }
    }
}

/// The counter cannot be loaded again after the watchdog's first overflow.
#[test]
fn a_watchdog_whose_counter_fell_out_says_so_and_moves_to_another() {
    let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    let processor = Processor::new(configuration);
    let source = Events::new(&processor.unit, &processor.events);
    let (errors, verdicts) = (Cell::new(0), Cell::new(Vec::new()));
    let handler = |mock: &Mock<'_>| {
        let serviced = service(&source, mock, &processor.memory, |overflow| {
            let mut told = verdicts.take();
            told.push(processor.watchdog.is_stuck(overflow.event));
            verdicts.set(told);
        });
        assert_eq!(serviced.is_err(), processor.watchdog.is_blind(&processor.memory));
        errors.set(errors.get() + u32::from(serviced.is_err()));
    };
    let mock = Mock::strict(VirtualPmu::new(configuration, fed()).unwrap());
    mock.on_interrupt(&handler);
    let memory = &processor.memory;
    let mut counters =
        CounterSession::take(source, &processor.unit, CounterSet::ALL, &mock, memory).unwrap();
    assert!(!processor.watchdog.is_blind(memory), "it watches nothing");
    let event = Watchdog::event(&processor.unit, 1_000_000, 10).unwrap();
    let id = counters.open(&processor.unit, &[event]).unwrap();
    processor.watchdog.watch(id);
    assert!(processor.watchdog.is_blind(memory), "not started");
    counters.enable(id, 0).unwrap();
    assert!(!processor.watchdog.is_blind(memory));
    // IA32_FIXED_CTR1.
    mock.inject(Fault::Register(0x30A));
    let pass = |key| {
        let mut feed = Feed::new(&fed());
        feed.add(fed().find(key).unwrap(), Privilege::Kernel, 10_000_000).unwrap();
        mock.advance(&mut feed);
    };
    pass(EventKey::fixed(1).unwrap());
    assert_eq!((errors.get(), processor.watchdog.is_blind(memory)), (1, true));
    assert_eq!(verdicts.take(), [false], "the tick had a whole period");
    counters.enable(id, 0).unwrap();
    assert_eq!(counters.counter_of(id), CounterId::general(0));
    assert!(!processor.watchdog.is_blind(memory));
    pass(CYCLES);
    assert_eq!((errors.get(), verdicts.take()), (1, vec![true]));
    mock.inject(Fault::None);
    counters.shut_down().unwrap();
}
