//! Processors that go offline, and that sleep.

use pmu::frame::PlainFrame;
use pmu::{Event, GenericEvent, Interrupted, PmuError, Snapshot};
use pmu_virt::configuration::{Configuration, IntelConfiguration};

use super::{PMU, up};
use crate::world::{Happens, machine};

// ANCHOR: hotplug
fn cpu_online(this: &Snapshot) -> Result<(), PmuError> {
    PMU.processor_up(this).map(drop) // started profiles count here from now on
}

fn cpu_offline() -> Result<(), PmuError> {
    PMU.processor_down() // its events end, its counters are as they were found
}
// ANCHOR_END: hotplug

// ANCHOR: suspend
fn sleep(until_wake: fn()) -> Result<(), PmuError> {
    PMU.processor_suspended()?;
    until_wake();
    // A register that failed once may answer now.
    PMU.processor_resumed().or_else(|_| PMU.processor_resumed()).map(drop)
}
// ANCHOR_END: suspend

fn interrupt(frame: &PlainFrame) -> Interrupted {
    PMU.interrupt(frame)
}

#[test]
fn counts_outlast_a_suspend_and_events_do_not_outlast_a_processor() {
    let machine = up(Configuration::Intel(IntelConfiguration::new(4, 4, 3)), interrupt);
    let event = PMU.start(&Event::generic(GenericEvent::Instructions)).unwrap();
    machine.happen(0, Happens::Instructions, 100);
    sleep(|| self::machine().mocks[0].lose_registers()).unwrap();
    machine.happen(0, Happens::Instructions, 10);
    assert_eq!(PMU.read(event).unwrap().value, 110);
    cpu_offline().unwrap();
    assert!(PMU.read(event).is_err());
    cpu_online(&machine.snapshot()).unwrap();
    assert!(PMU.read(event).is_err(), "nor do they come back");
    machine.down();
}
