//! The states of a machine in which nothing is written, each with its remedy.

use core::fmt;
use std::path::Path;

use pmu_core::access::AccessErrorKind;
use pmu_virt::configuration::{Configuration, HostError};
use pmu_virt::registers::RegisterKind;

use crate::machine::interface::{Machine, kernel_file_in};
use crate::registers::access::read;
use crate::registers::agreed::{ENABLE, FIXED_PRIVILEGES};

/// Reason for which the tool does not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no PMU that the model can be.
    NoPmu(HostError),
    /// A register cannot be read.
    Unreadable {
        /// The register.
        register: u32,
        /// The failure.
        kind: AccessErrorKind,
    },
    /// Another run of the tool lives on this machine.
    AnotherRun,
    /// The NMI watchdog has a counter.
    NmiWatchdog,
    /// These counters, given by their bits in the global registers, run for another owner.
    CountersRun(u64),
    /// The kernel is locked down.
    LockedDown,
    /// The module `msr` forbids writes.
    WritesForbidden,
    /// The user did not agree.
    NotAgreed,
}

impl Refusal {
    /// Returns the remedy that the user has.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::NoPmu(HostError::Counters(_) | HostError::Configuration(_)) => {
                "the model is not made for this processor: tell the project what `cargo run --bin pmcsources` prints here"
            }
            Self::NoPmu(_) => {
                "run it on a machine with a PMU, or in a virtual machine whose hypervisor gives it one"
            }
            Self::Unreadable { .. } => {
                "run it as root, with the module msr loaded: sudo modprobe msr"
            }
            Self::AnotherRun => "wait until it has ended: one run at a time restores what it wrote",
            Self::NmiWatchdog => {
                "switch it off for the time of the run: sudo sysctl kernel.nmi_watchdog=0 (and =1 afterwards)"
            }
            Self::CountersRun(_) => {
                "end what profiles this machine (perf, a virtual machine with a PMU), or name another processor by --cpu"
            }
            Self::LockedDown => {
                "Secure Boot, or lockdown= on the kernel's command line, locks the kernel down: switch it off for the time of the run, or use --read-only"
            }
            Self::WritesForbidden => {
                "allow writes: echo default | sudo tee /sys/module/msr/parameters/allow_writes, without msr.allow_writes=off on the kernel's command line; or use --read-only"
            }
            Self::NotAgreed => "nothing was written; --read-only does what needs no write",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPmu(error) => write!(f, "{error}"),
            Self::Unreadable { register, kind } => {
                write!(f, "register {register:#x} cannot be read: {kind}")
            }
            Self::AnotherRun => f.write_str("another run lives on this machine"),
            Self::NmiWatchdog => f.write_str("the NMI watchdog has a counter"),
            Self::CountersRun(counters) => {
                write!(f, "counters run for another owner (their bits: {counters:#x})")
            }
            Self::LockedDown => {
                f.write_str("the kernel is locked down and forbids writes of registers")
            }
            Self::WritesForbidden => f.write_str("the module msr forbids writes"),
            Self::NotAgreed => f.write_str("you did not agree"),
        }
    }
}

impl core::error::Error for Refusal {}

/// Checks that the kernel lets registers be written, and has no counter of its own, by its files in this folder.
///
/// # Errors
/// The first reason not to write.
pub fn check_kernel(root: &Path) -> Result<(), Refusal> {
    let lockdown = kernel_file_in(root, "sys/kernel/security/lockdown").unwrap_or_default();
    if ["[integrity]", "[confidentiality]"].iter().any(|mode| lockdown.contains(mode)) {
        return Err(Refusal::LockedDown);
    }
    let writes = kernel_file_in(root, "sys/module/msr/parameters/allow_writes");
    if writes.as_deref() == Some("off") {
        return Err(Refusal::WritesForbidden);
    }
    let watchdog = kernel_file_in(root, "proc/sys/kernel/nmi_watchdog");
    if watchdog.as_deref().is_some_and(|on| on != "0") {
        return Err(Refusal::NmiWatchdog);
    }
    Ok(())
}

/// Checks that no counter of this processor runs: enabled in its select or in the fixed counters' control, and in the
/// global control where there is one.
///
/// # Errors
/// One runs, or a register cannot be read.
pub fn check_counters(machine: &dyn Machine, configuration: &Configuration) -> Result<(), Refusal> {
    let mut enabled = 0u64;
    let mut global = None;
    for register in configuration.registers().filter(|one| one.exists && one.is_state) {
        // One that faults holds nothing that runs, and is the model's to tell.
        let value = || match read(machine, configuration, register.address) {
            Err(AccessErrorKind::Fault) => Ok(0),
            Err(kind) => Err(Refusal::Unreadable { register: register.address, kind }),
            Ok(value) => Ok(value),
        };
        match register.kind {
            RegisterKind::EventSelect if value()? & ENABLE != 0 => {
                enabled |= 1 << (register.counter % 32);
            }
            RegisterKind::FixedControl => {
                let control = value()?;
                let on = (0..8).filter(|counter| control >> (4 * counter) & FIXED_PRIVILEGES != 0);
                enabled |= on.fold(0, |bits, counter| bits | 1u64 << (32 + counter));
            }
            RegisterKind::GlobalControl => global = Some(value()?),
            _ => {}
        }
    }
    match enabled & global.unwrap_or(u64::MAX) {
        0 => Ok(()),
        counters => Err(Refusal::CountersRun(counters)),
    }
}
