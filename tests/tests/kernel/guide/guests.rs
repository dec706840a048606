//! Counters that a guest has while it runs.

use core::cell::Cell;

use pmu::frame::PlainFrame;
use pmu::{Event, GenericEvent, Interrupted, PmuError};
use pmu_virt::configuration::{Configuration, IntelConfiguration};

use super::{PMU, up};
use crate::world::{Happens, machine};

thread_local! {
    static GUESTS_INTERRUPTS: Cell<u32> = const { Cell::new(0) };
}

/// Puts it into the virtual local APIC.
fn inject_interrupt() {
    GUESTS_INTERRUPTS.set(GUESTS_INTERRUPTS.get() + 1);
}

// ANCHOR: lend
/// Runs the guest until its next exit, with this processor's counters.
fn run_guest(enter: fn(global_control: u64)) -> Result<(), PmuError> {
    PMU.lend(|lent| {
        enter(lent.global_control()); // VMCS field "Host IA32_PERF_GLOBAL_CTRL"
        lent.set_programmed(true); // the guest wrote to the counters' registers
    })
}

fn interrupt(frame: &PlainFrame) -> Interrupted {
    let interrupted = PMU.interrupt(frame);
    if interrupted.lent {
        inject_interrupt();
    }
    interrupted
}
// ANCHOR_END: lend

#[test]
fn events_count_nothing_of_a_guest_and_its_interrupts_are_its_own() {
    let machine = up(Configuration::Intel(IntelConfiguration::new(4, 4, 3)), interrupt);
    let instructions = Event::generic(GenericEvent::Instructions);
    let event = PMU.start(&instructions).unwrap();
    machine.happen(0, Happens::Instructions, 100);
    run_guest(|_| {
        let mock = &self::machine().mocks[0];
        // The guest's: an instruction before the wrap of counter 0, with interrupts, unmasked.
        for (register, value) in [(0x4C1, (1 << 48) - 1), (0x186, 0x53_00C0), (0x38F, 1)] {
            let _ = mock.with_pmu(|pmu| pmu.write(register, value));
        }
        pmu::core::Platform::unmask_performance_interrupt(mock);
        self::machine().happen(0, Happens::Instructions, 1);
    })
    .unwrap();
    assert_eq!(GUESTS_INTERRUPTS.take(), 1);
    machine.happen(0, Happens::Instructions, 10);
    assert_eq!(PMU.read(event).unwrap().value, 110);
    PMU.close(event).unwrap();
    machine.down();
}
