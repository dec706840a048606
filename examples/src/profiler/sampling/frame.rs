//! Samples as interrupt frames.

use pmu_core::frame::{InterruptFrame, ProcessId, ProcessorNumber};

use crate::profiler::perf::Sample;

/// Linux's code segments (arch/x86/include/asm/segment.h).
const KERNEL_CS: u16 = 0x10;
const USER_CS: u16 = 0x33;

impl InterruptFrame for Sample {
    fn pc(&self) -> u64 {
        self.pc
    }

    fn cs(&self) -> u16 {
        if self.kernel { KERNEL_CS } else { USER_CS }
    }

    fn flags(&self) -> u64 {
        0
    }

    fn processor(&self) -> ProcessorNumber {
        ProcessorNumber::from_index(self.processor)
    }

    fn process(&self) -> Option<ProcessId> {
        ProcessId::new(self.process.into())
    }

    fn thread(&self) -> u32 {
        self.thread
    }
}
