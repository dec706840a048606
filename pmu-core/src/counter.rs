//! Hardware counters, and the memory in which a processor's interrupt path finds them.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{MsrAddress, PmcIndex};

/// One hardware counter with its event-select register.
///
/// Implemented by the vendors' counter types; used by [`crate::Session`].
pub trait Counter {
    /// The event-select register.
    fn select_register(&self) -> MsrAddress;

    /// The counter itself.
    fn value_register(&self) -> MsrAddress;

    /// The counter's index for RDPMC.
    fn rdpmc_index(&self) -> PmcIndex;

    /// How many bits the counter has, 32–64.
    fn width(&self) -> u32;

    /// The value from which the counter overflows after `events` events.
    ///
    /// With `events` below 2³¹ it is right whether the processor takes the whole value or
    /// sign-extends its low 32 bits.
    #[inline]
    fn preload(&self, events: u32) -> u64 {
        u64::from(events).wrapping_neg() & self.mask()
    }

    /// Whether a counter that was [preloaded](Self::preload), and since read as `value`, wrapped.
    ///
    /// Right until it has counted half its range more.
    #[inline]
    fn has_overflowed(&self, value: u64) -> bool {
        value & (1 << (self.width() - 1)) == 0
    }

    /// The counter's bits.
    #[inline]
    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.width())
    }
}

/// What one counter is doing: 8 bytes that control path and interrupt path share.
///
/// A slot changes by single stores, each of them a state that an interrupt may see.
#[derive(Debug, Default)]
pub struct CounterSlot(AtomicU64);

/// The state of a slot, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Nobody's.
    Free,
    /// Counts for the source in this row of the table; `events` were to pass when it was loaded.
    Running { row: u16, events: u32 },
    /// Nobody's; its select holds this row's event, enabled, and the global control keeps it still.
    Parked { row: u16 },
    /// It could not be stopped: presumed running until shut-down, for nobody.
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
    pub(crate) fn load(&self) -> Use {
        Self::decode(self.0.load(Ordering::Acquire))
    }

    /// Stores a state, and says which one it replaced: an interrupt may have changed the events
    /// since they were loaded.
    #[inline]
    pub(crate) fn replace(&self, usage: Use) -> Use {
        Self::decode(self.0.swap(Self::encode(usage), Ordering::AcqRel))
    }

    #[inline]
    fn decode(bits: u64) -> Use {
        if bits & Self::RUNNING != 0 {
            Use::Running { row: (bits >> 32) as u16, events: bits as u32 }
        } else if bits & Self::FAULTED != 0 {
            Use::Faulted
        } else if bits & Self::PARKED != 0 {
            Use::Parked { row: (bits >> 32) as u16 }
        } else {
            Use::Free
        }
    }

    #[inline]
    pub(crate) fn store(&self, usage: Use) {
        self.0.store(Self::encode(usage), Ordering::Release);
    }

    #[inline]
    fn encode(usage: Use) -> u64 {
        match usage {
            Use::Free => 0,
            Use::Running { row, events } => {
                Self::RUNNING | u64::from(row) << 32 | u64::from(events)
            }
            Use::Faulted => Self::FAULTED,
            Use::Parked { row } => Self::PARKED | u64::from(row) << 32,
        }
    }
}

/// The memory that one processor's counters need: 8 bytes a counter, and 16 for the processor.
///
/// The embedder lends it for as long as the processor profiles, commonly from a static array with
/// an element a processor; the interrupt path finds its state here without the control handle.
/// `&CounterMemory<[CounterSlot; N]>` coerces to `&CounterMemory`.
///
/// ```
/// use pmu_core::CounterMemory;
/// const PROCESSORS: usize = 4;
/// static MEMORY: [CounterMemory<[pmu_core::CounterSlot; 8]>; PROCESSORS] =
///     [const { CounterMemory::new() }; PROCESSORS];
/// let of_processor_0: &CounterMemory = &MEMORY[0];
/// ```
#[derive(Debug)]
pub struct CounterMemory<S: ?Sized = [CounterSlot]> {
    /// What the global control register holds while the counters run: the bits of others as they
    /// were found, and our own. The interrupt path leaves the register so.
    pub(crate) global_control: AtomicU64,
    /// Whether the processor freezes the counters for the interrupt path.
    pub(crate) freezes: AtomicBool,
    pub(crate) slots: S,
}

impl<const N: usize> CounterMemory<[CounterSlot; N]> {
    /// Memory for `N` counters, all free. `N` = 0 stands for "there was no memory".
    pub const fn new() -> Self {
        Self {
            global_control: AtomicU64::new(0),
            freezes: AtomicBool::new(false),
            slots: [const { CounterSlot::new() }; N],
        }
    }
}

impl<const N: usize> Default for CounterMemory<[CounterSlot; N]> {
    fn default() -> Self {
        Self::new()
    }
}

impl CounterMemory {
    /// For how many counters it is enough.
    pub const fn counters(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_gives_back_what_was_stored() {
        let slot = CounterSlot::new();
        assert_eq!(slot.load(), Use::Free);
        for usage in [
            Use::Running { row: 0, events: 0 },
            Use::Running { row: u16::MAX, events: u32::MAX },
            Use::Faulted,
            Use::Parked { row: u16::MAX },
            Use::Free,
        ] {
            slot.store(usage);
            assert_eq!(slot.load(), usage);
        }
    }

    #[test]
    fn memory_is_eight_bytes_a_counter_and_sixteen_more() {
        assert_eq!(size_of::<CounterMemory<[CounterSlot; 8]>>(), 8 * 8 + 16);
    }

    struct Wide(u32);

    impl Counter for Wide {
        fn select_register(&self) -> MsrAddress {
            unreachable!()
        }
        fn value_register(&self) -> MsrAddress {
            unreachable!()
        }
        fn rdpmc_index(&self) -> PmcIndex {
            unreachable!()
        }
        fn width(&self) -> u32 {
            self.0
        }
    }

    #[test]
    fn a_preloaded_counter_overflows_after_exactly_its_events() {
        for width in [32, 40, 48, 64] {
            let counter = Wide(width);
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
