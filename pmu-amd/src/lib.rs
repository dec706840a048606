#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod counters;
mod cpuid;
mod generation;
mod interface;
mod meaning;
pub mod registers;
mod sources;
mod zen;

pub use counters::counters;
pub use generation::Generation;
pub use interface::Amd64;
pub use meaning::Meaning;
pub use sources::SOURCES;
pub use zen::Zen;
