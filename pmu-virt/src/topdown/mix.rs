//! The mix of a program's issue slots.

/// Distribution of a program's issue slots over the parts of the top-down metrics. Each part has a share in units of
/// 1/255. The first four shares belong to level 1, and their sum is 255. The last four shares belong to level 2. Each
/// part of level 2 is contained in a part of level 1, so its share is at most the share of that part. The shares are in
/// the order of the bytes of `MSR_PERF_METRICS`.
///
/// ```
/// use pmu_virt::TopDownMix;
/// // Three fifths retire, and the rest waits for memory.
/// let mix = TopDownMix { shares: [153, 0, 0, 102, 0, 0, 0, 102] };
/// assert!(mix.is_whole());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TopDownMix {
    /// The shares. Level 1: retiring, bad speculation, front-end bound, back-end bound. Level 2: heavy operations,
    /// branch mispredictions, fetch latency, memory bound.
    pub shares: [u8; 8],
}

impl TopDownMix {
    /// Every slot retires.
    pub const RETIRING: Self = Self { shares: [255, 0, 0, 0, 0, 0, 0, 0] };

    /// Returns whether the shares are consistent: the sum of level 1 is 255, and no part of level 2 has a larger share
    /// than the part of level 1 to which it belongs.
    ///
    /// ```
    /// use pmu_virt::TopDownMix;
    /// assert!(TopDownMix::RETIRING.is_whole());
    /// assert!(!TopDownMix { shares: [100, 0, 0, 100, 0, 0, 0, 0] }.is_whole()); // 55 slots of 255 are missing
    /// ```
    pub fn is_whole(&self) -> bool {
        let [level_1 @ .., a, b, c, d] = self.shares;
        let sum: u32 = level_1.iter().map(|share| u32::from(*share)).sum();
        sum == 255 && level_1.iter().zip([a, b, c, d]).all(|(part, of)| of <= *part)
    }
}
