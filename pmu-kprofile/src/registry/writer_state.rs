//! The writer's state: its last change of the lists.

use crate::object::object_ptr::ObjectPtr;
use crate::object::profile_object::ProfileObject;
use crate::registry::srcu::GracePeriod;

/// The state that only the holder of the write lock accesses.
pub(super) struct WriterState {
    /// The grace period of the last change: until it is over, the snapshot that is not current may be read.
    pub(super) grace: GracePeriod,
    /// Number of changes so far.
    pub(super) change: u64,
    /// The object that the last change took off the lists.
    pub(super) stopping: Option<ObjectPtr<ProfileObject<'static>>>,
}

impl WriterState {
    pub(super) const NEW: Self = Self { grace: GracePeriod::OVER, change: 0, stopping: None };
}
