//! RDPMC in user mode: sysfs' `rdpmc` set to 2, and put back. Linux, `Documentation/ABI/testing`, and perf's
//! `arch/x86/events/core.c`: 2 allows it to every process.

use std::fs;
use std::path::PathBuf;

use crate::machine::Machine;

/// The PMUs of Linux that are a core's.
const PMUS: [&str; 3] = ["cpu", "cpu_core", "cpu_atom"];
const EVERY_PROCESS: &str = "2";

/// The settings as they were found.
#[derive(Debug, Default)]
pub struct UserRdpmc {
    found: Vec<(PathBuf, String)>,
}

impl UserRdpmc {
    /// Allows RDPMC to every process, where the kernel has that setting.
    pub fn allow(machine: &dyn Machine) -> Self {
        let mut found = Vec::new();
        for pmu in PMUS {
            let path = machine.root().join(format!("sys/bus/event_source/devices/{pmu}/rdpmc"));
            let Ok(before) = fs::read_to_string(&path) else { continue };
            if fs::write(&path, EVERY_PROCESS).is_ok() {
                found.push((path, before.trim_end().to_owned()));
            }
        }
        Self { found }
    }

    /// Returns whether user mode may execute RDPMC.
    pub fn is_allowed(&self) -> bool {
        let holds =
            |path| fs::read_to_string(path).is_ok_and(|now| now.trim_end() == EVERY_PROCESS);
        self.found.iter().any(|(path, _)| holds(path))
    }

    /// Restores the settings, unless another program changed them.
    pub fn restore(&self) {
        for (path, before) in &self.found {
            if fs::read_to_string(path).is_ok_and(|now| now.trim_end() == EVERY_PROCESS) {
                let _ = fs::write(path, before);
            }
        }
    }
}
