//! A mock processor for tests of drivers. [`MockMsr`] has a software PMU, and implements the driver's register backend
//! and platform. The mock counts and records the driver's accesses, refuses illegal accesses, injects faults, and
//! delivers interrupts.
//!
//! A `Pmu` of the crate `pmu` accesses registers through a type that must be `'static` and `Send`. A reference to a
//! mock is not `Send`. A test of a `Pmu` therefore leaks the mock, and keeps the reference in a `thread_local!`. An
//! empty type then implements register access, and forwards each access to the mock of the current thread. The test
//! also leaks the `Pmu`, because all tests of a program would share a `static` one.

mod backend;
mod deviation;
pub(crate) mod facilities;
mod interrupts;
mod pmuv3;
mod precise;
mod process_memory;
mod processor;
mod trace;

pub use backend::{Fault, MockMachine, PmiFault};
pub use deviation::{Deviation, Deviations};
pub use pmuv3::MockPmuv3;
pub use process_memory::ProcessMemory;
pub use processor::MockMsr;
pub use trace::{Accesses, Breach, Record, Trace};
