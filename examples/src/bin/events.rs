//! Prints events of a core type: meanings, encodings, constraints, and what perf takes for them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use pmu_core::x86::dump::CpuidDump;
use pmu_events::Processor;
use pmu_examples::catalog::Form;
use pmu_examples::{catalog, dump, output};

/// Prints a core type's events: meanings, encodings, the counters that can count them, and what perf takes.
///
/// Nothing is probed: these are the tables of pmu-events.
#[derive(Parser)]
#[command(name = "events", version)]
struct Arguments {
    /// A name in any case, or a pattern: `*` is any text, `?` any character. Not with --metrics, which prints all.
    name: Option<String>,

    /// The core type, such as `skylake`, `zen4` or `alderlake_goldencove`, instead of this processor's.
    #[arg(long, value_name = "P", conflicts_with = "cpuid")]
    processor: Option<String>,

    /// The core type of the processor recorded in this CPUID dump (`cpuid -r`, AIDA64 or InstLatx64 format; `-` is
    /// standard input).
    #[arg(long, value_name = "FILE")]
    cpuid: Option<PathBuf>,

    /// Text, or JSON for programs.
    #[arg(long, value_enum, default_value = "text")]
    format: Form,

    /// Look among the events of uncore units: L3, data fabric, memory controllers, links.
    #[arg(long)]
    uncore: bool,

    /// Print the metrics: instructions per cycle, branch misses, top-down levels 1 to 3.
    #[arg(long, conflicts_with_all = ["name", "uncore"])]
    metrics: bool,
}

fn main() -> ExitCode {
    match print(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            output::complain("events", &message);
            ExitCode::from(2)
        }
    }
}

fn print(arguments: &Arguments) -> Result<(), String> {
    let (core_type, others) = match (&arguments.processor, &arguments.cpuid) {
        (Some(name), _) => (catalog::named(name)?, Vec::new()),
        (None, file) => {
            let recorded = file.as_deref().map_or_else(|| catalog::detect(None), recorded);
            let processor =
                recorded.map_err(|error| format!("{error}; --processor names a core type"))?;
            (processor.core_type(), processor.other_core_types().collect())
        }
    };
    let text = match &arguments.name {
        Some(name) if arguments.uncore => {
            catalog::uncore::events(core_type, name, arguments.format)?
        }
        Some(name) => catalog::events(core_type, &others, name, arguments.format)?,
        None if arguments.metrics => catalog::metrics(core_type, arguments.format),
        None => return Err("no NAME: '*' is every event, and --metrics the metrics".into()),
    };
    output::print(&text).map_err(|error| format!("standard output: {error}"))
}

fn recorded(file: &Path) -> Result<Processor, String> {
    let at_fault = |error: &dyn core::fmt::Display| format!("{}: {error}", file.display());
    let bytes = dump::read(file).map_err(|error| at_fault(&error))?;
    let text = String::from_utf8_lossy(&bytes);
    let dump = CpuidDump::parse(&text).map_err(|error| at_fault(&error))?;
    catalog::detect(Some(&dump)).map_err(|error| at_fault(&error))
}
