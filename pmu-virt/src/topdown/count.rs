//! Division of the counted slots into parts.

use crate::model::advanced::Advanced;
use crate::pmu::access::Read;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;
use crate::topdown::mix::TopDownMix;
use crate::topdown::virtual_top_down::VirtualTopDown;

/// `IA32_FIXED_CTR3`, and its bits in the global registers and in the control of the fixed counters.
const SLOTS: u32 = 0x30C;
const SLOTS_BIT: u8 = 35;
const FIXED_CONTROL: u32 = 0x38D;
const INTERRUPTS: u64 = 1 << 15;

impl VirtualTopDown {
    /// Calls `pass`, and updates the metrics. `pass` commonly calls [`VirtualPmu::advance`]. Fixed counter 3 counts
    /// issue slots during `pass`. `mix` tells which share of these slots belongs to each part of the metrics, for
    /// instance to retiring. If fixed counter 3 overflows, the metrics also overflow. The overflow of the metrics sets
    /// bit 48 of the status, and raises an interrupt if the interrupt of fixed counter 3 is enabled.
    ///
    /// `pass` must not write fixed counter 3. If the processor has auto counter reload, call `observe` within
    /// [`VirtualReload::advance_by`](crate::VirtualReload::advance_by). Each call of `observe` then counts only up to
    /// the next reload of a counter.
    ///
    /// # Errors
    /// Returns the error of `pass`.
    pub fn observe<P: EventPolicy, E>(
        &mut self,
        pmu: &mut VirtualPmu<P>,
        mix: &TopDownMix,
        pass: impl FnOnce(&mut VirtualPmu<P>) -> Result<Advanced, E>,
    ) -> Result<Advanced, E> {
        let before = value(pmu, SLOTS);
        let mut advanced = pass(pmu)?;
        let wraps = u128::from(advanced.wraps(SLOTS_BIT)) << self.width.min(64);
        let slots = (wraps + u128::from(value(pmu, SLOTS))).saturating_sub(before.into());
        if self.control && self.count(before, slots, mix) {
            self.status = true;
            if value(pmu, FIXED_CONTROL) & INTERRUPTS != 0 {
                pmu.set_pmi_pending(true);
                advanced.pmi = true;
            }
        }
        Ok(advanced)
    }

    /// Counts the slots up to the next overflow of the slots' counter, if it runs and interrupts.
    pub(crate) fn pass_to_overflow<P: EventPolicy>(
        &mut self,
        pmu: &VirtualPmu<P>,
        mix: &TopDownMix,
    ) {
        let runs = pmu.running().any(|event| event.counter == SLOTS_BIT);
        if self.control && runs && value(pmu, FIXED_CONTROL) & INTERRUPTS != 0 {
            let before = value(pmu, SLOTS);
            let left = (1u128 << self.width.min(64)) - u128::from(before);
            self.status |= self.count(before, left, mix);
        }
    }

    /// Counts slots after the `before` slots in the counter. Returns whether the metrics overflow.
    fn count(&mut self, before: u64, slots: u128, mix: &TopDownMix) -> bool {
        if slots == 0 {
            return false;
        }
        if self.slots == 0 && self.written != 0 {
            // The fractions that were written are of the slots in the counter.
            self.slots = before;
            self.parts =
                self.written.to_le_bytes().map(|share| u128::from(before) * u128::from(share));
        }
        let range = 1u128 << self.width.min(64);
        let whole = u128::from(self.slots) + slots;
        let overflows = whole / range != u128::from(self.slots) / range;
        let counted = if self.level_2 { mix.shares.len() } else { mix.shares.len() / 2 };
        for (part, share) in self.parts.iter_mut().zip(mix.shares).take(counted) {
            *part = part.saturating_add(slots * u128::from(share));
        }
        self.slots = u64::try_from(whole).unwrap_or(u64::MAX);
        overflows
    }
}

fn value<P: EventPolicy>(pmu: &VirtualPmu<P>, register: u32) -> u64 {
    match pmu.read(register) {
        Read::Value(value) => value,
        _ => 0,
    }
}
