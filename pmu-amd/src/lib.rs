#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod branches;
mod counters;
mod cpuid;
mod generation;
pub mod ibs;
mod interface;
mod meaning;
pub mod registers;
mod sources;
mod zen;

pub use branches::branches;
pub use branches::sampling::branch_sampling_event;
pub use counters::{counters, legacy_counters};
pub use generation::Generation;
pub use interface::Amd64;
pub use meaning::Meaning;
pub use sources::SOURCES;
pub use zen::Zen;
