//! The identity of a group of events.

use core::fmt;
use core::num::NonZero;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// The identity of a group of events, which are counted together or not at all.
///
/// [`open_group`](crate::CounterSession::open_group) returns the group's identity. The identity is unique in the
/// machine until 2³² groups have been opened, and stays the same when the group moves to another processor.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GroupId(NonZero<u32>);

impl GroupId {
    pub(crate) fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        loop {
            if let Some(group) = Self::of_bits(LAST.fetch_add(1, Relaxed).wrapping_add(1)) {
                return group;
            }
        }
    }

    /// Returns the group with this number; 0: none.
    pub(crate) fn of_bits(bits: u32) -> Option<Self> {
        NonZero::new(bits).map(Self)
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.0)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
