//! `--trace`: the guest's accesses to the registers of its PMU, a line each, in the order in which they are served.

use core::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::boot::apic::ApicWriters;
use crate::error::Error;
use crate::messages::say;
use crate::options::Traced;

/// Kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// RDMSR.
    Read,
    /// WRMSR.
    Write,
    /// RDPMC; the register is ECX.
    ReadCounter,
    /// A write of an entry of the local vector table; the register is its number in x2APIC mode.
    Entry,
    /// An interrupt was raised; the register is its vector, the value its delivery mode.
    Interrupt,
    /// An NMI's handler ended; the register is the vector, the value the number of its instructions.
    Handler,
    /// The guest wrote to the port of phases.
    Mark,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "R",
            Self::Write => "W",
            Self::ReadCounter => "P",
            Self::Entry => "A",
            Self::Interrupt => "I",
            Self::Handler => "H",
            Self::Mark => "M",
        })
    }
}

/// The trace of a machine.
pub(crate) struct Trace {
    began: Instant,
    out: Mutex<Out>,
    pub(crate) writers: Option<ApicWriters>,
    pub(crate) handlers: bool,
}

struct Out {
    to: Box<dyn Write + Send>,
    /// The first thing that went wrong.
    error: Option<io::Error>,
}

impl Trace {
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn new(request: &Traced, writers: Option<ApicWriters>) -> Result<Self, Error> {
        let to: Box<dyn Write + Send> = match &request.file {
            Some(path) => {
                let error = |error| Error::File { path: path.clone(), error };
                Box::new(BufWriter::new(File::create(path).map_err(error)?))
            }
            None => Box::new(io::stderr()),
        };
        if writers.is_none() {
            say(
                &"the kernel has no function by Linux' names that writes the local APIC: the trace lacks writes of LVTPC",
            );
        }
        let (began, out) = (Instant::now(), Mutex::new(Out { to, error: None }));
        Ok(Self { began, out, writers, handlers: request.handlers })
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line: nanoseconds since the machine was created, the processor, what, the register, its value, and the
    /// address of the instruction.
    pub(crate) fn line(
        &self,
        processor: u8,
        what: What,
        register: u32,
        value: Option<u64>,
        rip: Option<u64>,
    ) {
        let mut out = self.out();
        let time = self.began.elapsed().as_nanos();
        let value = value.map_or("#GP".into(), |value| format!("{value:#x}"));
        let rip = rip.map_or("-".into(), |rip| format!("{rip:#x}"));
        if out.error.is_none() {
            let line = writeln!(out.to, "{time} {processor} {what} {register:#x} {value} {rip}");
            out.error = line.err();
        }
    }

    /// Writes what is buffered, and says if lines are missing.
    pub(crate) fn flush(&self) {
        let mut out = self.out();
        let flushed = out.to.flush().err();
        if let Some(error) = out.error.take().or(flushed) {
            say(&format_args!("the trace is not complete: {error}"));
        }
    }
}
