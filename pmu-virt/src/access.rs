//! What an access to a register comes to.

/// The answer to RDMSR or RDPMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use]
pub enum Read {
    /// The register's value.
    Value(u64),
    /// The bits of `mask` are the PMU's, with this value; the others are the embedder's.
    Shared {
        /// The value of the PMU's bits.
        value: u64,
        /// Which bits those are.
        mask: u64,
    },
    /// #GP(0).
    GeneralProtection,
    /// No register of this vendor's PMU: the embedder's to answer.
    Unhandled,
}

/// The answer to WRMSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use]
pub enum Write {
    /// Taken.
    Done,
    /// The bits of `mask` are the PMU's and were taken; the others are the embedder's.
    Shared {
        /// Which bits those are.
        mask: u64,
    },
    /// #GP(0). Nothing was changed.
    GeneralProtection,
    /// No register of this vendor's PMU: the embedder's to answer.
    Unhandled,
}

/// The answer to WRMSR, and what was wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use]
pub struct Written {
    /// What the hardware would do.
    pub answer: Write,
    /// The bits of the value that the manual does not allow there, also where hardware ignores
    /// them. All bits, if the register cannot be written at all.
    pub illegal: u64,
}

impl Written {
    pub(crate) const UNHANDLED: Self = Self { answer: Write::Unhandled, illegal: 0 };
    /// There is no such register, or it is read-only.
    pub(crate) const REFUSED: Self = Self { answer: Write::GeneralProtection, illegal: u64::MAX };
    /// The register ignores every write.
    pub(crate) const IGNORED: Self = Self { answer: Write::Done, illegal: u64::MAX };
}

/// What RDPMC depends on beside ECX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Mode {
    /// The current privilege level, 0–3.
    pub cpl: u8,
    /// CR4.PCE: RDPMC is allowed at any level.
    pub pce: bool,
    /// CR0.PE: outside protected mode RDPMC is allowed.
    pub protected: bool,
}

impl Mode {
    /// A kernel.
    pub const KERNEL: Self = Self { cpl: 0, pce: false, protected: true };

    /// CPL 0, or without privilege levels.
    #[inline]
    pub(crate) const fn is_privileged(self) -> bool {
        self.cpl == 0 || !self.protected
    }

    /// SDM vol. 2B and APM vol. 3, RDPMC.
    #[inline]
    pub(crate) const fn allows_rdpmc(self) -> bool {
        self.is_privileged() || self.pce
    }
}
