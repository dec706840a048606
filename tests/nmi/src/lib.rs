//! What the tests share: a processor's registers that may be accessed at any instruction, and whose
//! events and overflows are booked apart from the driver.

mod chip;
mod machine;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod steps;

pub use chip::{Chip, Kind, SOURCES};
pub use machine::{Frame, INTERVAL, Machine, amd, intel};
