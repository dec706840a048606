//! The current thread of each processor, and switches between threads.

use core::sync::atomic::{AtomicU32, Ordering};

use pmu::core::ProcessorNumber;
use pmu_kprofile::trace::{ContextSwitch, Extended};

use crate::embedding::DEBUG_STORE;
use crate::processor::{self, MAX_PROCESSORS};
use crate::{clock, trace};

/// Each processor's thread; 0 is the one that it began with.
static CURRENT: [AtomicU32; MAX_PROCESSORS] = [const { AtomicU32::new(0) }; MAX_PROCESSORS];

/// Returns this processor's thread.
///
/// # Context
/// Any.
pub fn current() -> u32 {
    CURRENT[processor::number()].load(Ordering::Relaxed)
}

/// Switches this processor to another thread. Here they share a stack, so that nothing is left but to remember which
/// it is, and to tell the trace, where switches are traced.
pub fn switch_to(new: u32) {
    let number = processor::number();
    let old = CURRENT[number].swap(new, Ordering::Relaxed);
    if trace::SWITCHES.is_traced() {
        let pebs_index = DEBUG_STORE.pebs_index().filter(|_| number == 0);
        let switch = ContextSwitch { old_thread: old, new_thread: new, ..ContextSwitch::default() };
        trace::SWITCHES.record(
            ProcessorNumber::from_index(number as u16),
            clock::now(),
            Extended { pebs_index, ..Extended::default() },
            switch,
        );
    }
}
