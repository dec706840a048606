//! The owners of processes, as far as they decide who may sample them, and whose files name their functions.
//!
//! Sources: ptrace(2), "Ptrace access mode checking"; proc(5), `/proc/PID` and `status`.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::error::Error;

/// Returns the error of a process that this user may not sample; `None` if its owner is not the reason.
pub(super) fn closed(process: u32) -> Option<Error> {
    let users = users(&fs::read_to_string(format!("/proc/{process}/status")).ok()?)?;
    // SAFETY: no preconditions.
    let own = unsafe { libc::getuid() };
    if users.iter().any(|user| *user != own) {
        return Some(Error::OfOther(process));
    }
    // Of a process that is not dumpable, the files in its folder are root's.
    let file = fs::metadata(format!("/proc/{process}/maps")).ok()?;
    (file.uid() != own).then_some(Error::Protected(process))
}

/// Returns the user of a process, as far as it is there.
pub(super) fn user(process: u32) -> Option<u32> {
    let [_, effective, _] = users(&fs::read_to_string(format!("/proc/{process}/status")).ok()?)?;
    Some(effective)
}

/// The real, effective and saved user in the text of `/proc/PID/status`.
fn users(status: &str) -> Option<[u32; 3]> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut numbers = numbers.split_whitespace().map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_from_the_status() {
        let status = "Name:\tping\nUid:\t1000\t0\t0\t0\nGid:\t1000\t1000\t1000\t1000\n";
        assert_eq!(users(status), Some([1000, 0, 0]));
        assert_eq!(users("Uid:\t1000\t0\n"), None);
        assert_eq!(users(""), None);
    }

    #[test]
    fn an_own_process_is_not_closed() {
        assert!(closed(std::process::id()).is_none());
    }
}
