//! The processor that a profiled thread plays: its profile objects, its number, its clocks, and the frames of its
//! interrupts.

use core::mem::zeroed;
use core::time::Duration;

use libc::{c_int, ucontext_t};
use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};
use pmu_kprofile::Profiles;

/// The number of objects that may be started: one for each executable mapping of the program.
const OBJECTS: usize = 16;

/// The lists that the signal handler dispatches to.
///
/// A profiled thread plays the only processor: it has one timer and one interrupt handler, on
/// whichever processor the kernel runs it.
pub static PROFILES: Profiles<OBJECTS, 1> = Profiles::new();

/// The number of the thread that plays the processor.
pub const PROCESSOR: ProcessorNumber = ProcessorNumber { group: 0, number: 0 };

/// This process.
pub fn this_process() -> Option<ProcessId> {
    ProcessId::new(std::process::id().into())
}

/// The state that a signal interrupted.
pub struct SignalFrame<'c>(pub &'c ucontext_t);

impl SignalFrame<'_> {
    /// A register, by its index in the context (`REG_RSP`).
    pub fn register(&self, index: c_int) -> u64 {
        self.0.uc_mcontext.gregs[index as usize] as u64
    }
}

impl InterruptFrame for SignalFrame<'_> {
    fn pc(&self) -> u64 {
        self.register(libc::REG_RIP)
    }

    fn cs(&self) -> u16 {
        // The low 16 bits of CS, GS and FS together.
        self.register(libc::REG_CSGSFS) as u16
    }

    fn flags(&self) -> u64 {
        self.register(libc::REG_EFL)
    }

    fn processor(&self) -> ProcessorNumber {
        PROCESSOR
    }

    fn process(&self) -> Option<ProcessId> {
        this_process()
    }

    fn thread(&self) -> u32 {
        // SAFETY: no preconditions.
        unsafe { libc::gettid() as u32 }
    }
}

/// The processor time of the thread that asks.
pub fn thread_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The time of a clock.
pub fn clock(id: libc::clockid_t) -> Duration {
    // SAFETY: plain data, for which zero is a valid value of every field.
    let mut time: libc::timespec = unsafe { zeroed() };
    // SAFETY: the pointer is valid for the call. Every Linux has the clocks that are asked for here.
    unsafe { libc::clock_gettime(id, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
