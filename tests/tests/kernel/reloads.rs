//! Counters that overflows reload, through a `Pmu` whose kernel chose them.

use core::cell::{Cell, RefCell};

use pmu::core::Event;
use pmu::core::error::CounterError;
use pmu::core::frame::PlainFrame;
use pmu::core::registers::EventSelect;
use pmu::facilities::CounterReloads;
use pmu::{Kernel, Pmu, PmuSample, X86};
use pmu_tests::software_pmu::{general_events, general_feed};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::MockMsr;
use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
use pmu_virt::{FedEvents, VirtualPmu};

type Mock = MockMsr<'static, 64>;

/// Misses and branches.
const KINDS: [u8; 2] = [0xC5, 0xC4];

thread_local! {
    static MOCK: Cell<Option<&'static Mock>> = const { Cell::new(None) };
    static SAMPLES: RefCell<Vec<u64>> = const { RefCell::new(vec![]) };
}

fn mock() -> &'static Mock {
    MOCK.get().unwrap()
}

struct Registers;

pmu_tests::delegate_registers!(Registers, mock);

struct Reloading;

// SAFETY: each test has one thread, and a `Pmu` of its own.
unsafe impl Kernel for Reloading {
    pmu_tests::one_processor!(Registers, mock);
    type Architecture = X86<CounterReloads>;
    fn sampled(sample: &PmuSample<'_, Self>) {
        SAMPLES.with_borrow_mut(|samples| samples.push(sample.tag));
    }
}

fn fed() -> FedEvents {
    general_events(&KINDS)
}

/// Lets an event of these happen.
fn happen(kind: usize, count: u64) {
    mock().advance(&mut general_feed(&KINDS, kind, count));
}

/// A machine of one processor, whose counters can reload each other or not.
fn machine(reloads: bool) -> &'static Pmu<Reloading, 1> {
    let configuration = Configuration::Intel(IntelConfiguration::new(6, 4, 4));
    let mut mock: Mock = MockMsr::strict(VirtualPmu::new(configuration, fed()).unwrap());
    if reloads {
        let all =
            ReloadConfiguration { general: 0xF, fixed: 0, causing_general: 0xF, causing_fixed: 0 };
        mock = mock.with_reload(VirtualReload::new(&configuration, all).unwrap());
    }
    let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
    MOCK.set(Some(Box::leak(Box::new(mock))));
    let pmu: &'static Pmu<Reloading, 1> = Box::leak(Box::new(Pmu::new()));
    let handler = move |_: &Mock| {
        let interrupted = pmu.interrupt(&PlainFrame::default());
        assert_eq!(interrupted.error, None);
    };
    self::mock().on_interrupt(Box::leak(Box::new(handler)));
    pmu.processor_up(&self::mock().snapshot()).unwrap();
    pmu
}

// ANCHOR: group
/// Samples of 5,000 mispredicted branches within 100,000 branches. The branches, at place 1 of the group, reload both.
fn group() -> [Event; 2] {
    let misses = Event::raw(EventSelect::from_bits(0xC5)).every(5_000).reloaded_by(0b10);
    let branches = Event::raw(EventSelect::from_bits(0xC4)).every(100_000).reloaded_by(0b10);
    [misses.tagged(1), branches.tagged(2)] // to be opened by `PMU.start_group`
}
// ANCHOR_END: group

fn samples() -> usize {
    SAMPLES.with_borrow(|samples| {
        assert!(samples.iter().all(|tag| *tag == 1), "the branches never interrupt: {samples:?}");
        samples.len()
    })
}

#[test]
fn a_pmu_whose_kernel_chose_counter_reload_samples_where_the_event_is_frequent() {
    let pmu = machine(true);
    let opened = pmu.with(|session, unit| {
        let counters = session.counters_mut();
        let group = counters.open(unit, &group())?;
        counters.enable(group, 0).map(|()| group)
    });
    let group = opened.unwrap().unwrap();
    let steps = [(0, 6_000, 1), (1, 100_000, 1), (0, 4_999, 1), (0, 1, 2), (1, 99_999, 2)];
    for (kind, count, expected) in steps {
        happen(kind, count);
        assert_eq!(samples(), expected, "{kind}, {count}");
    }
    // 4,999 more would be too few; the next branch lets them begin anew.
    happen(0, 4_999);
    happen(1, 1);
    happen(0, 4_999);
    assert_eq!(samples(), 2);
    // Registers that lose their contents are programmed again.
    pmu.processor_suspended().unwrap();
    mock().lose_registers();
    pmu.processor_resumed().unwrap();
    happen(1, 100_000);
    happen(0, 4_999);
    assert_eq!(samples(), 2);
    happen(0, 1);
    assert_eq!(samples(), 3);
    // Events that reload each other are closed together.
    let left = pmu.with(|session, _| {
        let counters = session.counters_mut();
        let last = counters.group_events(group).last().unwrap();
        counters.close_member(last, 0)?;
        Ok::<_, CounterError>(counters.group_events(group).count())
    });
    assert_eq!(left, Ok(Ok(0)));
    pmu.processor_down().unwrap();
    assert!(mock().breach().is_none(), "{:?}", mock().breach());
}

#[test]
fn counter_reload_that_the_processor_lacks_is_refused_as_the_group_is_opened() {
    let pmu = machine(false);
    let opened = pmu.with(|session, unit| session.counters_mut().open(unit, &group())).unwrap();
    let error = opened.unwrap_err();
    assert_eq!((error.events, error.reason), (0b1, CounterError::NotReloadable));
    // Other events are counted as ever.
    let [first, _] = group();
    let event = pmu.with(|session, unit| {
        let event = session.counters_mut().open(unit, &[first.reloaded_by(0)])?;
        session.counters_mut().enable(event, 0).map(|()| event)
    });
    event.unwrap().unwrap();
    happen(0, 5_000);
    assert_eq!(samples(), 1);
    pmu.processor_down().unwrap();
    assert!(mock().breach().is_none(), "{:?}", mock().breach());
}
