//! Starting an event, and undoing a failed start.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::{
    CounterId, CounterSession, CounterSet, Event, EventSelect, EventSource, MsrBackend, Platform,
};

use crate::precise::error::{PreciseError, PreciseEventError};
use crate::precise::event::PreciseEvent;
use crate::precise::recorder::PreciseRecorder;
use crate::precise::report::{AccessKind, PreciseReport};
use crate::precise::threshold::PreciseThreshold;

impl<M: MsrBackend> PreciseRecorder<'_, M> {
    /// Starts an event on one of the session's free counters, and returns this counter. The call considers only the
    /// counters that can record the event.
    ///
    /// During the call, the recorder's other events are paused. The new event may change the size of later records, so
    /// the call first passes all records in the recorder's buffer to `report`.
    ///
    /// # Errors
    /// - [`Event`](PreciseError::Event), [`LatencyInUse`](PreciseError::LatencyInUse),
    ///   [`FrontendInUse`](PreciseError::FrontendInUse), [`InsufficientMemory`](PreciseError::InsufficientMemory):
    ///   nothing was changed.
    /// - [`Counters`](PreciseError::Counters): the session has no free counter; an event of the session runs that needs
    ///   another latency threshold or front-end condition
    ///   ([`ExtraRegisterInUse`](pmu_core::CounterError::ExtraRegisterInUse)); or a register access of the session
    ///   failed.
    /// - [`Access`](PreciseError::Access): a register access of the recorder failed, and the event is not started.
    /// - [`Faulted`](PreciseError::Faulted): a register access of the recorder failed, and the recorder's other events
    ///   have also stopped. [`reprogram`](Self::reprogram) starts the other events again.
    /// - [`ShutDown`](PreciseError::ShutDown), [`Lent`](PreciseError::Lent): nothing was changed.
    ///
    /// After a failed start, the call stops and releases the event's counter. If the release fails too, the counter
    /// stays reserved, and its records are not reported. The next call of `start`, [`shut_down`](Self::shut_down) or
    /// [`reprogram`](Self::reprogram) ends the reservation.
    pub fn start<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, N, P>,
        event: &PreciseEvent,
        report: impl FnMut(&PreciseReport<'_>),
    ) -> Result<CounterId, PreciseError> {
        let first = event.event().period().unwrap_or(0);
        self.start_with(session, event, first, report)
    }

    /// Starts an event that first overflows after `first` events.
    pub(crate) fn start_with<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, N, P>,
        event: &PreciseEvent,
        first: u64,
        mut report: impl FnMut(&PreciseReport<'_>),
    ) -> Result<CounterId, PreciseError> {
        self.check()?;
        self.end_abandoned(session, &mut report)?;
        let unit = self.unit();
        let capable = unit.counters_for(event)?;
        let frontend = unit.frontend_of(event)?;
        if event.by_handler && self.threshold != PreciseThreshold::EachRecord {
            return Err(PreciseEventError::NeedsEachRecord.into());
        }
        if let Some(cycles) = self.latency.conflict(event.latency.into()) {
            return Err(PreciseError::LatencyInUse(cycles as u16));
        }
        if let Some(condition) = self.frontend.conflict(frontend) {
            return Err(PreciseError::FrontendInUse(condition));
        }
        let groups = self.groups_of(self.memory().recording()) | event.groups();
        let (needed, lent) = (self.size_of(groups), self.memory().capacity());
        if lent < needed {
            return Err(PreciseError::InsufficientMemory { needed, lent });
        }
        // The event beside comes first: the processor looks for it at the start of the other one.
        let beside = match unit.beside(event) {
            Some(select) => Some(self.start_beside(session, select)?),
            None => None,
        };
        let reserved = session.reserve(&unit.counters, &unit.counted(event), capable);
        let (counter, select) = reserved.inspect_err(|_| {
            for beside in beside.into_iter() {
                let released = self.release(session, beside);
                self.abandon_unless(&released, beside.only());
            }
        })?;
        self.describe(counter, event, select, beside);
        let both = counter.only() | beside.map_or(CounterSet::NONE, CounterId::only);
        let others = self.memory().recording();
        if let Err(error) = self.quiesce(session, others, &mut report) {
            // The others may run, and their records may be in the buffer: the buffer stays as it is.
            let given_back = self.give_back(session, counter, beside);
            self.abandon_unless(&given_back, both);
            let undone = session.pause_reserved(others, false).map_err(PreciseError::Counters);
            return Err(given_back.and(undone).err().unwrap_or(error));
        }
        let started = self.start_reserved(session, (counter, both), event, (first, frontend));
        started.map(|()| counter).map_err(|error| {
            let undone = self.undo_start(session, counter, beside);
            self.abandon_unless(&undone, both);
            undone.err().unwrap_or(error)
        })
    }

    /// Counts the event that the processor needs beside an event of load latencies.
    fn start_beside<S: EventSource, N: MsrBackend, P: Platform>(
        &self,
        session: &mut CounterSession<'_, S, N, P>,
        select: EventSelect,
    ) -> Result<CounterId, PreciseError> {
        let (unit, memory) = (self.unit(), self.memory());
        let event = Event::raw(select);
        let (counter, select) = session.reserve(&unit.counters, &event, CounterSet::GENERAL)?;
        if let Some(slot) = memory.slot(counter) {
            slot.select.store(select.select_bits(), Relaxed);
            slot.beside.store(0, Relaxed);
        }
        memory.set_reserved(memory.reserved() | counter.only());
        let started = session.start_reserved(counter, select, false);
        started.map(|()| counter).map_err(|error| {
            let released = self.release(session, counter);
            self.abandon_unless(&released, counter.only());
            PreciseError::Counters(error)
        })
    }

    /// Notes what the interrupt has to know of an event.
    fn describe(
        &self,
        counter: CounterId,
        event: &PreciseEvent,
        select: EventSelect,
        beside: Option<CounterId>,
    ) {
        let memory = self.memory();
        let Some(slot) = memory.slot(counter) else { return };
        slot.start.store(memory.next_start(), Relaxed);
        slot.describe(event, select.select_bits(), self.access_kind(event, select));
        slot.beside.store(beside.map_or(0, |beside| u32::from(beside.bit()) + 1), Relaxed);
        let beside = beside.map_or(CounterSet::NONE, CounterId::only);
        memory.set_reserved(memory.reserved() | counter.only() | beside);
    }

    /// SDM vol. 3B, "Data Linear Address PEBS": the events of retired memory operations, 0xD0 to 0xD3; the stores'
    /// unit masks of 0xD0 are 0x12, 0x22, 0x42 and 0x82. 0xCD/0x02 is the precise store.
    fn access_kind(&self, event: &PreciseEvent, select: EventSelect) -> AccessKind {
        match (select.event_number(), select.event_unit_mask()) {
            _ if event.latency != 0 => AccessKind::Loads,
            (0xCD, 0x02) | (0xD0, 0x12 | 0x22 | 0x42 | 0x82) => AccessKind::Stores,
            _ => AccessKind::Unknown,
        }
    }

    /// Starts an event on its reserved counter, while the others are paused and the buffer is empty.
    fn start_reserved<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, N, P>,
        (counter, both): (CounterId, CounterSet),
        event: &PreciseEvent,
        (first, frontend): (u64, u32),
    ) -> Result<(), PreciseError> {
        let recording = self.memory().recording();
        self.arrange(recording | counter.only()).map_err(PreciseError::Access)?;
        self.latency.reserve(session, counter, event.latency.into())?;
        self.frontend.reserve(session, counter, frontend)?;
        self.memory().set_recording(recording | counter.only());
        self.load(session, counter, first)?;
        self.enable(self.memory().recording()).map_err(PreciseError::Access)?;
        self.run(session, counter)?;
        // An interrupt that could not restart the counters may have stopped the new ones, too.
        Ok(session.pause_reserved(recording | both, false)?)
    }

    /// Notes the counters of a failed start that were not given back. The next start, stop or shutdown ends them.
    fn abandon_unless(&self, given_back: &Result<(), PreciseError>, counters: CounterSet) {
        if given_back.is_err() {
            self.memory().abandon(counters);
        }
    }

    /// Takes back what a start did. The other events go on.
    fn undo_start<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, N, P>,
        counter: CounterId,
        beside: Option<CounterId>,
    ) -> Result<(), PreciseError> {
        session.stop_reserved(counter)?;
        let others = self.memory().recording().without(counter.only());
        self.end(session, counter, beside, others)
    }
}
