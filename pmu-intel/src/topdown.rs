//! Top-down analysis: counts the issue slots that retired an operation, and the issue slots that were lost. The causes
//! of a lost slot are wrong speculation, a stall of the front end, and a stall of the back end.
//!
//! Read first: Intel SDM vol. 3B, "Performance Metrics", and vol. 4, `MSR_PERF_METRICS`.

pub(crate) mod unit;

use pmu_core::CounterSet;
use pmu_core::access::{AccessFault, CounterIndex, RegisterAddress, RegisterBackend};
use pmu_core::error::CounterError;
use pmu_core::facility::{
    Asked, Division, DivisionMemory, EventFacility, Facility, Interrupted, Running, Unsettled,
};
use pmu_core::registers::CounterId;

use crate::registers::{MSR_PERF_METRICS, RDPMC_METRICS};
use crate::topdown::unit::SLOTS;

pub use crate::topdown::unit::{TopDownEvents, TopDownPart, TopDownUnit};

/// Bit of the global control register and of the overflow status: the metrics (SDM vol. 4, table 2-2).
const METRICS: u64 = 1 << 48;

/// The facility that divides the issue slots of one processor into [parts](crate::topdown::TopDownPart), on processors
/// that have `MSR_PERF_METRICS`. A session whose event source has it counts the [events](TopDownUnit::events) of the
/// slots and of their parts as it counts other events: of the processor and of threads, in groups, by turns. On an
/// E-core, these events need no facility, and the facility does nothing.
///
/// Fixed counter 3 counts the slots. Each read of the group, and each time that the group leaves its counter, adds the
/// parts to their counts, and sets fixed counter 3 and `MSR_PERF_METRICS` to 0. So a part has an error of at most 1/255
/// of the slots since the read before. Reads at each timer tick keep the error small.
///
/// ```
/// use pmu_core::{CounterSession, EventCount, EventSource, Hardware};
/// use pmu_core::error::EventsError;
/// use pmu_core::facility::DivisionMemory;
/// use pmu_intel::topdown::{TopDown, TopDownPart, TopDownUnit};
///
/// static MEMORY: DivisionMemory = DivisionMemory::new(); // one per processor
///
/// /// Returns the facility, for the `EventSource` of the processor: `EventSource::facility`.
/// fn facility(this_processor: &'static TopDownUnit) -> TopDown<'static> {
///     TopDown::new(this_processor, &MEMORY)
/// }
///
/// /// Returns the thousandths of a function's issue slots that retired.
/// fn retiring<S: EventSource, H: Hardware>(
///     counters: &mut CounterSession<'_, S, H>,
///     unit: &TopDownUnit,
///     function: impl FnOnce(),
/// ) -> Result<Option<u32>, EventsError> {
///     let events = unit.events(counters.counters().usable).each(|event| event.user_only());
///     let group = counters.start(unit.counters(), &events, 0)?;
///     function();
///     let mut counts = [EventCount::default(); 9];
///     let counted = counters.close_group(group, 0, &mut counts)?;
///     let counts = unit.counts(&counts[..counted]);
///     Ok(counts.per_mille(TopDownPart::Retiring))
/// }
/// ```
///
/// # Context
/// Any context, on the processor of the unit. The session and [`service`](pmu_core::service()) call the methods.
///
/// # Limitations
/// - A kernel that does not read the counts for hours gets fractions of all the slots since. RDPMC that clears the
///   metrics (`IA32_PERF_CAPABILITIES` bit 19) is not used.
/// - One counter counts the slots, so groups of the slots take turns: those of a processor and of its thread are not
///   counted at the same time. Neither the parts nor the slots beside them have a period.
/// - After an access that failed, the count of the slots may lack those whose parts are unknown.
/// - On a hybrid machine that a P-core booted, an E-core's session of `pmu::Pmu` lacks fixed counters 4 to 6, so the
///   parts take four general counters.
#[derive(Clone, Copy, Debug)]
pub struct TopDown<'a> {
    unit: &'a TopDownUnit,
    memory: &'a DivisionMemory,
}

impl<'a> TopDown<'a> {
    /// Creates the facility of the processor that `unit` describes.
    pub const fn new(unit: &'a TopDownUnit, memory: &'a DivisionMemory) -> Self {
        Self { unit, memory }
    }
}

/// The registers overflow only if the kernel does not read the counts for hours. Fixed counter 3 and the metrics
/// overflow together, which is one interrupt.
impl Facility for TopDown<'_> {
    #[inline]
    fn is_idle(&self) -> bool {
        self.memory.is_idle()
    }

    #[inline]
    fn status_bits(&self) -> u64 {
        if self.unit.has_metrics() { METRICS } else { 0 }
    }

    #[inline]
    fn collect<M: RegisterBackend>(
        &mut self,
        _: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        let overflowed = interrupted.status & self.status_bits() != 0;
        let with_slots =
            CounterId::fixed(SLOTS).is_some_and(|slots| interrupted.overflowed.contains(slots));
        // If the slots overflowed too, their counter accounts for the interrupt.
        Ok(u32::from(overflowed && !with_slots))
    }
}

impl EventFacility for TopDown<'_> {
    const OFFERS: bool = true;
    const DIVIDES: bool = true;

    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> Result<CounterSet, CounterError> {
        let part = Division::part_of(asked.select).filter(|_| counters.is_empty());
        asked.is_part = part.is_some_and(|part| part < self.unit.metrics());
        Ok(counters)
    }

    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let Some(Division { counter, shares, .. }) = self.division() else { return Ok(()) };
        if running.are_returned() {
            self.memory.lose();
        } else if running.are_lent() || running.are_switched() && running.on(counter).is_none() {
            // The next owner, or the next thread, reads nothing of this one.
            let cleared = self.memory.clear(msr, shares);
            cleared.map_err(|fault| Unsettled { counters: counter.only(), fault })?;
        }
        Ok(())
    }

    fn lose(&self) {
        self.memory.lose();
    }

    #[inline]
    fn division(&self) -> Option<Division<'_>> {
        let counter = CounterId::fixed(SLOTS).filter(|_| self.unit.has_metrics())?;
        Some(Division {
            counter,
            // SAFETY: the metrics are fractions, and hold no address (SDM vol. 4, MSR_PERF_METRICS).
            shares: unsafe { RegisterAddress::new(MSR_PERF_METRICS) },
            index: CounterIndex::new(RDPMC_METRICS),
            parts: self.unit.metrics(),
            bits: METRICS,
            memory: self.memory,
        })
    }
}

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
    /// one part, in units of 1/255. `level_2` says whether the processor's register has the four bytes of level 2.
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
    pub indices: Option<[CounterIndex; 2]>,
    level_2: bool,
}

impl TopDownView {
    /// Creates the data from which user mode computes its counts. `counted` has the counts at the time when the driver
    /// last set fixed counter 3 and `MSR_PERF_METRICS` to 0. `counting` says whether these registers are counting.
    /// `level_2` says whether the processor has the [parts of level 2](crate::topdown::TopDownPart::LEVEL_2).
    pub const fn new(counted: TopDownCounts, counting: bool, level_2: bool) -> Self {
        let indices = [CounterIndex::new(1 << 30 | SLOTS as u32), CounterIndex::new(RDPMC_METRICS)];
        Self { counted, indices: if counting { Some(indices) } else { None }, level_2 }
    }

    /// Computes the counts from `slots` and `metrics`, the values that RDPMC has read.
    pub fn counts(&self, slots: u64, metrics: u64) -> TopDownCounts {
        self.counted.plus(&TopDownCounts::of_registers(slots, metrics, self.level_2))
    }
}
