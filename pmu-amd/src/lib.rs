#![doc = include_str!("../README.md")]
#![no_std]

mod interface;
pub mod registers;
mod sources;

pub use interface::{Amd64, LegacyCounter};
pub use sources::{Amd64Source, SOURCES};
