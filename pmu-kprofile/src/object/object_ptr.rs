//! A pointer to a started object, as an index holds it.

use core::ptr;

/// A pointer to a started object, or to a part of one. Only the registry dereferences it: under a guard, or with the
/// write lock held.
pub(crate) struct ObjectPtr<T>(*const T);

impl<T> Clone for ObjectPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ObjectPtr<T> {}

impl<T> PartialEq for ObjectPtr<T> {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl<T> ObjectPtr<T> {
    /// The null pointer, for slots without an object.
    pub(crate) const NULL: Self = Self(ptr::null());

    /// Creates a pointer to an object.
    pub(crate) const fn new(object: *const T) -> Self {
        Self(object)
    }

    /// Returns the raw pointer.
    #[inline]
    pub(crate) const fn as_ptr(self) -> *const T {
        self.0
    }
}

// SAFETY: (1) a pointer accesses nothing until the registry dereferences it; (2) the registry then lends a shared
// reference, and `T` is `Sync`.
unsafe impl<T: Sync> Send for ObjectPtr<T> {}
// SAFETY: (1) copying a pointer accesses nothing; (2) the registry lends a shared reference, and `T` is `Sync`.
unsafe impl<T: Sync> Sync for ObjectPtr<T> {}
