//! The mix of a program's issue slots, which the embedder feeds.

/// Shares of a program's issue slots, in 255ths of the slots: the four parts of level 1, whose sum is 255, then the
/// four parts of level 2, each at most its part of level 1. The order is that of the bytes of `MSR_PERF_METRICS`.
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
    /// The shares: retiring, bad speculation, front end, back end; heavy operations, branch mispredictions, fetch
    /// latency, memory.
    pub shares: [u8; 8],
}

impl TopDownMix {
    /// Every slot retires.
    pub const RETIRING: Self = Self { shares: [255, 0, 0, 0, 0, 0, 0, 0] };

    /// Returns whether the sum of the parts of level 1 is 255, and no part of level 2 exceeds its part of level 1.
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
