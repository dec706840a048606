//! A command and its descendants.
//!
//! This process is their subreaper (`PR_SET_CHILD_SUBREAPER` of prctl(2)): a descendant whose parent has
//! ended becomes its child, so all descendants can be found and waited for.

use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::Instant;
use std::{fs, io, thread};

use libc::{c_int, pid_t};

use super::signals::StopRequest;

/// The time between the signal that asks processes to end and SIGKILL.
const GRACE_PERIOD: Duration = Duration::from_secs(5);

/// The time after SIGKILL in which processes end, unless the kernel cannot kill them.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// A running command and its descendants. Dropping it while the command runs kills them.
pub struct ProcessTree {
    command: pid_t,
    /// The command's status, once it has ended.
    status: Option<ExitStatus>,
    /// Set while this process has children, and so descendants.
    alive: bool,
    termination: Option<Termination>,
}

/// A termination under way.
struct Termination {
    request: StopRequest,
    since: Instant,
    /// The signals that were sent, each with its process.
    sent: HashSet<(pid_t, c_int)>,
}

impl ProcessTree {
    /// Starts a command. This process must have no other children, as it waits for them all.
    ///
    /// # Errors
    /// The command cannot be run.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        // Before Linux 3.4 this fails, and descendants whose parent has ended are not found.
        // SAFETY: the request takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
        // While SIGCHLD is ignored, as the parent may have left it, there is no status to wait for.
        // SAFETY: SIG_DFL is no handler that could do wrong.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let command = command.spawn()?.id() as pid_t;
        Ok(Self { command, status: None, alive: true, termination: None })
    }

    /// Ends all processes, by the request's signal and after a grace period by SIGKILL, in the calls of
    /// [`is_over`](Self::is_over) from now on.
    pub fn terminate(&mut self, request: StopRequest) {
        self.termination =
            Some(Termination { request, since: Instant::now(), sent: HashSet::new() });
    }

    /// Returns true once the command has ended; after [`terminate`](Self::terminate), once all processes
    /// have, or cannot be killed. To be called every few milliseconds.
    pub fn is_over(&mut self) -> bool {
        self.reap();
        let ended = self.status.is_some();
        let Some(Termination { request, since, sent }) = &mut self.termination else {
            return ended || !self.alive;
        };
        let elapsed = since.elapsed();
        if !self.alive || elapsed > GRACE_PERIOD + KILL_TIMEOUT {
            return true;
        }
        if elapsed > GRACE_PERIOD {
            kill_all();
            return false;
        }
        // Once the command has ended, SIGTERM: a shell's background jobs ignore SIGINT.
        let signal = if ended { libc::SIGTERM } else { request.signal };
        for process in descendants() {
            if sent.insert((process, signal)) && !request.has_reached(process) {
                send(process, signal);
                // A stopped process acts on a signal only when it continues.
                send(process, libc::SIGCONT);
            }
        }
        false
    }

    /// Kills all processes, and waits for their end as far as they can be killed.
    pub fn kill(&mut self) {
        self.kill_while(|tree| tree.alive);
    }

    fn kill_while(&mut self, goes_on: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while goes_on(self) && start.elapsed() < KILL_TIMEOUT {
            kill_all();
            thread::sleep(Duration::from_millis(10));
            self.reap();
        }
    }

    /// Returns the command's status, if it has ended.
    pub fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    fn reap(&mut self) {
        loop {
            let mut status = 0;
            // SAFETY: the pointer is valid for the call.
            match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
                0 => return,
                process @ 1.. if process == self.command => {
                    self.status = Some(ExitStatus::from_raw(status));
                }
                1.. => {}
                _ => {
                    self.alive = false;
                    return;
                }
            }
        }
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        self.kill_while(|tree| tree.status.is_none() && tree.alive);
    }
}

impl StopRequest {
    /// Returns true if the terminal sent the signal to the process as well.
    fn has_reached(&self, process: pid_t) -> bool {
        // SAFETY: no preconditions.
        self.by_terminal && unsafe { libc::getpgid(process) == libc::getpgrp() }
    }
}

fn kill_all() {
    descendants().into_iter().for_each(|process| send(process, libc::SIGKILL));
}

/// Sends a signal. A failure is ignored: the process has ended, or is another user's.
fn send(process: pid_t, signal: c_int) {
    // SAFETY: no preconditions.
    unsafe { libc::kill(process, signal) };
}

/// Lists this process's living descendants.
pub fn descendants() -> Vec<pid_t> {
    descendants_of(std::process::id() as pid_t)
}

/// Returns the children of a process that are alive, and theirs.
pub fn descendants_of(process: pid_t) -> Vec<pid_t> {
    let mut children: HashMap<pid_t, Vec<pid_t>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let parent =
            fs::read_to_string(entry.path().join("stat")).ok().and_then(|stat| parent(&stat));
        if let (Some(process), Some(parent)) = (process, parent) {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut found = children.remove(&process).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children.remove(process).unwrap_or_default());
        next += 1;
    }
    found
}

/// Parses `/proc/PID/stat` (proc(5)), `PID (NAME) STATE PARENT …` with any characters in the name, and
/// returns the parent; `None` if the process is dead.
fn parent(stat: &str) -> Option<pid_t> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.next()?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_read_whatever_the_process_is_called() {
        for (stat, expected) in [
            ("7 (sh) S 6 7 7 0 -1 4194304", Some(6)),
            ("7 (a) R 5 (b) R 6 7 7 0 -1", Some(6)),
            ("7 (a b) Z 6 7 7 0 -1", None),
            ("7 (x) X 6 7 7 0 -1", None),
            ("7 (x", None),
            ("", None),
        ] {
            assert_eq!(parent(stat), expected, "{stat}");
        }
    }

    #[test]
    fn children_and_theirs_are_descendants_and_this_process_is_not() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(std::process::Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut line = String::new();
        let mut output = io::BufReader::new(shell.stdout.take().unwrap());
        io::BufRead::read_line(&mut output, &mut line).unwrap();
        let (shells, sleeps) = (shell.id() as pid_t, line.trim().parse().unwrap());
        let found = descendants();
        send(sleeps, libc::SIGKILL);
        shell.wait().unwrap();
        assert!(
            found.contains(&shells) && found.contains(&sleeps),
            "{found:?}: {shells}, {sleeps}"
        );
        assert!(!found.contains(&(std::process::id() as pid_t)) && !found.contains(&1));
        assert!(!descendants().contains(&shells));
    }
}
