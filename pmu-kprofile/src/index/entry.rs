//! An object in an index.

use crate::object::basic::Basic;
use crate::object::key::Key;
use crate::object::object_ptr::ObjectPtr;
use crate::object::profile_object::ProfileObject;

/// No place.
pub(super) const NONE: u32 = u32::MAX;

/// An object and its range.
#[derive(Clone, Copy)]
#[repr(align(64))] // A cache line, and a shift from the place to the address.
pub(crate) struct Entry {
    pub(super) object: ObjectPtr<ProfileObject<'static>>,
    /// Of an object that has a range.
    pub(super) basic: ObjectPtr<Basic<'static>>,
    pub(super) base: u64,
    /// The range's last address; below the base, if the range is empty.
    pub(super) last: u64,
    /// Callback objects, which have no range, come before the others.
    pub(super) has_range: bool,
    pub(super) key: Key,
}

impl Entry {
    pub(super) const UNUSED: Self =
        Self::of_callback(ObjectPtr::NULL, Key { source: 0, process: 0 });

    /// A callback object, which has no range.
    pub(crate) const fn of_callback(object: ObjectPtr<ProfileObject<'static>>, key: Key) -> Self {
        Self { object, basic: ObjectPtr::NULL, base: 0, last: 0, has_range: false, key }
    }

    /// A basic object: what it counts, and its first and its last address.
    pub(crate) const fn with_range(
        self,
        basic: ObjectPtr<Basic<'static>>,
        (base, last): (u64, u64),
    ) -> Self {
        Self { basic, base, last, has_range: true, ..self }
    }

    /// Returns the sort key of the entry.
    pub(super) fn order(&self) -> (Key, bool, u64) {
        (self.key, self.has_range, self.base)
    }
}
