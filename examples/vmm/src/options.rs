//! The command line's options.

use core::str::FromStr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use pmu_virt::configuration::IntelFeature;

use crate::guest_pmu::deviating::Observable;
use crate::guest_pmu::inverted::Inverted;

/// Runs a guest kernel under KVM and gives it a PMU in software.
///
/// The guest's serial port (COM1) is on standard output. Its exit status is what it writes to isa-debug-exit (port
/// 0xF4): (value << 1) | 1, always odd. The monitor's own are even: 0 the guest halted or reset itself, 2 usage, 4
/// unreadable file, 6 no bootable image, 8 impossible PMU, 10 triple fault, 12 timeout, 14 refused by KVM, 16 no
/// /dev/kvm, 18 does not fit in memory, 20 the guest executes an instruction that KVM cannot, 22 no host counters.
#[derive(Debug, Parser)]
#[command(name = "vmm", version, args_override_self = true)]
pub(crate) struct Options {
    /// The kernel: a multiboot ELF, a PVH ELF, or a 64-bit Linux vmlinux.
    #[arg(long, value_name = "PATH")]
    pub(crate) kernel: PathBuf,
    /// The initial RAM disk; for multiboot and PVH, the first module.
    #[arg(long, value_name = "PATH")]
    pub(crate) initrd: Option<PathBuf>,
    /// A static program as the initial RAM disk's /init.
    #[arg(long, value_name = "PATH", conflicts_with = "initrd")]
    pub(crate) init: Option<PathBuf>,
    /// The kernel's command line.
    #[arg(long, value_name = "STR", default_value = "", allow_hyphen_values = true)]
    pub(crate) append: String,
    /// Number of processors.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) cpus: u8,
    /// Size of the memory, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(u64).range(2..=3072))]
    pub(crate) memory: u64,
    /// The PMU, with its features.
    #[arg(long, value_name = "SPEC", default_value = "intel", long_help = pmu_help())]
    pub(crate) pmu: String,
    /// RDMSR of REGISTER shows this bit inverted: a deviation, for programs that look for one.
    #[arg(long, value_name = "REGISTER:BIT")]
    pub(crate) invert: Option<Inverted>,
    /// A deviation of real platforms, by its name in `pmu-virt`: for a guest that looks for one.
    #[arg(long, value_name = "NAME")]
    pub(crate) deviation: Option<Observable>,
    /// Hands the first processor's local APIC over in x2APIC mode.
    #[arg(long)]
    pub(crate) x2apic: bool,
    /// Ends the machine after so many seconds; 0: never.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub(crate) timeout: u64,
    /// Source of the counters' events.
    #[arg(long, value_enum, default_value_t = Count::Time)]
    pub(crate) count: Count,
    /// With --count time: the nominal frequency of cycles and reference cycles, in MHz. CPUID leaf 0x16 gives it to
    /// an Intel guest.
    #[arg(long, value_name = "MHZ", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) frequency: u16,
    /// With --count time: the number of instructions per 1000 cycles.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) rate: u16,
    /// With --count time: the number of branches per 1000 cycles.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) branch_rate: u16,
    /// The guest's serial port receives standard input.
    #[arg(long)]
    pub(crate) input: bool,
    /// File that receives the guest's output on the debug console (port 0xE9).
    #[arg(long, value_name = "PATH")]
    pub(crate) debugcon: Option<PathBuf>,
    /// Counts exits, MSR accesses and PMIs, and prints them on standard error.
    #[arg(long, value_name = "FORMAT", value_enum)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "table")]
    pub(crate) stats: Option<StatsFormat>,
    /// Writes each access of the guest to a register of its PMU, with time and RIP, to FILE or to standard error; with
    /// nmi, also the number of instructions of each handler of an NMI, which is stepped.
    #[arg(long, value_name = "msr|nmi[=FILE]")]
    pub(crate) trace: Option<Traced>,
}

/// Returns the help of `--pmu`.
fn pmu_help() -> String {
    let features = IntelFeature::ALL.map(IntelFeature::name).join(", ");
    format!(
        "The PMU: none[:intel|:amd], intel[:KEY[=VALUE],…], amd:legacy, amd:core, amd:v2[,counters=N]. Intel's keys: \
         version, gp, fixed, width, gp-width, fixed-width, gp-mask, fixed-mask, events, and the features {features}; \
         AMD's: guest-host. With lbr, branch records: Intel from version 4 on, amd:v2. With ibs, instruction-based \
         sampling: amd:v2, Zen 4's; ibs=zen5 for Zen 5's, and ibs=fetch-count-kept for an erratum. With pebs, precise \
         records: Intel from version 2 on; pebs=FORMAT for another format than 4, 0 to 6, or pebs=architectural in \
         version 6. With topdown, top-down metrics: Intel with fixed=4."
    )
}

/// Source of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Count {
    /// Cycles from the time the guest ran, instructions at a stated rate.
    Time,
    /// Instructions and branches, exactly: single-stepped while a counter runs.
    Step,
    /// The host's own counters.
    Perf,
}

/// Format of `--stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatsFormat {
    /// A table.
    Table,
    /// One line of JSON.
    Json,
}

/// The value of `--trace`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Traced {
    /// The handlers of NMIs are stepped, and their instructions counted.
    pub(crate) handlers: bool,
    /// The file that receives the trace; `None`: standard error.
    pub(crate) file: Option<PathBuf>,
}

impl FromStr for Traced {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (what, file) = match text.split_once('=') {
            Some((what, file)) => (what, Some(PathBuf::from(file))),
            None => (text, None),
        };
        match what {
            _ if file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) => Err("no file"),
            "msr" => Ok(Self { handlers: false, file }),
            "nmi" => Ok(Self { handlers: true, file }),
            _ => Err("not msr or nmi"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_goes_to_a_file_or_to_standard_error() {
        let traced =
            |handlers, file: Option<&str>| Ok(Traced { handlers, file: file.map(Into::into) });
        assert_eq!("msr".parse(), traced(false, None));
        assert_eq!("nmi=a=b".parse(), traced(true, Some("a=b")));
        for wrong in ["", "msr=", "msrs", "io", "io=a"] {
            assert!(wrong.parse::<Traced>().is_err(), "{wrong}");
        }
    }
}
