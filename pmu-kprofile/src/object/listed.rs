//! The name of a started object in an index.

use core::ptr;

/// The name of a started object, or of a part of one, in an index: a pointer that only the registry dereferences, under
/// a guard or with the write lock.
pub(crate) struct Listed<T>(*const T);

impl<T> Clone for Listed<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Listed<T> {}

impl<T> PartialEq for Listed<T> {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl<T> Listed<T> {
    /// The name of nothing, for slots without an object.
    pub(crate) const NOTHING: Self = Self(ptr::null());

    /// Returns the name of the object at an address.
    pub(crate) const fn at(address: *const T) -> Self {
        Self(address)
    }

    /// Returns the address.
    #[inline]
    pub(crate) const fn address(self) -> *const T {
        self.0
    }
}

// SAFETY: (1) a name is a number until the registry dereferences it; (2) it then lends a shared reference, and `T` is
// `Sync`.
unsafe impl<T: Sync> Send for Listed<T> {}
// SAFETY: (1) copying a name accesses nothing; (2) the registry lends a shared reference, and `T` is `Sync`.
unsafe impl<T: Sync> Sync for Listed<T> {}
