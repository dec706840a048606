//! How an index names a started object.

use core::ptr;

/// A started object, or a part of one, as an index names it: a pointer that nothing but a guard of the
/// registry's dereferences.
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
    /// The name of nothing, for places without an object.
    pub(crate) const NOTHING: Self = Self(ptr::null());

    /// Names what is at an address.
    pub(crate) const fn at(address: *const T) -> Self {
        Self(address)
    }

    /// The address.
    #[inline]
    pub(crate) const fn address(self) -> *const T {
        self.0
    }
}

// SAFETY: a name is a number until a guard dereferences it, and what it then lends is shared: `T` is `Sync`.
unsafe impl<T: Sync> Send for Listed<T> {}
// SAFETY: as for `Send`: (1) copying a name accesses nothing; (2) what a guard lends is shared, and `Sync`.
unsafe impl<T: Sync> Sync for Listed<T> {}
