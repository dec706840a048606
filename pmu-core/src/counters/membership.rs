//! An opened event's group, present encoding and name.

use crate::NamedEvent;

/// An event's group, present encoding and name, in 8 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Membership {
    /// 0: alone.
    pub(crate) group: u32,
    /// Number of events of the group.
    pub(crate) members: u8,
    /// Present encoding.
    pub(crate) encoding: u8,
    /// Bit of the name; 0xFF: it has none.
    pub(crate) name: u8,
}

impl Membership {
    /// Creates that of an event that is alone, in its first encoding.
    pub(crate) const fn alone(name: Option<NamedEvent>) -> Self {
        let name = match name {
            Some(name) => name as u8,
            None => u8::MAX,
        };
        Self { group: 0, members: 0, encoding: 0, name }
    }

    pub(crate) fn name(self) -> Option<NamedEvent> {
        NamedEvent::of_bit(self.name)
    }

    pub(crate) const fn pack(self) -> u64 {
        let Self { group, members, encoding, name } = self;
        group as u64 | (members as u64) << 32 | (encoding as u64) << 40 | (name as u64) << 48
    }

    pub(crate) const fn unpack(bits: u64) -> Self {
        let [_, _, _, _, members, encoding, name, _] = bits.to_le_bytes();
        Self { group: bits as u32, members, encoding, name }
    }
}
