//! Answers to register accesses.

/// Answer to the guest's RDMSR or RDPMC: a value or a fault. For [`Shared`](Self::Shared), the embedder adds the bits
/// that do not belong to the PMU. For [`Unhandled`](Self::Unhandled), the embedder answers the whole access.
///
/// ```
/// use pmu_virt::Read;
/// /// Returns what the guest gets; `None` is #GP. `own` answers for the embedder's registers and bits.
/// fn answer(read: Read, own: impl Fn() -> Option<u64>) -> Option<u64> {
///     match read {
///         Read::Value(value) => Some(value),
///         Read::Shared { value, mask } => own().map(|own| own & !mask | value),
///         Read::GeneralProtection => None,
///         Read::Unhandled => own(),
///     }
/// }
/// assert_eq!(answer(Read::Shared { value: 0x80, mask: 0x1880 }, || Some(0x1801)), Some(0x81));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use]
pub enum Read {
    /// The register's value.
    Value(u64),
    /// The PMU and the embedder share the register. `value` has the PMU's bits, and the embedder adds the other bits.
    Shared {
        /// Value of the bits that belong to the PMU.
        value: u64,
        /// Bits that belong to the PMU.
        mask: u64,
    },
    /// The guest gets #GP(0).
    GeneralProtection,
    /// No PMU of this vendor has the register. The embedder emulates the access.
    Unhandled,
}

impl Read {
    /// Returns this answer; if it leaves bits of the register to another part of the processor, with that part's answer
    /// to them.
    pub(crate) fn above(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Unhandled => other(),
            Self::Shared { value: own, mask } => match other() {
                Self::Value(value) => Self::Value(value & !mask | own),
                Self::Shared { value, mask: others } => {
                    Self::Shared { value: value & !mask | own, mask: others | mask }
                }
                Self::GeneralProtection => Self::GeneralProtection,
                Self::Unhandled => self,
            },
            answer => answer,
        }
    }
}

/// Answer to the guest's WRMSR: a completed write or a fault. For [`Shared`](Self::Shared), the embedder writes the
/// bits that do not belong to the PMU. For [`Unhandled`](Self::Unhandled), the embedder answers the whole access.
///
/// ```
/// use pmu_virt::Write;
/// /// Returns `false` for #GP. `own` writes the embedder's registers and bits.
/// fn finish(write: Write, value: u64, own: impl FnOnce(u64) -> bool) -> bool {
///     match write {
///         Write::Done => true,
///         Write::Shared { mask } => own(value & !mask),
///         Write::GeneralProtection => false,
///         Write::Unhandled => own(value),
///     }
/// }
/// assert!(finish(Write::Shared { mask: 0x7FC1 }, 0x1002, |own| own == 0x0002));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use]
pub enum Write {
    /// The PMU has written the register.
    Done,
    /// The PMU and the embedder share the register. The PMU has written the bits in `mask`. The embedder writes the
    /// other bits.
    Shared {
        /// Bits that belong to the PMU.
        mask: u64,
    },
    /// The guest gets #GP(0). The write has changed no register.
    GeneralProtection,
    /// No PMU of this vendor has the register. The embedder emulates the access.
    Unhandled,
}

/// Answer to the guest's WRMSR, together with the bits of the value that the manual does not allow.
///
/// ```
/// use pmu_virt::{AmdConfiguration, Configuration, FedEvents, VirtualPmu, Write};
/// let configuration = Configuration::Amd(AmdConfiguration::LEGACY);
/// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
/// // AMD's processors drop a reserved bit; a test of a driver wants to know.
/// let written = pmu.write(0xC001_0000, 1 << 63 | 0x53_0076);
/// assert_eq!((written.answer, written.illegal), (Write::Done, 1 << 63));
/// # Ok::<(), pmu_virt::ConfigurationError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use]
pub struct Written {
    /// Answer to the guest. The answer is the same as on hardware.
    pub answer: Write,
    /// Bits of the written value that the manual does not allow to be set in this register. The field includes bits
    /// that hardware ignores. If the register cannot be written, the field is `u64::MAX`.
    pub illegal: u64,
}

impl Written {
    /// Returns this answer; if it leaves bits of the register to another part of the processor, with that part's answer
    /// to them.
    pub(crate) fn above(self, other: impl FnOnce() -> Self) -> Self {
        match self.answer {
            Write::Unhandled => other(),
            Write::Shared { mask } => {
                let other = other();
                let answer = match other.answer {
                    Write::Shared { mask: others } => Write::Shared { mask: mask | others },
                    Write::Unhandled => self.answer,
                    answer => answer,
                };
                Self { answer, illegal: self.illegal | other.illegal }
            }
            _ => self,
        }
    }

    pub(crate) const UNHANDLED: Self = Self { answer: Write::Unhandled, illegal: 0 };
    /// The register is absent, or read-only.
    pub(crate) const REFUSED: Self = Self { answer: Write::GeneralProtection, illegal: u64::MAX };
    /// The register ignores every write.
    pub(crate) const IGNORED: Self = Self { answer: Write::Done, illegal: u64::MAX };
}

/// State of the virtual processor that determines whether the guest's RDPMC faults.
///
/// ```
/// use pmu_virt::Mode;
/// let (cr0, cr4, cs) = (0x8005_0033u64, 0x3626F0u64, 0x33u16);
/// let mode = Mode { cpl: (cs & 3) as u8, pce: cr4 >> 8 & 1 != 0, protected: cr0 & 1 != 0 };
/// assert_eq!(mode, Mode { cpl: 3, pce: false, protected: true });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Mode {
    /// The current privilege level, 0–3.
    pub cpl: u8,
    /// CR4.PCE, which allows RDPMC at any privilege level.
    pub pce: bool,
    /// CR0.PE. Outside protected mode, RDPMC is always allowed.
    pub protected: bool,
}

impl Mode {
    /// Mode of a kernel: CPL 0, in protected mode.
    pub const KERNEL: Self = Self { cpl: 0, pce: false, protected: true };

    /// Returns whether the mode is CPL 0, or has no privilege levels.
    #[inline]
    pub(crate) const fn is_privileged(self) -> bool {
        self.cpl == 0 || !self.protected
    }

    /// Returns whether RDPMC is allowed. SDM vol. 2B and APM vol. 3, RDPMC.
    #[inline]
    pub(crate) const fn allows_rdpmc(self) -> bool {
        self.is_privileged() || self.pce
    }
}
