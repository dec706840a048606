//! Shared parts of the tests: a processor's registers that may be accessed at any instruction, whose events and
//! overflows are recorded independently of the driver.

mod chip;
mod machine;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod steps;

pub use chip::{Chip, Kind, SOURCES};
pub use machine::{INTERVAL, Machine, amd, frame, intel};
