//! The command line of `profile`.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use indicatif::ProgressBar;
use pmu_core::interval::IntervalUnit;
use pmu_intel::Emon;
use pmu_kprofile::Statistics;

use super::arguments::Arguments;
use super::builtin::{self, Length};
use super::call_graph::CallGraph;
use super::counters::{Counters, is_counter};
use super::error::Error;
use super::no_samples::NoSamples;
use super::perf::Target;
use super::perf::kernel::{Kernel, threads};
use super::report::consumed::{Consumed, Unit};
use super::report::{Report, Run, machine};
use super::sampling::outcome::Outcome;
use super::symbols::Symbols;
use super::workload::PARTS;
use super::{anonymous, attach, command, owner, replay, signals};
use crate::catalog::{self, NoEvent};
use crate::machine::{FindError, Machine, Source};
use crate::untrusted::visible;
use crate::{listing, output};

/// The program.
pub fn main() -> ExitCode {
    match profile(&Arguments::parse()) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            output::complain("profile", &error);
            ExitCode::from(error.exit_status())
        }
    }
}

/// A profile that was made.
struct Profiled {
    report: Report,
    status: u8,
    /// The reason, if it has no samples.
    if_empty: NoSamples,
    /// The samples and bytes that were recorded in place of it.
    recorded: Option<(u64, u64)>,
}

fn profile(arguments: &Arguments) -> Result<u8, Error> {
    let mut machine = Machine::this().ok_or(Error::NotX86)?;
    let target = arguments.target();
    if let Some(input) = &arguments.input {
        return tell(arguments, replayed(arguments, input)?);
    }
    if arguments.output.is_some() && target.is_none() {
        return Err(Error::Options("a recording needs a COMMAND, --pid or --all".into()));
    }
    if target.is_none() && !arguments.of_all.only.is_empty() {
        let advice = "--only selects processes and threads: it needs a COMMAND, --pid or --all";
        return Err(Error::Options(advice.into()));
    }
    if arguments.list {
        let hint = "\n`events '*'` lists the events of this processor, which --source takes too.\n";
        let list = listing::table(&machine) + hint;
        return output::print(&list).map_err(|error| written("standard output", error)).map(|()| 0);
    }
    // No program may program counters; the built-in workload has a software PMU for them.
    let found = machine.find(&arguments.sampling.source);
    if target.is_none() && !found.as_ref().is_ok_and(|source| !is_counter(source)) {
        machine = machine.in_software();
        if let (Ok(source), Err(_)) = (found, machine.find(&arguments.sampling.source)) {
            return Err(Error::NotFed(source.name));
        }
    }
    let (source, interval) = source_and_interval(arguments, &machine, target.is_some())?;
    // Before all else: a profile should not be lost for want of a place.
    arguments.check_places()?;
    signals::catch().map_err(Error::Signals)?;
    let profiled = match target {
        None => {
            let report = profile_builtin(arguments, &machine, &source, interval)?;
            let status = signals::requested().map_or(0, signals::StopRequest::exit_code);
            let if_empty = NoSamples::Short(report.run.unit);
            Profiled { report, status, if_empty, recorded: None }
        }
        Some(Target::Command) => profile_command(arguments, &machine, &source, interval)?,
        Some(target) => attach_to(arguments, target, &machine, &source, interval)?,
    };
    tell(arguments, profiled)
}

/// Prints and writes a profile, and returns the exit status.
fn tell(arguments: &Arguments, profiled: Profiled) -> Result<u8, Error> {
    let Profiled { mut report, status, if_empty, recorded } = profiled;
    report.width = output::terminal_width();
    report.notes.iter_mut().for_each(|note| *note = visible(note).into_owned());
    if let Some((samples @ 1.., bytes)) = recorded {
        let file = arguments.output.as_deref().unwrap_or(Path::new("")).display();
        let text = format!("{samples} samples, {:.1} MB in {file}", bytes as f64 / 1e6);
        output::complain("profile", &text);
        report.notes.iter().for_each(|note| output::complain("profile", note));
        return Ok(status);
    }
    let text = if arguments.shown.json {
        machine::json(&report).map_err(|error| written("standard output", error.into()))?
    } else if arguments.shown.csv {
        machine::csv(&report).map_err(|error| written("standard output", error.into()))?
    } else {
        report.to_string()
    };
    let empty = report.statistics.seen == 0;
    if !empty || arguments.shown.json || arguments.shown.csv {
        output::print(&text).map_err(|error| written("standard output", error))?;
    }
    if !empty {
        arguments.shown.files.write(&report)?;
    }
    // The form of the profile has no place for these.
    if empty || arguments.shown.csv && arguments.target().is_some() {
        output::complain("profile", &format!("consumed {}", report.describe_consumed()));
        report.notes.iter().for_each(|note| output::complain("profile", note));
    }
    match status {
        0 if empty => Err(Error::NoSamples(if_empty)),
        _ if empty => {
            output::complain("profile", &if_empty);
            Ok(status)
        }
        _ => Ok(status),
    }
}

