//! Event-select registers, as far as all vendors agree.

use core::fmt::Debug;

/// The value of an event-select register: which event a counter counts, and when.
///
/// Both vendors' layouts agree in bits 23:8 and 31:24; they differ in how wide an event's number is
/// and in what is reserved. Implemented by the vendors' register types; used by [`crate::Session`].
pub trait EventSelect: Copy + Debug {
    /// The register's value.
    fn select_bits(self) -> u64;

    /// The event's number.
    fn event_number(self) -> u16;

    /// The unit mask.
    fn event_unit_mask(self) -> u8;

    /// The same event, counting, and interrupting at overflow.
    fn running(self) -> Self;
}
