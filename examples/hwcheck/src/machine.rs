//! The machine that is checked: this one, or a software one; and the code that runs on it to be counted.
//!
//! Uses the [report](crate::report), and [numbers from a seed](crate::random).

pub(crate) mod counted_ops;
pub mod device;
pub(crate) mod host;
pub mod identity;
pub(crate) mod interface;
pub mod interrupts;
pub(crate) mod perf_ops;
pub mod rdpmc;
pub mod software;
pub mod workload;

pub use host::{Host, native_cpuid, stay_on};
pub use interface::{Cpuid, Machine, Msr, kernel_file};