fn written(path: &str, error: std::io::Error) -> Error {
    Error::File { path: path.into(), error }
}

/// Finds the source, and its interval.
fn source_and_interval(
    arguments: &Arguments,
    machine: &Machine,
    has_events: bool,
) -> Result<(Source, u32), Error> {
    let wanted = &arguments.sampling.source;
    let source = match machine.find(wanted) {
        Err(FindError::Unknown(_)) if has_events => {
            let event = match wanted.parse::<i64>() {
                Ok(_) => Err(NoEvent::Unknown(String::new())),
                Err(_) => catalog::source(wanted),
            };
            event.map_err(|error| not_found(machine, wanted, error))?
        }
        found => found.map_err(Error::Source)?,
    };
    let limits = source.information.limits;
    let is_time = limits.unit == IntervalUnit::HundredNanoseconds;
    let wanted_interval = match arguments.sampling.frequency {
        Some(_) if !is_time => {
            let advice = "--frequency is of ProfileTime; events have an --interval";
            return Err(Error::Options(advice.into()));
        }
        Some(hertz) => Some(10_000_000 / hertz.max(1)),
        None => arguments.sampling.interval,
    };
    let interval = match wanted_interval {
        None => source.information.interval,
        // An event of no table.
        Some(units) if machine.find(wanted).is_err() => {
            let within =
                u32::try_from(units).ok().filter(|n| (limits.min..=limits.max).contains(n));
            let outside =
                || format!("--interval {units} is outside {} to {}", limits.min, limits.max);
            within.ok_or_else(|| Error::Options(outside()))?
        }
        Some(units) => {
            machine.interface().set_interval_of(source.id, units).map_err(Error::Interval)?
        }
    };
    Ok((source, interval))
}

/// The note on a recording whose samples have no callers.
const NO_CHAINS: &str = "a recording without call chains: `profile record` makes one with them, as does `perf record -g`";

/// Says that a name is neither a source's nor an event's.
fn not_found(machine: &Machine, wanted: &str, error: NoEvent) -> Error {
    let software = Machine::with_interface(Emon::declared());
    let is_fed = software.find(wanted).is_ok_and(|source| Counters::feed_of(&source).is_some());
    let elsewhere = match machine.elsewhere(wanted) {
        Some(_) if is_fed => ": the built-in workload alone has it, without a COMMAND".into(),
        Some(other) => format!(": it is one of the interface {other}"),
        None => String::new(),
    };
    Error::Options(match error {
        NoEvent::Refused(reason) => reason,
        NoEvent::Unknown(_) if !elsewhere.is_empty() => format!(
            "this machine has no profile source \"{wanted}\"{elsewhere}; `profile --list` lists those it has, \
             `events '*'` the events that --source takes too"
        ),
        NoEvent::Unknown(nearest) => format!(
            "this machine has no profile source \"{wanted}\", nor an event of that name; \
             `profile --list` lists the sources, `events '*'` the events{nearest}"
        ),
        NoEvent::NoCatalog(reason) => format!(
            "this machine has no profile source \"{wanted}\"{elsewhere}; `profile --list` lists them. \
             Events by name: {reason}"
        ),
    })
}

