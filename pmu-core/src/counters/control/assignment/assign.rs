//! Assigning counters to an event and its group.

use crate::counters::control::assignment::plan::Unplaced;
use crate::counters::control::handle::Counters;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::event_id::EventId;
use crate::msr::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> Counters<'_, S, M, P> {
    /// Plans counters for an event and its group: all of them, or none. Where that makes room, other events move, and
    /// rotating events lose their counters whose share is at least so `great`: first the one with the greatest, and of
    /// several the one that had its counter longest. `None`: no event loses its counter. Then gives every event its
    /// planned counter.
    #[inline(never)]
    pub(crate) fn assign(&self, event: EventId, great: Option<u32>) -> Result<(), Unplaced> {
        self.get_ready(event)?;
        let mut planner = self.planner();
        self.present(&mut planner.plan);
        planner.plan(event, great)?;
        self.carry_out(&mut planner).map_err(|reason| Unplaced { event, reason })
    }
}
