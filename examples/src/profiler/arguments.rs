//! The words of the command line of `profile`.

use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, value_parser};

use super::call_graph::CallGraph;
use super::error::Error;
use super::files::Files;
use super::output_file;
use super::perf::Target;
use super::perf_data::writer::Facts;
use super::report::Run;
use super::report::consumed::Unit;
use super::sampling::selection::Selection;

/// Shows where a program spends its time, function by function.
///
/// Without a COMMAND, a built-in workload is profiled, a few functions with known shares. With one,
/// it is run as it is and sampled with all that it starts, through Linux's perf events.
#[derive(Parser)]
#[command(
    name = "profile",
    version,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    subcommand_value_name = "record|report",
    after_help = "SIGINT, SIGTERM and SIGHUP end COMMAND, and all that it started, with the same signal, \
                  and after 5 seconds with SIGKILL; then the profile is printed. Processes of --pid and \
                  --all go on.\n\n\
                  Exit status: that of COMMAND (128 and the number of the signal that ended it); \
                  127 if there is no such command, 126 if it cannot be run, 2 for every other \
                  error, such as no samples of a COMMAND that succeeded. A COMMAND of the name record or \
                  report has -- before it."
)]
struct Line {
    #[command(subcommand)]
    word: Option<Word>,

    /// List the profile sources of this machine.
    #[arg(long, exclusive = true)]
    list: bool,

    #[command(flatten)]
    sampling: Sampling,

    #[command(flatten)]
    of_all: OfAll,

    #[command(flatten)]
    shown: Shown,
}

/// The first words.
#[derive(Subcommand)]
enum Word {
    /// Write a recording, which `profile report` and `perf report` read, in place of a profile.
    Record {
        /// The recording. An earlier one gets `.old` behind its name.
        #[arg(long, short, value_name = "FILE", default_value = "perf.data")]
        output: PathBuf,

        #[command(flatten)]
        sampling: Sampling,

        #[command(flatten)]
        of_all: OfAll,
    },
    /// Profile by a recording, of `profile record` or `perf record`.
    Report {
        /// The recording.
        #[arg(value_name = "FILE", default_value = "perf.data")]
        input: PathBuf,

        #[command(flatten)]
        of_all: OfAll,

        #[command(flatten)]
        shown: Shown,
    },
}

/// The target and the source of the samples.
#[derive(Args, Default)]
pub(super) struct Sampling {
    /// The source of the interrupts: a profile source's number or name, in any case (see --list), or the name
    /// of an event of this processor (see `events`).
    #[arg(long, default_value = "ProfileTime", value_name = "NUMBER|NAME")]
    pub(super) source: String,

    /// The distance between two interrupts: units of 100 ns for ProfileTime, events for any other
    /// source [default: the source's, 10000 or 65536].
    #[arg(long, value_name = "N")]
    pub(super) interval: Option<u64>,

    /// Interrupts per second of processor time, in place of --interval: 10 to 8190, for ProfileTime.
    #[arg(long, short = 'F', value_name = "HERTZ", conflicts_with = "interval")]
    pub(super) frequency: Option<u64>,

    /// Seconds after which COMMAND is ended by SIGTERM, or processes that run already are left. Without
    /// either, the processor time that the built-in workload takes [default: until there are 2000 samples].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=3600))]
    pub(super) seconds: Option<u32>,

    /// Profile these processes, which run already, and what they start, until they end, --seconds or SIGINT.
    #[arg(long, value_name = "PID", value_delimiter = ',', conflicts_with_all = ["all", "command"])]
    pub(super) pid: Vec<u32>,

    /// Profile all processes of the machine, for --seconds or until SIGINT.
    #[arg(long, conflicts_with = "command")]
    pub(super) all: bool,

    /// The command to profile, with its arguments.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// Options of a profile and of a recording.
#[derive(Args)]
pub(super) struct OfAll {
    /// Callers of each sample. The built-in workload knows frame pointers alone.
    #[arg(long, value_name = "WAY", default_value = "auto")]
    pub(super) call_graph: CallGraph,

    /// Keep only samples of processes and threads with these numbers or names.
    #[arg(long, value_name = "NUMBER|NAME", value_delimiter = ',')]
    pub(super) only: Vec<String>,

    /// Show no progress. (It is shown only on a terminal.)
    #[arg(long, short)]
    pub(super) quiet: bool,
}

/// The forms of a profile.
#[derive(Args, Default)]
pub(super) struct Shown {
    #[command(flatten)]
    pub(super) files: Files,

    /// Print the profile as a JSON object, and nothing else on standard output.
    #[arg(long, conflicts_with = "csv")]
    pub(super) json: bool,

    /// Print the functions as comma-separated values, and nothing else on standard output.
    #[arg(long)]
    pub(super) csv: bool,
}

/// The command line.
pub(super) struct Arguments {
    /// Set if the sources are to be listed.
    pub(super) list: bool,
    pub(super) sampling: Sampling,
    pub(super) of_all: OfAll,
    pub(super) shown: Shown,
    /// The recording that is to be made.
    pub(super) output: Option<PathBuf>,
    /// The recording that is profiled by.
    pub(super) input: Option<PathBuf>,
}

impl Arguments {
    /// Reads the command line; what is wrong there is told, and ends the program.
    pub(super) fn parse() -> Self {
        let Line { word, list, sampling, of_all, shown } = Line::parse();
        match word {
            None => Self { list, sampling, of_all, shown, output: None, input: None },
            Some(Word::Record { output, sampling, of_all }) => {
                let shown = Shown::default();
                Self { list, sampling, of_all, shown, output: Some(output), input: None }
            }
            Some(Word::Report { input, of_all, shown }) => {
                let sampling = Sampling::default();
                Self { list, sampling, of_all, shown, output: None, input: Some(input) }
            }
        }
    }

    /// Returns the profiled processes; `None`: the built-in workload.
    pub(super) fn target(&self) -> Option<Target> {
        match (self.sampling.all, &*self.sampling.pid, &*self.sampling.command) {
            (true, ..) => Some(Target::All),
            (false, [_, ..], _) => Some(Target::Processes(self.sampling.pid.clone())),
            (false, [], [_, ..]) => Some(Target::Command),
            (false, [], []) => None,
        }
    }

    pub(super) fn limit(&self) -> Option<Duration> {
        self.sampling.seconds.map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// Returns the recording that is to be made.
    pub(super) fn recording(&self, run: &Run) -> Option<(PathBuf, Facts)> {
        let facts = Facts {
            event: if run.unit == Unit::Nanoseconds { "cpu-clock" } else { run.source }.into(),
            processor: run.processor.clone(),
            command: std::env::args_os().map(|word| word.to_string_lossy().into()).collect(),
        };
        Some((self.output.clone()?, facts))
    }

    /// Checks that all files can be written, and changes nothing there.
    pub(super) fn check_places(&self) -> Result<(), Error> {
        if let Some(path) = &self.output {
            let at_fault = |error| Error::File { path: path.to_string_lossy().into(), error };
            output_file::check_recording(path).map_err(at_fault)?;
        }
        self.shown.files.check()
    }

    pub(super) fn selection(&self) -> Selection {
        Selection(self.of_all.only.iter().cloned().collect())
    }
}
