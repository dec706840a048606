//! The machine that is checked: this one, or a software one; and the code that runs on it to be counted.
//!
//! Uses the [report](crate::report), and [numbers from a seed](crate::random).

pub(crate) mod counted_ops;
pub(crate) mod cpuid;
pub mod device;
pub(crate) mod host;
pub mod identity;
pub(crate) mod interface;
pub mod interrupts;
pub(crate) mod perf_ops;
pub mod rdpmc;
pub mod software;
pub mod workload;

pub use cpuid::{KernelCpuid, native_cpuid};
pub use host::{Host, stay_on};
pub use interface::{Cpuid, Machine, Msr, kernel_file};
