//! Counting, sampling and recording of fetches and ops.

use crate::ibs::virtual_ibs::{NextSample, VirtualIbs, *};

/// The random bits of the count of ops.
const OP_RANDOM: u64 = 0x7F;

impl VirtualIbs {
    /// Counts an op, or the op's cycles if the guest's sampling period is in cycles. If the guest's sampling period
    /// ends with this op, the op is sampled. Returns whether the op was sampled.
    pub fn execute(&mut self, op: &FedOp) -> bool {
        let Some(period) = self.op_period() else { return false };
        let control = self.registers[OP_CTL];
        let step = if control & OP_COUNTS_OPS != 0 { 1 } else { op.cycles.into() };
        let count = ((control & OP_COUNT) >> 32) + step;
        if count < period {
            self.registers[OP_CTL] = control & !OP_COUNT | count << 32;
            return false;
        }
        // Processors begin at a random count, so that a loop as long as the period is not sampled at the same op each
        // time. An op that the filter leaves out begins the period anew, too.
        let randomized = control & !OP_COUNT | self.random(OP_RANDOM) << 32;
        self.registers[OP_CTL] = randomized;
        if !self.wants_op(op) {
            return false;
        }
        self.registers[OP_CTL] = randomized | OP_VALID;
        self.registers[OP_RIP] = op.rip;
        self.registers[OP_DATA] = op.data;
        self.registers[OP_DATA2] = op.data2;
        let reserved = if self.has(19) { OP_DATA3_RESERVED } else { 0 };
        self.registers[OP_DATA3] = op.data3 & !reserved;
        self.registers[DC_LINADDR] = op.linear_address;
        self.registers[DC_PHYSADDR] = op.physical_address;
        if self.has(5) {
            self.registers[TARGET] = op.target;
        }
        self.pending = true;
        true
    }

    /// Counts a fetch. If the guest's sampling period ends with this fetch, the fetch is sampled. Returns whether the
    /// fetch was sampled.
    pub fn fetch(&mut self, fetch: &FedFetch) -> bool {
        let Some(period) = self.fetch_period() else { return false };
        let control = self.registers[FETCH_CTL];
        let count = self.fetches() + 1;
        if count < period {
            self.set_fetches(count);
            return false;
        }
        if !self.wants_fetch(fetch) {
            self.registers[FETCH_CTL] = control & !FETCH_COUNT;
            self.begin_fetches();
            return false;
        }
        // The count stays at the period until the next write.
        self.fetch_low = 0;
        let own = FETCH_PERIOD | FETCH_ENABLE | FETCH_RANDOM | FETCH_L3_MISS_ONLY;
        let of_sample = self.legal_fetch() & !(own | FETCH_VALID | FETCH_COUNT);
        self.registers[FETCH_CTL] =
            // The guest's own bits stay, whatever the embedder's fetch has there.
            control & own | (count >> 4) << 16 | fetch.control & of_sample | FETCH_VALID;
        self.registers[FETCH_LINADDR] = fetch.linear_address;
        self.registers[FETCH_PHYSADDR] = fetch.physical_address;
        if self.has(9) {
            self.registers[FETCH_EXTENDED] = fetch.tlb_latency.into();
        }
        self.pending = true;
        true
    }

    /// Counts many ops, cycles and fetches in one call. The call takes no sample. If the numbers reach the end of the
    /// guest's sampling period, the call counts only up to one op, cycle or fetch before the end.
    ///
    /// ```
    /// use pmu_virt::ibs::{FedOp, IbsConfiguration, VirtualIbs};
    /// use pmu_virt::{GuestFacility, Read, Writer};
    /// let mut ibs = VirtualIbs::new(IbsConfiguration::ZEN_4);
    /// // One op in 160. The guest ran at full speed for a while.
    /// let _ = ibs.write(Writer::Guest, 0xC001_1033, 1 << 19 | 1 << 17 | 160 >> 4);
    /// ibs.pass(100_000, 200_000, 100_000);
    /// // The next op is the one that is sampled, so the embedder now steps the guest.
    /// assert_eq!(ibs.next_sample().ops, Some(1));
    /// assert!(ibs.execute(&FedOp::new(0x40_1000)));
    /// assert_eq!(ibs.read(0xC001_1034), Read::Value(0x40_1000));
    /// ```
    pub fn pass(&mut self, ops: u64, cycles: u64, fetches: u64) {
        let NextSample { ops: until_op, cycles: until_cycle, fetches: until_fetch } =
            self.next_sample();
        // Never past a sample: the embedder feeds the sampled op or fetch itself.
        let short_of = |until: Option<u64>, passed: u64| Some(passed.min(until? - 1));
        // A guest's period is of ops or of cycles: one of the two is `None`.
        if let Some(passed) = short_of(until_op, ops).or(short_of(until_cycle, cycles)) {
            self.registers[OP_CTL] += passed << 32;
        }
        if let Some(passed) = short_of(until_fetch, fetches) {
            let count = self.fetches() + passed;
            self.set_fetches(count);
        }
    }