fn profile_builtin(
    arguments: &Arguments,
    machine: &Machine,
    source: &Source,
    interval: u32,
) -> Result<Report, Error> {
    let progress = Progress::new(arguments.of_all.quiet);
    let length = arguments.limit().map_or(Length::Enough, Length::Time);
    let callers = arguments.of_all.call_graph != CallGraph::None;
    let mut run = describe(machine, source, interval);
    let outcome = builtin::run(source, interval, length, callers, |so_far| progress.show(so_far))?;
    drop(progress);
    signals::restore().map_err(Error::Signals)?;
    let expected = |name: &str| {
        let part = PARTS.iter().find(|part| part.name == name)?;
        Some(f64::from(part.percent) / 100.0)
    };
    let time = outcome.time.as_secs_f64();
    run.subject = format!("the built-in workload, {time:.1} s of processor time");
    if is_counter(source) {
        run.interface += ", on a software PMU that counts the thread's time as cycles at 1 GHz";
    }
    let consumed = Consumed {
        unit: run.unit,
        // At 1 GHz a nanosecond is an event.
        total: outcome.time.as_nanos() as u64,
        sampled: outcome.statistics.seen * run.each,
    };
    let mut report = Report::new(
        run,
        outcome.statistics,
        Some(consumed),
        &outcome.histograms,
        outcome.stacks,
        Symbols::default(),
        expected,
    );
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
) -> Result<Profiled, Error> {
    let progress = Progress::new(arguments.of_all.quiet);
    let mut run = describe(machine, source, interval);
    let ended = command::run(
        kernel(arguments, Target::Command),
        source,
        interval,
        &arguments.sampling.command,
        command::Options {
            limit: arguments.limit(),
            apart: arguments.shown.json || arguments.shown.csv,
            selection: arguments.selection(),
            call_graph: arguments.of_all.call_graph,
            recording: arguments.recording(&run),
        },
        |so_far| progress.show(so_far),
    )?;
    drop(progress);
    let words: Vec<_> =
        arguments.sampling.command.iter().map(|word| word.to_string_lossy()).collect();
    run.subject = words.join(" ");
    let counted = ended.outcome.counted;
    let if_empty = not_selected(arguments, &ended.outcome)
        .unwrap_or_else(|| NoSamples::of_command(ended.used, counted, run.each, run.unit));
    let recorded = ended.outcome.recorded;
    let report = report(run, ended.outcome, ended.notes, arguments.of_all.call_graph);
    Ok(Profiled { report, status: ended.status, if_empty, recorded })
}

/// The kernel's events, whose records are kept where they are to be written.
fn kernel(arguments: &Arguments, target: Target) -> Kernel {
    let kernel = Kernel::new(target);
    if arguments.output.is_some() { kernel.keeping_records() } else { kernel }
}

/// Profiles by a recording.
fn replayed(arguments: &Arguments, input: &Path) -> Result<Profiled, Error> {
    arguments.check_places()?;
    let progress = Progress::new(arguments.of_all.quiet);
    let (selection, call_graph) = (arguments.selection(), arguments.of_all.call_graph);
    let (outcome, facts, source) =
        replay::run(input, selection, call_graph, |so_far| progress.show(so_far))?;
    drop(progress);
    let recorded = std::fs::metadata(input).and_then(|file| file.modified()).ok();
    let start = recorded.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    let (unit, interval) = match facts.is_time {
        true => (Unit::Nanoseconds, format!("{} ms", facts.period as f64 / 1e6)),
        false => (Unit::Events, format!("{} events", facts.period)),
    };
    let run = Run {
        processor: facts.processor.clone(),
        interface: "that of the recording".into(),
        source: source.name,
        interval,
        each: facts.period,
        unit,
        start: start.unwrap_or_default().as_nanos() as u64,
        subject: facts.command.clone(),
    };
    let if_empty = not_selected(arguments, &outcome).unwrap_or(NoSamples::Short(unit));
    // Without chains, no code is at fault for missing frame pointers.
    let (way, notes) = match facts.has_callers || call_graph == CallGraph::None {
        true => (call_graph, Vec::new()),
        false => (CallGraph::None, vec![NO_CHAINS.into()]),
    };
    let report = report(run, outcome, notes, way);
    Ok(Profiled { report, status: 0, if_empty, recorded: None })
}

