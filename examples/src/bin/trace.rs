//! Prints and sums up a trace that a kernel wrote.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use pmu_examples::elf::File;
use pmu_examples::elf::parts::LARGEST;
use pmu_examples::output;
use pmu_examples::trace::sum::Summary;
use pmu_examples::trace::{Records, text};
use pmu_examples::untrusted::{Owner, open_link};

/// Sums up a trace by source, thread and function. Each sample weighs as much as its source's interval.
///
/// A trace is a file of records, one after the other, as examples/kernel writes it. Where the file is damaged, what
/// comes before the damage is summed up, and the status is 2.
#[derive(Parser)]
#[command(name = "trace", version)]
struct Arguments {
    /// The trace.
    trace: PathBuf,

    /// The traced kernel's ELF file, which names its functions.
    #[arg(long, value_name = "ELF")]
    symbols: Option<PathBuf>,

    /// Print each record first.
    #[arg(long, conflicts_with = "format")]
    records: bool,

    /// The number of functions of a source in the table.
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,

    /// The form of the sums. `csv` has all functions.
    #[arg(long, default_value = "table")]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A table for each source.
    Table,
    /// Comma-separated values.
    Csv,
}

fn main() -> ExitCode {
    match print(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            output::complain("trace", &message);
            ExitCode::from(2)
        }
    }
}

fn print(arguments: &Arguments) -> Result<(), String> {
    let symbols = arguments.symbols.as_deref().map(symbols).transpose()?;
    let path = arguments.trace.display();
    let bytes = read(&arguments.trace).map_err(|error| format!("{path}: {error}"))?;
    let (mut records, mut damage) = (Vec::new(), None);
    for record in Records::new(&bytes) {
        match record {
            Ok(record) => records.push(record),
            Err(found) => damage = Some(found),
        }
    }
    let summary = Summary::of(&records, symbols.as_ref());
    let mut printed = String::new();
    if arguments.records {
        printed.extend(records.iter().map(|record| text::line(record, symbols.as_ref())));
        printed.push('\n');
    }
    match arguments.format {
        Format::Table => printed += &text::table(&summary, arguments.top),
        Format::Csv => printed += &text::csv(&summary).map_err(|error| error.to_string())?,
    }
    if records.is_empty()
        && let Some(damage) = damage
    {
        return Err(format!("{path}: not a trace: {damage}"));
    }
    output::print(&printed).map_err(|error| format!("standard output: {error}"))?;
    match damage {
        Some(damage) => Err(format!("{path}: {damage}; what comes before was summed up")),
        None => Ok(()),
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    if std::fs::metadata(path)?.is_file() {
        std::fs::read(path)
    } else {
        Err(std::io::Error::other("not a regular file"))
    }
}

fn symbols(path: &Path) -> Result<File, String> {
    let file = open_link(path, Owner::Any, LARGEST).and_then(|file| File::read(file, path));
    let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
    if file.has_functions() {
        Ok(file)
    } else {
        Err(format!("{}: no function has a name there", path.display()))
    }
}
