//! Selection of the branches that a processor records, and its encoding in the last-branch stacks of Intel and AMD.

use core::fmt;

use crate::branches::record::{BranchKind, BranchKinds};

/// Selects the branches that a processor records: by privilege level, and by kind.
///
/// The privilege level of a branch is the privilege level of its target. A branch from user mode into the kernel, such
/// as SYSCALL, belongs to the kernel.
///
/// ```
/// use pmu_core::branches::{BranchFilter, BranchKind, BranchKinds};
/// // Calls in user mode.
/// let calls = BranchFilter::USER.only(BranchKinds::CALLS);
/// assert!(calls.user() && !calls.kernel());
/// assert!(!calls.kinds().contains(BranchKind::Return));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BranchFilter {
    kinds: BranchKinds,
    user: bool,
    kernel: bool,
    call_stack: bool,
}

impl BranchFilter {
    /// All branches at privilege levels above 0.
    pub const USER: Self =
        Self { kinds: BranchKinds::ALL, user: true, kernel: false, call_stack: false };

    /// All branches at privilege level 0.
    pub const KERNEL: Self = Self { user: false, kernel: true, ..Self::USER };

    /// All branches.
    pub const ALL: Self = Self { kernel: true, ..Self::USER };

    /// Returns this filter, restricted to the given kinds of branches.
    ///
    /// ```
    /// use pmu_core::branches::{BranchFilter, BranchKind};
    /// let returns = BranchFilter::KERNEL.only(BranchKind::Return.only());
    /// assert!(returns.kernel() && returns.has(BranchKind::Return) && !returns.has(BranchKind::Conditional));
    /// ```
    pub const fn only(self, kinds: BranchKinds) -> Self {
        Self { kinds, call_stack: false, ..self }
    }

    /// Returns the filter that records a call stack: a near call adds a record, and a near return removes the newest
    /// record. The records are then the callers of the current function, the innermost first.
    ///
    /// ```
    /// use pmu_core::branches::{BranchFilter, BranchKinds};
    /// let callers = BranchFilter::USER.call_stack();
    /// assert_eq!(callers.kinds(), BranchKinds::CALLS_AND_RETURNS);
    /// ```
    pub const fn call_stack(self) -> Self {
        Self { kinds: BranchKinds::CALLS_AND_RETURNS, call_stack: true, ..self }
    }

    /// Returns this filter with its privilege levels replaced. The new filter selects levels above 0 if `user` is
    /// `true`, and level 0 if `kernel` is `true`.
    ///
    /// ```
    /// use pmu_core::branches::BranchFilter;
    /// assert_eq!(BranchFilter::ALL.at(true, false), BranchFilter::USER);
    /// ```
    pub const fn at(self, user: bool, kernel: bool) -> Self {
        Self { user, kernel, ..self }
    }

    /// Returns whether branches at privilege levels above 0 are recorded.
    pub const fn user(self) -> bool {
        self.user
    }

    /// Returns whether branches at privilege level 0 are recorded.
    pub const fn kernel(self) -> bool {
        self.kernel
    }

    /// Returns the kinds of branches that are recorded.
    pub const fn kinds(self) -> BranchKinds {
        self.kinds
    }

    /// Returns whether the records are a [call stack](Self::call_stack).
    pub const fn is_call_stack(self) -> bool {
        self.call_stack
    }

    /// Returns whether the filter selects branches of this kind.
    pub const fn has(self, kind: BranchKind) -> bool {
        self.kinds.contains(kind)
    }

    /// Returns whether this filter selects every branch that `other` selects. The result is `false` if only one of the
    /// two filters records a call stack.
    ///
    /// ```
    /// use pmu_core::branches::{BranchFilter, BranchKinds};
    /// assert!(BranchFilter::ALL.contains(BranchFilter::USER.only(BranchKinds::CALLS)));
    /// assert!(!BranchFilter::ALL.contains(BranchFilter::USER.call_stack()));
    /// ```
    pub const fn contains(self, other: Self) -> bool {
        (self.user || !other.user)
            && (self.kernel || !other.kernel)
            && self.kinds.contains_all(other.kinds)
            && self.call_stack == other.call_stack
    }

    /// Returns whether the filter selects no branch.
    pub const fn is_empty(self) -> bool {
        self.kinds.is_empty() || !(self.user || self.kernel)
    }

    /// Returns the value of a last-branch stack's filter register. Each bit excludes a privilege level or a kind of
    /// branch. Intel's `MSR_LBR_SELECT` and AMD's `LastBranchStackSelect` have the same bits 8:0 (SDM vol. 3B,
    /// "Filtering of Last Branch Records"; APM vol. 2, "Last Branch Stack Registers").
    ///
    /// ```
    /// use pmu_core::branches::{BranchFilter, BranchKinds};
    /// // The calls of user mode: all but bits 1, 3 and 4.
    /// assert_eq!(BranchFilter::USER.only(BranchKinds::CALLS).excluded(), 0x1E5);
    /// ```
    #[inline(never)] // 112 bytes of the Hermit-like glue, at `opt-level` 3.
    pub fn excluded(&self) -> u64 {
        let bit = |excluded: bool, bit: u32| u64::from(excluded) << bit;
        let kind = |kind: BranchKind, number: u32| bit(!self.has(kind), number);
        bit(!self.kernel, 0)
            | bit(!self.user, 1)
            | kind(BranchKind::Conditional, 2)
            | kind(BranchKind::DirectCall, 3)
            | kind(BranchKind::IndirectCall, 4)
            | kind(BranchKind::Return, 5)
            | kind(BranchKind::IndirectJump, 6)
            | kind(BranchKind::DirectJump, 7)
            | kind(BranchKind::Other, 8)
    }
}

/// A filter in two bytes, or none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedFilter(u16);

impl PackedFilter {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn new(filter: BranchFilter) -> Self {
        let BranchFilter { kinds, user, kernel, call_stack } = filter;
        let levels = (user as u16) << 8 | (kernel as u16) << 9 | (call_stack as u16) << 10;
        Self(1 << 15 | levels | kinds.bits() as u16)
    }

    pub(crate) const fn get(self) -> Option<BranchFilter> {
        let Self(bits) = self;
        if bits == 0 {
            return None;
        }
        let kinds = BranchKinds::of_bits(bits as u8);
        let [user, kernel, call_stack] = [bits & 1 << 8, bits & 1 << 9, bits & 1 << 10];
        Some(BranchFilter {
            kinds,
            user: user != 0,
            kernel: kernel != 0,
            call_stack: call_stack != 0,
        })
    }

    #[inline]
    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn is_call_stack(self) -> bool {
        self.0 & 1 << 10 != 0
    }

    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    pub(crate) const fn of_bits(bits: u16) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for PackedFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for PackedFilter {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{}", self.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_filter_is_the_filter_again() {
        assert_eq!(PackedFilter::NONE.get(), None);
        let filters = [
            BranchFilter::USER,
            BranchFilter::KERNEL.only(BranchKinds::CALLS),
            BranchFilter::ALL.only(BranchKinds::NONE),
            BranchFilter::USER.call_stack(),
            BranchFilter::ALL.at(false, false),
        ];
        for filter in filters {
            let packed = PackedFilter::new(filter);
            assert_eq!((packed.get(), packed.is_none()), (Some(filter), false));
            assert_eq!(PackedFilter::of_bits(packed.bits()), packed);
            assert_eq!(packed.is_call_stack(), filter.is_call_stack());
        }
    }
}
