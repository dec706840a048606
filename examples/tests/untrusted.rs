//! Files that another user may have placed: none of them blocks the profiler, fills its memory, or is another user's.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::time::Duration;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use pmu_examples::untrusted::{Owner, open, open_link, read};

const SHORT_LIVED: &str = env!("CARGO_BIN_EXE_short-lived");

/// Time in which a busy machine does what takes a second.
const PATIENCE: Duration = Duration::from_secs(120);

/// Copies the program that is profiled. A copy that this process wrote could be busy: a child that another test forks
/// has the file open until the child executes its own program.
fn copy_of_program(to: &Path) {
    assert!(Command::new("cp").arg(SHORT_LIVED).arg(to).status().unwrap().success());
}

fn scratch(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    _ = fs::remove_file(&path);
    path
}

fn fifo(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a text that ends in 0.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o666) }, 0);
}

fn this_user() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() }
}

/// Opens a file by each function, and returns whether one took it; fails if that blocks.
fn is_taken(path: &Path, follows: bool) -> bool {
    let (path, (sender, receiver)) = (path.to_owned(), channel());
    thread::spawn(move || {
        let owner = Owner::RootOr(this_user());
        let opened = if follows { open_link(&path, owner, 4096) } else { open(&path, owner, 4096) };
        sender.send(opened.is_ok() || !follows && read(&path, owner, 4096).is_ok()).unwrap();
    });
    receiver.recv_timeout(PATIENCE).expect("it blocks")
}

#[test]
fn what_is_no_regular_file_of_its_owner_within_the_limit_is_not_opened() {
    let [plain, link, pipe, large, socket] = ["plain", "link", "pipe", "large", "socket"]
        .map(|name| scratch(&format!("untrusted-{name}")));
    fs::write(&plain, "text").unwrap();
    assert!(is_taken(&plain, false) && is_taken(&plain, true));
    assert_eq!(read(&plain, Owner::Any, 4).unwrap(), b"text");

    fifo(&pipe);
    File::create(&large).unwrap().set_len(4097).unwrap();
    let _socket = UnixListener::bind(&socket);
    for other in [&*pipe, &large, &socket, Path::new("/dev/zero"), Path::new("/proc")] {
        for follows in [false, true] {
            assert!(!is_taken(other, follows), "{}", other.display());
        }
    }
    symlink(&plain, &link).unwrap();
    assert!(!is_taken(&link, false));
    assert!(is_taken(&link, true));
    for target in [&*pipe, Path::new("/dev/zero")] {
        fs::remove_file(&link).unwrap();
        symlink(target, &link).unwrap();
        assert!(!is_taken(&link, false) && !is_taken(&link, true), "{}", target.display());
    }
}

#[test]
fn another_users_file_is_not_taken_for_the_processs() {
    let path = scratch("untrusted-others");
    fs::write(&path, "text").unwrap();
    assert!(open(&path, Owner::RootOr(this_user()), 4096).is_ok());
    if this_user() != 0 {
        assert!(open(&path, Owner::RootOr(this_user() + 1), 4096).is_err());
        return;
    }
    chown(&path, Some(4321), None).unwrap();
    assert!(open(&path, Owner::RootOr(1234), 4096).is_err());
    assert!(open(&path, Owner::RootOr(4321), 4096).is_ok());
    assert!(open(&path, Owner::Any, 4096).is_ok());
}

/// A file of `/proc` says that it is empty, and is not.
#[test]
fn a_file_that_has_more_than_it_says_is_not_read_beyond_the_limit() {
    let maps = Path::new("/proc/self/maps");
    assert!(read(maps, Owner::Any, 16).is_err());
    assert!(!read(maps, Owner::Any, 1 << 20).unwrap().is_empty());
}

/// A process under way; it ends with the test.
struct Running(Child, Vec<PathBuf>);

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
        for path in &self.1 {
            _ = fs::remove_file(path);
        }
    }
}

/// Runs `profile` to its end; `None`, and a line that says so, where the kernel forbids it. Fails where it hangs.
fn profile(arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profile"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let (process, (sender, receiver)) = (child.id(), channel());
    thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    let Ok(output) = receiver.recv_timeout(PATIENCE) else {
        // SAFETY: a child that was not waited for yet.
        unsafe { libc::kill(process as i32, libc::SIGKILL) };
        panic!("it hangs");
    };
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("forbids sampling") || complaint.contains("perf events:") {
        println!("skipped: no perf events here: {complaint}");
        return None;
    }
    Some(output)
}

