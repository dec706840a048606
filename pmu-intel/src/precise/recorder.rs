//! The recorder: operations of a task on a processor's precise records.
//!
//! The interrupt may come between any two accesses. So a counter enters the memory's set of recording counters before
//! the counter can write a record. The counter leaves the set after the counter's last record was read out.

use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;

use pmu_core::{
    CounterError, CounterId, CounterSession, CounterSet, EventSelect, EventSource, MsrBackend,
    MsrFault, Platform, SampleParts,
};

use crate::precise::error::PreciseError;
use crate::precise::extra::ExtraRegister;
use crate::precise::hardware::Hardware;
use crate::precise::memory::{PAGE, PreciseMemory};
use crate::precise::report::PreciseReport;
use crate::precise::slot::PreciseSlot;
use crate::precise::threshold::PreciseThreshold;
use crate::precise::unit::PreciseUnit;

/// The control handle of a processor's precise records. A recorder starts and stops events, and reads records out.
///
/// The recorder [reserves](CounterSession::reserve) the counters of its events in a session. The facility
/// [`Precise`](crate::precise::Precise) reports the records in the performance interrupt. A processor has only one
/// buffer, so each processor can have only one recorder.
///
/// The recorder cannot move to another thread. Call [`shut_down`](Self::shut_down) on the recorder's processor, before
/// the recorder is dropped and before the session is shut down. Dropping the recorder accesses no register: the
/// processor continues to write records to the recorder's memory.
///
/// This example records every 10,007th branch of user mode:
///
/// ```
/// use core::sync::atomic::AtomicU64;
/// use pmu_core::{Claim, CounterMemory, CounterSession, Event, EventSource, GenericEvent, MsrBackend, Platform};
/// use pmu_core::service_with;
/// use pmu_intel::precise::{
///     Precise, PreciseError, PreciseEvent, PreciseMemory, PreciseRecorder, PreciseReport, PreciseUnit, Precision,
/// };
/// static RECORDS: PreciseMemory<[AtomicU64; 8192]> = PreciseMemory::new(); // one per processor
///
/// fn begin<'a, S: EventSource, M: MsrBackend + Copy, P: Platform>(
///     counters: &mut CounterSession<'_, S, M, P>,
///     unit: &'a PreciseUnit,
///     msr: M,
/// ) -> Result<PreciseRecorder<'a, M>, PreciseError> {
///     // SAFETY: (1) RECORDS is this processor's alone; (2) the kernel's statics are mapped, writable, in each address
///     // space; (3) the backend executes WRMSR and keeps no address.
///     let mut recorder = unsafe { PreciseRecorder::take(unit, msr, &RECORDS, None) }?;
///     let branches = Event::generic(GenericEvent::Branches).user_only().every(10_007);
///     let event = PreciseEvent::new(branches, Precision::ZeroSkidRequested);
///     recorder.start(counters, &event, |_| ())?;
///     Ok(recorder)
/// }
///
/// /// The kernel's handler of the performance interrupt.
/// fn handler<S: EventSource, M: MsrBackend, P: Platform>(
///     (source, msr, platform, counters): (&S, &M, &P, &CounterMemory),
///     unit: &PreciseUnit,
///     mut push: impl FnMut(u64),
/// ) -> Claim {
///     let records = Precise::new(unit, &RECORDS, |report: &PreciseReport<'_>| {
///         if let Some(address) = report.record.address() {
///             push(address);
///         }
///     });
///     service_with(source, msr, platform, counters, records, |_, _| ())
///         .map_or(Claim::OursAndMore, |serviced| serviced.claim)
/// }
/// ```
///
/// # Context
/// Every method: task, on the recorder's processor. The performance interrupt may come at any time.
///
/// ```compile_fail,E0277
/// fn needs_send<T: Send>() {}
/// needs_send::<pmu_intel::precise::PreciseRecorder<'static, ()>>();
/// ```
#[derive(Debug)]
pub struct PreciseRecorder<'a, M> {
    pub(crate) hardware: Hardware<'a, M>,
    pub(crate) threshold: PreciseThreshold,
    /// The groups that adaptive records have at present, as far as they were written.
    groups: Option<SampleParts>,
    pub(crate) latency: ExtraRegister,
    pub(crate) frontend: ExtraRegister,
    is_open: bool,
    /// The recorder is suspended beside lent counters.
    pub(crate) is_lent: bool,
    not_send: PhantomData<*mut ()>,
}

