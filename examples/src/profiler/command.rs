//! Profiling a command, as it is, with all that it starts.

use core::time::Duration;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

use pmu_kprofile::Statistics;

use super::error::Error;
use super::perf::PerfEvents;
use super::sampling::{Outcome, Sampling};
use crate::machine::Source;

/// How often the ring buffers are emptied.
const READ_EACH: Duration = Duration::from_millis(20);

/// Runs a command to its end, sampled by a source's event, and tells `progress` now and then what
/// became of the interrupts so far. What the command started and left running is not waited for.
///
/// With `apart`, what the command writes to standard output goes to standard error.
///
/// # Errors
/// The kernel forbids sampling or has no such event; the command can not be run.
pub fn run<E: PerfEvents>(
    events: E,
    source: &Source,
    interval: u32,
    command: &[OsString],
    apart: bool,
    progress: impl Fn(Statistics),
) -> Result<(Outcome, ExitStatus), Error> {
    let (program, arguments) = command.split_first().expect("a command has at least its name");
    let failed = |error| Error::Command { program: program.to_string_lossy().into(), error };
    let mut command = Command::new(program);
    command.args(arguments);
    if apart {
        command.stdout(io::stderr().as_fd().try_clone_to_owned().map_err(failed)?);
    }

    let mut sampling: Sampling<E> = Sampling::start(events, source, interval)?;
    // The events are inherited from the thread that opened them: this one.
    let mut child = command.spawn().map_err(failed)?;
    // An interrupt from the terminal is for the command; the profile is shown all the same.
    // SAFETY: SIG_IGN is no handler that could do wrong.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    let (ended, end) = channel();
    thread::spawn(move || ended.send(child.wait()));
    let status = loop {
        let status = end.recv_timeout(READ_EACH);
        sampling.read()?;
        progress(sampling.statistics());
        match status {
            Ok(status) => break status,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                break Err(io::Error::other("was not waited for"));
            }
        }
    };
    Ok((sampling.finish()?, status.map_err(failed)?))
}

/// The exit status that passes a command's on; of one that a signal ended, as a shell's.
pub fn exit_code(status: ExitStatus) -> u8 {
    let of_signal = || status.signal().map_or(1, |signal| 128 + signal);
    status.code().unwrap_or_else(of_signal) as u8
}
