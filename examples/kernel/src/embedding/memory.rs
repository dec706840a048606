//! Static memory: it lives as long as the kernel, and interrupts find everything here.

use pmu::core::error::NoInterface;
use pmu::intel::debug_store::{ControlAreaMemory, ProcessorProfileControl};
use pmu::{Machine, Pmu};
use spin::Once;

use crate::embedding::platform::Kernel;
use crate::machine::processor::MAX_PROCESSORS;

/// The counters of all processors, with at most 8 events each, and at most 8 started profiles.
pub static PMU: Pmu<Kernel, MAX_PROCESSORS, 8, 8> = Pmu::new();

/// The machine, as it is described before any of its counters is touched.
pub static MACHINE: Once<Machine> = Once::new();
/// The machine in place of one whose counters do not answer, though CPUID declares them: it profiles by time.
pub static TIME_ONLY: Machine = Machine::without_counters(NoInterface::Unresponsive);

/// The most branch records that a processor has.
pub const MAX_RECORDS: usize = 32;

/// Words of a processor's buffer of precise records: 16 KiB.
pub const PRECISE_WORDS: usize = 2048;

/// The boot processor's Debug Store area, whose index stamps context switches.
pub static DEBUG_STORE: ProcessorProfileControl<'_> = ProcessorProfileControl::new(Some(&AREA));
static AREA: ControlAreaMemory = ControlAreaMemory::new();
