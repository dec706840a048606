//! Software machines in folders, and the program run on them.

#![allow(dead_code, reason = "each test uses its part")]

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pmu_hwcheck::machine::software::{Plan, Software};
use pmu_hwcheck::report::{Claim, Report};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration, IntelFeature};

/// A folder that is removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("hwcheck-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn machine(&self, plan: Plan) -> Software {
        Software::create(&self.0, plan).unwrap()
    }

    pub(crate) fn set_file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn intel() -> Configuration {
    Configuration::Intel(IntelConfiguration::new(4, 4, 3))
}

pub(crate) fn amd() -> Configuration {
    Configuration::Amd(AmdConfiguration::perf_mon_v2(6))
}

/// One of each kind.
pub(crate) fn configurations() -> Vec<Configuration> {
    let mut all: Vec<_> = [(1, 2, 0), (2, 4, 3), (3, 4, 3), (4, 4, 3), (5, 8, 4), (6, 8, 4)]
        .map(|(version, general, fixed)| {
            Configuration::Intel(IntelConfiguration::new(version, general, fixed))
        })
        .into();
    all.push(Configuration::Intel(IntelConfiguration::new(2, 2, 3).with(|narrow| {
        narrow.general_width = 40;
        narrow.fixed_width = 40;
        narrow.set(IntelFeature::FullWidthWrites, false);
    })));
    all.extend([
        Configuration::Amd(AmdConfiguration::LEGACY),
        Configuration::Amd(AmdConfiguration::CORE_EXTENSION),
        amd(),
    ]);
    all
}

/// Leaves an Intel machine of version 4 as a predecessor would: nothing runs, and everything differs from 0.
///
/// A disabled select with the interrupt bit, one with pin control, which is never written, values, a fixed counter's
/// control, an overflow, and the global control that is set on idle machines.
pub(crate) fn leave_traces(machine: &Software) {
    for (register, value) in [
        (0x186, 0x0013_003C),
        (0x187, 0x0003_00C0),
        (0x188, 0x000B_00C4),
        (0x4C1, 0x1234_5678_9ABC),
        (0x4C2, 0xFFFF_FFFF_FFF0),
        (0x309, 0x55),
        (0x38D, 0x0000_0080),
        (0x38E, 0x2),
        (0x38F, 0x7_0000_000F),
    ] {
        machine.set(register, value).unwrap();
    }
}

pub(crate) fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hwcheck"));
    command.arg("--machine").arg(folder).args(["--runs", "2"]).args(arguments);
    if !arguments.contains(&"--programs") {
        command.args(["--programs", "3"]);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs the program with consent, and returns its exit status and report.
pub(crate) fn run(folder: &Folder, arguments: &[&str]) -> (Option<i32>, Option<Report>, Output) {
    let path = folder.0.join("report.json");
    let _ = fs::remove_file(&path);
    let mut command = command(&folder.0, arguments);
    let output = command.args(["--yes", "--report"]).arg(&path).output().unwrap();
    // Of a supervisor that was killed it is empty.
    let report = fs::read(&path).ok().filter(|bytes| !bytes.is_empty());
    let report = report.map(|bytes| Report::parse(&bytes).unwrap());
    (output.status.code(), report, output)
}

pub(crate) fn claim<'r>(report: &'r Report, id: &str) -> &'r Claim {
    let found = report.claims.iter().find(|claim| claim.id == id);
    found.unwrap_or_else(|| panic!("{id} is not in the report"))
}
