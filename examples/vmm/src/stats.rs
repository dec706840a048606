//! `--stats`: the guest's costs, by the phases that it marks.

use core::fmt;
use std::collections::BTreeMap;

use pmu_virt::{Delivery, PmiOutcome};
use serde::Serialize;

/// Reason why a processor left the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Exit {
    Rdmsr,
    Wrmsr,
    PortIn,
    PortOut,
    Mmio,
    /// A breakpoint at the guest's handler of #GP, for RDPMC.
    Breakpoint,
    SingleStep,
    /// A signal: a PMI is due, or the monitor wants a report.
    Kick,
    /// An instruction that kvm-pvm does not know.
    Emulation,
    Other,
}

/// Accesses to registers, by number.
type Accesses = BTreeMap<Register, u64>;

/// A register, or all those that are not the PMU's: their number is not bounded by the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Register {
    Number(u32),
    Other,
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number:#x}"),
            Self::Other => f.write_str("other"),
        }
    }
}

impl Serialize for Register {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Statistics of one phase.
#[derive(Clone, Debug, Default, Serialize)]
struct Phase {
    exits: BTreeMap<Exit, u64>,
    rdmsr: Accesses,
    wrmsr: Accesses,
    rdpmc: Accesses,
    /// Number of these accesses that got #GP.
    faults: u64,
    pmis_nmi: u64,
    pmis_fixed: u64,
    pmis_other: u64,
    /// Interrupts that were lost because the guest's entry was masked.
    pmis_masked: u64,
    /// INITs of a processor.
    inits: u64,
    /// Stops before which `--count step` could not determine the retired instructions.
    unreconciled: u64,
}

/// Statistics by phase.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Stats {
    phases: BTreeMap<u8, Phase>,
}

/// An access to a register.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    Rdmsr(Register),
    Wrmsr(Register),
    /// By ECX.
    Rdpmc(Register),
}

impl Stats {
    pub(crate) fn exit(&mut self, phase: u8, exit: Exit) {
        *self.phases.entry(phase).or_default().exits.entry(exit).or_default() += 1;
    }

    pub(crate) fn access(&mut self, phase: u8, access: Access, fault: bool) {
        let phase = self.phases.entry(phase).or_default();
        let (accesses, register) = match access {
            Access::Rdmsr(register) => (&mut phase.rdmsr, register),
            Access::Wrmsr(register) => (&mut phase.wrmsr, register),
            Access::Rdpmc(register) => (&mut phase.rdpmc, register),
        };
        *accesses.entry(register).or_default() += 1;
        phase.faults += u64::from(fault);
    }

    pub(crate) fn pmi(&mut self, phase: u8, outcome: PmiOutcome) {
        let phase = self.phases.entry(phase).or_default();
        match outcome {
            PmiOutcome::NotPending => {}
            PmiOutcome::Masked => phase.pmis_masked += 1,
            PmiOutcome::Raised(Delivery::NonMaskable) => phase.pmis_nmi += 1,
            PmiOutcome::Raised(Delivery::Fixed(_)) => phase.pmis_fixed += 1,
            PmiOutcome::Raised(Delivery::Other(_)) => phase.pmis_other += 1,
        }
    }

    /// Counts an INIT of a processor.
    pub(crate) fn init(&mut self, phase: u8) {
        self.phases.entry(phase).or_default().inits += 1;
    }

    /// Counts a stop of the guest whose preceding instructions are not known.
    pub(crate) fn unreconciled(&mut self, phase: u8) {
        self.phases.entry(phase).or_default().unreconciled += 1;
    }

    /// Returns the number of such stops in all phases.
    pub(crate) fn all_unreconciled(&self) -> u64 {
        self.phases.values().map(|phase| phase.unreconciled).sum()
    }

    /// Adds the statistics of another processor.
    pub(crate) fn add(&mut self, other: Self) {
        for (number, theirs) in other.phases {
            let ours = self.phases.entry(number).or_default();
            for (exit, count) in theirs.exits {
                *ours.exits.entry(exit).or_default() += count;
            }
            for (ours, theirs) in [
                (&mut ours.rdmsr, theirs.rdmsr),
                (&mut ours.wrmsr, theirs.wrmsr),
                (&mut ours.rdpmc, theirs.rdpmc),
            ] {
                for (register, count) in theirs {
                    *ours.entry(register).or_default() += count;
                }
            }
            ours.faults += theirs.faults;
            ours.pmis_nmi += theirs.pmis_nmi;
            ours.pmis_fixed += theirs.pmis_fixed;
            ours.pmis_other += theirs.pmis_other;
            ours.pmis_masked += theirs.pmis_masked;
            ours.inits += theirs.inits;
            ours.unreconciled += theirs.unreconciled;
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "phase  what    which        count")?;
        for (number, phase) in &self.phases {
            let mut row = |what: &str, which: &dyn fmt::Display, count: u64| {
                write!(f, "\n{number:>5}  {what:<7} {which:<12} {count}", which = which.to_string())
            };
            for (exit, count) in &phase.exits {
                row("exit", &format_args!("{exit:?}"), *count)?;
            }
            for (what, accesses) in
                [("rdmsr", &phase.rdmsr), ("wrmsr", &phase.wrmsr), ("rdpmc", &phase.rdpmc)]
            {
                for (register, count) in accesses {
                    row(what, register, *count)?;
                }
            }
            for (which, count) in [
                ("nmi", phase.pmis_nmi),
                ("fixed", phase.pmis_fixed),
                ("other", phase.pmis_other),
                ("masked", phase.pmis_masked),
            ] {
                if count != 0 {
                    row("pmi", &which, count)?;
                }
            }
            if phase.faults != 0 {
                row("#GP", &"", phase.faults)?;
            }
            if phase.inits != 0 {
                row("init", &"", phase.inits)?;
            }
            if phase.unreconciled != 0 {
                row("step", &"unreconciled", phase.unreconciled)?;
            }
        }
        Ok(())
    }
}
