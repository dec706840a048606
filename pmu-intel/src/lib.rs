#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(test)]
extern crate std;

#[doc(alias = "bts")]
pub mod branch_trace;
mod branches;
mod counters;
mod cpuid;
pub mod debug_store;
mod interface;
mod later_sources;
#[doc(alias = "pebs")]
pub mod precise;
pub mod registers;
mod reload;
mod sibling_erratum;
mod sources;
pub mod topdown;
mod unused;

pub use branches::branches;
pub use branches::legacy::LbrFormat;
pub use counters::counters;
pub use cpuid::ArchitecturalPerfmon;
pub use interface::Emon;
pub use later_sources::add_later_sources;
pub use reload::counter_reload;
pub use sibling_erratum::{CorruptsSibling, SiblingErratum};
pub use sources::SOURCES;
pub use unused::clear_stale;
