//! The code of the guide in `docs`. Each part between two anchors is on a page, as it is here, and runs in a test.

mod branches;
mod guests;
mod precise;
mod profiles;
mod software;
mod suspend;
mod threads;
mod top_down;
mod watchdog;

use core::cell::RefCell;
use core::ops::Deref;

use pmu::Interrupted;
use pmu::frame::PlainFrame;
use pmu_tests::opened::Mock;
use pmu_virt::configuration::Configuration;

use crate::world::{Machine, PROCESSORS, TestPmu, World, machine};

thread_local! {
    /// Lines that the kernel printed.
    static PRINTED: RefCell<Vec<String>> = const { RefCell::new(vec![]) };
}

/// The kernel's static, which is the machine's of the test's thread.
struct ThePmu;

static PMU: ThePmu = ThePmu;

impl Deref for ThePmu {
    type Target = TestPmu;

    fn deref(&self) -> &TestPmu {
        machine().pmu()
    }
}

/// Prints a line in a task.
macro_rules! println {
    ($($text:tt)*) => { $crate::guide::print(format!($($text)*)) };
}

/// Prints a line in a handler.
macro_rules! log_in_nmi {
    ($($text:tt)*) => { $crate::guide::print(format!($($text)*)) };
}

use {log_in_nmi, println};

fn print(line: String) {
    PRINTED.with_borrow_mut(|printed| printed.push(line));
}

/// Returns the lines that were printed since the last call.
fn printed() -> Vec<String> {
    PRINTED.take()
}

/// The kernel of the guide.
type MyKernel = World;

/// Makes the interrupts of a machine call this handler.
fn handle(machine: &'static Machine, handler: fn(&PlainFrame) -> Interrupted) {
    for processor in 0..PROCESSORS {
        let handler = move |_: &Mock<'_>| {
            let pc = machine.pc[processor].get();
            let frame = PlainFrame { pc, cs: 8, flags: 2, processor, process: None };
            assert_eq!(handler(&frame).error, None);
        };
        machine.mocks[processor].on_interrupt(Box::leak(Box::new(handler)));
    }
}

/// Makes a machine of these processors, which are up, with a handler.
fn up(configuration: Configuration, handler: fn(&PlainFrame) -> Interrupted) -> &'static Machine {
    let (machine, _) = Machine::new(configuration);
    handle(machine, handler);
    machine.up();
    machine
}
