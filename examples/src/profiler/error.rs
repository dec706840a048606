//! Errors of the profiler, and advice.

use core::fmt;
use std::io;

use pmu_core::profile::InterfaceError;
use pmu_kprofile::{CreateError, ProfileError};

use super::no_samples::NoSamples;
use super::perf::setting::Setting;
use crate::machine::FindError;
use crate::untrusted::visible;

/// A reason for which the profiler could not do its work.
#[derive(Debug)]
pub enum Error {
    /// The machine's sources could not be found out: there is no CPUID.
    NotX86,
    /// There is no such source, or it is not supported.
    Source(FindError),
    /// The interval is outside the source's limits.
    Interval(InterfaceError),
    /// The built-in workload has no counter for this source.
    NotFed(&'static str),
    /// The kernel does not let this user sample.
    Forbidden {
        /// The kernel's answer.
        error: io::Error,
        /// The machine's permissions.
        setting: Setting,
    },
    /// The kernel offers no counter for this source.
    NoCounter {
        /// The source.
        source: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
    /// There is no memory for a ring buffer.
    Ring(io::Error),
    /// The kernel has no perf events, or refused for another reason.
    Perf(io::Error),
    /// The command could not be run.
    Command {
        /// The command.
        program: String,
        /// The reason.
        error: io::Error,
    },
    /// A profile object could not be created.
    Create(CreateError),
    /// A profile object could not be started or stopped.
    Profile(ProfileError),
    /// The profile timer failed.
    Timer(io::Error),
    /// A recording could not be written.
    Recording(io::Error),
    /// A signal asked a second time for the end.
    Ended(libc::c_int),
    /// The actions of signals could not be set.
    Signals(io::Error),
    /// A recording could not be read, or is none.
    Read {
        /// Its path.
        path: String,
        /// The reason.
        error: io::Error,
    },
    /// A file could not be written.
    File {
        /// Its path.
        path: String,
        /// The reason.
        error: io::Error,
    },
    /// There is no such process.
    NoProcess(u32),
    /// This user may not sample the whole machine.
    WholeMachine(Setting),
    /// An option does not go with the others.
    Options(String),
    /// Nothing was sampled.
    NoSamples(NoSamples),
    /// The process of this number is another user's, and this user may not sample it.
    OfOther(u32),
    /// The process of this number is protected from its own user.
    Protected(u32),
}

impl Error {
    /// The exit status that tells of the error: as of a shell for a command that cannot be run.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Command { error, .. } if error.kind() == io::ErrorKind::NotFound => 127,
            Self::Command { .. } => 126,
            Self::Ended(signal) => 128 + *signal as u8,
            _ => 2,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotX86 => f.write_str("this machine is no x86; profile needs one that has CPUID"),
            Self::Source(error @ FindError::Unsupported(..)) => {
                write!(f, "{error}; --list names those that are, ProfileTime always is")
            }
            Self::Source(error @ FindError::Unknown(_)) => {
                write!(f, "this machine has {error}; `profile --list` lists them")
            }
            Self::Interval(error) => error.fmt(f),
            Self::NotFed(source) => write!(
                f,
                "{source} is not fed: of the built-in workload only the time is known, and so its cycles; \
                 give a COMMAND to sample it by another counter"
            ),
            Self::Forbidden { error, setting } => {
                write!(f, "the kernel forbids sampling: {error}\n{setting}")
            }
            Self::NoCounter { source, error } => write!(
                f,
                "the kernel has no counter for {source}: {error}\n  \
                 Virtual machines often have none. ProfileTime (the default) needs no counter."
            ),
            Self::Ring(error) => write!(
                f,
                "perf events: no ring buffer: {error}\n  \
                 Either raise what a user may lock:    sudo sysctl kernel.perf_event_mlock_kb=4096\n  \
                 or `ulimit -l`, or run with the capability CAP_IPC_LOCK."
            ),
            Self::Perf(error) if error.raw_os_error() == Some(libc::ENOSYS) => write!(
                f,
                "perf events: {error}: this kernel has none, or a seccomp filter hides them"
            ),
            Self::Perf(error) if error.raw_os_error() == Some(libc::EMFILE) => write!(
                f,
                "perf events: {error}: each thread takes one per processor; raise `ulimit -n`, or name fewer \
                 processes"
            ),
            Self::Perf(error) => write!(
                f,
                "perf events: {error}; the kernel's log (`dmesg`) may say why. The built-in workload (no \
                 COMMAND) needs none."
            ),
            Self::Command { program, error } if error.kind() == io::ErrorKind::NotFound => {
                write!(
                    f,
                    "{}: {error}; give a path, or a program in a folder of PATH",
                    visible(program)
                )
            }
            Self::Command { program, error } if error.kind() == io::ErrorKind::PermissionDenied => {
                write!(
                    f,
                    "{}: {error}; it must be a file with the permission to execute it",
                    visible(program)
                )
            }
            Self::Command { program, error } => write!(f, "{}: {error}", visible(program)),
            Self::Create(error) => write!(f, "profile object: {error}; try another --interval"),
            Self::Profile(error) => write!(f, "profile object: {error}; try another --source"),
            Self::Timer(error) => write!(
                f,
                "profile timer: {error}; raise `ulimit -i`, or profile a COMMAND, which needs none"
            ),
            Self::Recording(error) => write!(f, "the recording is not complete: {error}"),
            Self::Ended(_) => {
                f.write_str("ended at once, as it was asked again: there is no profile")
            }
            Self::Signals(error) => write!(f, "signals: {error}"),
            Self::Read { path, error } if error.kind() == io::ErrorKind::NotFound => {
                write!(f, "{}: {error}; `profile record` makes a recording", visible(path))
            }
            Self::Read { path, error } => write!(f, "{}: {error}", visible(path)),
            Self::File { path, error } if error.raw_os_error() == Some(libc::EACCES) => write!(
                f,
                "{}: {error}; choose another file, or make its folder writable",
                visible(path)
            ),
            Self::File { path, error } => write!(f, "{}: {error}", visible(path)),
            Self::NoProcess(process) => {
                write!(f, "no process has the number {process}; `ps -e` lists those that are there")
            }
            Self::WholeMachine(setting) => write!(
                f,
                "--all is forbidden: {}; --pid samples processes of your own",
                setting.system_wide_advice()
            ),
            Self::Options(advice) => f.write_str(advice),
            Self::NoSamples(reason) => reason.fmt(f),
            Self::OfOther(process) => write!(
                f,
                "process {process} belongs to another user: run as root or with \
                 CAP_PERFMON, or name a process of your own"
            ),
            Self::Protected(process) => write!(
                f,
                "process {process} is protected, as of a program that is set-user-ID or cannot be read: run as root \
                 or with CAP_PERFMON"
            ),
        }
    }
}

impl core::error::Error for Error {}