impl<'a, M: MsrBackend> PreciseRecorder<'a, M> {
    /// Takes ownership of the precise records of the processor that executes the call. If an earlier owner has left
    /// PEBS enabled, the call disables PEBS. Without architectural PEBS, the recorder then owns `IA32_DS_AREA` and
    /// `IA32_PEBS_ENABLE`. With architectural PEBS, the recorder owns the registers of architectural PEBS.
    ///
    /// `unit` describes this processor. `physical` is the physical address of the memory's buffer.
    /// [Architectural PEBS](PreciseUnit::needs_physical_address) needs this address.
    ///
    /// # Errors
    /// - [`InsufficientMemory`](PreciseError::InsufficientMemory),
    ///   [`NeedsPhysicalAddress`](PreciseError::NeedsPhysicalAddress), [`MemoryInUse`](PreciseError::MemoryInUse): no
    ///   register was accessed.
    /// - [`Access`](PreciseError::Access): a register access failed. `memory` is free again.
    ///
    /// # Safety
    /// Until [`shut_down`](Self::shut_down) returns successfully:
    /// - The memory's pages are mapped and writable in *every* address space in which this processor runs. With kernel
    ///   page-table isolation, this includes the page tables of user mode.
    /// - `memory` is used on this processor only, and the recorder stays on this processor.
    /// - No other code writes `IA32_DS_AREA`, `IA32_PEBS_ENABLE`, `IA32_PEBS_BASE` or the words of the memory's
    ///   [area](PreciseMemory::control_area).
    /// - If `physical` is given, the buffer is physically contiguous, and `physical` is the buffer's physical address.
    /// - If the registers lose their contents, as in a suspend, [`reprogram`](Self::reprogram) is called before any
    ///   other method.
    /// - `unit` describes this processor.
    ///
    /// In addition, `msr` writes each given value to its register exactly once. `msr` does not keep the `MsrAddress` of
    /// a register, and does not pass the address to other safe code.
    ///
    /// Wrong example, in which two processors use the same memory:
    ///
    /// ```
    /// # use core::sync::atomic::AtomicU64;
    /// # use pmu_core::MsrBackend;
    /// # use pmu_intel::precise::{PreciseError, PreciseMemory, PreciseRecorder, PreciseUnit};
    /// static RECORDS: PreciseMemory<[AtomicU64; 8192]> = PreciseMemory::new();
    /// /// Each processor calls this.
    /// fn begin<'a, M: MsrBackend>(unit: &'a PreciseUnit, msr: M) -> Result<PreciseRecorder<'a, M>, PreciseError> {
    ///     // SAFETY: not given. The second processor is refused, but the first one may since have been unplugged
    ///     // without a shutdown, its memory reclaimed by force, and both write.
    ///     unsafe { PreciseRecorder::take(unit, msr, &RECORDS, None) }
    /// }
    /// ```
    pub unsafe fn take(
        unit: &'a PreciseUnit,
        msr: M,
        memory: &'static PreciseMemory,
        physical: Option<u64>,
    ) -> Result<Self, PreciseError> {
        let (lent, needed) = (memory.capacity(), PAGE);
        let pages = lent / PAGE;
        let physical = match physical.filter(|address| address.is_multiple_of(PAGE as u64)) {
            None if unit.needs_physical_address() => {
                return Err(PreciseError::NeedsPhysicalAddress);
            }
            address => address.unwrap_or(0),
        };
        let fits = !unit.needs_physical_address() || pages.is_power_of_two();
        if !lent.is_multiple_of(PAGE) || pages == 0 || !fits {
            return Err(PreciseError::InsufficientMemory { needed, lent });
        }
        if !memory.take() {
            return Err(PreciseError::MemoryInUse);
        }
        let hardware = Hardware { unit, msr, memory, physical };
        let attached = hardware.disable_all().and_then(|()| {
            hardware.prepare();
            hardware.locate()
        });
        attached.map_err(|fault| {
            memory.give_back();
            PreciseError::Access(fault)
        })?;
        Ok(Self {
            hardware,
            threshold: PreciseThreshold::EachRecord,
            groups: None,
            latency: ExtraRegister::latency(),
            frontend: ExtraRegister::frontend(),
            is_open: true,
            is_lent: false,
            not_send: PhantomData,
        })
    }

