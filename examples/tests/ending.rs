//! The end of `profile` by a signal or at a time limit, and of the command with it.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::ptr::null_mut;
use core::time::Duration;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Instant;

use serde_json::Value;

/// A time after which anything has failed.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Takes some processor time, and tells the shell's process.
const WORK: &str = "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; echo $$ >&2;";

/// Starts two processes in the background, one of which loses its parent, and tells them.
const CHILDREN: &str = "sleep 1000 & echo $! >&2; (sleep 1000 & echo $! >&2);";

const FOREVER: &str = "while :; do :; done";

/// Stands for a line where there is none any more.
const ENDED: &str = "it ended";

/// Returns whether `profile` says that there are no perf events here, and says so, too.
fn is_skipped(line: &str) -> bool {
    let skipped = line.contains("forbids sampling") || line.contains("perf events:");
    if skipped {
        println!("skipped: no perf events here: {line}");
    }
    skipped
}

/// `profile` under way. Ends with the test, if not before.
struct Running {
    profile: Child,
    /// The lines on standard error.
    lines: Receiver<String>,
    /// The processes that the command told there.
    told: Vec<i32>,
}

/// The outcome of `profile`.
struct Ended {
    status: Option<i32>,
    report: Value,
    /// The command's processes that were still running then.
    left: Vec<i32>,
}

impl Running {
    /// Starts `profile` with signals as in a shell of a terminal, or with hangups ignored as by `nohup`.
    fn start(arguments: &[&str], hangup: libc::sighandler_t) -> Self {
        Self::spawn(&mut Self::command(arguments, hangup))
    }

    fn command(arguments: &[&str], hangup: libc::sighandler_t) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profile"));
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let signals = move || {
            let default = libc::SIG_DFL;
            for (signal, action) in
                [(libc::SIGINT, default), (libc::SIGTERM, default), (libc::SIGHUP, hangup)]
            {
                // SAFETY: neither SIG_DFL nor SIG_IGN is a handler that could do wrong.
                unsafe { libc::signal(signal, action) };
            }
            Ok(())
        };
        // SAFETY: signal(2) may be called between fork and exec.
        unsafe { command.pre_exec(signals) };
        command
    }

    fn spawn(command: &mut Command) -> Self {
        let mut profile = command.spawn().expect("the program runs");
        let stderr = BufReader::new(profile.stderr.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { profile, lines, told: Vec::new() }
    }

    /// Profiles a script that tells `processes` processes; `None`, and a line that says so, where perf
    /// events are not to be had.
    fn script(options: &[&str], processes: usize, script: &str) -> Option<Self> {
        Self::script_with(options, processes, script, libc::SIG_DFL)
    }

    fn script_with(
        options: &[&str],
        processes: usize,
        script: &str,
        hangup: libc::sighandler_t,
    ) -> Option<Self> {
        let arguments = [options, &["--json", "--", "sh", "-c", script]].concat();
        Self::start(&arguments, hangup).told(processes)
    }

    /// Reads so many processes that the script tells.
    fn told(mut self, processes: usize) -> Option<Self> {
        for _ in 0..processes {
            if let Err(line) = self.read_process() {
                assert!(is_skipped(&line), "{line}");
                return None;
            }
        }
        Some(self)
    }

    /// Reads a process that the command tells; another line is an error, and so is the end.
    fn read_process(&mut self) -> Result<(), String> {
        let line = match self.lines.recv_timeout(TIME_LIMIT) {
            Err(RecvTimeoutError::Disconnected) => return Err(ENDED.to_owned()),
            line => line.expect("nothing is told"),
        };
        self.told.push(line.trim().parse().map_err(|_| line)?);
        Ok(())
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the process was not waited for, so the number is still its own.
        unsafe { libc::kill(self.profile.id() as i32, signal) };
    }

    /// Waits for the end.
    fn end(mut self) -> Ended {
        let mut stdout = self.profile.stdout.take().unwrap();
        // Read while it runs, or a pipe that is full would keep it from ending.
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut text = String::new();
            _ = stdout.read_to_string(&mut text);
            sender.send(text)
        });
        let output = output.recv_timeout(TIME_LIMIT).expect("its output ends");
        let start = Instant::now();
        let status = loop {
            match self.profile.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(start.elapsed() < TIME_LIMIT, "it does not end"),
            }
            thread::sleep(Duration::from_millis(20));
        };
        let left = self.told.iter().copied().filter(|told| is_running(*told)).collect();
        let report = serde_json::from_str(&output).unwrap_or(Value::Null);
        Ended { status: status.code(), report, left }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Not waited for: its number is still its own.
        if let Ok(None) = self.profile.try_wait() {
            _ = self.profile.kill();
            _ = self.profile.wait();
        }
        for process in self.told.iter().copied().filter(|told| is_running(*told)) {
            // SAFETY: no preconditions; the process is one that the command started.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
    }
}

