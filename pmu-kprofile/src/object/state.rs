//! The state of a profile object.

/// The state of an object, as [`is_started`](crate::ProfileObject::is_started) and the registry see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// On no lists, and read by no interrupt.
    Stopped,
    /// On lists.
    Started,
    /// Taken off its list. Interrupts that began earlier may still be reading the object.
    Stopping,
}
