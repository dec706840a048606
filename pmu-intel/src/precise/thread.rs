//! The events of threads, and the return from a suspend.

use core::sync::atomic::Ordering::Relaxed;
use core::{fmt, ptr};

use pmu_core::{
    CounterId, CounterSession, CounterSet, EventSelect, EventSource, MsrBackend, Platform,
};

use crate::precise::error::PreciseError;
use crate::precise::event::PreciseEvent;
use crate::precise::memory::PreciseMemory;
use crate::precise::recorder::PreciseRecorder;
use crate::precise::report::PreciseReport;

/// A thread's event for which the processor writes precise records. Each [`switch_in`](PreciseRecorder::switch_in)
/// continues the period that the last [`switch_out`](PreciseRecorder::switch_out) interrupted.
///
/// ```
/// use pmu_core::{CounterSession, EventSource, MsrBackend, Platform};
/// use pmu_intel::precise::{PreciseError, PreciseRecorder, PreciseReport, ThreadRecords};
/// /// Switches threads. No thread's record is in the buffer when another one runs.
/// fn switch<S: EventSource, M: MsrBackend, P: Platform>(
///     recorder: &mut PreciseRecorder<'_, M>,
///     counters: &mut CounterSession<'_, S, M, P>,
///     from: &mut [ThreadRecords],
///     to: &mut [ThreadRecords],
///     mut push: impl FnMut(&PreciseReport<'_>),
/// ) -> Result<(), PreciseError> {
///     for event in from {
///         recorder.switch_out(counters, event, &mut push)?;
///     }
///     for event in to {
///         recorder.switch_in(counters, event, &mut push)?;
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct ThreadRecords {
    event: PreciseEvent,
    started: Option<StartedRecords>,
    /// Number of events until the next overflow.
    rest: u64,
}

/// The start by which a thread's event came to its counter. The counter may since have another event.
#[derive(Clone, Copy)]
struct StartedRecords {
    memory: &'static PreciseMemory,
    counter: CounterId,
    start: u64,
}

/// Without the memory's contents.
impl fmt::Debug for StartedRecords {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("StartedRecords").field(&self.counter).field(&self.start).finish()
    }
}

impl ThreadRecords {
    /// Creates a thread's event, which is not started yet.
    pub const fn new(event: PreciseEvent) -> Self {
        Self { event, started: None, rest: 0 }
    }

    /// Returns the counter on which the event is started, or `None` if the event is not started. The result is also
    /// `None` after the recorder's [`stop`](PreciseRecorder::stop) or [`shut_down`](PreciseRecorder::shut_down) has
    /// stopped the event.
    pub fn counter(&self) -> Option<CounterId> {
        self.started().map(|started| started.counter)
    }

    fn started(&self) -> Option<StartedRecords> {
        self.started.filter(|started| started.memory.is_started(started.counter, started.start))
    }
}