    /// Returns the description of the processor's precise records.
    pub const fn unit(&self) -> &'a PreciseUnit {
        self.hardware.unit
    }

    /// Sets the fill level of the buffer at which the processor interrupts. The threshold takes effect when the
    /// recorder next starts or stops an event. While any of the recorder's events is
    /// [loaded by the handler](crate::precise::PreciseEvent::loaded_by_handler), the processor interrupts for each
    /// record, whatever the threshold.
    pub const fn set_threshold(&mut self, threshold: PreciseThreshold) {
        self.threshold = threshold;
    }

    /// Returns the counters on which this recorder has started events.
    pub fn counters(&self) -> CounterSet {
        self.memory().recording().without(self.memory().abandoned())
    }

    /// Ends what starts left that failed and could not be undone.
    pub(crate) fn end_abandoned<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, N, P>,
        report: &mut impl FnMut(&PreciseReport<'_>),
    ) -> Result<(), PreciseError> {
        for counter in self.memory().abandoned().iter() {
            // The event beside another one is ended together with that one.
            if self.memory().abandoned().contains(counter) {
                self.stop(session, counter, &mut *report)?;
            }
        }
        Ok(())
    }

    /// Gives a reserved counter back to the session.
    pub(crate) fn release<S: EventSource, N: MsrBackend, P: Platform>(
        &self,
        session: &mut CounterSession<'_, S, N, P>,
        counter: CounterId,
    ) -> Result<(), PreciseError> {
        let memory = self.memory();
        session.release_reserved(counter)?;
        memory.set_reserved(memory.reserved().without(counter.only()));
        Ok(())
    }

    /// Pauses events, and reads out the records that were written. A paused counter writes none: that it may keeps it
    /// armed, if it has overflowed and its record is yet to come.
    pub(crate) fn quiesce<S: EventSource, N: MsrBackend, P: Platform>(
        &self,
        session: &mut CounterSession<'_, S, N, P>,
        recording: CounterSet,
        report: &mut impl FnMut(&PreciseReport<'_>),
    ) -> Result<(), PreciseError> {
        if recording.is_empty() {
            return Ok(());
        }
        session.pause_reserved(recording, true)?;
        let drained = self.memory().drain(self.unit(), &self.hardware.msr, report);
        drained.map(|_| ()).map_err(PreciseError::Access)
    }

    /// Makes the buffer one of these counters' records, while it is empty and nothing is written to it.
    pub(crate) fn arrange(&mut self, counters: CounterSet) -> Result<(), MsrFault> {
        let groups = self.groups_of(counters);
        if self.groups != Some(groups) {
            self.groups = None;
            self.hardware.write_groups(groups)?;
            self.groups = Some(groups);
        }
        // A counter whose event has no groups writes the basic group alone.
        let has_basic = self.memory().slots(counters).any(|(_, slot)| !self.is_adaptive(slot));
        let least = self.size_of(if has_basic { SampleParts::NONE } else { groups });
        let sizes = (least, self.size_of(groups));
        self.hardware.arrange(sizes, counters.len(), self.threshold_of(counters));
        Ok(())
    }

    /// Returns the threshold with these counters: each record interrupts while the handler loads one of them.
    fn threshold_of(&self, counters: CounterSet) -> PreciseThreshold {
        let mut slots = self.memory().slots(counters);
        match slots.any(|(_, slot)| slot.event().is_loaded_by_handler()) {
            true => PreciseThreshold::EachRecord,
            false => self.threshold,
        }
    }

    /// Loads a counter so that it first overflows after `first` events, and has the processor load it for its period
    /// after each record.
    pub(crate) fn load<S: EventSource, N: MsrBackend, P: Platform>(
        &self,
        session: &mut CounterSession<'_, S, N, P>,
        counter: CounterId,
        first: u64,
    ) -> Result<(), PreciseError> {
        session.load_reserved(counter, first)?;
        self.set_reload(counter).map_err(PreciseError::Access)
    }

    /// Has the processor load a counter for its period after each record.
    pub(crate) fn set_reload(&self, counter: CounterId) -> Result<(), MsrFault> {
        let (unit, memory) = (self.unit(), self.memory());
        let Some((slot, registers)) = memory.slot(counter).zip(unit.counters.counter(counter))
        else {
            return Ok(());
        };
        if self.hardware.is_architectural() {
            return self.hardware.program_records(counter, Some(slot));
        }
        let reload = registers.preload(slot.period.load(Relaxed));
        let reset = if slot.event().is_loaded_by_handler() { 0 } else { reload };
        let resets = &memory.save_area().pebs_counter_reset;
        if let Some(place) = resets.get(unit.reset_place(counter)) {
            place.store(reset, Relaxed);
        }
        Ok(())
    }

    /// Has exactly these counters write records.
    pub(crate) fn enable(&self, counters: CounterSet) -> Result<(), MsrFault> {
        if !counters.is_empty() {
            self.hardware.locate()?;
        }
        match self.hardware.is_architectural() {
            false => self.hardware.enable(counters, self.latency.counters()),
            // The counters' own bits tell which of them.
            true if counters.is_empty() => self.hardware.disable_all(),
            true => {
                let size = self.size_of(self.groups_of(counters));
                self.hardware.enable_index(size, counters.len(), self.threshold_of(counters))
            }
        }
    }

    /// Lets a counter count.
    pub(crate) fn run<S: EventSource, N: MsrBackend, P: Platform>(
        &self,
        session: &mut CounterSession<'_, S, N, P>,
        counter: CounterId,
    ) -> Result<(), PreciseError> {
        let Some(slot) = self.memory().slot(counter) else { return Ok(()) };
        let select = EventSelect::from_bits(slot.select.load(Relaxed));
        Ok(session.start_reserved(counter, select, self.is_adaptive(slot))?)
    }

    /// Returns whether a counter's records have more than the basic group.
    pub(crate) fn is_adaptive(&self, slot: &PreciseSlot) -> bool {
        self.unit().has_adaptive_control() && !slot.event().groups().is_empty()
    }

    /// Has the groups written again.
    pub(crate) const fn forget_groups(&mut self) {
        self.groups = None;
    }

    /// Ends the records of a stopped counter, gives it back, and that of the event beside it, and lets the `paused`
    /// counters count again.
    pub(crate) fn end<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, N, P>,
        counter: CounterId,
        beside: Option<CounterId>,
        paused: CounterSet,
    ) -> Result<(), PreciseError> {
        let rest = self.memory().recording().without(counter.only());
        self.latency.release(session, counter.only());
        self.frontend.release(session, counter.only());
        let cleared = match self.hardware.is_architectural() {
            true => self.hardware.program_records(counter, None),
            false => Ok(()),
        };
        let ended = cleared.and_then(|()| self.arrange(rest));
        ended.and_then(|()| self.enable(rest)).map_err(PreciseError::Faulted)?;
        session.pause_reserved(paused, false)?;
        self.give_back(session, counter, beside)?;
        self.memory().set_recording(rest);
        Ok(())
    }

    /// Gives a counter back, and that of the event beside it.
    pub(crate) fn give_back<S: EventSource, N: MsrBackend, P: Platform>(
        &self,
        session: &mut CounterSession<'_, S, N, P>,
        counter: CounterId,
        beside: Option<CounterId>,
    ) -> Result<(), PreciseError> {
        // A repeated call finds some of them released.
        for counter in beside.into_iter().chain([counter]) {
            if self.memory().reserved().contains(counter) {
                self.release(session, counter)?;
            }
        }
        Ok(())
    }

    /// Stops the event on a counter, and returns the counter to the session. `report` receives the records that are in
    /// the buffer. The recorder's other events are paused during the call.
    ///
    /// # Errors
    /// - [`NotStarted`](PreciseError::NotStarted): no event was started on this counter.
    /// - [`Counters`](PreciseError::Counters): an operation of the session failed.
    /// - [`Access`](PreciseError::Access): a register access failed while the recorder read the buffer.
    /// - [`Faulted`](PreciseError::Faulted): a register access failed, and the processor may still write records.
    /// - [`ShutDown`](PreciseError::ShutDown), [`Lent`](PreciseError::Lent): nothing was changed.
    ///
    /// After `Counters`, `Access` or `Faulted`, repeat the call, or call [`reprogram`](Self::reprogram).
    pub fn stop<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, N, P>,
        counter: CounterId,
        report: impl FnMut(&PreciseReport<'_>),
    ) -> Result<(), PreciseError> {
        self.stop_and(session, counter, report, |_, _| Ok(()))
    }

    /// Stops the event on a counter, and returns what `meanwhile` finds once the counter has stopped.
    pub(crate) fn stop_and<S: EventSource, N: MsrBackend, P: Platform, T>(
        &mut self,
        session: &mut CounterSession<'_, S, N, P>,
        counter: CounterId,
        mut report: impl FnMut(&PreciseReport<'_>),
        meanwhile: impl FnOnce(&mut CounterSession<'_, S, N, P>, CounterId) -> Result<T, CounterError>,
    ) -> Result<T, PreciseError> {
        self.check()?;
        let recording = self.memory().recording();
        let started = recording | self.memory().abandoned();
        let slot = self.memory().slot(counter).filter(|_| started.contains(counter));
        let beside = slot.ok_or(PreciseError::NotStarted)?.beside.load(Relaxed);
        self.quiesce(session, recording, &mut report)?;
        session.stop_reserved(counter)?;
        let found = meanwhile(session, counter)?;
        session.acknowledge_reserved(counter.only(), self.unit().status_bit())?;
        let beside = beside.checked_sub(1).map(|bit| CounterSet::from_bits(1 << bit));
        self.end(session, counter, beside.and_then(|set| set.iter().next()), recording)?;
        Ok(found)
    }

    /// Reads the precise records that are in the buffer, and passes each record to `report`. During the call, the
    /// recorder's events are paused.
    ///
    /// With [`NearlyFull`](PreciseThreshold::NearlyFull), records may wait in the buffer for a long time. A record's
    /// addresses belong to the memory mappings that the process had when the processor wrote the record. So call this
    /// method before the process ends or maps other files.
    ///
    /// # Errors
    /// The errors of [`stop`](Self::stop).
    pub fn drain<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, N, P>,
        mut report: impl FnMut(&PreciseReport<'_>),
    ) -> Result<(), PreciseError> {
        self.check()?;
        let recording = self.memory().recording();
        if recording.is_empty() {
            return Ok(());
        }
        session.pause_reserved(recording, true)?;
        let drained = self.memory().drain(self.unit(), &self.hardware.msr, &mut report);
        session.pause_reserved(recording, false)?;
        drained.map(|_| ()).map_err(PreciseError::Access)
    }

    /// Stops all events of this recorder, and releases its memory for another recorder. Later calls return
    /// [`ShutDown`](PreciseError::ShutDown).
    ///
    /// # Errors
    /// - [`Counters`](PreciseError::Counters): an operation of the session failed.
    /// - [`Faulted`](PreciseError::Faulted): a register access of the recorder failed.
    /// - [`Traced`](PreciseError::Traced), [`ShutDown`](PreciseError::ShutDown), [`Lent`](PreciseError::Lent): nothing
    ///   was changed.
    ///
    /// After `Counters` or `Faulted`, the recorder keeps the memory, and the call can be repeated.
    pub fn shut_down<S: EventSource, N: MsrBackend, P: Platform>(
        &mut self,
        session: &mut CounterSession<'_, S, N, P>,
        mut report: impl FnMut(&PreciseReport<'_>),
    ) -> Result<(), PreciseError> {
        self.check()?;
        if self.memory().is_traced() {
            return Err(PreciseError::Traced);
        }
        self.end_abandoned(session, &mut report)?;
        for counter in self.counters().iter() {
            self.stop(session, counter, &mut report)?;
        }
        self.hardware.detach().map_err(PreciseError::Faulted)?;
        self.is_open = false;
        self.memory().give_back();
        Ok(())
    }

    /// Returns the groups that the events of these counters have together.
    pub(crate) fn groups_of(&self, counters: CounterSet) -> SampleParts {
        let slots = self.memory().slots(counters);
        slots.fold(SampleParts::NONE, |all, (_, slot)| all | slot.event().groups())
    }

    /// Returns the size of the greatest record with these groups.
    pub(crate) fn size_of(&self, groups: SampleParts) -> usize {
        self.unit().record_size(groups, self.unit().counters.counters().len())
    }

    pub(crate) const fn memory(&self) -> &'static PreciseMemory {
        self.hardware.memory
    }

    pub(crate) fn check(&self) -> Result<(), PreciseError> {
        match (self.is_open, self.is_lent) {
            (false, _) => Err(PreciseError::ShutDown),
            (true, true) => Err(PreciseError::Lent),
            (true, false) => Ok(()),
        }
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }
}
