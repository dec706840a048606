#![doc = include_str!("../README.md")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod apic;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod boot;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod cli;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod count;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod deviating;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod error;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod guest;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod guest_cpuid;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod init;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod instruction;
mod inverted;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod kick;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod machine;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod mptable;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod msr;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod offered;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod ports;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod processor;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod pvm;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod rdpmc;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod rendezvous;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod reset;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod spec;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stats;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> std::process::ExitCode {
    cli::run()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() -> std::process::ExitCode {
    eprintln!("vmm: needs KVM, that is Linux on x86-64");
    std::process::ExitCode::from(16)
}
