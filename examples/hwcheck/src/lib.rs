#![doc = include_str!("../README.md")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod cli;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod counts;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod machine;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod programs;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod random;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod registers;
pub mod report;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod run;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod samples;