    /// Returns the numbers of ops, cycles and fetches until the next sample.
    pub fn next_sample(&self) -> NextSample {
        let op = self.registers[OP_CTL];
        // A guest may write a count that is not below its period. The next op is sampled then.
        let left = |period: u64, count: u64| period.saturating_sub(count).max(1);
        let until_op = self.op_period().map(|period| left(period, (op & OP_COUNT) >> 32));
        let of_ops = op & OP_COUNTS_OPS != 0;
        NextSample {
            ops: until_op.filter(|_| of_ops),
            cycles: until_op.filter(|_| !of_ops),
            fetches: self.fetch_period().map(|period| left(period, self.fetches())),
        }
    }

    /// Returns the period of ops; `None` if they are not counted.
    fn op_period(&self) -> Option<u64> {
        let control = self.registers[OP_CTL];
        // Nothing is counted until the guest clears the valid bit of the last sample (APM vol. 2, "Instruction-Based
        // Sampling").
        let runs = control & OP_ENABLE != 0
            && control & OP_VALID == 0
            && self.registers[OP_CTL2] & DISABLE == 0;
        // Periods are multiples of 16, whose low bits the register leaves out. The high bits are in their own places.
        let period = (control & OP_PERIOD) << 4 | control & OP_PERIOD_HIGH;
        (runs && period != 0).then_some(period)
    }

    /// Returns the period of fetches; `None` if they are not counted.
    fn fetch_period(&self) -> Option<u64> {
        let control = self.registers[FETCH_CTL];
        let runs = control & FETCH_ENABLE != 0
            && control & FETCH_VALID == 0
            && self.registers[FETCH_CTL2] & DISABLE == 0;
        let period = (control & FETCH_PERIOD) << 4;
        (runs && period != 0).then_some(period)
    }

    /// Returns the count of fetches.
    fn fetches(&self) -> u64 {
        (self.registers[FETCH_CTL] & FETCH_COUNT) >> 12 | self.fetch_low
    }

    fn set_fetches(&mut self, count: u64) {
        self.registers[FETCH_CTL] = self.registers[FETCH_CTL] & !FETCH_COUNT | (count >> 4) << 16;
        // The register shows the count in sixteens.
        self.fetch_low = count & 0xF;
    }

    /// Begins a period of fetches, with random low bits where the guest asks for them.
    pub(crate) fn begin_fetches(&mut self) {
        let random = self.registers[FETCH_CTL] & FETCH_RANDOM != 0;
        self.fetch_low = if random { self.random(0xF) } else { 0 };
    }

    /// Returns whether the filters let an op through. The filter by latency lets through what is no load that missed.
    fn wants_op(&self, op: &FedOp) -> bool {
        let (control, control2) = (self.registers[OP_CTL], self.registers[OP_CTL2]);
        let high = op.rip >> 63 != 0;
        let missed = op.data3 & 1 != 0 && op.data3 >> 7 & 1 != 0;
        // 0 is a threshold, too, because this filter has an enable bit. That of fetches has none: 0 disables it.
        let threshold = ((control & OP_LATENCY) >> 59) * 128 + 128;
        let slow = control & OP_LATENCY_FILTER == 0 || !missed || op.latency() > threshold;
        (control & OP_L3_MISS_ONLY == 0 || op.missed_l3())
            && slow
            && (control2 & 1 << 1 == 0 || high)
            && (control2 & 1 << 2 == 0 || !high)
            && (control2 & 1 << 3 == 0 || op.data2 >> 8 & 1 != 0)
    }

