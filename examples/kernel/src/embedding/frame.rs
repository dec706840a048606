//! The interrupt's frame.

use pmu::core::frame::{InterruptFrame, ProcessId, ProcessorNumber};

use crate::machine::interrupts::TrapFrame;
use crate::machine::{clock, processor, thread};

/// An interrupt's frame, as profiles look at it.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted<'f>(pub &'f TrapFrame);

impl InterruptFrame for Interrupted<'_> {
    fn pc(&self) -> u64 {
        self.0.rip
    }

    fn cs(&self) -> u16 {
        self.0.cs as u16
    }

    fn flags(&self) -> u64 {
        self.0.rflags
    }

    fn processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(processor::number() as u16)
    }

    /// Returns `None`: this kernel has no processes.
    fn process(&self) -> Option<ProcessId> {
        None
    }

    fn thread(&self) -> u32 {
        thread::current()
    }

    fn timestamp(&self) -> u64 {
        clock::now()
    }
}