#[test]
fn a_map_file_that_blocks_or_never_ends_is_not_read_and_the_profile_is_made() {
    let attacks: [fn(&Path); 4] = [
        |path| fifo(path),
        |path| symlink("/dev/zero", path).unwrap(),
        |path| symlink("/dev/null", path).unwrap(),
        |path| File::create(path).unwrap().set_len(1 << 40).unwrap(),
    ];
    for attack in attacks {
        let mut command = Command::new(SHORT_LIVED);
        let child =
            command.args(["jit", "1", "0", "private"]).stdout(Stdio::null()).spawn().unwrap();
        let map = PathBuf::from(format!("/tmp/perf-{}.map", child.id()));
        let mut running = Running(child, vec![map.clone()]);
        let begin = Instant::now();
        while !map.exists() && running.0.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < PATIENCE, "there is no map file");
            thread::sleep(Duration::from_millis(10));
        }
        if let Some(status) = running.0.try_wait().unwrap() {
            println!("skipped: no executable memory here: {status}");
            return;
        }
        fs::remove_file(&map).unwrap();
        attack(&map);
        let process = running.0.id().to_string();
        let Some(output) = profile(&["--json", "--seconds", "1", "--pid", &process]) else {
            return;
        };
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let first = &report["functions"][0];
        assert_eq!(first["name"], "[anonymous memory]", "{report:#}");
    }
}

#[test]
fn a_separate_file_of_symbols_that_blocks_is_not_read_and_the_profile_is_made() {
    let [stripped, debug] = ["untrusted-stripped", "untrusted-stripped.debug"].map(scratch);
    let [stripped_path, debug_path] = [&stripped, &debug].map(|path| path.to_str().unwrap());
    let objcopy = |arguments: &[&str]| {
        Command::new("objcopy").args(arguments).status().is_ok_and(|status| status.success())
    };
    let link = format!("--add-gnu-debuglink={debug_path}");
    if !objcopy(&["--only-keep-debug", SHORT_LIVED, debug_path])
        || !objcopy(&["--strip-all", &link, SHORT_LIVED, stripped_path])
    {
        println!("skipped: no objcopy here");
        return;
    }
    fs::remove_file(&debug).unwrap();
    fifo(&debug);
    let arguments = ["--json", "--", stripped_path, "threads", "5", "20000"];
    let Some(output) = profile(&arguments) else { return };
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["samples"].as_u64().unwrap() >= 50, "{report:#}");
}

#[test]
fn a_program_whose_place_a_fifo_takes_while_it_runs_is_profiled() {
    let program = scratch("untrusted-program");
    copy_of_program(&program);
    let mut command = Command::new(&program);
    let child = command.args(["threads", "100", "100000"]).stdout(Stdio::null()).spawn().unwrap();
    let running = Running(child, vec![program.clone()]);
    thread::sleep(Duration::from_millis(200));
    fs::remove_file(&program).unwrap();
    fifo(&program);
    let process = running.0.id().to_string();
    let Some(output) = profile(&["--json", "--seconds", "1", "--pid", &process]) else { return };
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // On a busy machine the program gets little of the second.
    assert!(report["samples"].as_u64().unwrap() > 0, "{report:#}");
    std::io::stdout().flush().unwrap();
}

#[test]
fn a_recording_whose_programs_place_a_fifo_has_taken_since_is_reported() {
    let [program, recording] = ["untrusted-recorded", "untrusted-recorded.data"].map(scratch);
    let [program_path, recording_path] = [&program, &recording].map(|path| path.to_str().unwrap());
    copy_of_program(&program);
    let command = ["record", "-o", recording_path, "--", program_path, "threads", "5", "20000"];
    if profile(&command).is_none() {
        return;
    }
    fs::remove_file(&program).unwrap();
    fifo(&program);
    let output = profile(&["report", recording_path, "--json"]).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["samples"].as_u64().unwrap() >= 50, "{report:#}");
    fs::remove_file(&program).unwrap();
}
