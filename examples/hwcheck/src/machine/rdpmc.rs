//! RDPMC in user mode: sysfs' `rdpmc` set to 2, and put back. Linux, `Documentation/ABI/testing`, and perf's
//! `arch/x86/events/core.c`: 2 allows it to every process.

use std::fs;
use std::path::PathBuf;

use crate::machine::interface::Machine;

/// The PMUs of Linux that are a core's.
const PMUS: [&str; 3] = ["cpu", "cpu_core", "cpu_atom"];
const EVERY_PROCESS: &str = "2";

/// The settings as they were found.
#[derive(Debug, Default)]
pub struct UserRdpmc {
    found: Vec<(PathBuf, String)>,
}

impl UserRdpmc {
    /// Reads the settings, where the kernel has them; `before` an interrupted run, which left its own, they were these.
    pub fn of(machine: &dyn Machine, before: &[(PathBuf, String)]) -> Self {
        let paths = PMUS
            .map(|pmu| machine.root().join(format!("sys/bus/event_source/devices/{pmu}/rdpmc")));
        let found = paths.into_iter().filter_map(|path| {
            let now = fs::read_to_string(&path).ok()?;
            let now = now.trim_end();
            let left = before.iter().find(|(left, _)| now == EVERY_PROCESS && *left == path);
            let found = left.map_or(now, |(_, found)| found).to_owned();
            Some((path, found))
        });
        Self { found: found.collect() }
    }

    /// Returns the files and their settings.
    pub fn found(&self) -> &[(PathBuf, String)] {
        &self.found
    }

    /// Allows RDPMC to every process, and returns whether user mode may execute it.
    pub fn allow(&self) -> bool {
        let allow = |path: &PathBuf| {
            let _ = fs::write(path, EVERY_PROCESS);
            fs::read_to_string(path).is_ok_and(|now| now.trim_end() == EVERY_PROCESS)
        };
        self.found.iter().fold(false, |allowed, (path, _)| allow(path) || allowed)
    }

    /// Restores the settings that hold what [`allow`](Self::allow) wrote. Returns whether that failed.
    pub fn restore(&self) -> bool {
        self.found.iter().fold(false, |failed, (path, before)| {
            let now = fs::read_to_string(path);
            let is_ours = now.is_ok_and(|now| now.trim_end() == EVERY_PROCESS);
            is_ours && fs::write(path, before).is_err() || failed
        })
    }
}
