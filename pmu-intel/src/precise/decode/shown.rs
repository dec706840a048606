//! The privilege levels whose addresses a record shows.

/// Privilege levels that an event counts, and of which its records may show addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) user: bool,
    pub(crate) kernel: bool,
}

impl Shown {
    pub(crate) const ALL: Self = Self { user: true, kernel: true };

    /// Returns whether an address may be shown. The upper half of the address space is the kernel's.
    pub(crate) const fn shows(self, address: u64) -> bool {
        if address >> 63 != 0 { self.kernel } else { self.user }
    }
}
