#![doc = include_str!("../README.md")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod agreed;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod check;
pub mod claims;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod cli;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod consent;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod counts;
pub mod decode;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod device;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod driver;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod identity;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod interrupts;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod journal;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod machine;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod programs;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod random;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod rdpmc;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod refusal;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod registers;
pub mod report;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod restore;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod run_lock;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod software;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod sources;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod stop;
pub mod summary;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod supervisor;
pub mod table;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod workload;
