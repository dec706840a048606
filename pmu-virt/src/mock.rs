//! The model as a backend for tests of drivers: it counts and records accesses, refuses what a driver
//! must not do, fails on demand, and interrupts.

mod access;
mod backend;
mod cpuid;
mod deviate;
mod deviation;
mod interrupts;
mod machine;
mod plan;
mod processor;
mod time;
mod trace;

pub use deviation::{Deviation, Deviations};
pub use machine::MockMachine;
pub use plan::{Fault, PmiFault};
pub use processor::MockMsr;
pub use trace::{Accesses, Breach, Record, Trace};
