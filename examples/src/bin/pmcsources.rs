//! Lists the profile sources of a processor, as Windows' own tools do.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use pmu_core::x86::dump::CpuidDump;
use pmu_examples::machine::Machine;
use pmu_examples::{dump, explanation, listing, output};

/// Lists the profile sources of this machine's processor, as `wpr -pmcsources` does.
///
/// Nothing is probed, no register is read: a source is listed if the processor declares it.
#[derive(Parser)]
#[command(name = "pmcsources", version)]
struct Arguments {
    /// List an interface's sources, all declared, instead of this machine's.
    #[arg(long, conflicts_with = "cpuid")]
    interface: Option<Choice>,

    /// List the sources of the processor recorded in this CPUID dump (`cpuid -r`, AIDA64 or
    /// InstLatx64 format; `-` is standard input) instead of this machine's.
    #[arg(long, value_name = "FILE")]
    cpuid: Option<PathBuf>,

    /// The form of the list. `csv` and `json` have the unsupported sources too.
    #[arg(long, default_value = "table")]
    format: Format,

    /// Explain a source, by number or name in any case: event, unit mask, select bits, and what processors of
    /// today count under it.
    #[arg(long, value_name = "SOURCE", conflicts_with = "format")]
    explain: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Choice {
    /// Intel's.
    Emon,
    /// AMD's.
    Amd64,
}

impl Choice {
    fn name(self) -> &'static str {
        match self {
            Self::Emon => "emon",
            Self::Amd64 => "amd64",
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// The table of Windows' tools.
    Table,
    /// Comma-separated values.
    Csv,
    /// A JSON object.
    Json,
}

fn main() -> ExitCode {
    match list(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            output::complain("pmcsources", &message);
            ExitCode::from(2)
        }
    }
}

fn list(arguments: &Arguments) -> Result<(), String> {
    let machine = match (&arguments.cpuid, arguments.interface) {
        (Some(file), _) => recorded(file)?,
        (None, Some(Choice::Emon)) => Machine::with_interface(pmu_intel::Emon::declared()),
        (None, Some(Choice::Amd64)) => Machine::with_interface(pmu_amd::Amd64::declared()),
        (None, None) => Machine::this().ok_or(
            "this machine is no x86; --interface lists any interface, --cpuid a recorded processor",
        )?,
    };
    if let Some(wanted) = &arguments.explain {
        let source = machine.named(wanted).map_err(|error| {
            format!("{} has {error}{}", subject(arguments), advice(arguments, &machine, wanted))
        })?;
        let text = explanation::explain(&machine, &source);
        return output::print(&text).map_err(|error| format!("standard output: {error}"));
    }
    let text = match arguments.format {
        Format::Table => listing::table(&machine),
        Format::Csv => listing::csv(&machine).map_err(|error| error.to_string())?,
        Format::Json => listing::json(&machine).map_err(|error| error.to_string())?,
    };
    output::print(&text).map_err(|error| format!("standard output: {error}"))
}

/// The owner of the listed sources.
fn subject(arguments: &Arguments) -> String {
    match (&arguments.cpuid, arguments.interface) {
        (Some(file), _) => format!("the processor of {}", name(file)),
        (None, Some(choice)) => format!("the interface {}", choice.name()),
        (None, None) => "this machine".into(),
    }
}

/// The end of an error: the command that lists the sources, and the interface that has the wanted one.
fn advice(arguments: &Arguments, machine: &Machine, wanted: &str) -> String {
    let option = match (&arguments.cpuid, arguments.interface) {
        (Some(file), _) => format!(" --cpuid {}", file.display()),
        (None, Some(choice)) => format!(" --interface {}", choice.name()),
        (None, None) => String::new(),
    };
    let other = machine.elsewhere(wanted).map(str::to_ascii_lowercase);
    let other = other.map_or(String::new(), |other| {
        format!(
            "; the interface {other} has it: `pmcsources --interface {other} --explain {wanted}`"
        )
    });
    format!("; `pmcsources{option}` lists them{other}")
}

/// A dump's name for people.
fn name(file: &Path) -> String {
    match file == Path::new("-") {
        true => "standard input".into(),
        false => file.display().to_string(),
    }
}

fn recorded(file: &Path) -> Result<Machine, String> {
    let at_fault = |error: &dyn core::fmt::Display| format!("{}: {error}", name(file));
    let formats = "the formats of `cpuid -r`, AIDA64 and InstLatx64 are read";
    let bytes = dump::read(file).map_err(|error| at_fault(&error))?;
    let not_a_dump = |error: &dyn core::fmt::Display| format!("{}; {formats}", at_fault(error));
    let text = String::from_utf8(bytes)
        .map_err(|_| not_a_dump(&"not a CPUID dump: not a text in UTF-8"))?;
    let dump = CpuidDump::parse(&text).map_err(|error| not_a_dump(&error))?;
    Ok(Machine::new(&dump))
}