fn attach_to(
    arguments: &Arguments,
    target: Target,
    machine: &Machine,
    source: &Source,
    interval: u32,
) -> Result<Profiled, Error> {
    let progress = Progress::new(arguments.of_all.quiet);
    let mut run = describe(machine, source, interval);
    run.subject = match &target {
        Target::Processes(processes) => {
            let numbers: Vec<_> = processes.iter().map(u32::to_string).collect();
            format!("processes {}", numbers.join(", "))
        }
        _ => "all processes".into(),
    };
    let is_all = target == Target::All;
    if let Some(process) =
        arguments.sampling.pid.iter().find(|process| threads(**process).is_empty())
    {
        return Err(Error::NoProcess(*process));
    }
    let events = kernel(arguments, target);
    let options = attach::Options {
        limit: arguments.limit(),
        selection: arguments.selection(),
        call_graph: arguments.of_all.call_graph,
        recording: arguments.recording(&run),
    };
    let progressed = |so_far| progress.show(so_far);
    let outcome = attach::run(events, source, interval, options, progressed);
    drop(progress);
    let outcome = outcome.map_err(|error| match error {
        Error::Forbidden { setting, .. } if is_all => Error::WholeMachine(setting),
        Error::Forbidden { setting, .. } if !setting.capable => {
            let closed = arguments.sampling.pid.iter().find_map(|process| owner::closed(*process));
            closed.unwrap_or(error)
        }
        error => error,
    })?;
    let short = || NoSamples::of_processes(&arguments.sampling.pid, run.unit);
    let if_empty = not_selected(arguments, &outcome).unwrap_or_else(short);
    let recorded = outcome.recorded;
    let report = report(run, outcome, Vec::new(), arguments.of_all.call_graph);
    Ok(Profiled { report, status: 0, if_empty, recorded })
}

/// Returns the reason if `--only` left all samples out.
fn not_selected(arguments: &Arguments, outcome: &Outcome) -> Option<NoSamples> {
    let (wanted, sampled) = (arguments.of_all.only.clone(), outcome.left_out.clone());
    (!sampled.is_empty()).then_some(NoSamples::NotSelected { wanted, sampled })
}

fn report(run: Run, outcome: Outcome, notes: Vec<String>, call_graph: CallGraph) -> Report {
    let mut all_notes = outcome.notes();
    all_notes.splice(..0, notes);
    let symbols = Symbols::with(outcome.kept);
    let (statistics, consumed) = (outcome.statistics, outcome.consumed);
    let histograms = &outcome.histograms;
    let mut report =
        Report::new(run, statistics, consumed, histograms, outcome.stacks, symbols, |_| None);
    report.notes.splice(..0, all_notes);
    let remedy = || call_graph.remedy(report.graph.alone());
    let advice = anonymous::advice(&report).or_else(remedy);
    report.notes.extend(advice);
    report
}

/// Describes a run that begins now, but for its subject.
fn describe(machine: &Machine, source: &Source, interval: u32) -> Run {
    let start = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (unit, each, text) = match source.information.limits.unit {
        IntervalUnit::HundredNanoseconds => {
            let text = match interval {
                10_000.. => format!("{} ms", f64::from(interval) / 10_000.0),
                _ => format!("{} µs", f64::from(interval) / 10.0),
            };
            (Unit::Nanoseconds, u64::from(interval) * 100, text)
        }
        IntervalUnit::Events => (Unit::Events, interval.into(), format!("{interval} events")),
    };
    Run {
        processor: machine.processor().into(),
        interface: machine.describe_interface(),
        source: source.name,
        interval: text,
        each,
        unit,
        start: start.as_nanos() as u64,
        subject: String::new(),
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
    use pmu_core::profile::KProfileSource;

    use super::*;

    #[test]
    fn an_interval_is_told_in_readable_units() {
        let machine = Machine::with_interface(pmu_intel::Emon::declared());
        let told = |source: KProfileSource, interval| {
            let source = machine.find(&source.value().to_string()).unwrap();
            describe(&machine, &source, interval).interval
        };
        assert_eq!(told(KProfileSource::TIME, 10_000), "1 ms");
        assert_eq!(told(KProfileSource::TIME, 1_221), "122.1 µs");
        assert_eq!(told(KProfileSource::TOTAL_CYCLES, 65_536), "65536 events");
    }
}
