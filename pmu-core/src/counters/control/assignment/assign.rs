//! Assigning counters to an event and its group.

use crate::counters::control::assignment::plan::PlacementError;
use crate::counters::control::handle::CounterSession;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::event_id::EventId;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Plans counters for an event and its group, all of them or none, and applies the plan. Other events move where
    /// that makes room. Rotating events whose share is at least `great` may lose their counters: the greatest share
    /// first, and of equal shares the event that has had its counter longest. With `None` no event loses its counter.
    #[inline(never)]
    pub(crate) fn assign(&self, event: EventId, great: Option<u32>) -> Result<(), PlacementError> {
        self.get_ready(event)?;
        let mut planner = self.planner();
        self.present(&mut planner.plan);
        self.plan_beside(&mut planner, event, great)?;
        self.apply(&mut planner).map_err(|reason| PlacementError { event, reason })
    }
}
