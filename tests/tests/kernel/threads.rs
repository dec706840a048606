//! Processors at the same time: each is a thread, and an interrupt from another is a flag that the thread polls.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::thread;
use std::time::Instant;

use pmu::core::frame::PlainFrame;
use pmu::core::x86::Snapshot;
use pmu::core::{Event, GenericEvent, Platform};
use pmu::{Kernel, Pmu, X86};
use pmu_tests::deviations::snapshot;
use pmu_tests::opened::{self, Mock};
use pmu_virt::VirtualPmu;
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::mock::Deviations;

const PROCESSORS: usize = 3;
/// Cycles of the second of [`opened::KINDS`].
const CYCLES: usize = 1;
const PERIOD: u64 = 5_003;

static PMU: Pmu<Threads, PROCESSORS> = Pmu::new();
static CALLED: [AtomicBool; PROCESSORS] = [const { AtomicBool::new(false) }; PROCESSORS];

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    static MOCK: Cell<Option<&'static Mock<'static>>> = const { Cell::new(None) };
}

fn mock() -> &'static Mock<'static> {
    MOCK.get().unwrap()
}

/// The interrupt from another processor, which comes here.
fn poll() {
    if CALLED[NUMBER.get()].swap(false, Ordering::SeqCst) {
        PMU.serve_call();
    }
}

struct Registers;

pmu_tests::delegate_registers!(Registers, mock);

struct Threads;

// SAFETY: a thread is a processor, with one task.
unsafe impl Kernel for Threads {
    type Registers = Registers;
    type Architecture = X86;
    fn registers() -> Registers {
        Registers
    }
    fn this_processor() -> usize {
        NUMBER.get()
    }
    fn pinned<R>(act: impl FnOnce() -> R) -> R {
        act()
    }
    fn set_interrupt_masked(masked: bool) {
        if masked {
            mock().mask_performance_interrupt();
        } else {
            mock().unmask_performance_interrupt();
        }
    }
    fn interrupt(processor: usize) {
        CALLED[processor].store(true, Ordering::SeqCst);
    }
    fn keep_waiting(_: u64) -> bool {
        thread::yield_now();
        true
    }
}

fn this() -> Snapshot {
    snapshot(configuration(), Deviations::NONE)
}

fn configuration() -> Configuration {
    Configuration::Intel(IntelConfiguration::new(4, 4, 3))
}

fn begin(number: usize) {
    NUMBER.set(number);
    let pmu = VirtualPmu::new(configuration(), opened::fed_events()).unwrap();
    let mock: &'static Mock<'static> = Box::leak(Box::new(Mock::strict(pmu)));
    let _ = mock.with_pmu(|pmu| pmu.write(0x38F, 0));
    mock.on_interrupt(&|_| {
        let processor = NUMBER.get();
        let pc = 0x1000 * (processor as u64 + 1);
        let frame = PlainFrame { pc, cs: 8, processor, ..PlainFrame::default() };
        assert_eq!(PMU.interrupt(&frame).error, None);
    });
    MOCK.set(Some(mock));
    PMU.processor_up(&this()).unwrap();
}

/// Processor 1 works in its session all the time, so that most requests meet the session in use; processor 2 counts.
#[test]
fn profiles_start_and_stop_on_processors_that_use_their_sessions() {
    let (is_over, up) = (AtomicBool::new(false), AtomicU32::new(0));
    let late = Instant::now() + Duration::from_secs(100);
    thread::scope(|scope| {
        for number in 1..PROCESSORS {
            let (is_over, up) = (&is_over, &up);
            scope.spawn(move || {
                begin(number);
                up.fetch_add(1, Ordering::SeqCst);
                while !is_over.load(Ordering::SeqCst) {
                    match number {
                        1 => PMU.with(|_, _| (0..20).for_each(|_| poll())).unwrap(),
                        _ => {
                            let events = [Event::generic(GenericEvent::Instructions)];
                            let counts = PMU.count(&events, poll).unwrap();
                            assert_eq!(counts[0].value, 0);
                        }
                    }
                    opened::happen(mock(), CYCLES, PERIOD);
                }
                PMU.processor_down().unwrap();
            });
        }
        begin(0);
        while up.load(Ordering::SeqCst) != 2 {
            poll();
        }
        let mut seen = [0; PROCESSORS];
        for _ in 0..50 {
            let buffer: [AtomicU32; 8] = core::array::from_fn(|_| AtomicU32::new(0));
            let cycles = Event::generic(GenericEvent::Cycles).every(PERIOD);
            let object = PMU.profile(cycles, 0x1000..0x9000, &buffer, || {
                let hit = |processor: usize| buffer[processor].load(Ordering::Relaxed) > 0;
                while !(0..PROCESSORS).all(hit) {
                    opened::happen(mock(), CYCLES, PERIOD);
                    poll();
                    assert!(Instant::now() < late, "a processor was not profiled: {buffer:?}");
                }
            });
            for (addresses, count) in object.unwrap().hits() {
                seen[addresses.start as usize / 0x1000 - 1] += count;
            }
        }
        assert!(seen.iter().all(|count| *count >= 50), "{seen:?}");
        is_over.store(true, Ordering::SeqCst);
        PMU.processor_down().unwrap();
    });
}
