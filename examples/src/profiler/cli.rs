//! The command line of `profile`.

use core::time::Duration;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, value_parser};
use indicatif::ProgressBar;
use pmu_core::IntervalUnit;
use pmu_kprofile::Statistics;

use super::builtin::{self, Length};
use super::command;
use super::counters::is_counter;
use super::error::Error;
use super::perf::kernel::Kernel;
use super::report::consumed::{Consumed, Unit};
use super::report::{Report, Run, machine, svg};
use super::workload::PARTS;
use super::{drawing, signals};
use crate::machine::{Machine, Source};
use crate::output;

/// Shows where a program spends its time, function by function.
///
/// Without a COMMAND, a built-in workload is profiled, a few functions with known shares. With one,
/// it is run as it is and sampled with all that it starts, through Linux's perf events.
#[derive(Parser)]
#[command(
    version,
    after_help = "SIGINT, SIGTERM and SIGHUP end COMMAND, and all that it started, with the same signal, \
                  and after 5 seconds with SIGKILL; then the profile is printed.\n\n\
                  Exit status: that of COMMAND (128 and the number of the signal that ended it); \
                  127 if there is no such command, 126 if it cannot be run, 2 for every other \
                  error, such as no samples of a COMMAND that succeeded."
)]
struct Arguments {
    /// What is to interrupt: a profile source's number or name, see `pmcsources`.
    #[arg(long, default_value = "ProfileTime", value_name = "NUMBER|NAME")]
    source: String,

    /// How much lies between two interrupts: units of 100 ns for ProfileTime, events for any other
    /// source [default: the source's, 10000 or 65536].
    #[arg(long, value_name = "N")]
    interval: Option<u64>,

    /// Seconds after which COMMAND is ended by SIGTERM. Without a COMMAND, how much
    /// processor time the built-in workload takes [default: until there are 2000 samples].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,

    /// Draw the profile into a file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print the profile as a JSON object, and nothing else on standard output.
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print the functions as comma-separated values, and nothing else on standard output.
    #[arg(long)]
    csv: bool,

    /// Show no progress. (It is shown only on a terminal.)
    #[arg(long, short)]
    quiet: bool,

