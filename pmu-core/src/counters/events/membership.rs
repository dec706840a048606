//! An opened event's group, present encoding, name and readers, in one word.

use crate::counters::names::generic_event::GenericEvent;

/// An event's group, present encoding, name and readers, in 8 bytes.
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
    /// User mode may read the event's counter.
    pub(crate) user_rdpmc: bool,
}

impl Membership {
    /// Creates the word of an ungrouped event in its first encoding.
    pub(crate) const fn ungrouped(name: Option<GenericEvent>, user_rdpmc: bool) -> Self {
        let name = match name {
            Some(name) => name as u8,
            None => u8::MAX,
        };
        Self { group: 0, members: 0, encoding: 0, name, user_rdpmc }
    }

    pub(crate) fn name(self) -> Option<GenericEvent> {
        GenericEvent::of_bit(self.name)
    }

    pub(crate) const fn pack(self) -> u64 {
        let Self { group, members, encoding, name, user_rdpmc } = self;
        let [a, b, c, d] = group.to_le_bytes();
        u64::from_le_bytes([a, b, c, d, members, encoding, name, user_rdpmc as u8])
    }

    pub(crate) const fn unpack(bits: u64) -> Self {
        let [.., members, encoding, name, user_rdpmc] = bits.to_le_bytes();
        Self { group: bits as u32, members, encoding, name, user_rdpmc: user_rdpmc != 0 }
    }
}