impl<M: MsrBackend> PreciseRecorder<'_, M> {
    /// Starts a thread's event on this processor, and continues the event's period. After [`stop`](Self::stop) or
    /// [`shut_down`](Self::shut_down) has stopped the event, the call begins a new period. If the event is already
    /// started, the call does nothing.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn switch_in<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, N, P>,
        thread: &mut ThreadRecords,
        report: impl FnMut(&PreciseReport<'_>),
    ) -> Result<(), PreciseError> {
        if thread.started().is_some() {
            return Ok(());
        }
        if thread.started.take().is_some() {
            thread.rest = 0;
        }
        let period = thread.event.event().period().unwrap_or(0);
        let first = if (1..=period).contains(&thread.rest) { thread.rest } else { period };
        let (memory, counter) =
            (self.memory(), self.start_with(session, &thread.event, first, report)?);
        let start = memory.slot(counter).map_or(0, |slot| slot.start.load(Relaxed));
        thread.started = Some(StartedRecords { memory, counter, start });
        Ok(())
    }

    /// Stops a thread's event. `report` receives the records that are in the buffer. If the event is not started, the
    /// call does nothing.
    ///
    /// # Errors
    /// The errors of [`stop`](Self::stop). The error [`NotStarted`](PreciseError::NotStarted) of this method means that
    /// another processor's recorder started the event.
    pub fn switch_out<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, N, P>,
        thread: &mut ThreadRecords,
        report: impl FnMut(&PreciseReport<'_>),
    ) -> Result<(), PreciseError> {
        let Some(StartedRecords { memory, counter, .. }) = thread.started() else { return Ok(()) };
        if !ptr::eq(memory, self.memory()) {
            return Err(PreciseError::NotStarted);
        }
        let registers = self.unit().counters.counter(counter);
        thread.rest = self.stop_and(session, counter, report, |session, counter| {
            let value = session.read_reserved(counter)?;
            // Of a counter that has overflowed, and wrote no record any more, this is 0 or beyond every period.
            Ok(registers.map_or(0, |registers| registers.preload(value)))
        })?;
        thread.started = None;
        // The handler may have chosen another period.
        if let Some(slot) = memory.slot(counter).filter(|_| thread.event.by_handler) {
            thread.event.event = thread.event.event.every(slot.period.load(Relaxed));
        }
        Ok(())
    }

    /// Programs the recorder's registers again after their contents were lost: after suspend, after hibernation, or
    /// after the processor was offline. Call this method after [`CounterSession::reprogram`]. Each event begins a new
    /// period. `report` receives the records that are in the buffer. Before a suspend, call [`drain`](Self::drain):
    /// architectural PEBS keeps the buffer's index in a register. If this register loses its contents, the driver
    /// cannot find the records in the buffer.
    ///
    /// # Errors
    /// - [`Counters`](PreciseError::Counters): an event of the session runs on one of the recorder's counters, or a
    ///   register access of the session failed.
    /// - [`Access`](PreciseError::Access): a register access of the recorder failed. The call can be repeated.
    /// - [`ShutDown`](PreciseError::ShutDown), [`Lent`](PreciseError::Lent): nothing was changed.
    pub fn reprogram<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, N, P>,
        mut report: impl FnMut(&PreciseReport<'_>),
    ) -> Result<(), PreciseError> {
        self.check()?;
        let memory = self.memory();
        // The session's `reprogram` ended all reservations: those of failed starts are not made again.
        let abandoned = memory.abandoned();
        for counter in abandoned.iter().filter(|_| self.hardware.is_architectural()) {
            self.hardware.program_records(counter, None).map_err(PreciseError::Access)?;
        }
        self.latency.release(session, abandoned);
        self.frontend.release(session, abandoned);
        memory.set_recording(memory.recording().without(abandoned));
        memory.set_reserved(memory.reserved().without(abandoned));
        let (recording, reserved) = (memory.recording(), memory.reserved());
        let (mut displaced, mut again) = (CounterSet::NONE, Ok(()));
        for (counter, slot) in memory.slots(reserved) {
            let select = EventSelect::from_bits(slot.select.load(Relaxed));
            if let Err(error) = session.reserve_again(counter, select) {
                displaced = displaced | counter.only();
                again = again.and(Err(error));
            }
        }
        // Their overflows are the session's to report.
        memory.set_displaced(displaced);
        again?;
        // Before the index of architectural PEBS is reset. The session stopped the counters.
        if !self.hardware.has_lost_buffer().map_err(PreciseError::Access)? {
            let drained = memory.drain(self.unit(), &self.hardware.msr, &mut report);
            drained.map_err(PreciseError::Access)?;
        }
        self.hardware.disable_all().map_err(PreciseError::Access)?;
        self.forget_groups();
        self.hardware.prepare();
        let located = self.hardware.locate().and_then(|()| self.arrange(recording));
        located.map_err(PreciseError::Access)?;
        self.latency.reserve_again(session)?;
        self.frontend.reserve_again(session)?;
        for (counter, slot) in memory.slots(reserved.without(recording)) {
            let select = EventSelect::from_bits(slot.select.load(Relaxed));
            session.start_reserved(counter, select, false)?;
        }
        for (counter, slot) in memory.slots(recording) {
            self.load(session, counter, slot.period.load(Relaxed))?;
        }
        if recording == CounterSet::NONE {
            return Ok(());
        }
        self.enable(recording).map_err(PreciseError::Access)?;
        for counter in recording.iter() {
            self.run(session, counter)?;
        }
        Ok(session.pause_reserved(reserved, false)?)
    }
}