    /// Returns whether the filters let a fetch through.
    fn wants_fetch(&self, fetch: &FedFetch) -> bool {
        let (control, control2) = (self.registers[FETCH_CTL], self.registers[FETCH_CTL2]);
        let high = fetch.linear_address >> 63 != 0;
        let threshold = (control2 >> 1 & 0xF) * 128;
        (control & FETCH_L3_MISS_ONLY == 0 || fetch.control & FETCH_L3_MISS != 0)
            && (threshold == 0 || fetch.latency() > threshold)
            // The order is not that of `IBS_OP_CTL2`: the lower bit leaves out addresses with bit 63 set.
            && (control2 & 1 << 5 == 0 || !high)
            && (control2 & 1 << 6 == 0 || high)
    }
}

/// An op that a virtual processor executes. If the op is sampled, the fields of this struct become the values of the
/// IBS registers. A field is ignored if the processor lacks the field's register.
///
/// ```
/// use pmu_virt::ibs::FedOp;
/// // A load that missed the data cache: bits 0, 7 and 17 of IBS_OP_DATA3, and 200 cycles.
/// let op = FedOp { data3: 200 << 32 | 1 << 17 | 1 << 7 | 1, linear_address: 0x7000, ..FedOp::new(0x40_1000) };
/// assert_eq!(op.cycles, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FedOp {
    /// `IBS_OP_RIP`: the address of the op's instruction.
    pub rip: u64,
    /// `IBS_OP_DATA`: cycle counts of the op, and the outcome of a branch.
    pub data: u64,
    /// `IBS_OP_DATA2`: the source of a load's data.
    pub data2: u64,
    /// `IBS_OP_DATA3`: description of the op's access to memory, in the layout of the guest's processor: if leaf
    /// 0x8000001B EAX bit 19 is set, bits 5:4 are the page size, and bits 6 and 19 are reserved and are cleared.
    pub data3: u64,
    /// `IBS_DC_LINADDR`: the linear address of the op's access to memory.
    pub linear_address: u64,
    /// `IBS_DC_PHYSADDR`: the physical address of the op's access to memory.
    pub physical_address: u64,
    /// `BP_IBSTGT_RIP`: the target of a branch.
    pub target: u64,
    /// Number of cycles that the op takes.
    pub cycles: u32,
}

impl FedOp {
    /// Describes an op that takes one cycle, is not a branch, and does not access memory.
    pub const fn new(rip: u64) -> Self {
        Self {
            rip,
            data: 0,
            data2: 0,
            data3: 0,
            linear_address: 0,
            physical_address: 0,
            target: 0,
            cycles: 1,
        }
    }

    /// Returns whether the op is a load that missed the third-level cache, by `IBS_OP_DATA2` and `IBS_OP_DATA3`.
    pub(crate) const fn missed_l3(&self) -> bool {
        let missed = self.data3 & 1 != 0 && self.data3 >> 7 & 1 != 0 && self.data3 >> 20 & 1 != 0;
        // Sources 0–2 and 5: nothing, or a cache.
        missed && !matches!(self.data2 & 7 | self.data2 >> 3 & 0x18, 0..=2 | 5)
    }

    /// Returns the latency of a load that missed the data cache.
    pub(crate) const fn latency(&self) -> u64 {
        self.data3 >> 32 & 0xFFFF
    }
}

/// A fetch of a virtual processor. If the fetch is sampled, the fields of this struct become the values of the IBS
/// registers.
///
/// ```
/// use pmu_virt::ibs::FedFetch;
/// // Complete (bit 50), after 12 cycles.
/// let fetch = FedFetch { control: 1 << 50 | 12 << 32, ..FedFetch::new(0x40_1000) };
/// assert_eq!(fetch.linear_address, 0x40_1000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FedFetch {
    /// The bits of `IBS_FETCH_CTL` that describe the fetch: latency, caches and TLBs. Other bits are ignored.
    pub control: u64,
    /// `IBS_FETCH_LINADDR`: the linear address of the fetch.
    pub linear_address: u64,
    /// `IBS_FETCH_PHYSADDR`: the physical address of the fetch.
    pub physical_address: u64,
    /// `IC_IBS_EXTD_CTL`: the latency of the TLB refill.
    pub tlb_latency: u16,
}

impl FedFetch {
    /// Describes a fetch without latency that hits every cache.
    pub const fn new(linear_address: u64) -> Self {
        Self { control: 0, linear_address, physical_address: 0, tlb_latency: 0 }
    }

    pub(crate) const fn latency(&self) -> u64 {
        self.control >> 32 & 0xFFFF
    }
}
