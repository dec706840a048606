//! Top-down counts as user mode sees them.

use pmu_core::msr::PmcIndex;

use crate::registers::RDPMC_METRICS;
use crate::topdown::counts::TopDownCounts;
use crate::topdown::unit::SLOTS;

/// Data from which user mode computes its top-down counts, with two RDPMC instructions. After each operation of the
/// kernel on the group of the slots, the kernel reads the group, and copies this plain data to memory that user mode
/// can read. A sequence counter (seqlock) protects the memory. The data is valid until fixed counter 3 overflows, which
/// it does only if the kernel does not read the counts for hours.
///
/// User mode reads the sequence counter, then the slots and the metrics by RDPMC, and then the sequence counter again.
/// If the sequence counter has changed, user mode repeats all reads. The kernel must set CR4.PCE.
///
/// ```
/// use pmu_intel::topdown::{TopDownCounts, TopDownPart, TopDownView};
/// /// What a thread has counted. `rdpmc` executes the instruction.
/// fn counts(view: &TopDownView, rdpmc: impl Fn(u32) -> u64) -> TopDownCounts {
///     match view.indices {
///         Some([slots, metrics]) => view.counts(rdpmc(slots.get()), rdpmc(metrics.get())),
///         None => view.counted, // The thread's slots are not being counted.
///     }
/// }
/// # let view = TopDownView::new(TopDownCounts::of_registers(255, 255, false), true, false);
/// let counts = counts(&view, |index| if index == 1 << 29 { 51 << 8 } else { 1_000 });
/// assert_eq!((counts.slots, counts.of(TopDownPart::BadSpeculation)), (1_255, Some(200)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TopDownView {
    /// The counts at the time when the driver last set fixed counter 3 and `MSR_PERF_METRICS` to 0.
    pub counted: TopDownCounts,
    /// The RDPMC indices (ECX) of fixed counter 3, which counts the slots, and of `MSR_PERF_METRICS`. `None` if these
    /// registers are not counting the slots of the processor or thread at present.
    pub indices: Option<[PmcIndex; 2]>,
    level_2: bool,
}

impl TopDownView {
    /// Creates the data from which user mode computes its counts. `counted` has the counts at the time when the driver
    /// last set fixed counter 3 and `MSR_PERF_METRICS` to 0. `counting` tells whether these registers are counting.
    /// `level_2` tells whether the processor has the [parts of level 2](crate::topdown::TopDownPart::LEVEL_2).
    pub const fn new(counted: TopDownCounts, counting: bool, level_2: bool) -> Self {
        let indices = [PmcIndex::new(1 << 30 | SLOTS as u32), PmcIndex::new(RDPMC_METRICS)];
        Self { counted, indices: if counting { Some(indices) } else { None }, level_2 }
    }

    /// Computes the counts from `slots` and `metrics`, the values that RDPMC has read.
    pub fn counts(&self, slots: u64, metrics: u64) -> TopDownCounts {
        self.counted.plus(&TopDownCounts::of_registers(slots, metrics, self.level_2))
    }
}
