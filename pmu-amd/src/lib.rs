#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod counters;
mod cpuid;
mod interface;
pub mod registers;
mod sources;

pub use counters::counters;
pub use interface::Amd64;
pub use sources::SOURCES;
