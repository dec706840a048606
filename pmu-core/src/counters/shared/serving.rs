//! The service of interrupts: idle, under way, or asked for another pass.
//!
//! ```text
//!            serve                 another interrupt comes
//!   Idle ────────────► Serving ──────────────────────────────► Again
//!    ▲                  │ ▲ │                                    │
//!    │ the pass ends    │ │ │            the pass ends: one more │
//!    ├──────────────────┘ └─┼────────────────────────────────────┘
//!    │ publish              │ the overflow status neither reads nor clears
//!    └─────────── Masked ◄──┘
//! ```
//!
//! Only the processor and its interrupts change the word. So relaxed accesses suffice, and a load and a store need no
//! exchange: an interrupt that comes in between has ended before the interrupted code goes on.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;

/// The state of a processor's service of interrupts.
#[derive(Debug)]
pub(crate) struct Serving(AtomicU8);

/// No service is under way.
const IDLE: u8 = 0;

const SERVING: u8 = 1;

/// Serving, and another interrupt came meanwhile.
const AGAIN: u8 = SERVING | 2;

/// Added while the service under way serves a facility that needs no counter.
pub(crate) const WITH_FACILITY: u8 = 4;

/// The interrupt is masked, until the counters are published anew: interrupts touch no register.
const MASKED: u8 = 8;

impl Serving {
    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(IDLE))
    }

    /// Makes the state idle: the counters are published anew, or a service was unwound.
    pub(crate) fn reset(&self) {
        self.0.store(IDLE, Relaxed);
    }

    /// Notes that the interrupt is masked.
    pub(crate) fn mask(&self) {
        self.0.store(MASKED, Relaxed);
    }

    /// Returns whether the interrupt is masked because the overflow status could be neither read nor cleared.
    pub(crate) fn is_masked(&self) -> bool {
        self.0.load(Relaxed) == MASKED
    }

    /// Returns whether no service is under way, and the interrupt is not masked.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.load(Relaxed) == IDLE
    }

    /// Serves an interrupt by `pass`, and repeats it for interrupts that came meanwhile. Returns `false` if another
    /// service is under way, or if the interrupt is masked. `facility` is [`WITH_FACILITY`] or 0.
    #[inline]
    pub(crate) fn serve(&self, facility: u8, pass: impl FnMut()) -> bool {
        let idle = self.is_idle();
        if idle {
            self.repeat(SERVING | facility, IDLE, pass);
        }
        idle
    }

    /// Serves a facility that needs no counter by `pass`, although the interrupt is masked, or a service is under way
    /// that does not know the facility. That service makes another pass. Returns whether there is one; `None` if the
    /// service under way serves the facility.
    pub(crate) fn serve_alone(&self, pass: impl FnMut()) -> Option<bool> {
        let before = self.0.load(Relaxed);
        if before & WITH_FACILITY != 0 {
            return None;
        }
        let is_nested = before & SERVING != 0;
        // A masked entry stays masked, because this pass does not touch the counters.
        self.repeat(SERVING | WITH_FACILITY, if is_nested { AGAIN } else { before }, pass);
        Some(is_nested)
    }

    /// Repeats `pass` until no interrupt comes meanwhile.
    #[inline]
    fn repeat(&self, serving: u8, after: u8, mut pass: impl FnMut()) {
        loop {
            self.0.store(serving, Relaxed);
            pass();
            // Fails if a nested interrupt has left `AGAIN`, or if the pass masked the interrupt.
            let ended = self.0.compare_exchange(serving, after, Relaxed, Relaxed);
            if ended.is_ok() || ended == Err(MASKED) {
                return;
            }
        }
    }

    /// Asks the service under way for another pass. Returns `false` if the interrupt is masked.
    pub(crate) fn ask_again(&self) -> bool {
        let is_served = !self.is_masked();
        if is_served {
            self.0.fetch_or(AGAIN, Relaxed);
        }
        is_served
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_service_leaves_a_note_for_the_one_under_way() {
        let serving = Serving::new();
        let mut passes = 0;
        for passes_at_its_end in [3, 4] {
            let served = serving.serve(0, || {
                passes += 1;
                if passes < 3 {
                    for _ in 0..2 {
                        assert!(!serving.serve(0, || panic!("served while another is")));
                        assert!(serving.ask_again());
                    }
                }
            });
            assert!(served);
            assert_eq!(passes, passes_at_its_end, "once more for each pass that was interrupted");
        }
    }

    #[test]
    fn a_masked_interrupt_is_not_served_until_the_counters_are_published() {
        let serving = Serving::new();
        assert!(serving.serve(0, || serving.mask()));
        assert!(serving.is_masked() && !serving.ask_again());
        assert!(!serving.serve(0, || panic!("masked")));
        assert_eq!(serving.serve_alone(|| ()), Some(false));
        assert!(serving.is_masked());
        serving.reset();
        assert!(serving.serve(0, || ()));
    }
}
