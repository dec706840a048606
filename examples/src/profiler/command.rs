//! Profiling a command, as it is, with all that it starts.

use core::time::Duration;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::Instant;

use pmu_kprofile::Statistics;

use super::call_graph::CallGraph;
use super::error::Error;
use super::no_samples::time_of_children;
use super::perf::PerfEvents;
use super::perf_data::writer::Facts;
use super::process_tree::{ProcessTree, descendants};
use super::sampling::Sampling;
use super::sampling::outcome::Outcome;
use super::sampling::selection::Selection;
use super::signals::{self, StopRequest};
use crate::machine::Source;

/// The time between two looks into the ring buffers.
const READ_EACH: Duration = Duration::from_millis(10);

/// The request that ends a command at its time limit.
const AT_LIMIT: StopRequest = StopRequest { signal: libc::SIGTERM, by_terminal: false };

/// A command that ended, or was ended.
pub struct Ended {
    /// The profile.
    pub outcome: Outcome,
    /// The exit status to pass on.
    pub status: u8,
    /// The processor time of the command and what it started, as far as these have ended.
    pub used: Duration,
    /// Remarks for the reader on how the command was ended.
    pub notes: Vec<String>,
}

/// Ways to run a command.
pub struct Options {
    /// The time after which it is ended.
    pub limit: Option<Duration>,
    /// Set if its standard output goes to standard error.
    pub apart: bool,
    /// The processes and threads whose samples are kept.
    pub selection: Selection,
    /// The way to callers.
    pub call_graph: CallGraph,
    /// The file that the records are written into, in place of a profile.
    pub recording: Option<(PathBuf, Facts)>,
}

/// Runs a command to its end, sampled by a source's event, and tells `progress` now and then what
/// became of the interrupts so far. What the command started and left running is not waited for.
///
/// A [request to stop](signals), the time limit or an error ends the command and all its descendants; a second request
/// kills them.
///
/// # Errors
/// The kernel forbids sampling or has no such event; the command cannot be run; there was a second request to stop.
pub fn run<E: PerfEvents>(
    events: E,
    source: &Source,
    interval: u32,
    command: &[OsString],
    options: Options,
    progress: impl Fn(Statistics),
) -> Result<Ended, Error> {
    let Options { limit, apart, selection, call_graph, recording } = options;
    let (program, arguments) = command.split_first().expect("a command has at least its name");
    let failed = |error| Error::Command { program: program.to_string_lossy().into(), error };
    let mut command = Command::new(program);
    command.args(arguments);
    if apart {
        command.stdout(io::stderr().as_fd().try_clone_to_owned().map_err(failed)?);
    }

    let mut sampling: Sampling<E> = Sampling::start(events, source, interval, call_graph)?;
    sampling.select(selection);
    if let Some((path, facts)) = recording {
        sampling.record_into(&path, facts)?;
    }
    let used_before = time_of_children();
    // The events are inherited from the thread that opened them: this one.
    let mut processes = ProcessTree::start(&mut command).map_err(failed)?;
    let (start, mut ended_by) = (Instant::now(), None);
    while !processes.is_over() {
        thread::sleep(READ_EACH);
        sampling.read()?;
        progress(sampling.statistics());
        if let Some(signal) = signals::insisted() {
            processes.kill();
            return Err(Error::Ended(signal));
        }
        if ended_by.is_none() {
            let is_late = limit.is_some_and(|limit| start.elapsed() >= limit);
            ended_by = signals::requested().or(is_late.then_some(AT_LIMIT));
            ended_by.into_iter().for_each(|request| processes.terminate(request));
        }
    }
    let mut notes = Vec::new();
    if let Some(request) = ended_by {
        notes.push(format!("the command was ended by {}", request.name()));
        if let left @ 1.. = descendants().len() {
            notes.push(format!("{left} of its processes cannot be ended"));
        }
    }
    let status = processes.status().map(exit_code).or(ended_by.map(StopRequest::exit_code));
    let status = status.ok_or_else(|| failed(io::Error::other("its status is not known")))?;
    let used = time_of_children().saturating_sub(used_before);
    // The rest may take its time, and is ended by a signal as any program is.
    signals::restore().map_err(Error::Signals)?;
    Ok(Ended { outcome: sampling.finish()?, status, used, notes })
}

/// Returns the exit status that passes a command's on; of one that a signal ended, as a shell's.
fn exit_code(status: ExitStatus) -> u8 {
    let of_signal = || status.signal().map_or(1, |signal| 128 + signal);
    status.code().unwrap_or_else(of_signal) as u8
}
