//! Counting a feed: overflows, status bits, interrupt and freeze.

use crate::events::feed::Feed;
use crate::events::slot::FeedSlot;
use crate::model::advanced::Advanced;
use crate::model::state::Model;
use crate::registers::counters::{Counters, MAX_COUNTERS, places, to_global};
use crate::registers::family::Family;
use crate::registers::layout::{Freeze, Layout};

impl Model {
    /// Adds the whole feed to one counter, unless the counter would overflow. Returns whether it would.
    #[inline]
    pub(crate) fn overflows_in(&mut self, feed: &Feed, counter: usize, greatest: u64) -> bool {
        let value = self.registers.counter_mut(counter);
        let (sum, carry) = value.overflowing_add(feed.at(self.cells[counter % MAX_COUNTERS]));
        let overflows = carry || sum > greatest;
        if !overflows {
            *value = sum;
        }
        overflows
    }

    /// Counts a feed in which a counter overflows. `counted` are the counters to which the whole feed was added
    /// already.
    #[cold]
    #[inline(never)]
    pub(crate) fn overflow(
        &mut self,
        feed: &mut Feed,
        running: Counters,
        counted: Counters,
    ) -> Advanced {
        // The earliest overflow that interrupts or is recorded: missing/count is its time within the span.
        let mut first: Option<(u64, u64, FeedSlot)> = None;
        for counter in places(running) {
            let cell = self.cells[counter];
            let count = feed.at(cell);
            let value = self.registers.counter_mut(counter);
            if counted >> counter & 1 != 0 {
                *value = value.wrapping_sub(count);
            }
            let room = self.layout.mask(counter) - *value;
            if self.stopping() >> counter & 1 == 0 || count <= room {
                continue;
            }
            let missing = room.saturating_add(1);
            let sooner = first.is_none_or(|(part, whole, _)| {
                u128::from(missing) * u128::from(whole) < u128::from(part) * u128::from(count)
            });
            if sooner {
                first = Some((missing, count, cell));
            }
        }
        let passed = match first {
            Some((part, whole, cell)) => feed.take(part, whole, cell),
            None => feed.take_all(),
        };
        self.count(&passed, running)
    }

    /// Adds the whole feed to every running counter, raises the interrupt if one is due, and returns the wraps of each
    /// counter.
    pub(crate) fn count(&mut self, feed: &Feed, running: Counters) -> Advanced {
        let mut advanced = Advanced::NOTHING;
        let mut overflowed = 0;
        for counter in places(running) {
            let mask = self.layout.mask(counter);
            let value = self.registers.counter_mut(counter);
            let sum = u128::from(*value) + u128::from(feed.at(self.cells[counter]));
            *value = sum as u64 & mask;
            // A feed is below 2⁶³ and a counter has 32 bits or more.
            let wraps = (sum >> mask.count_ones()) as u32;
            if wraps != 0 {
                advanced.wraps[counter] = wraps;
                overflowed |= 1 << counter;
            }
        }
        advanced.overflowed = to_global(overflowed);
        advanced.records = to_global(overflowed & self.recorded);
        advanced.pmi = self.raise(overflowed & !self.recorded);
        advanced
    }

    /// Sets the status bits of counters that overflowed, and raises an interrupt if one of these counters asks for it.
    /// Returns whether it raised one.
    pub(crate) fn raise(&mut self, overflowed: Counters) -> bool {
        if self.layout.global() != 0 {
            *self.registers.of_mut(Family::GlobalStatus) |= to_global(overflowed);
        }
        let pmi = overflowed & self.interrupting() != 0;
        if pmi {
            self.interrupt();
        }
        pmi
    }

    /// Raises the interrupt, which freezes the counters if the guest has asked for it.
    pub(crate) fn interrupt(&mut self) {
        self.pmi_pending = true;
        self.freeze();
    }

    /// Loads a counter as the processor does after a record.
    pub(crate) fn load(&mut self, counter: usize, value: u64) {
        *self.registers.counter_mut(counter) = value & self.layout.mask(counter);
        self.budget_is_stale = true;
    }

    fn freeze(&mut self) {
        if self.registers.of(Family::DebugControl) & Layout::FREEZE_ON_INTERRUPT == 0 {
            return;
        }
        match self.layout.freeze {
            Freeze::Never => {}
            Freeze::ClearsControl => *self.registers.of_mut(Family::GlobalControl) = 0,
            Freeze::SetsStatus => {
                *self.registers.of_mut(Family::GlobalStatus) |= Layout::FROZEN;
            }
        }
    }

    /// Makes every running counter that interrupts or is recorded overflow, for the mock.
    pub(crate) fn overflow_all(&mut self) -> Advanced {
        let overflowing = self.running() & self.stopping();
        for counter in places(overflowing) {
            *self.registers.counter_mut(counter) = 0;
        }
        self.budget_is_stale = true;
        Advanced {
            overflowed: to_global(overflowing),
            records: to_global(overflowing & self.recorded),
            pmi: self.raise(overflowing & !self.recorded),
            ..Advanced::NOTHING
        }
    }
}
