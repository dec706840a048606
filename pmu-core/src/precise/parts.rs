//! The parts of a precise sample beside the address of its instruction.

use core::fmt;
use core::ops::BitOr;

/// Parts that each sample of a [precise](crate::Event::precise) event has in addition to the instruction's address and
/// the time: groups of data in the processor's record. In PEBS formats 0 to 3, all records have the same groups.
///
/// ```
/// use pmu_core::precise::SampleParts;
/// let parts = SampleParts::ACCESS | SampleParts::branches(16);
/// assert!(parts.contains(SampleParts::ACCESS) && !parts.contains(SampleParts::REGISTERS));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SampleParts(u16);

impl SampleParts {
    /// No additional part.
    pub const NONE: Self = Self(0);
    /// The instruction's access to memory.
    pub const ACCESS: Self = Self(1 << 0);
    /// The general registers.
    pub const REGISTERS: Self = Self(1 << 1);
    /// The registers XMM0 to XMM15.
    pub const VECTORS: Self = Self(1 << 2);
    /// The values of all counters.
    pub const COUNTERS: Self = Self(1 << 3);
    /// The top-down metrics.
    pub const METRICS: Self = Self(1 << 4);

    const COUNT: u32 = 5;
    const KINDS: u16 = (1 << Self::COUNT) - 1;
    /// Number of bits of a set of parts.
    pub(crate) const BITS: u32 = Self::COUNT + 6;

    /// Returns the part of the last `count` branches, at most 32. If `count` is 0, returns [`NONE`](Self::NONE).
    /// Architectural PEBS copies 8, 16 or all branch records, so a record can have more than `count` branches.
    ///
    /// The processor copies its branch records as they are. This part does not make the processor record branches:
    /// while nothing records, a precise record has no branches of its sample. A
    /// [`BranchRecorder`](crate::branch_recording::BranchRecorder) or a running event [with
    /// branches](crate::Event::with_branches) makes the processor record, by its own filter. If the precise event
    /// itself has branches, the processor interrupts for each record.
    ///
    /// `Pebs::record` of `pmu-intel` returns the copied branches. [`Sample::branches`](crate::Sample::branches) does
    /// not.
    ///
    /// ```
    /// use pmu_core::precise::SampleParts;
    /// assert_eq!(SampleParts::branches(16).branch_count(), 16);
    /// assert_eq!(SampleParts::branches(100).branch_count(), 32);
    /// assert_eq!(SampleParts::branches(0), SampleParts::NONE);
    /// ```
    pub const fn branches(count: u8) -> Self {
        let count = if count > 32 { 32 } else { count };
        Self((count as u16) << Self::COUNT)
    }

    /// Returns the number of last branches that these parts request for each record, or 0 if they request no branches.
    pub const fn branch_count(self) -> u8 {
        (self.0 >> Self::COUNT) as u8
    }

    /// Returns whether `self` has all parts in `parts`, and requests at least as many branches as `parts`.
    ///
    /// ```
    /// use pmu_core::precise::SampleParts;
    /// let parts = SampleParts::REGISTERS | SampleParts::branches(8);
    /// assert!(parts.contains(SampleParts::branches(4)) && !parts.contains(SampleParts::branches(16)));
    /// ```
    pub const fn contains(self, parts: Self) -> bool {
        self.kinds() & parts.kinds() == parts.kinds() && self.branch_count() >= parts.branch_count()
    }

    /// Returns whether this set has no parts.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the parts in either set, with the greater number of branches.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        let (own, others) = (self.branch_count(), other.branch_count());
        let branches = Self::branches(if own > others { own } else { others });
        Self(self.kinds() | other.kinds() | branches.0)
    }

    /// Returns the parts that `others` does not have.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        let has_all = others.branch_count() >= self.branch_count();
        let branches = if has_all { 0 } else { self.0 & !Self::KINDS };
        Self(self.kinds() & !others.kinds() | branches)
    }

    const fn kinds(self) -> u16 {
        self.0 & Self::KINDS
    }

    /// Returns the set as the low 11 bits of a number, for [`from_bits`](Self::from_bits).
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the set whose [`bits`](Self::bits) these are. Other bits are ignored.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }
}

impl BitOr for SampleParts {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

impl fmt::Debug for SampleParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::ACCESS, "access"),
            (Self::REGISTERS, "registers"),
            (Self::VECTORS, "vectors"),
            (Self::COUNTERS, "counters"),
            (Self::METRICS, "metrics"),
        ];
        let mut set = f.debug_set();
        for (_, name) in names.iter().filter(|(part, _)| self.contains(*part)) {
            set.entry(&format_args!("{name}"));
        }
        if self.branch_count() != 0 {
            set.entry(&format_args!("{} branches", self.branch_count()));
        }
        set.finish()
    }
}
