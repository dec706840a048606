#![doc = include_str!("../README.md")]

pub mod catalog;
pub mod dump;
pub mod elf;
pub mod explanation;
pub mod listing;
pub mod machine;
pub mod output;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod profiler;
pub mod trace;
pub mod untrusted;
