//! A `Pmu` whose architecture has no profile sources: its machine is the boot processor's counters.

use core::cell::Cell;

use pmu::core::frame::PlainFrame;
use pmu::core::{CounterSet, CounterUnit, Event, GenericEvent};
use pmu::{Architecture, Kernel, Pmu, PmuSample};
use pmu_tests::opened::{Mock, Processor, happened};
use pmu_virt::configuration::IntelConfiguration;

thread_local! {
    static MOCK: Cell<Option<&'static Mock<'static>>> = const { Cell::new(None) };
}

fn mock() -> &'static Mock<'static> {
    MOCK.get().unwrap()
}

struct Registers;

pmu_tests::delegate_registers!(Registers, mock);

struct Alone;

impl Architecture for Alone {
    type Processor = CounterUnit;
    type Machine = CounterUnit;
    type Facilities = ();
    fn detect(first: &CounterUnit) -> CounterUnit {
        *first
    }
}

// SAFETY: each test has one thread, and a `Pmu` of its own.
unsafe impl Kernel for Alone {
    pmu_tests::one_processor!(Registers, mock);
    type Architecture = Self;
    fn sampled(sample: &PmuSample<'_, Self>) {
        assert_eq!((sample.tag, sample.source()), (7, None));
    }
}

#[test]
fn a_machine_that_is_counters_alone_has_them() {
    let processor = Processor::intel(IntelConfiguration::new(4, 4, 3));
    MOCK.set(Some(Box::leak(Box::new(processor.mock()))));
    static PMU: Pmu<Alone, 1> = Pmu::new();
    let handler = |_: &Mock<'_>| {
        let interrupted = PMU.interrupt(&PlainFrame::default());
        assert_eq!((interrupted.overflows, interrupted.error), (1, None));
    };
    mock().on_interrupt(Box::leak(Box::new(handler)));
    let all = processor.unit.counters();
    assert_eq!(PMU.processor_up(&processor.unit), Ok(all));
    assert_eq!(all & CounterSet::GENERAL, CounterSet::from_bits(0xF));
    // Kind 3 of the events that happen.
    let event = PMU.open(&pmu_tests::opened::raw(3).every(5_000).with_total().tagged(7)).unwrap();
    PMU.enable(event).unwrap();
    mock().advance(&mut happened(3, 5_100));
    assert_eq!(PMU.read(event).unwrap().value, 5_100);
    let cycles = Event::generic(GenericEvent::Cycles);
    assert!(PMU.count(&[cycles], || ()).is_ok());
    PMU.processor_down().unwrap();
}
