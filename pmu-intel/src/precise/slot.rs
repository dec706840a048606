//! The state of one counter that writes records.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use pmu_core::SampleParts;

use crate::precise::event::PreciseEvent;
use crate::precise::report::AccessKind;

/// One counter that writes records: 48 bytes that a task and the interrupt share.
#[derive(Debug)]
pub(crate) struct PreciseSlot {
    pub(crate) tag: AtomicU64,
    pub(crate) period: AtomicU64,
    /// The number of the start of the event, which no other start in this memory has.
    pub(crate) start: AtomicU64,
    /// The event select.
    pub(crate) select: AtomicU64,
    /// While the counter is suspended, its value.
    pub(crate) value: AtomicU64,
    flags: AtomicU32,
    /// The counter of the event that is counted beside, plus 1; 0: none.
    pub(crate) beside: AtomicU32,
}

const USER: u32 = 1 << 0;
const KERNEL: u32 = 1 << 1;
const BY_HANDLER: u32 = 1 << 2;
const LOADS: u32 = 1 << 3;
const STORES: u32 = 1 << 4;
const GROUPS: u32 = 16;

/// The properties of a slot's event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotEvent {
    flags: u32,
}

impl PreciseSlot {
    pub(crate) const fn new() -> Self {
        Self {
            tag: AtomicU64::new(0),
            period: AtomicU64::new(0),
            start: AtomicU64::new(0),
            select: AtomicU64::new(0),
            value: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            beside: AtomicU32::new(0),
        }
    }

    /// Describes an event, before its counter writes records.
    pub(crate) fn describe(&self, event: &PreciseEvent, select: u64, access: AccessKind) {
        let of = |flag, set: bool| if set { flag } else { 0 };
        let flags = of(USER, event.event().counts_user())
            | of(KERNEL, event.event().counts_kernel())
            | of(BY_HANDLER, event.by_handler)
            | of(LOADS, access == AccessKind::Loads)
            | of(STORES, access == AccessKind::Stores)
            | u32::from(event.groups().bits()) << GROUPS;
        self.tag.store(event.event().tag(), Relaxed);
        self.period.store(event.event().period().unwrap_or(0), Relaxed);
        self.select.store(select, Relaxed);
        self.flags.store(flags, Relaxed);
    }

    pub(crate) fn event(&self) -> SlotEvent {
        SlotEvent { flags: self.flags.load(Relaxed) }
    }
}

impl SlotEvent {
    pub(crate) const fn counts_user(self) -> bool {
        self.flags & USER != 0
    }

    pub(crate) const fn counts_kernel(self) -> bool {
        self.flags & KERNEL != 0
    }

    pub(crate) const fn is_loaded_by_handler(self) -> bool {
        self.flags & BY_HANDLER != 0
    }

    pub(crate) const fn access(self) -> AccessKind {
        if self.flags & LOADS != 0 {
            AccessKind::Loads
        } else if self.flags & STORES != 0 {
            AccessKind::Stores
        } else {
            AccessKind::Unknown
        }
    }

    pub(crate) const fn groups(self) -> SampleParts {
        SampleParts::from_bits((self.flags >> GROUPS) as u16)
    }
}