/// Returns true if a process exists and is not dead.
fn is_running(process: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

/// Checks that there is a profile, and that nothing of the command is left.
fn assert_ended(ended: &Ended, status: i32) {
    assert_eq!(ended.status, Some(status));
    assert!(
        ended.report["samples"].as_u64().is_some_and(|samples| samples > 0),
        "{}",
        ended.report
    );
    assert!(ended.left.is_empty(), "left running: {:?}", ended.left);
}

#[test]
fn a_signal_ends_the_command_and_all_that_it_started_and_the_profile_is_printed() {
    let script = format!("{CHILDREN} {WORK} {FOREVER}");
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let Some(running) = Running::script(&[], 3, &script) else { return };
        running.signal(signal);
        assert_ended(&running.end(), 128 + signal);
    }
}

#[test]
fn a_command_that_ends_in_order_on_a_signal_has_its_own_status() {
    let script = format!("trap 'exit 7' TERM; {WORK} {FOREVER}");
    let Some(running) = Running::script(&[], 1, &script) else { return };
    running.signal(libc::SIGTERM);
    assert_ended(&running.end(), 7);
}

#[test]
fn a_command_that_ignores_the_signal_is_killed() {
    let script = format!("trap '' TERM; {CHILDREN} {WORK} {FOREVER}");
    let Some(running) = Running::script(&[], 3, &script) else { return };
    running.signal(libc::SIGTERM);
    assert_ended(&running.end(), 128 + libc::SIGKILL);
}

#[test]
fn a_second_signal_ends_everything_at_once_and_no_profile_is_printed() {
    let script = format!("trap '' TERM; {CHILDREN} {WORK} {FOREVER}");
    let Some(mut running) = Running::script(&[], 3, &script) else { return };
    running.signal(libc::SIGTERM);
    // Senders may repeat a signal at once.
    running.signal(libc::SIGTERM);
    thread::sleep(Duration::from_millis(500));
    assert!(is_running(running.told[2]));
    running.signal(libc::SIGTERM);
    let mut stdout = running.profile.stdout.take().unwrap();
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    let status = running.profile.wait().unwrap();
    // Not that of the command, which is killed.
    assert_eq!((status.code(), &*text), (Some(128 + libc::SIGTERM), ""));
    assert!(running.told.iter().all(|process| !is_running(*process)));
    assert!(running.lines.iter().any(|line| line.contains("ended at once")));
}

#[test]
fn a_command_that_starts_another_when_it_is_signalled_leaves_nothing() {
    let script = format!("trap 'sleep 1000 & echo $! >&2; exit 0' TERM; {WORK} {FOREVER}");
    let Some(mut running) = Running::script(&[], 1, &script) else { return };
    running.signal(libc::SIGTERM);
    running.read_process().unwrap();
    assert_ended(&running.end(), 0);
}

