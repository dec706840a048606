//! The slot of a counter: what the counter does, for a task and for the interrupt path.
//!
//! ```text
//!           start: loaded, but not enabled yet            an interrupt loads the next chunk
//!   Free ─────────────────────────────────────► Running ◄──────────────┐
//!    ▲ ▲         stop, detach: disabled before     │ │ └────────────────┘
//!    │ └────────────────────────────────────────────┘ │
//!    │                     save: gated, still enabled │      its registers do not answer, or those of its group
//!    │          unpark     ┌──────────────────────────┤
//!    ├───────────────── Parked ──► Running (restore)  │
//!    │  take, reprogram: programmed anew              ▼
//!    └──────────────────────────────────────────── Faulted
//! ```

use core::sync::atomic::{AtomicU64, Ordering};

use crate::counters::names::EventId;

/// State of one counter, in 8 bytes that a session and [`service`](crate::service) share.
///
/// The driver changes a slot by a single store, so an interrupt never sees a half-changed state.
#[derive(Debug, Default)]
pub struct CounterSlot(AtomicU64);

/// The state of a slot, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// Not in use.
    Free,
    /// Counts this event, and overflows `period` events after the counter was loaded.
    Running { event: EventId, period: u64 },
    /// Not in use, and stopped by the global control register. The counter's control register still holds this event,
    /// enabled.
    Parked { event: EventId },
    /// The counter could not be stopped or re-armed. It is presumed to run until the shutdown, for no event.
    Faulted,
}

impl CounterSlot {
    /// The event's identity is in the 12 bits below the flags.
    const PARKED: u64 = 1 << 13;

    const FAULTED: u64 = 1 << 14;

    const RUNNING: u64 = 1 << 15;

    /// The period is in the 48 bits above the flags.
    const FIRST_OF_PERIOD: u32 = 16;

    /// Creates a slot whose counter is not in use.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn load(&self) -> SlotState {
        Self::decode(self.0.load(Ordering::Acquire))
    }

    /// Returns the event for which the counter runs.
    pub(crate) fn running(&self) -> Option<EventId> {
        match self.load() {
            SlotState::Running { event, .. } => Some(event),
            SlotState::Free | SlotState::Parked { .. } | SlotState::Faulted => None,
        }
    }

    /// Stores a state, and returns the previous state, whose period an interrupt may have changed since the last load.
    #[inline]
    pub(crate) fn replace(&self, state: SlotState) -> SlotState {
        // One exchange: between a load and a store, an interrupt could load another period or note a fault, and be
        // overwritten.
        Self::decode(self.0.swap(Self::encode(state), Ordering::AcqRel))
    }

    #[inline]
    fn decode(bits: u64) -> SlotState {
        let event = EventId::of_bits(bits as u16);
        if bits & Self::RUNNING != 0 {
            SlotState::Running { event, period: bits >> Self::FIRST_OF_PERIOD }
        } else if bits & Self::FAULTED != 0 {
            SlotState::Faulted
        } else if bits & Self::PARKED != 0 {
            SlotState::Parked { event }
        } else {
            SlotState::Free
        }
    }

    #[inline]
    pub(crate) fn store(&self, state: SlotState) {
        self.0.store(Self::encode(state), Ordering::Release);
    }

    #[inline]
    fn encode(state: SlotState) -> u64 {
        // State, event and period are one word, so that an interrupt or another processor never sees a mixture of two
        // states.
        let id = |event: EventId| u64::from(event.bits());
        match state {
            SlotState::Free => 0,
            SlotState::Running { event, period } => {
                Self::RUNNING | id(event) | period << Self::FIRST_OF_PERIOD
            }
            SlotState::Faulted => Self::FAULTED,
            SlotState::Parked { event } => Self::PARKED | id(event),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_gives_back_what_was_stored() {
        let slot = CounterSlot::new();
        assert_eq!(slot.load(), SlotState::Free);
        let last = EventId::of_bits(u16::MAX);
        for state in [
            SlotState::Running { event: EventId::of_bits(0), period: 0 },
            SlotState::Running { event: last, period: (1 << 48) - 1 },
            SlotState::Faulted,
            SlotState::Parked { event: last },
            SlotState::Free,
        ] {
            slot.store(state);
            assert_eq!(slot.load(), state);
        }
    }
}
