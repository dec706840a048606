//! A mock of a processor for tests of drivers. The driver uses the software PMU as its backend and platform. The mock
//! counts and records the driver's accesses, refuses illegal accesses, injects faults, and delivers interrupts.
//!
//! Beneath a `Pmu` of the crate `pmu`, the type of register access is `'static` and `Send`. A reference to a mock is
//! not `Send`. So the test's kernel uses an empty type for register access: the test leaks the mock, keeps the
//! reference in a `thread_local!`, and each function of the type calls the mock of the thread. The test also leaks a
//! `Pmu` of its own, because a static `Pmu` is shared by all tests of the program.
//!
//! Uses the private module `pmu` and the modules that `pmu` uses. Does not use `mediated` and `bytes`.

mod access;
mod backend;
mod branches;
mod cpuid;
mod deviate;
mod deviation;
mod interrupts;
mod machine;
mod plan;
mod precise;
mod processor;
mod sampling;
mod time;
mod top_down;
mod trace;

pub use deviation::{Deviation, Deviations};
pub use machine::MockMachine;
pub use plan::{Fault, PmiFault};
pub use processor::MockMsr;
pub use trace::{Accesses, Breach, Record, Trace};
