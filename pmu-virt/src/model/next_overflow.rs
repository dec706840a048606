//! Computing the budget until the next interrupt.

use crate::model::budget::OverflowBudget;
use crate::model::state::Model;
use crate::registers::counters::MAX_COUNTERS;

impl Model {
    #[inline(never)]
    pub(crate) fn refresh_budget(&mut self) {
        let mut budget = OverflowBudget::none(&self.events);
        let mut left = self.running() & self.stopping();
        while left != 0 {
            let counter = left.trailing_zeros() as usize % MAX_COUNTERS;
            left &= left - 1;
            let room = self.layout.mask(counter) - self.registers.counter(counter);
            budget.limit(self.cells[counter], room);
        }
        self.budget = budget;
        self.budget_is_stale = false;
    }
}
