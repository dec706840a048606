//! An opened event's group, present encoding, name and flags, in one word.

use crate::counters::names::generic_event::GenericEvent;

/// An event's group, present encoding, name and flags, in 8 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Membership {
    /// 0: the event is ungrouped.
    pub(crate) group: u32,
    /// Number of events of the group.
    pub(crate) members: u8,
    /// Present encoding.
    pub(crate) encoding: u8,
    /// Bit of the generic event's name; 0xFF: it has none.
    pub(crate) name: u8,
    /// Those below.
    pub(crate) flags: u8,
    /// Members of the group whose overflow reloads the event's counter, one bit each of six.
    pub(crate) reload: u8,
}

impl Membership {
    /// User mode may read the event's counter.
    pub(crate) const USER_RDPMC: u8 = 1 << 0;

    /// The event is not counted with its group.
    pub(crate) const DISABLED: u8 = 1 << 1;

    /// No other event is counted while this one is, except those of its group.
    pub(crate) const EXCLUSIVE: u8 = 1 << 2;

    /// The event has an [extra register](crate::Event::with_extra).
    pub(crate) const EXTRA: u8 = 1 << 3;

    /// The event counts in guests only, by the value of the global control register with which guests run.
    pub(crate) const IN_GUESTS: u8 = 1 << 4;

    /// The event is the first of its group.
    pub(crate) const FIRST: u8 = 1 << 5;

    /// The event's overflow reloads counters of its group.
    pub(crate) const RELOADS: u8 = 1 << 7;

    /// The list of a processor's events does not contain the event.
    pub(crate) const UNLISTED: u8 = 1 << 6;

    /// Creates the word of an ungrouped event in its first encoding.
    pub(crate) const fn ungrouped(name: Option<GenericEvent>, flags: u8) -> Self {
        let name = match name {
            Some(name) => name as u8,
            None => u8::MAX,
        };
        Self { group: 0, members: 0, encoding: 0, name, flags, reload: 0 }
    }

    pub(crate) fn name(self) -> Option<GenericEvent> {
        GenericEvent::of_bit(self.name)
    }

    /// Returns whether any of these flags is set.
    pub(crate) const fn has(self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Sets or clears flags.
    pub(crate) const fn with(self, flags: u8, set: bool) -> Self {
        let flags = if set { self.flags | flags } else { self.flags & !flags };
        Self { flags, ..self }
    }

    pub(crate) const fn pack(self) -> u64 {
        let Self { group, members, encoding, name, flags, reload } = self;
        let [a, b, c, d] = group.to_le_bytes();
        u64::from_le_bytes([a, b, c, d, members, encoding & 3 | reload << 2, name, flags])
    }

    pub(crate) const fn unpack(bits: u64) -> Self {
        let [.., members, encoding, name, flags] = bits.to_le_bytes();
        let (encoding, reload) = (encoding & 3, encoding >> 2);
        Self { group: bits as u32, members, encoding, name, flags, reload }
    }
}
