//! The privilege levels whose slots are counted.

/// The privilege levels at which issue slots are counted, and the permission for user mode to read the counts.
///
/// ```
/// use pmu_intel::topdown::TopDownFilter;
/// // User mode's slots, which user mode reads by RDPMC; the kernel has to set CR4.PCE.
/// let filter = TopDownFilter { user_rdpmc: true, ..TopDownFilter::USER };
/// assert!(filter.user && !filter.kernel);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TopDownFilter {
    /// Issue slots at privilege levels above 0 are counted.
    pub user: bool,
    /// Issue slots at privilege level 0 are counted.
    pub kernel: bool,
    /// User mode may read the slots by RDPMC. The field has an effect only on processors that can deny user mode RDPMC
    /// for individual counters. On other processors, CR4.PCE alone decides.
    pub user_rdpmc: bool,
}

impl TopDownFilter {
    /// Every privilege level.
    pub const ALL: Self = Self { user: true, kernel: true, user_rdpmc: false };
    /// Privilege levels above 0.
    pub const USER: Self = Self { kernel: false, ..Self::ALL };
    /// Privilege level 0.
    pub const KERNEL: Self = Self { user: false, ..Self::ALL };
}
