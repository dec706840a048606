//! Advice of `profile` where a filter forbids perf events, as in a container.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes `perf_event_open` fail with an error, in this process and what it executes (seccomp(2)).
fn forbid(error: i32) -> io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut filter = [
        // The system call's number; on another, one instruction is skipped.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { code: jump as u16, jt: 0, jf: 1, k: libc::SYS_perf_event_open as u32 },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | error as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its instructions live until the call returns; it takes no other pointer.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the message of `profile` if `perf_event_open` fails with an error; `None`, and a line that says
/// so, where that cannot be arranged.
fn complaint(error: i32) -> Option<String> {
    let mut profile = Command::new(env!("CARGO_BIN_EXE_profile"));
    profile.args(["--", "true"]);
    // SAFETY: two system calls, which may be made between fork and exec.
    unsafe { profile.pre_exec(move || forbid(error)) };
    match profile.output() {
        Ok(output) => {
            assert_eq!(output.status.code(), Some(2));
            Some(String::from_utf8(output.stderr).unwrap())
        }
        Err(error) => {
            println!("skipped: no seccomp filters here: {error}");
            None
        }
    }
}

#[test]
fn a_container_that_forbids_is_not_advised_to_change_a_setting_that_allows() {
    for error in [libc::EPERM, libc::EACCES] {
        let Some(complaint) = complaint(error) else { return };
        assert!(complaint.contains("forbids sampling"), "{complaint}");
        assert!(complaint.contains("seccomp"), "{complaint}");
        let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
        let level: Option<i32> = level.ok().and_then(|level| level.trim().parse().ok());
        let forbids = level.is_some_and(|level| level > 2);
        assert_eq!(complaint.contains("sysctl"), forbids, "{level:?}: {complaint}");
        let told = level.is_none_or(|level| complaint.contains(&format!("paranoid is {level}")));
        assert!(told, "{complaint}");
    }
}

#[test]
fn a_kernel_without_perf_events_is_told_apart_from_one_that_forbids() {
    let Some(complaint) = complaint(libc::ENOSYS) else { return };
    assert!(complaint.contains("this kernel has none"), "{complaint}");
    assert!(!complaint.contains("sysctl"), "{complaint}");
}
