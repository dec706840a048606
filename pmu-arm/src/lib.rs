#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod counters;
mod interface;
#[cfg(all(feature = "native", target_arch = "aarch64"))]
mod native;
pub mod registers;
mod sources;

pub use backend::{ArmRegisters, SystemRegisters};
pub use counters::{Identification, chained_counters, counters};
pub use interface::Pmuv3;
#[cfg(all(feature = "native", target_arch = "aarch64"))]
pub use native::{NativeRegisters, read_at_el0};
pub use sources::SOURCES;

use pmu_core::frame::PlainFrame;

/// Returns the interrupted context as the core's crates expect it. `elr` and `spsr` are `ELR_ELx` and `SPSR_ELx`, as
/// the exception saved them, and `processor` is the number of the interrupted processor.
///
/// The core's frames have a code segment selector, whose bits 1:0 tell user mode from the kernel. Here they are 3 for
/// EL0 in AArch64 or AArch32 state, and 0 for all other exception levels (`SPSR_EL1.M[3:0]`).
///
/// ```
/// let kernel = pmu_arm::frame(0x4008_0010, 0x3C5, 0); // EL1h
/// let user = pmu_arm::frame(0x1_0000, 0x0, 0); // EL0t
/// assert_eq!((kernel.pc, kernel.cs & 3, user.cs & 3), (0x4008_0010, 0, 3));
/// ```
///
/// # Context
/// Any.
#[inline]
pub const fn frame(elr: u64, spsr: u64, processor: usize) -> PlainFrame {
    let is_user = spsr & 0xF == 0;
    PlainFrame::new(elr, if is_user { 3 } else { 0 }, 0, processor)
}
