//! An object in an index.

use crate::object::basic::Basic;
use crate::object::key::Key;
use crate::object::object_ptr::ObjectPtr;
use crate::object::profile_object::ProfileObject;

/// No place of a table.
pub(super) const NONE: u32 = u32::MAX;

/// An object in an index, with the range of a basic object.
#[derive(Clone, Copy)]
#[repr(align(64))] // A cache line each, and the address follows from the place by a shift.
pub(crate) struct Entry {
    pub(super) object: ObjectPtr<ProfileObject<'static>>,
    /// The counting part of a basic object.
    pub(super) basic: ObjectPtr<Basic<'static>>,
    pub(super) base: u64,
    /// Last address of the range; below the base if the range is empty.
    pub(super) last: u64,
    /// Set for a basic object. Callback objects have no range, and come first in a group.
    pub(super) has_range: bool,
    pub(super) key: Key,
}

impl Entry {
    pub(super) const UNUSED: Self =
        Self::of_callback(ObjectPtr::NULL, Key { source: 0, process: 0 });

    /// Creates the entry of a callback object.
    pub(crate) const fn of_callback(object: ObjectPtr<ProfileObject<'static>>, key: Key) -> Self {
        Self { object, basic: ObjectPtr::NULL, base: 0, last: 0, has_range: false, key }
    }

    /// Returns the entry of a basic object: with its counting part, and its first and its last address.
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
