//! Functions that a process makes while it runs, in memory of no file: their names come from its map file.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::time::Duration;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use serde_json::Value;

/// Time in which a process on a busy machine writes its map file.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that executes a loop in memory that is mapped so, and its map file; both end with the test.
struct Jit(Child);

impl Jit {
    fn start(sharing: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_short-lived"));
        let child = command.args(["jit", "1", "0", sharing]).stdout(Stdio::null()).spawn().unwrap();
        let mut jit = Self(child);
        let begin = Instant::now();
        while !jit.map_file().exists() && begin.elapsed() < PATIENCE {
            if jit.0.try_wait().unwrap().is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        jit
    }

    fn map_file(&self) -> PathBuf {
        format!("/tmp/perf-{}.map", self.0.id()).into()
    }
}

impl Drop for Jit {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
        _ = fs::remove_file(self.map_file());
    }
}

#[test]
fn functions_in_private_and_in_shared_memory_have_the_names_of_the_map_file() {
    for sharing in ["private", "shared"] {
        let mut jit = Jit::start(sharing);
        if let Some(status) = jit.0.try_wait().unwrap() {
            println!("skipped: no executable {sharing} memory here: {status}");
            continue;
        }
        let process = jit.0.id().to_string();
        let output = Command::new(env!("CARGO_BIN_EXE_profile"))
            .args(["--json", "--seconds", "1", "--pid", &process])
            .output()
            .unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        if complaint.contains("forbids sampling") || complaint.contains("perf events:") {
            println!("skipped: no perf events here: {complaint}");
            return;
        }
        let report: Value = serde_json::from_slice(&output.stdout).expect(&complaint);
        let functions = report["functions"].as_array().unwrap();
        let named = functions.iter().find(|function| function["name"] == "jitted loop");
        let samples = named.map_or(0, |function| function["samples"].as_u64().unwrap());
        assert!(samples * 10 >= report["samples"].as_u64().unwrap() * 8, "{sharing}: {report:#}");
    }
}
