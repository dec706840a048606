//! Counts of issue slots by part.

use pmu_core::facility::Division;

use crate::topdown::part::TopDownPart;

/// Number of parts, of both levels.
pub(crate) const PARTS: usize = 8;

/// Counts of issue slots, in total and by [part](TopDownPart).
///
/// On a processor with `MSR_PERF_METRICS`, each part has an error of at most 1/255 of the slots. Each read also rounds
/// each part to a whole number of slots. The rounding alone can make the sum of the four parts of level 1 differ from
/// [`slots`](Self::slots) by up to 2 slots per read. The errors of the four parts can make the difference larger.
///
/// ```
/// use pmu_intel::topdown::{TopDownCounts, TopDownPart};
/// // The registers: 510 slots, of which 102/255 retired and 153/255 waited for the back end.
/// let counts = TopDownCounts::of_registers(510, 102 | 153 << 24, false);
/// assert_eq!(counts.of(TopDownPart::Retiring), Some(204));
/// assert_eq!(counts.per_mille(TopDownPart::BackendBound), Some(600));
/// assert_eq!(counts.of(TopDownPart::MemoryBound), None); // a processor with level 1 alone
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TopDownCounts {
    /// Number of all issue slots that were counted.
    pub slots: u64,
    /// Number of issue slots that were counted on processors that have [level 2](TopDownPart::LEVEL_2).
    pub level_2_slots: u64,
    /// The slots of each part, first of level 1 and then of level 2.
    parts: [u64; PARTS],
}

impl TopDownCounts {
    /// Counts of no slots: every number is 0.
    pub const NONE: Self = Self { slots: 0, level_2_slots: 0, parts: [0; PARTS] };

    /// Converts a number of slots and a value of `MSR_PERF_METRICS` into counts. Each byte of the value is the share of
    /// one part, in units of 1/255. `level_2` tells whether the processor's register has the four bytes of level 2.
    pub fn of_registers(slots: u64, metrics: u64, level_2: bool) -> Self {
        let last = if level_2 { PARTS } else { PARTS / 2 };
        let mut counts =
            Self { slots, level_2_slots: if level_2 { slots } else { 0 }, ..Self::NONE };
        for (number, part) in (0..).zip(counts.parts.iter_mut().take(last)) {
            *part = Division::share(number, slots, metrics);
        }
        counts
    }

    /// Returns the counts of events of the slots and of their parts.
    pub(crate) fn of_parts(slots: u64, level_2: bool, part: impl Fn(usize) -> u64) -> Self {
        let parts = core::array::from_fn(part);
        Self { slots, level_2_slots: if level_2 { slots } else { 0 }, parts }
    }

    /// Returns the counts of a processor that counts each part of level 1 separately, in the order of
    /// [`TopDownPart::LEVEL_1`].
    pub(crate) fn of_counts([retiring, bad, front, back]: [u64; 4]) -> Self {
        let slots = [retiring, bad, front, back].into_iter().fold(0, u64::wrapping_add);
        Self { slots, level_2_slots: 0, parts: [retiring, bad, front, back, 0, 0, 0, 0] }
    }

    /// Returns the number of issue slots of a part. Returns `None` for a part of level 2 if no processor with level 2
    /// has counted slots.
    pub fn of(&self, part: TopDownPart) -> Option<u64> {
        let known = part.parent().is_none() || self.level_2_slots != 0;
        if known { self.parts.get(part as usize).copied() } else { None }
    }

    /// Returns the share of a part, in thousandths of all issue slots, rounded. Returns `None` if no slots were
    /// counted. Also returns `None` for a part of level 2 if no processor with level 2 has counted slots.
    ///
    /// The share is computed from a rounded number of slots. So if few slots were counted, the shares of the four parts
    /// of level 1 can have a sum far from 1,000:
    ///
    /// ```
    /// use pmu_intel::topdown::{TopDownCounts, TopDownPart};
    /// // 7 slots, as 100, 55, 40 and 60 255ths.
    /// let few = TopDownCounts::of_registers(7, 100 | 55 << 8 | 40 << 16 | 60 << 24, false);
    /// let shares = TopDownPart::LEVEL_1.map(|part| few.per_mille(part).unwrap());
    /// assert_eq!(shares, [429, 286, 143, 286]); // 3, 2, 1 and 2 slots: 1,144 thousandths
    /// ```
    ///
    /// ```
    /// use pmu_intel::topdown::{TopDownCounts, TopDownPart};
    /// /// Returns the part of level 1 in which most slots are.
    /// fn bottleneck(counts: &TopDownCounts) -> Option<TopDownPart> {
    ///     TopDownPart::LEVEL_1.into_iter().max_by_key(|part| counts.per_mille(*part))
    /// }
    /// let counts = TopDownCounts::of_registers(1_000, 55 | 200 << 8, false);
    /// assert_eq!(bottleneck(&counts), Some(TopDownPart::BadSpeculation));
    /// ```
    pub fn per_mille(&self, part: TopDownPart) -> Option<u32> {
        let all = if part.parent().is_some() { self.level_2_slots } else { self.slots };
        let (part, all) = (u128::from(self.of(part)?), u128::from(all));
        (part * 1000 + all / 2).checked_div(all).map(|share| share as u32)
    }

    /// Returns the sum of these counts and `other`. Each number wraps around at 2⁶⁴.
    ///
    /// ```
    /// use pmu_intel::topdown::{TopDownCounts, TopDownPart};
    /// let [one, other] = [255, 510].map(|slots| TopDownCounts::of_registers(slots, 0xFF, false));
    /// assert_eq!(one.plus(&other).of(TopDownPart::Retiring), Some(765));
    /// ```
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, u64::wrapping_add)
    }

    /// Returns the difference between these counts and `earlier`. `earlier` must be earlier counts of the same
    /// processor or thread.
    ///
    /// ```
    /// use pmu_intel::topdown::{TopDownCounts, TopDownPart};
    /// let before = TopDownCounts::of_registers(255, 0xFF, false);
    /// let now = before.plus(&TopDownCounts::of_registers(510, 0xFF << 24, false));
    /// assert_eq!(now.since(&before).per_mille(TopDownPart::BackendBound), Some(1_000));
    /// ```
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, u64::wrapping_sub)
    }

    fn with(&self, other: &Self, change: impl Fn(u64, u64) -> u64) -> Self {
        let mut parts = self.parts;
        for (part, other) in parts.iter_mut().zip(other.parts) {
            *part = change(*part, other);
        }
        Self {
            slots: change(self.slots, other.slots),
            level_2_slots: change(self.level_2_slots, other.level_2_slots),
            parts,
        }
    }
}
