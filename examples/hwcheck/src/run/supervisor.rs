//! Two processes: a worker, and a supervisor that puts the registers back when the worker ends in any way.

use core::panic::AssertUnwindSafe;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicI32};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::FromRawFd;
use std::panic::catch_unwind;

use serde::{Deserialize, Serialize};

use crate::registers::stop::Stop;
use crate::report::claim::Claim;
use crate::report::hex::Hex;
use crate::report::whole::Restored;

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Supervised {
    /// The claims that were made before the worker's end.
    pub claims: Vec<Claim>,
    /// An access of the worker's failed, and not by #GP.
    pub is_unreachable: bool,
    /// State of the registers after the run.
    pub restored: Restored,
}

/// A line from the worker.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    Claim(Claim),
    Disturbed(Vec<Hex>),
    Unreachable,
    Failed,
    Done,
}

/// The work: hands each claim to its first argument, and asks the second whether the supervisor is gone.
pub type Work<'w> = dyn FnOnce(&mut dyn FnMut(Claim), &dyn Fn() -> bool) -> Result<(), Stop> + 'w;

/// The worker's process, for the handler of signals.
static WORKER: AtomicI32 = AtomicI32::new(0);

/// A signal arrived that ends the run.
static IS_TO_END: AtomicBool = AtomicBool::new(false);

/// Signals that end the worker in the supervisor's place.
const ENDING: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Does the work in a process of its own, and then puts everything back: here, or there if this process is gone.
///
/// The caller has one thread. At a real-time priority above 1 the worker has the next lower one.
///
/// # Errors
/// There is no pipe or process; nothing was written.
pub fn supervise(work: Box<Work<'_>>, put_back: &dyn Fn() -> Restored) -> io::Result<Supervised> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors are new and owned by nothing else.
    let (reader, writer) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    IS_TO_END.store(false, SeqCst);
    let previous = ENDING.map(|signal| handle(signal, end_worker as *const () as usize));
    // SAFETY: getpid cannot fail.
    let supervisor = unsafe { libc::getpid() };
    // SAFETY: the process has one thread, so that the child finds no lock held.
    let worker = unsafe { libc::fork() };
    if worker == 0 {
        drop(reader);
        be_worker(put_back, work, writer, supervisor);
    }
    drop(writer);
    let supervised = if worker < 0 {
        Err(io::Error::last_os_error())
    } else {
        WORKER.store(worker, SeqCst);
        // One that came before the handler knew the worker.
        if IS_TO_END.load(SeqCst) {
            end_worker(0);
        }
        let mut supervised = receive(reader);
        let Restored { worker_ended_well, disturbed, .. } = supervised.restored;
        let worker_ended_well = wait(worker) && worker_ended_well;
        WORKER.store(0, SeqCst);
        supervised.restored = Restored { worker_ended_well, disturbed, ..put_back() };
        Ok(supervised)
    };
    for (signal, action) in ENDING.into_iter().zip(previous) {
        handle(signal, action);
    }
    supervised
}

fn be_worker(
    put_back: &dyn Fn() -> Restored,
    work: Box<Work<'_>>,
    writer: File,
    supervisor: i32,
) -> ! {
    step_back();
    for signal in ENDING {
        handle(signal, libc::SIG_DFL);
    }
    // SAFETY: getppid cannot fail.
    let alone = || unsafe { libc::getppid() } != supervisor;
    let tell = |message: &Message| {
        let mut line = serde_json::to_vec(message).unwrap_or_default();
        line.push(b'\n');
        let _ = (&writer).write_all(&line);
    };
    // A panic must not unwind into what the supervisor does.
    let done =
        catch_unwind(AssertUnwindSafe(|| work(&mut |claim| tell(&Message::Claim(claim)), &alone)));
    match &done {
        Ok(Ok(())) => tell(&Message::Done),
        Ok(Err(Stop::Disturbed(registers))) => {
            tell(&Message::Disturbed(registers.iter().map(|one| Hex(u64::from(*one))).collect()));
        }
        Ok(Err(Stop::Access { .. })) => tell(&Message::Unreachable),
        _ => tell(&Message::Failed),
    }
    if alone() {
        put_back();
    }
    // SAFETY: nothing of the supervisor's is to be dropped or flushed here.
    unsafe { libc::_exit(if matches!(done, Ok(Ok(()))) { 0 } else { 1 }) }
}

/// Lets the supervisor run before this process, where both have a real-time priority on one processor.
fn step_back() {
    let mut priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter lives during both calls. A failure leaves the priority as it is.
    unsafe {
        if libc::sched_getparam(0, &mut priority) == 0 && priority.sched_priority > 1 {
            priority.sched_priority -= 1;
            libc::sched_setparam(0, &priority);
        }
    }
}

/// Reads what the worker tells, to its end.
fn receive(reader: File) -> Supervised {
    let mut supervised = Supervised::default();
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Message::Claim(claim)) => supervised.claims.push(claim),
            Ok(Message::Disturbed(registers)) => {
                supervised.restored.disturbed = registers;
                supervised.restored.worker_ended_well = true;
            }
            Ok(Message::Unreachable) => supervised.is_unreachable = true,
            Ok(Message::Done) => supervised.restored.worker_ended_well = true,
            // A line that was cut off by the worker's end.
            Ok(Message::Failed) | Err(_) => {}
        }
    }
    supervised
}

/// Waits for the worker's end, and returns whether it ended by itself.
fn wait(worker: i32) -> bool {
    let mut status = 0;
    loop {
        // SAFETY: room for a status.
        let ended = unsafe { libc::waitpid(worker, &mut status, 0) };
        if ended == worker {
            return libc::WIFEXITED(status);
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return false;
        }
    }
}

/// Sets what a signal does, and returns what it did.
fn handle(signal: libc::c_int, action: usize) -> usize {
    // SAFETY: `action` is a default, or a handler that is async-signal-safe.
    unsafe { libc::signal(signal, action) }
}

/// Ends the worker: the supervisor goes on, and restores.
extern "C" fn end_worker(_: libc::c_int) {
    IS_TO_END.store(true, SeqCst);
    let worker = WORKER.load(SeqCst);
    if worker > 0 {
        // SAFETY: async-signal-safe; the process is a child that was not waited for yet.
        unsafe {
            libc::kill(worker, libc::SIGKILL);
        }
    }
}
