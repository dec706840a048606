//! The groups of data that are requested for records.

use core::fmt;
use core::ops::BitOr;

/// Groups of data that each record of an event has in addition to the instruction's address, the counters and the time.
/// In PEBS formats 0 to 3, all records have the same groups.
///
/// ```
/// use pmu_intel::precise::PreciseGroups;
/// let groups = PreciseGroups::MEMORY | PreciseGroups::branches(16);
/// assert!(groups.contains(PreciseGroups::MEMORY) && !groups.contains(PreciseGroups::REGISTERS));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PreciseGroups(u16);

impl PreciseGroups {
    /// No additional group.
    pub const NONE: Self = Self(0);
    /// The access to memory.
    pub const MEMORY: Self = Self(1 << 0);
    /// The general registers.
    pub const REGISTERS: Self = Self(1 << 1);
    /// The registers XMM0 to XMM15.
    pub const VECTORS: Self = Self(1 << 2);
    /// The values of all counters of the session.
    pub const COUNTERS: Self = Self(1 << 4);
    /// The top-down metrics.
    pub const METRICS: Self = Self(1 << 5);

    const COUNT: u32 = 8;

    /// Returns the group of the last `count` branches, at most 32. If `count` is 0, returns [`NONE`](Self::NONE). The
    /// processor copies the branches from its branch records, so a [`BranchRecorder`](pmu_core::BranchRecorder) must be
    /// recording. Architectural PEBS copies 8, 16 or all branch records, so a record can have more than `count`
    /// branches.
    ///
    /// ```
    /// use pmu_intel::precise::PreciseGroups;
    /// assert_eq!(PreciseGroups::branches(16).branch_count(), 16);
    /// assert_eq!(PreciseGroups::branches(100).branch_count(), 32);
    /// assert_eq!(PreciseGroups::branches(0), PreciseGroups::NONE);
    /// ```
    pub const fn branches(count: u8) -> Self {
        let count = if count > 32 { 32 } else { count };
        Self((count as u16) << Self::COUNT)
    }

    /// Returns the number of last branches that these groups request for each record, or 0 if they request no branches.
    pub const fn branch_count(self) -> u8 {
        (self.0 >> Self::COUNT) as u8
    }

    /// Returns whether `self` has all groups in `groups`, and requests at least as many branches as `groups`.
    ///
    /// ```
    /// use pmu_intel::precise::PreciseGroups;
    /// let groups = PreciseGroups::REGISTERS | PreciseGroups::branches(8);
    /// assert!(groups.contains(PreciseGroups::branches(4)) && !groups.contains(PreciseGroups::branches(16)));
    /// ```
    pub const fn contains(self, groups: Self) -> bool {
        self.kinds() & groups.kinds() == groups.kinds()
            && self.branch_count() >= groups.branch_count()
    }

    /// Returns whether this set has no groups.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the groups without those of `others`.
    pub(crate) const fn without(self, others: Self) -> Self {
        let branches =
            if others.branch_count() >= self.branch_count() { 0 } else { self.0 & 0xFF00 };
        Self(self.kinds() & !others.kinds() | branches)
    }

    /// Returns whether records have the group of counters and metrics.
    pub(crate) const fn kinds_of_counters(self) -> bool {
        self.0 & (Self::COUNTERS.0 | Self::METRICS.0) != 0
    }

    const fn kinds(self) -> u16 {
        self.0 & 0xFF
    }

    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}

/// Returns the groups that are in either set. If both sets contain branches, the result has the greater number of
/// branches.
impl BitOr for PreciseGroups {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        let branches = Self::branches(self.branch_count().max(other.branch_count()));
        Self(self.kinds() | other.kinds() | branches.0)
    }
}

impl fmt::Debug for PreciseGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::MEMORY, "memory"),
            (Self::REGISTERS, "registers"),
            (Self::VECTORS, "vectors"),
            (Self::COUNTERS, "counters"),
            (Self::METRICS, "metrics"),
        ];
        let mut set = f.debug_set();
        for (_, name) in names.iter().filter(|(group, _)| self.contains(*group)) {
            set.entry(&format_args!("{name}"));
        }
        if self.branch_count() != 0 {
            set.entry(&format_args!("{} branches", self.branch_count()));
        }
        set.finish()
    }
}
