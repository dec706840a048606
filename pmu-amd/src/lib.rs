#![doc = include_str!("../README.md")]
#![no_std]

mod counter;
mod interface;
pub mod registers;
mod sources;

pub use counter::CoreCounter;
pub use interface::Amd64;
pub use sources::{Amd64Source, SOURCES};
