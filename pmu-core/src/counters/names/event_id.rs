//! The identity of an event on a processor.

use core::fmt;

/// The identity of an event on a processor's counters. The event was opened on this processor, or is a row in the table
/// of the processor's [`EventSource`](crate::EventSource).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventId(u16);

impl EventId {
    /// A slot has 12 bits for an identity.
    const MASK: u16 = 0xFFF;

    /// From here on: opened events, by their places in an [`EventTable`](crate::EventTable).
    const FIRST_OPENED: u16 = 0x800;

    #[inline]
    pub(crate) const fn of_bits(bits: u16) -> Self {
        Self(bits & Self::MASK)
    }

    #[inline]
    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the identity of the event of a row.
    #[inline]
    pub(crate) const fn of_row(row: usize) -> Self {
        Self(row as u16 & (Self::FIRST_OPENED - 1))
    }

    /// Returns the event's row in the [`EventSource`](crate::EventSource)'s table, or `None` for an opened event.
    #[inline]
    pub const fn row(self) -> Option<usize> {
        if self.0 < Self::FIRST_OPENED { Some(self.0 as usize) } else { None }
    }

    /// Returns the identity of the opened event whose index in its [`EventTable`](crate::EventTable) is `place`.
    pub const fn of_place(place: usize) -> Self {
        Self(Self::FIRST_OPENED | place as u16 & (Self::FIRST_OPENED - 1))
    }

    /// Returns the index of an opened event in its [`EventTable`](crate::EventTable). Returns `None` for a row of the
    /// [`EventSource`](crate::EventSource)'s table.
    ///
    /// ```
    /// # use pmu_core::EventId;
    /// /// Finds a kernel's own data of an opened event, by the event's place in the table.
    /// fn data_of<T>(all: &[T], event: EventId) -> Option<&T> {
    ///     all.get(event.place()?)
    /// }
    /// assert_eq!(data_of(&["first", "second"], EventId::of_place(1)), Some(&"second"));
    /// ```
    #[inline]
    pub const fn place(self) -> Option<usize> {
        match self.0.checked_sub(Self::FIRST_OPENED) {
            Some(place) => Some(place as usize),
            None => None,
        }
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place() {
            Some(place) => write!(f, "opened event {place}"),
            None => write!(f, "event of row {}", self.0),
        }
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
