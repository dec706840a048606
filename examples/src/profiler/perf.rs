//! Linux's perf events, as far as the profiler needs them: one small interface, which the
//! [kernel](kernel::Kernel) serves, and in tests a fake.
//!
//! Read first: perf_event_open(2).

pub mod kernel;
pub mod record;
mod sample;
pub mod setting;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use perf_event_open_sys::bindings::perf_event_attr;

use super::maps::Mapping;
use setting::Setting;

/// Perf events of a [target](Target).
pub trait PerfEvents {
    /// Lists the processors that are running.
    ///
    /// # Errors
    /// The list cannot be read.
    fn processors(&self) -> io::Result<Vec<u16>>;

    /// Opens an event on a processor, and the ring buffer of its records.
    ///
    /// # Errors
    /// The kernel's.
    fn open(&mut self, processor: u16, request: &Request) -> Result<(), OpenError>;

    /// Closes what was opened on a processor; records that were not read are lost.
    fn close(&mut self, processor: u16);

    /// Moves the records that have come since to `records`, each processor's in order.
    fn read(&mut self, records: &mut Vec<Record>);

    /// Returns what the target does already, as the records that would have told it.
    fn existing(&self) -> Vec<Record> {
        Vec::new()
    }

    /// Returns the attributes of the event that samples, once it is opened; `None` of events that are not the kernel's.
    fn attributes(&self) -> Option<perf_event_attr> {
        None
    }

    /// Returns the distance between two samples of a recording; `None` where nothing is recorded yet.
    fn recorded_period(&self) -> Option<u64> {
        None
    }

    /// Returns the build IDs of a recording's files.
    fn recorded_build_ids(&self) -> HashMap<PathBuf, Vec<u8>> {
        HashMap::new()
    }

    /// Returns true once there are no more records, as at the end of a recording.
    fn has_ended(&self) -> bool {
        false
    }

    /// Returns the error that ended a recording before its last record.
    fn failure(&mut self) -> Option<io::Error> {
        None
    }

    /// Returns how much the target has consumed on the opened processors, in the period's unit; `None` if
    /// the kernel does not tell.
    fn consumed(&mut self) -> Option<u64>;

    /// Returns what the machine allows.
    fn setting(&self) -> Setting;

    /// Returns where the kernel's functions are and those of its modules, ascending by address; nothing if it hides
    /// them.
    fn kernel_texts(&self) -> Vec<Mapping>;
}

/// The processes that are profiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// The *command*: the calling thread's future children, each from when it executes a program, and their
    /// descendants.
    #[default]
    Command,
    /// Processes that are running, with these numbers, and what they start.
    Processes(Vec<u32>),
    /// All processes of the machine.
    All,
}

/// A reason for which an event is not opened.
#[derive(Debug)]
pub enum OpenError {
    /// The event was refused: `ENOENT` where there is no such event, `EACCES` and `EPERM` where it is
    /// forbidden.
    Event(io::Error),
    /// Its ring buffer was refused: `EPERM` where this user may lock no more memory.
    Ring(io::Error),
}

/// A description of the samples that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The counted event.
    pub event: Event,
    /// The distance between two samples: nanoseconds of the clock, or events.
    pub period: u64,
    /// The tasks that are sampled.
    pub scope: Scope,
    /// Set if the kernel's execution is sampled too.
    pub kernel: bool,
    /// The facts on callers that each sample has.
    pub callers: Callers,
}

/// The facts on a sample's callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// None.
    None,
    /// Return addresses along frame pointers.
    FramePointers,
    /// The kernel's return addresses; of the user's execution the registers, and at most so many bytes of the stack, a
    /// multiple of 8.
    Stack(u32),
}

/// The tasks that an event samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All tasks of a processor: the period goes on from one to the next. Mappings, forks and exits are
    /// recorded of the command's alone.
    SystemWide,
    /// The command's threads, each with a period of its own, which begins with the thread.
    PerThread,
}

/// The subject of an event's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Processor time, by a timer of the kernel: it needs no PMU.
    Clock,
    /// The count of the processor's PMU under this configuration. On x86 it is laid out like the
    /// event select: event in bits 7:0 and 35:32, unit mask in 15:8.
    Raw(u64),
}

/// Something that happened to a process, and when (in an order that all processors share).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its time, in nanoseconds.
    pub time: u64,
    /// The occurrence.
    pub what: What,
    /// The kernel's record, where records are to be kept; otherwise nothing.
    pub raw: Vec<u8>,
}

impl Record {
    /// A record of which the kernel's is not kept.
    pub fn new(time: u64, what: What) -> Self {
        Self { time, what, raw: Vec::new() }
    }
}

/// An occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The period has passed: the profile interrupt.
    Sample(Sample),
    /// A process mapped something executable.
    Map {
        /// The process.
        process: u32,
        /// The mapping.
        mapping: Mapping,
    },
    /// A process executed another program: what was mapped is gone.
    Exec {
        /// The process.
        process: u32,
        /// The program's name.
        name: String,
    },
    /// A thread got another name.
    Name {
        /// Its process.
        process: u32,
        /// The thread.
        thread: u32,
        /// The name.
        name: String,
    },
    /// A thread began; where the process is another than the parent's, so did the process, with the
    /// parent's mappings.
    Fork {
        /// The process that the thread belongs to.
        process: u32,
        /// The process that it comes from.
        parent: u32,
    },
    /// A thread ended.
    Exit {
        /// Its process.
        process: u32,
    },
    /// So many records found no room.
    Lost(u64),
    /// The kernel paused the event, which came too often.
    Throttled,
}

/// A sample: the state that an interrupt interrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The process; 0 if none.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// The processor.
    pub processor: u16,
    /// The instruction's address.
    pub pc: u64,
    /// Set if the kernel executed it.
    pub kernel: bool,
    /// Addresses in the calls of its callers, the innermost first, where they were asked for.
    pub callers: Vec<u64>,
    /// The state of the user's execution, where it was asked for.
    pub user: Option<Box<UserState>>,
}

/// The number of registers that the kernel may tell (`PERF_REG_X86_64_MAX`).
pub const REGISTERS: usize = 24;

/// Registers and the top of the stack of a user's execution: where it was sampled, or where it entered the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserState {
    /// The registers by Linux's numbers (arch/x86/include/uapi/asm/perf_regs.h); 0: not asked for.
    pub registers: [u64; REGISTERS],
    /// The bytes from the stack pointer on, as many as were asked for and there are.
    pub stack: Box<[u8]>,
}

impl UserState {
    /// Returns the instruction pointer.
    pub fn ip(&self) -> u64 {
        self.registers[8]
    }
}
