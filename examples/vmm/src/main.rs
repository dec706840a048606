#![doc = include_str!("../README.md")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod boot;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod cli;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod count;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod emulation;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod error;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod guest;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod guest_pmu;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod instruction;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod machine;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod messages;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod options;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod processor;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod shared;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stats;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod trace;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod vcpu;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> std::process::ExitCode {
    cli::run()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() -> std::process::ExitCode {
    eprintln!("vmm: needs KVM, that is Linux on x86-64");
    std::process::ExitCode::from(16)
}