#[test]
fn a_command_that_runs_longer_than_its_seconds_is_ended() {
    let script = format!("{CHILDREN} {WORK} {FOREVER}");
    // A busy machine may take longer than that to start them.
    for seconds in ["1", "10", "100"] {
        let arguments = ["--seconds", seconds, "--json", "--", "sh", "-c", &script];
        let mut running = Running::start(&arguments, libc::SIG_DFL);
        match (0..3).try_for_each(|_| running.read_process()) {
            Ok(()) => return assert_ended(&running.end(), 128 + libc::SIGTERM),
            Err(line) if line == ENDED => _ = running.end(),
            Err(line) => return assert!(is_skipped(&line), "{line}"),
        }
    }
    panic!("it ended each time before its processes were told");
}

#[test]
fn a_command_that_ends_before_its_seconds_is_not_waited_for_longer() {
    let script = format!("{WORK} exit 3");
    let Some(running) = Running::script(&["--seconds", "3600"], 1, &script) else { return };
    assert_ended(&running.end(), 3);
}

#[test]
fn what_a_command_leaves_running_when_it_ends_goes_on() {
    // Its output goes elsewhere, or the end of what it shares with `profile` would not come.
    let script = format!("sleep 1000 >/dev/null 2>&1 & echo $! >&2; {WORK} exit 3");
    let Some(running) = Running::script(&[], 2, &script) else { return };
    let left_running = running.told[0];
    let ended = running.end();
    assert_eq!(ended.status, Some(3));
    assert_eq!(ended.left, [left_running]);
}

#[test]
fn a_hangup_that_is_ignored_from_the_start_ends_nothing() {
    let script = format!("{WORK} {FOREVER}");
    let Some(running) = Running::script_with(&[], 1, &script, libc::SIG_IGN) else { return };
    running.signal(libc::SIGHUP);
    thread::sleep(Duration::from_millis(300));
    assert!(is_running(running.told[0]));
    running.signal(libc::SIGTERM);
    assert_ended(&running.end(), 128 + libc::SIGTERM);
}

/// A terminal sends the signal to the command too, which is not to get it twice.
#[test]
fn an_interrupt_from_the_terminal_reaches_the_command_once() {
    let script = format!("trap 'echo $$ >&2' INT; {WORK} {FOREVER}");
    let (mut controller, mut terminal) = (-1, -1);
    // SAFETY: both pointers are valid for the call, and null pointers ask for nothing.
    let opened = unsafe {
        libc::openpty(&mut controller, &mut terminal, null_mut(), null_mut(), null_mut())
    };
    if opened != 0 {
        println!("skipped: no terminal here: {}", io::Error::last_os_error());
        return;
    }
    // SAFETY: both were just opened, and have no other owner.
    let (mut controller, terminal) =
        unsafe { (File::from_raw_fd(controller), OwnedFd::from_raw_fd(terminal)) };
    let mut command = Running::command(&["--json", "--", "sh", "-c", &script], libc::SIG_DFL);
    let controlled = || {
        // SAFETY: neither takes a pointer; standard input is the terminal.
        let done = unsafe { libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 };
        if done { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: both system calls may be made between fork and exec.
    unsafe { command.stdin(terminal).pre_exec(controlled) };
    let Some(mut running) = Running::spawn(&mut command).told(1) else { return };
    // Control-C.
    controller.write_all(b"\x03").unwrap();
    running.read_process().unwrap();
    assert_eq!(running.told[0], running.told[1]);
    let more = running.lines.recv_timeout(Duration::from_secs(1));
    assert_eq!(more, Err(RecvTimeoutError::Timeout));
    // It does not end by that signal.
    assert_ended(&running.end(), 128 + libc::SIGKILL);
}

#[test]
fn a_signal_ends_the_built_in_workload_and_the_profile_is_printed() {
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let running = Running::start(&["--json", "--seconds", "3600"], libc::SIG_DFL);
        let start = Instant::now();
        while processor_ticks(running.profile.id()) < 20 && start.elapsed() < TIME_LIMIT {
            thread::sleep(Duration::from_millis(20));
        }
        running.signal(signal);
        assert_ended(&running.end(), 128 + signal);
    }
}

/// The processor time that a process has used in user mode, in the kernel's ticks of 10 ms (proc(5)).
fn processor_ticks(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let ticks = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(11)?.parse().ok());
    ticks.unwrap_or(0)
}
