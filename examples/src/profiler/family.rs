//! A command and all that it started, to its end.
//!
//! This process adopts whom the command's processes leave behind when they end (`PR_SET_CHILD_SUBREAPER` of
//! prctl(2)): so all that the command started descends from this process, where it can be found.

use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::Instant;
use std::{fs, io, thread};

use libc::{c_int, pid_t};

use super::signals::Ask;

/// How long the processes may take to end when they are asked to; then they are killed.
const GRACE: Duration = Duration::from_secs(5);

/// How long the kernel may take to kill them; what is there after that, it cannot kill.
const KILL: Duration = Duration::from_secs(2);

/// A command that was started, and all its descendants. They are killed if this is dropped while the
/// command runs.
pub struct Family {
    command: pid_t,
    /// The command's status, once it ended.
    status: Option<ExitStatus>,
    /// Whether this process has children.
    alive: bool,
    ending: Option<Ending>,
}

/// How the family is being ended.
struct Ending {
    ask: Ask,
    since: Instant,
    /// Which process was sent which signal.
    sent: HashSet<(pid_t, c_int)>,
}

impl Family {
    /// Starts a command. This process has no other children, then or later.
    ///
    /// # Errors
    /// The command cannot be run.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        // Where these fail (there are no adoptions before Linux 3.4), what loses its parent is not found.
        // SAFETY: the request takes numbers only, and SIG_DFL is no handler that could do wrong. A parent
        // that ignored SIGCHLD would have left it so, and then no status could be had.
        unsafe {
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
        let command = command.spawn()?.id() as pid_t;
        Ok(Self { command, status: None, alive: true, ending: None })
    }

    /// Asks all processes to end, and kills in due time those that do not.
    pub fn end(&mut self, ask: Ask) {
        self.ending.get_or_insert_with(|| Ending {
            ask,
            since: Instant::now(),
            sent: HashSet::new(),
        });
    }

    /// Does what is to be done now and then. Returns whether it is over: the command has ended, or where
    /// all are to end, they have, or cannot be killed.
    pub fn is_over(&mut self) -> bool {
        self.reap();
        let Some(ending) = &mut self.ending else { return self.status.is_some() || !self.alive };
        if !self.alive || ending.since.elapsed() > GRACE + KILL {
            return true;
        }
        if ending.since.elapsed() > GRACE {
            kill_all();
            return false;
        }
        // What the command left behind may ignore the signal, as a shell's background jobs ignore SIGINT.
        let signal = if self.status.is_none() { ending.ask.signal } else { libc::SIGTERM };
        for process in descendants() {
            if ending.sent.insert((process, signal)) && !ending.ask.has_reached(process) {
                send(process, signal);
                // Whoever is stopped goes on, and ends.
                send(process, libc::SIGCONT);
            }
        }
        false
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

impl Drop for Family {
    fn drop(&mut self) {
        let start = Instant::now();
        while self.status.is_none() && self.alive && start.elapsed() < KILL {
            kill_all();
            thread::sleep(Duration::from_millis(10));
            self.reap();
        }
    }
}

impl Ask {
    /// Whether the process was sent the signal at once with this one, as a terminal's go to a group.
    fn has_reached(&self, process: pid_t) -> bool {
        // SAFETY: no preconditions.
        self.by_terminal && unsafe { libc::getpgid(process) == libc::getpgrp() }
    }
}

fn kill_all() {
    descendants().into_iter().for_each(|process| send(process, libc::SIGKILL));
}

/// Sends a signal. Nothing can be done if that is forbidden, as to a program of another user.
fn send(process: pid_t, signal: c_int) {
    // SAFETY: no preconditions.
    unsafe { libc::kill(process, signal) };
}

/// Lists this process's living descendants.
pub fn descendants() -> Vec<pid_t> {
    let mut children: HashMap<pid_t, Vec<pid_t>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let parent =
            fs::read_to_string(entry.path().join("stat")).ok().and_then(|stat| parent(&stat));
        if let (Some(process), Some(parent)) = (process, parent) {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut found = children.remove(&(std::process::id() as pid_t)).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children.remove(process).unwrap_or_default());
        next += 1;
    }
    found
}

/// Returns the parent of the process with this `/proc/PID/stat` (proc(5)): `PID (NAME) STATE PARENT …`,
/// with any characters in the name. `None` if it is dead.
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
