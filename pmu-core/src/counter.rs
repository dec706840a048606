//! Hardware counters, and the state of each that control path and interrupt path share.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::msr::MsrAccess;
use crate::{MsrAddress, MsrBackend, MsrFault, PmcIndex};

/// One hardware counter with its event-select register: a row of a [`CounterUnit`](crate::CounterUnit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Counter {
    pub(crate) select: MsrAddress,
    pub(crate) value: MsrAddress,
    pub(crate) rdpmc: Option<PmcIndex>,
    /// One bit for each bit of the counter.
    pub(crate) mask: u64,
}

impl Counter {
    /// The event-select register.
    #[inline]
    pub const fn select_register(&self) -> MsrAddress {
        self.select
    }

    /// The counter itself.
    #[inline]
    pub const fn value_register(&self) -> MsrAddress {
        self.value
    }

    /// The counter's index for RDPMC; `None` where RDMSR alone reads it.
    #[inline]
    pub const fn rdpmc_index(&self) -> Option<PmcIndex> {
        self.rdpmc
    }

    /// Its width in bits, 32–64.
    pub const fn width(&self) -> u32 {
        self.mask.count_ones()
    }

    /// The value from which the counter overflows after `events` events.
    ///
    /// With `events` below 2³¹ it is right whether the processor takes the whole value or
    /// sign-extends its low 32 bits.
    #[inline]
    pub const fn preload(&self, events: u32) -> u64 {
        (events as u64).wrapping_neg() & self.mask
    }

    /// Whether a counter that was [preloaded](Self::preload), and since read as `value`, wrapped.
    ///
    /// Right until it has counted half its range more.
    #[inline]
    pub const fn has_overflowed(&self, value: u64) -> bool {
        value & (self.mask ^ self.mask >> 1) == 0
    }

    /// The counter's bits.
    #[inline]
    pub const fn mask(&self) -> u64 {
        self.mask
    }

    /// Reads the counter, by RDPMC or, where it has no index, by RDMSR.
    #[inline]
    pub(crate) fn read(&self, msr: &impl MsrBackend) -> Result<u64, MsrFault> {
        match self.rdpmc {
            Some(index) => msr.rdpmc(index),
            None => msr.rdmsr(self.value),
        }
    }
}

/// The most counters that any detected interface has on a processor: as many [`CounterSlot`]s are enough
/// everywhere. (Intel: 10, before `IA32_PERFEVTSEL10` other registers begin; AMD: 15, a field of 4 bits.)
pub const MAX_COUNTERS: usize = 16;

/// The counters' bits in the global registers: general from 0, fixed from 32 on.
pub(crate) const COUNTERS: u64 = (1 << 48) - 1;

/// The bits of the first `count` counters in a global register.
#[inline]
pub(crate) const fn counter_mask(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// The numbers of the counters in a mask, ascending.
#[inline]
pub(crate) fn counters_in(mask: u64) -> impl Iterator<Item = u8> {
    let mut left = mask;
    core::iter::from_fn(move || {
        let number = left.trailing_zeros() as u8;
        left &= left.wrapping_sub(1);
        (number < 64).then_some(number)
    })
}

/// State of one counter: 8 bytes that control path and interrupt path share.
///
/// A slot changes by single stores, each of them a state that an interrupt may see.
#[derive(Debug, Default)]
pub struct CounterSlot(AtomicU64);

/// The state of a slot, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// Not in use.
    Free,
    /// Counts for the source in this row of the table; `events` were to pass when it was loaded.
    Running { row: u16, events: u32 },
    /// Not in use; its select holds this row's event, enabled, and the global control keeps it still.
    Parked { row: u16 },
    /// It could not be stopped or re-armed: presumed running until shut-down, for no source.
    Faulted,
}

impl CounterSlot {
    const RUNNING: u64 = 1 << 63;
    const FAULTED: u64 = 1 << 62;
    const PARKED: u64 = 1 << 61;

    /// A free counter.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn load(&self) -> SlotState {
        Self::decode(self.0.load(Ordering::Acquire))
    }

    /// Stores a state, and returns the one that it replaced: an interrupt may have changed the events
    /// since they were loaded.
    #[inline]
    pub(crate) fn replace(&self, state: SlotState) -> SlotState {
        Self::decode(self.0.swap(Self::encode(state), Ordering::AcqRel))
    }

    #[inline]
    fn decode(bits: u64) -> SlotState {
        if bits & Self::RUNNING != 0 {
            SlotState::Running { row: (bits >> 32) as u16, events: bits as u32 }
        } else if bits & Self::FAULTED != 0 {
            SlotState::Faulted
        } else if bits & Self::PARKED != 0 {
            SlotState::Parked { row: (bits >> 32) as u16 }
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
        match state {
            SlotState::Free => 0,
            SlotState::Running { row, events } => {
                Self::RUNNING | u64::from(row) << 32 | u64::from(events)
            }
            SlotState::Faulted => Self::FAULTED,
            SlotState::Parked { row } => Self::PARKED | u64::from(row) << 32,
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
        for usage in [
            SlotState::Running { row: 0, events: 0 },
            SlotState::Running { row: u16::MAX, events: u32::MAX },
            SlotState::Faulted,
            SlotState::Parked { row: u16::MAX },
            SlotState::Free,
        ] {
            slot.store(usage);
            assert_eq!(slot.load(), usage);
        }
    }

    #[test]
    fn a_preloaded_counter_overflows_after_exactly_its_events() {
        for width in [32, 40, 48, 64] {
            // SAFETY: nothing accesses it.
            let register = unsafe { MsrAddress::new(0) };
            let mask = u64::MAX >> (64 - width);
            let counter = Counter { select: register, value: register, rdpmc: None, mask };
            for events in [1, 0x1000, 0x1_0000, 0x7FFF_FFFF] {
                let start = counter.preload(events);
                // What a processor makes of a write that it sign-extends from bit 31.
                assert_eq!(start as u32 as i32 as i64 as u64 & counter.mask(), start);
                let before = start.wrapping_add(u64::from(events) - 1) & counter.mask();
                let after = start.wrapping_add(u64::from(events)) & counter.mask();
                assert!(!counter.has_overflowed(before));
                assert!(counter.has_overflowed(after));
                assert_eq!(after, 0);
            }
        }
    }
}
