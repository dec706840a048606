//! Assignment beside the other logical processor of a core, whose counters some events corrupt.

use crate::counters::control::assignment::plan::{NoRoom, Plan};
use crate::counters::control::assignment::planner::Planner;
use crate::counters::control::handle::CounterSession;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::names::event_id::EventId;
use crate::counters::shared::core_counters::{CoreThread, InUse};
use crate::counters::shared::slot::SlotState;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Plans for an event, with counters that the core's other logical processor leaves to it, and claims them.
    // Inlined into its few callers, for the sake of the stack.
    #[inline(always)]
    pub(crate) fn plan_beside(
        &self,
        planner: &mut Planner<'_>,
        event: EventId,
        great: Option<u32>,
    ) -> Result<(), NoRoom> {
        let Some(thread) = self.source.core_thread() else { return planner.plan(event, great) };
        let others = thread.others();
        let taken = CounterSet::from_bits(others.exclusive.into());
        planner.counters = planner.counters.without(taken);
        self.confine(&thread, others.counters);
        let planned = planner.plan(event, great);
        self.confine(&thread, 0);
        planned?;
        let mut wanted = self.used(&thread);
        self.add_plan(&thread, &planner.plan, &mut wanted);
        // The other processor may have claimed one of them meanwhile.
        if thread.claim(wanted) { Ok(()) } else { Err(NoRoom { event, register: 0 }) }
    }

    /// Declares which counters are in use now, after a change.
    pub(crate) fn settle_core(&self) {
        if let Some(thread) = self.source.core_thread() {
            thread.keep(self.used(&thread));
        }
    }

    /// Claims these counters for rows that are restored.
    pub(crate) fn claim_rows(
        &self,
        counters: CounterSet,
        mut rows: impl Iterator<Item = usize>,
    ) -> bool {
        self.source.core_thread().is_none_or(|thread| {
            let corrupts = |row| self.row_select(row).is_some_and(|event| thread.corrupts(event));
            let mut wanted = self.used(&thread);
            wanted.add(counters, rows.any(corrupts));
            thread.claim(wanted)
        })
    }

    /// Keeps the events that corrupt the other processor's counters from these counters.
    fn confine(&self, thread: &CoreThread<'_>, from: u16) {
        for (_, entry) in self.table().opened() {
            if thread.corrupts(entry.select()) {
                entry.confine(from);
            }
        }
    }

    /// Returns the counters that are in use at present. A counter that faulted is presumed running.
    fn used(&self, thread: &CoreThread<'_>) -> InUse {
        let (mut used, own) = (InUse::default(), thread.own());
        for (counter, slot) in self.slots() {
            let is_exclusive = match slot.load() {
                SlotState::Free => continue,
                SlotState::Running { event, .. } | SlotState::Parked { event } => {
                    self.corrupts(thread, event)
                }
                SlotState::Faulted => u64::from(own.exclusive) & counter.only().bits() != 0,
            };
            used.add(counter.only() & CounterSet::GENERAL, is_exclusive);
        }
        used
    }

    fn add_plan(&self, thread: &CoreThread<'_>, plan: &Plan, used: &mut InUse) {
        for counter in (plan.counters() & CounterSet::GENERAL).iter() {
            let placed = plan.at(counter);
            let is_exclusive = placed.is_some_and(|placed| self.corrupts(thread, placed.event));
            used.add(counter.only(), is_exclusive);
        }
    }

    fn corrupts(&self, thread: &CoreThread<'_>, event: EventId) -> bool {
        match (event.row(), self.table().entry(event)) {
            (Some(row), _) => self.row_select(row).is_some_and(|select| thread.corrupts(select)),
            (None, Some(entry)) => thread.corrupts(entry.select()),
            (None, None) => false,
        }
    }
}
