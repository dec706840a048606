//! The hard-lockup detector.

use pmu::frame::PlainFrame;
use pmu::{Interrupted, PmuError};
use pmu_virt::configuration::{Configuration, IntelConfiguration};

use super::{PMU, log_in_nmi, printed, up};
use crate::world::Happens;

// ANCHOR: watch
/// Called on each processor after `processor_up`: the processor runs at 5 GHz at most.
fn watch() -> Result<(), PmuError> {
    PMU.watch(5_000_000_000, 10) // seconds
}

fn timer_tick() -> Result<(), PmuError> {
    PMU.tick()
}

fn non_maskable_interrupt(frame: &PlainFrame) -> Interrupted {
    let interrupted = PMU.interrupt(frame);
    if interrupted.is_stuck {
        log_in_nmi!("processor {} took no tick for 10 seconds at {:#x}", frame.processor, frame.pc);
    }
    if interrupted.is_blind {
        // Its counter failed. A task calls `watch` again.
        log_in_nmi!("a processor is not watched any more: {:?}", interrupted.error);
    }
    interrupted
}
// ANCHOR_END: watch

#[test]
fn a_processor_without_a_tick_is_reported() {
    let machine =
        up(Configuration::Intel(IntelConfiguration::new(4, 4, 3)), non_maskable_interrupt);
    machine.pc[0].set(0x1234);
    watch().unwrap();
    timer_tick().unwrap();
    machine.happen(0, Happens::Cycles, 50_000_000_000);
    assert_eq!(printed(), [""; 0], "the tick came");
    machine.happen(0, Happens::Cycles, 50_000_000_000);
    assert_eq!(printed(), ["processor 0 took no tick for 10 seconds at 0x1234"]);
    timer_tick().unwrap();
    machine.happen(0, Happens::Cycles, 50_000_000_000);
    assert_eq!(printed(), [""; 0]);
    PMU.unwatch().unwrap();
    machine.down();
}
