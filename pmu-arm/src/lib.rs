#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod counters;
mod frame;
mod identification;
mod interface;
#[cfg(all(feature = "native", target_arch = "aarch64"))]
mod native;
pub mod registers;
mod sources;

pub use backend::{ArmMsr, SystemRegisters};
pub use counters::{chained_counters, counters};
pub use frame::frame;
pub use identification::Identification;
pub use interface::Pmuv3;
#[cfg(all(feature = "native", target_arch = "aarch64"))]
pub use native::{NativeRegisters, read_at_el0};
pub use sources::SOURCES;