    /// The command to profile, with its arguments.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The program.
pub fn main() -> ExitCode {
    match profile(&Arguments::parse()) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("profile: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn profile(arguments: &Arguments) -> Result<u8, Error> {
    let mut machine = Machine::this().ok_or(Error::NotX86)?;
    // No program may program counters; the built-in workload has a software PMU for them.
    let in_software = arguments.command.is_empty()
        && !machine.find(&arguments.source).is_ok_and(|source| !is_counter(&source));
    if in_software {
        machine = machine.in_software();
    }
    let source = machine.find(&arguments.source).map_err(Error::Source)?;
    let interval = match arguments.interval {
        None => source.information.interval,
        Some(units) => {
            machine.interface().set_interval_of(source.id, units).map_err(Error::Interval)?
        }
    };
    // Before all else: a profile should not be lost for want of a place.
    if let Some(path) = &arguments.svg {
        drawing::check(path).map_err(|error| written(&path.to_string_lossy(), error))?;
    }
    signals::catch().map_err(Error::Signals)?;
    let (report, status) = if arguments.command.is_empty() {
        let report = profile_builtin(arguments, &machine, &source, interval)?;
        (report, signals::requested().map_or(0, signals::StopRequest::exit_code))
    } else {
        profile_command(arguments, &machine, &source, interval)?
    };

    let text = if arguments.json {
        machine::json(&report).map_err(|error| written("standard output", error.into()))?
    } else if arguments.csv {
        machine::csv(&report).map_err(|error| written("standard output", error.into()))?
    } else {
        report.to_string()
    };
    let empty = report.statistics.seen == 0;
    if !empty || arguments.json || arguments.csv {
        output::print(&text).map_err(|error| written("standard output", error))?;
    }
    signals::restore().map_err(Error::Signals)?;
    if let (Some(path), false) = (&arguments.svg, empty) {
        drawing::write(path, &svg::draw(&report))
            .map_err(|error| written(&path.to_string_lossy(), error))?;
    }
    // What the form of the profile has no place for.
    if empty || arguments.csv && !arguments.command.is_empty() {
        eprintln!("profile: consumed {}", report.describe_consumed());
        report.notes.iter().for_each(|note| eprintln!("profile: {note}"));
    }
    match status {
        0 if empty => Err(Error::NoSamples),
        _ if empty => {
            eprintln!("profile: {}", Error::NoSamples);
            Ok(status)
        }
        _ => Ok(status),
    }
}

fn written(path: &str, error: std::io::Error) -> Error {
    Error::File { path: path.into(), error }
}

fn profile_builtin(
    arguments: &Arguments,
    machine: &Machine,
    source: &Source,
    interval: u32,
) -> Result<Report, Error> {
    let progress = Progress::new(arguments.quiet);
    let length = match arguments.seconds {
        None => Length::Enough,
        Some(seconds) => Length::Time(Duration::from_secs(seconds.into())),
    };
    let outcome = builtin::run(source, interval, length, |so_far| progress.show(so_far))?;
    drop(progress);
    let expected = |name: &str| {
        let part = PARTS.iter().find(|part| part.name == name)?;
        Some(f64::from(part.percent) / 100.0)
    };
    let time = outcome.time.as_secs_f64();
    let subject = format!("the built-in workload, {time:.1} s of processor time");
    let mut run = describe(machine, source, interval, subject);
    // At 1 GHz a nanosecond is an event.
    let (mut unit, mut each) = (Unit::Nanoseconds, 100);
    if is_counter(source) {
        run.interface += ", on a software PMU that counts the thread's time as cycles at 1 GHz";
        (unit, each) = (Unit::Events, 1);
    }
    let consumed = Consumed {
        unit,
        total: outcome.time.as_nanos() as u64,
        sampled: outcome.statistics.seen * u64::from(interval) * each,
    };
    let mut report =
        Report::new(run, outcome.statistics, Some(consumed), &outcome.histograms, expected);
    if outcome.late > 0 {
        let late = outcome.late;
        report.notes.push(format!("{late} interrupts left out: the thread waited for its turn"));
    }
    report.notes.extend(signals::requested().map(|ask| format!("ended by {}", ask.name())));
    Ok(report)
}

fn profile_command(
    arguments: &Arguments,
    machine: &Machine,
    source: &Source,
    interval: u32,
) -> Result<(Report, u8), Error> {
    let progress = Progress::new(arguments.quiet);
    let ended = command::run(
        Kernel::default(),
        source,
        interval,
        &arguments.command,
        arguments.seconds.map(|seconds| Duration::from_secs(seconds.into())),
        arguments.json || arguments.csv,
        |so_far| progress.show(so_far),
    )?;
    drop(progress);
    let outcome = ended.outcome;
    let words: Vec<_> = arguments.command.iter().map(|word| word.to_string_lossy()).collect();
    let run = describe(machine, source, interval, words.join(" "));
    let (statistics, consumed) = (outcome.statistics, outcome.consumed);
    let mut report = Report::new(run, statistics, consumed, &outcome.histograms, |_| None);
    report.notes.extend(ended.notes.into_iter().chain(outcome.notes()));
    Ok((report, ended.status))
}

fn describe(machine: &Machine, source: &Source, interval: u32, subject: String) -> Run {
    let interval = match source.information.limits.unit {
        IntervalUnit::HundredNanoseconds if interval >= 10_000 => {
            format!("{} ms", f64::from(interval) / 10_000.0)
        }
        IntervalUnit::HundredNanoseconds => format!("{} µs", f64::from(interval) / 10.0),
        IntervalUnit::Events => format!("{interval} events"),
    };
    Run {
        processor: machine.processor().into(),
        interface: machine.describe_interface(),
        source: source.name,
        interval,
        subject,
    }
}

/// A line on the terminal that says how far it is; it vanishes at the end.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new(quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        Self(shown.then(ProgressBar::new_spinner))
    }

    fn show(&self, so_far: Statistics) {
        if let Some(line) = &self.0 {
            line.set_message(format!("profiling, {} interrupts so far", so_far.seen));
            line.tick();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(line) = &self.0 {
            line.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use pmu_core::KProfileSource;

    use super::*;

    #[test]
    fn an_interval_is_told_in_readable_units() {
        let machine = Machine::with_interface(pmu_intel::Emon::declared());
        let told = |source: KProfileSource, interval| {
            let source = machine.find(&source.value().to_string()).unwrap();
            describe(&machine, &source, interval, String::new()).interval
        };
        assert_eq!(told(KProfileSource::TIME, 10_000), "1 ms");
        assert_eq!(told(KProfileSource::TIME, 1_221), "122.1 µs");
        assert_eq!(told(KProfileSource::TOTAL_CYCLES, 65_536), "65536 events");
    }
}
