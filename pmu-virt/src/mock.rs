//! A mock of a processor for tests of drivers: the software PMU as the driver's backend and platform. The mock counts
//! and records accesses, refuses illegal accesses, fails on demand, and interrupts.
//!
//! Uses the private module `pmu` and the modules that `pmu` uses, but neither `mediated` nor `bytes`.

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
