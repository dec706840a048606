//! The monitor's errors, each with its exit status.

use core::fmt;
use std::io;
use std::path::PathBuf;

use crate::boot::error::{ImageError, MemoryError};
use crate::guest_pmu::spec::SpecError;

/// Reason why the monitor ends before the guest does.
///
/// The statuses are even: a guest's, by `isa-debug-exit`, are odd.
#[derive(Debug)]
pub(crate) enum Error {
    /// A file could not be read.
    File { path: PathBuf, error: io::Error },
    /// The kernel is not a bootable image.
    Image { path: PathBuf, error: ImageError },
    /// There is no such PMU.
    Spec { spec: String, error: SpecError },
    /// The guest's processor shut down, at this place and exception.
    TripleFault { processor: usize, at: String },
    /// The guest did not end in time.
    Timeout { seconds: u64 },
    /// KVM refused an operation.
    Kvm { operation: &'static str, error: io::Error },
    /// /dev/kvm cannot be opened.
    NoKvm(io::Error),
    /// The kernel, the initial RAM disk or the command line do not fit in the guest's memory.
    Memory(MemoryError),
    /// KVM cannot run the guest any further.
    Stuck { processor: usize, why: String },
    /// The host has no counters for `--count perf`.
    NoCounters(io::Error),
}

impl Error {
    /// Wraps KVM's error of `operation`.
    pub(crate) fn kvm(operation: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Self {
        move |error| Self::Kvm { operation, error: error.into() }
    }

    /// Wraps an error that cannot occur unless the monitor is faulty.
    pub(crate) fn internal(error: impl Into<Box<dyn core::error::Error + Send + Sync>>) -> Self {
        Self::Kvm { operation: "internal error", error: io::Error::other(error) }
    }

    /// Wraps the operating system's error of `operation`.
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Kvm { operation, error }
    }

    /// Returns the exit status for the error. Usage errors have 2, by clap.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::File { .. } => 4,
            Self::Image { .. } => 6,
            Self::Spec { .. } => 8,
            Self::TripleFault { .. } => 10,
            Self::Timeout { .. } => 12,
            Self::Kvm { .. } => 14,
            Self::NoKvm(_) => 16,
            Self::Memory(_) => 18,
            Self::Stuck { .. } => 20,
            Self::NoCounters(_) => 22,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Image { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Spec { spec, error } => write!(f, "--pmu {spec}: {error}"),
            Self::TripleFault { processor, at } => {
                write!(f, "the guest's processor {processor} shut down after a triple fault {at}")
            }
            Self::Timeout { seconds } => write!(f, "the guest did not end within {seconds} s"),
            Self::Kvm { operation, error } => write!(f, "{operation}: {error}"),
            Self::NoKvm(error) => write!(f, "/dev/kvm cannot be opened: {error}"),
            Self::Memory(error) => error.fmt(f),
            Self::Stuck { processor, why } => {
                write!(f, "KVM cannot go on with the guest's processor {processor}: {why}")
            }
            Self::NoCounters(error) => {
                write!(f, "--count perf: the host offers none of the counters: {error}")
            }
        }
    }
}

impl core::error::Error for Error {}
