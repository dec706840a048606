//! The critical section that `pmu-kprofile` asks of its kernel: interrupts off on this processor, and
//! one processor at a time. It does not keep NMIs away, so nothing that one reaches may use it.

use core::sync::atomic::{AtomicU32, Ordering};

use critical_section::RawRestoreState;
use x86_64::instructions::interrupts;

use crate::machine::processor;

/// The processor that is inside, plus 1; 0: none.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// In the state to restore: interrupts were on.
const WERE_ON: u8 = 1;
/// In the state to restore: this processor was inside already.
const NESTED: u8 = 2;

struct Section;
critical_section::set_impl!(Section);

// SAFETY: only one processor can be the owner, and nothing but an NMI, which does not ask, comes in
// between on that processor; what the owner wrote is released to the next.
unsafe impl critical_section::Impl for Section {
    unsafe fn acquire() -> RawRestoreState {
        let were_on = if interrupts::are_enabled() { WERE_ON } else { 0 };
        interrupts::disable();
        let me = processor::number() as u32 + 1;
        if OWNER.load(Ordering::Relaxed) == me {
            return were_on | NESTED;
        }
        while OWNER.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
            core::hint::spin_loop();
        }
        were_on
    }

    unsafe fn release(state: RawRestoreState) {
        if state & NESTED == 0 {
            OWNER.store(0, Ordering::Release);
        }
        if state & WERE_ON != 0 {
            interrupts::enable();
        }
    }
}
