//! Worlds: events that happen at the register accesses of a driver's operation, and the interrupts of their overflows.

use core::cell::Cell;

use pmu_virt::mock::MockMsr;

/// Accesses since the plan was set, counted from 1, and an interrupt that is delivered some accesses late.
#[derive(Default)]
pub(crate) struct Accesses {
    made: Cell<u32>,
    deliver_in: Cell<Option<u32>>,
}

impl Accesses {
    /// Returns the number of accesses so far.
    pub(crate) fn made(&self) -> u32 {
        self.made.get()
    }

    /// Returns whether an interrupt waits to be delivered late.
    pub(crate) fn is_late(&self) -> bool {
        self.deliver_in.get().is_some()
    }

    /// Delivers the late interrupt now, if there is one.
    pub(crate) fn deliver_late<const T: usize>(&self, mock: &MockMsr<'_, T>) {
        if self.deliver_in.take().is_some() {
            mock.deliver();
        }
    }
}

/// Events on one processor, by their places, and the plan by which they disturb an operation.
pub(crate) trait World<const T: usize> {
    /// The times of the plan's events.
    type Plan;

    /// Returns the accesses so far.
    fn accesses(&self) -> &Accesses;

    /// Returns the plan, while an operation is disturbed.
    fn plan(&self) -> Option<Self::Plan>;

    /// Lets the plan's events of the `access`-th access happen, just before it.
    fn disturb(&self, mock: &MockMsr<'_, T>, plan: Self::Plan, access: u32);

    /// Lets `count` of an event happen, up to an overflow. Returns the remainder, and whether an interrupt is
    /// pending.
    fn pass(&self, mock: &MockMsr<'_, T>, event: usize, count: u64) -> (u64, bool);

    /// Lets `count` of an event happen; each overflow interrupts.
    fn happen(&self, mock: &MockMsr<'_, T>, event: usize, count: u64) {
        let mut left = count;
        while left > 0 {
            let (rest, pmi) = self.pass(mock, event, left);
            left = rest;
            if pmi {
                mock.deliver();
            }
        }
    }

    /// Lets these events happen, so many of each up to an overflow. Their interrupt is delivered `late` accesses
    /// later.
    fn overflow_all(
        &self,
        mock: &MockMsr<'_, T>,
        events: impl IntoIterator<Item = (usize, u64)>,
        late: u32,
    ) {
        let pass = |pmi, (event, count)| self.pass(mock, event, count).1 | pmi;
        self.accesses().deliver_in.set(late.checked_sub(1));
        if events.into_iter().fold(false, pass) && !self.accesses().is_late() {
            mock.deliver();
        }
    }

    /// Delivers a late interrupt that is due, and disturbs the operation according to the plan. To be called just
    /// before each access.
    fn step(&self, mock: &MockMsr<'_, T>) {
        let Accesses { made, deliver_in } = self.accesses();
        if let Some(left) = deliver_in.get() {
            deliver_in.set(left.checked_sub(1));
            if left == 0 {
                mock.deliver();
            }
        }
        if let Some(plan) = self.plan() {
            made.set(made.get() + 1);
            self.disturb(mock, plan, made.get());
        }
    }
}
