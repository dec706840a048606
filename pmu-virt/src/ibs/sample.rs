//! Fetches and ops that are counted, tagged and recorded.

use crate::ibs::fed::{FedFetch, FedOp};
use crate::ibs::registers::*;
use crate::ibs::virtual_ibs::VirtualIbs;

/// The random bits of the count of ops.
const OP_RANDOM: u64 = 0x7F;

impl VirtualIbs {
    /// Counts an op, or the op's cycles, and records the op if the period ends with it. Returns whether the op was
    /// sampled.
    pub fn execute(&mut self, op: &FedOp) -> bool {
        let control = self.registers[OP_CTL];
        let runs = control & OP_ENABLE != 0
            && control & OP_VALID == 0
            && self.registers[OP_CTL2] & DISABLE == 0;
        let period = (control & OP_PERIOD) << 4 | control & OP_PERIOD_HIGH;
        if !runs || period == 0 {
            return false;
        }
        let step = if control & OP_COUNTS_OPS != 0 { 1 } else { op.cycles.into() };
        let count = ((control & OP_COUNT) >> 32) + step;
        if count < period {
            self.registers[OP_CTL] = control & !OP_COUNT | count << 32;
            return false;
        }
        let randomized = control & !OP_COUNT | self.random(OP_RANDOM) << 32;
        self.registers[OP_CTL] = randomized;
        if !self.wants_op(op) {
            return false;
        }
        self.registers[OP_CTL] = randomized | OP_VALID;
        self.registers[OP_RIP] = op.rip;
        self.registers[OP_DATA] = op.data;
        self.registers[OP_DATA2] = op.data2;
        self.registers[OP_DATA3] = op.data3;
        self.registers[DC_LINADDR] = op.linear_address;
        self.registers[DC_PHYSADDR] = op.physical_address;
        if self.configuration.has(5) {
            self.registers[TARGET] = op.target;
        }
        self.pending = true;
        true
    }

    /// Counts a fetch, and records the fetch if the period ends with it. Returns whether the fetch was sampled.
    pub fn fetch(&mut self, fetch: &FedFetch) -> bool {
        let control = self.registers[FETCH_CTL];
        let runs = control & FETCH_ENABLE != 0
            && control & FETCH_VALID == 0
            && self.registers[FETCH_CTL2] & DISABLE == 0;
        let period = (control & FETCH_PERIOD) << 4;
        if !runs || period == 0 {
            return false;
        }
        let count = ((control & FETCH_COUNT) >> 12 | self.fetch_low) + 1;
        if count < period {
            self.registers[FETCH_CTL] = control & !FETCH_COUNT | (count >> 4) << 16;
            self.fetch_low = count & 0xF;
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
        let of_sample = self.configuration.legal(FETCH_CTL) & !(own | FETCH_VALID | FETCH_COUNT);
        self.registers[FETCH_CTL] =
            control & own | (count >> 4) << 16 | fetch.control & of_sample | FETCH_VALID;
        self.registers[FETCH_LINADDR] = fetch.linear_address;
        self.registers[FETCH_PHYSADDR] = fetch.physical_address;
        if self.configuration.has(9) {
            self.registers[FETCH_EXTENDED] = fetch.tlb_latency.into();
        }
        self.pending = true;
        true
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
            && (control2 & 1 << 5 == 0 || !high)
            && (control2 & 1 << 6 == 0 || high)
    }
}
