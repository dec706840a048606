//! The window in which a session's counters are lent, to a guest for instance.

pub(crate) mod restore;

use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;

use crate::counters::control::handle::{CounterSession, marked_faulted};
use crate::counters::control::window::restore::{Failures, Values, WindowError};
use crate::counters::error::CounterError;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::Facility;
use crate::counters::hooks::running::Moment;
use crate::counters::interrupt::sample::Sample;
use crate::counters::names::{CounterSet, MAX_COUNTERS};
use crate::counters::shared::entry::EventState;
use crate::counters::shared::slot::SlotState;
use crate::counters::shared::table::EventTable;
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

/// The time during which a session's counters are [lent](CounterSession::lend) to a borrower, such as a hypervisor.
/// The window borrows the session, so that no event can be enabled, disabled or read until the window ends.
///
/// Call [`end`](Self::end) on every path, also before an early return by `?`. Dropping a window without `end` accesses
/// no register, and leaves the counters lent:
/// - The session's operations find no counters, and its events count nothing.
/// - When the session's next window ends, the session's events run again, and begin new periods. The counts since the
///   counters' last interrupts are lost.
/// - [`shut_down`](CounterSession::shut_down) still stops the counters.
/// - Nothing clears the borrower's overflow bits in the status register, or the borrower's values in
///   [added](LentCounters::add_unowned) counters.
/// - The [facilities](crate::EventSource::Facility) stay suspended.
#[must_use = "the counters are lent until the window ends"]
#[derive(Debug)]
pub struct CounterWindow<'c, 'a, S, H> {
    counters: &'c mut CounterSession<'a, S, H>,
    lent: LentCounters,
    /// The session's declared counters; during the window, those that it lends.
    declared: CounterSet,
    /// Bits of the lent counters in the global control register.
    gate: u64,
    /// Values of the counters that ran, in the order of their bits.
    values: Values,
}

impl<'a, S: EventSource, H: Hardware> CounterSession<'a, S, H> {
    /// Lends the session's counters to a borrower, such as a hypervisor: stops the counters, and keeps their values
    /// until the returned window [ends](CounterWindow::end). A hypervisor opens the window before it loads a guest's
    /// state, and ends the window after it has saved the guest's state.
    ///
    /// During the window, [`service`](crate::service) accesses no register, and
    /// [reports](crate::interrupt::Serviced::lent) that the interrupt may belong to the borrower. If the delivery of an
    /// interrupt masks the interrupt, the borrower unmasks it after acknowledging the overflow. If an interrupt during
    /// the window was left masked, the window's end unmasks it.
    ///
    /// During the window, none of the session's events is counted, not even an event that
    /// is not confined to [outside guests](crate::Event::outside_guests). From the `now` of this call to the `now` of
    /// [`end`](CounterWindow::end), the events' times do not advance. The kernel can let the `enabled` times advance by
    /// [`count_as_enabled`](CounterWindow::count_as_enabled).
    ///
    /// The call suspends the [facilities](crate::EventSource::Facility) of the session's event source with the
    /// counters: the branch records that events asked for or a
    /// [`BranchRecorder`](crate::branch_recording::BranchRecorder) records, and precise records.
    ///
    /// If an overflow is pending, the call itself reports the overflow to `overflowed`, as a [`Sample`] with its
    /// branches and its precise record. The call also reports the samples of all precise records that wait in memory.
    /// If an overflow's interrupt still comes, `service` claims the interrupt, and does not report the overflow again.
    ///
    /// Opening and ending a window costs these register accesses:
    /// - With a global control register: two writes and one read. Each event on a counter adds one RDPMC and two
    ///   writes.
    /// - Without a global control register: one RDPMC and three writes for each event on a counter.
    ///
    /// All fixed counters share one control register, which the window writes only once.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// # use pmu_core::lending::{LentCounters, WindowError};
    /// # fn enter_guest(_: &mut LentCounters) {}
    /// fn run_guest<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     clock: impl Fn() -> u64,
    /// ) -> Result<(), CounterError> {
    ///     let mut window = counters.lend(clock(), |_| ())?;
    ///     enter_guest(window.lent()); // No early return between `lend` and `end`.
    ///     Ok(window.end(clock())?)
    /// }
    /// ```
    ///
    /// While the window lives, the compiler rejects other uses of the session:
    ///
    /// ```compile_fail,E0499
    /// # use pmu_core::{CounterSession, EventId, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// # fn wrong<S: EventSource, H: Hardware>(
    /// #     counters: &mut CounterSession<'_, S, H>, event: EventId,
    /// # ) -> Result<(), CounterError> {
    /// let window = counters.lend(0, |_| ())?;
    /// counters.disable(event, 0)?;
    /// Ok(window.end(0)?)
    /// # }
    /// ```
    ///
    /// # Context
    /// Task. End the window on the same processor. An interrupt may come at any time.
    ///
    /// # Errors
    /// - [`NotAvailable`](CounterError::NotAvailable): the session has no counters and no software events, or was shut
    ///   down.
    /// - [`Unchanged`](CounterError::Unchanged): nothing is lent, and all events run as before.
    /// - [`StateUnknown`](CounterError::StateUnknown). Nothing is lent, and some events no longer run.
    ///
    /// # Limitations
    /// - A window lends counters alone. Extra registers of events and PEBS are no part of it, so a guest has neither.
    ///   It suspends the facilities of the session's event source, with the records of a `BranchRecorder`; a recorder
    ///   whose memory no session's source has goes on recording.
    /// - A lend that cannot clear a recorder's branch records fails, and loses these records. If the recording cannot
    ///   go on either, samples have no branches until it is restarted, or the next window ends. A window's end that
    ///   fails leaves the freeze bit set if the register of this bit fails, too.
    pub fn lend(
        &mut self,
        now: u64,
        overflowed: impl FnMut(Sample<'_, S::Facility>),
    ) -> Result<CounterWindow<'_, 'a, S, H>, CounterError> {
        let was_lent = self.memory.is_lent();
        let own = if was_lent { self.candidates() } else { self.own() };
        if self.pause_software_alone(now) {
            let lent = LentCounters::unowned(CounterSet::NONE, 0);
            let (declared, values) = (self.declared, [0; MAX_COUNTERS]);
            return Ok(CounterWindow { counters: self, lent, declared, gate: 0, values });
        }
        if own.is_empty() || !self.is_open() {
            return Err(CounterError::NotAvailable(self.declared));
        }
        let control = &self.memory.global_control;
        let (gate, values) = if was_lent {
            // The borrower of before, or a recorder that could not be taken meanwhile, may have left branches.
            self.source.facility().lose();
            self.clear_facilities(own, Moment::Lent).map_err(CounterError::Unchanged)?;
            (own.bits(), self.begin_anew(own))
        } else {
            let gate = control.load(Relaxed) & own.bits();
            let stopped = self.stop_all(own);
            let settled = stopped.and_then(|()| self.settle(own, overflowed));
            let settled = settled.and_then(|values| {
                self.clear_facilities(own, Moment::Lent).map_err(CounterError::Unchanged)?;
                Ok(values)
            });
            let values = settled.map_err(|error| {
                let undone = self.undo(own, gate, error);
                self.settle_software();
                undone
            })?;
            (gate, values)
        };
        // Before the counters are lent: then no event is on a counter, and `running` would not advance.
        self.add_times(now);
        self.pause_software();
        // Not earlier: until the counters are stopped and read, an interrupt must still find and serve them.
        self.memory.lend();
        let mut lent = LentCounters::unowned(own, control.load(Relaxed));
        // After a window that did not end, the registers may still be programmed for its borrower.
        lent.set_programmed(was_lent);
        // Counters that were added while the window is open are not its own.
        let declared = core::mem::replace(&mut self.declared, own);
        Ok(CounterWindow { counters: self, lent, declared, gate, values })
    }

    /// Stops these counters: all together by the global control register, or without one, each that runs.
    fn stop_all(&self, own: CounterSet) -> Result<(), CounterError> {
        let mut one_by_one = own;
        if self.unit().global().is_some() {
            self.pause(own)?;
            one_by_one = self.units_of(own);
        }
        for (counter, slot) in self.slots_of(one_by_one) {
            if let SlotState::Running { .. } = slot.load() {
                self.before_stop(counter);
                let stopped = self.set_control(&self.registers(counter), 0);
                stopped.map_err(CounterError::Unchanged)?;
            }
        }
        Ok(())
    }

    /// Reads the running counters, which are stopped now. First serves the overflows whose interrupts have not come
    /// yet.
    fn settle(
        &self,
        own: CounterSet,
        mut overflowed: impl FnMut(Sample<'_, S::Facility>),
    ) -> Result<Values, CounterError> {
        let of_source = self.source.facility();
        // A record may wait without any overflow in the status: below its buffer's threshold.
        let waits = || of_source.has_waiting(&self.hardware).map_err(CounterError::Unchanged);
        let pending = match self.unit().global() {
            Some(global) => {
                let status = self.read_retrying(global.status).map_err(CounterError::Unchanged)?;
                let bits = of_source.status_bits();
                status & (own.bits() | global.frozen | bits) != 0 || waits()?
            }
            None => match self.read_values(own)? {
                (values, false) if !waits()? => return Ok(values),
                _ => true,
            },
        };
        if pending {
            let served = self.serve_samples(&mut overflowed);
            let served = served.map_err(|error| match error.counters.is_empty() && !error.masked {
                // An access of the facility.
                true => CounterError::Unchanged(error.fault),
                false => CounterError::StateUnknown(error.fault),
            });
            self.memory.expect_spurious(served?.claim.interrupts());
            if let Some(global) = self.unit().global()
                && self.memory.global_control.load(Relaxed) == 0
            {
                // ZX-C took no acknowledgement while every counter was stopped.
                let cleared = self.acknowledge(global, own.bits());
                cleared.map_err(CounterError::Unchanged)?;
            }
        }
        if S::Facility::DIVIDES {
            self.harvest_stopped_of(own)?;
        }
        // Not before: an interrupt in between may have loaded one of them.
        self.read_values(own).map(|(values, _)| values)
    }

    /// Reads the running counters, and returns whether one of them is in the half of its range after its wrap.
    fn read_values(&self, own: CounterSet) -> Result<(Values, bool), CounterError> {
        let (mut values, mut wrapped) = ([0; MAX_COUNTERS], false);
        for (place, (counter, slot)) in values.iter_mut().zip(self.slots_of(own)) {
            if let SlotState::Running { .. } = slot.load() {
                let registers = self.registers(counter);
                *place = self.read_value(&registers).map_err(CounterError::Unchanged)?;
                wrapped |= registers.has_overflowed(*place);
            }
        }
        Ok((values, wrapped))
    }

    /// Returns the values at which the events' periods begin, after a window that did not end. Frees the counters of
    /// events that were stopped, closed, or left to wait for a turn meanwhile.
    fn begin_anew(&self, own: CounterSet) -> Values {
        let mut values = [0; MAX_COUNTERS];
        for (place, (counter, slot)) in values.iter_mut().zip(self.slots_of(own)) {
            let counts = match slot.load() {
                SlotState::Free | SlotState::Faulted => continue,
                SlotState::Parked { .. } => None,
                SlotState::Running { event, .. } => match self.table().entry(event) {
                    Some(entry) => (entry.state() == EventState::Counting).then_some(event),
                    None => Some(event),
                },
            };
            let load = counts.and_then(|event| {
                let (value, period) = self.first_load(&self.registers(counter), event)?;
                *place = value;
                Some(SlotState::Running { event, period })
            });
            slot.store(load.unwrap_or(SlotState::Free));
        }
        values
    }

    /// Resumes these counters, some of which are stopped, after a failure.
    fn undo(&self, own: CounterSet, gate: u64, error: CounterError) -> CounterError {
        // The sample of a unit is in its registers: its interrupt is yet to come, or has been.
        for (counter, slot) in self.slots_of(own.without(self.units_of(own))) {
            if self.load_due(counter).is_err() {
                slot.store(SlotState::Faulted);
            }
        }
        let error = self.settle_facilities_of(own).err().unwrap_or(error);
        let (resumed, one_by_one) = match self.unit().global() {
            Some(_) => (self.unpause(CounterSet::from_bits(gate)), self.units_of(own)),
            None => (Ok(()), own),
        };
        let mut failures = Failures::default();
        self.restore_controls(one_by_one, &mut failures);
        let resumed = resumed.and(failures.outcome().map_err(CounterError::from));
        resumed.err().unwrap_or(error)
    }
}

impl<S: EventSource, H: Hardware> CounterWindow<'_, '_, S, H> {
    pub(crate) fn table(&self) -> &EventTable {
        self.counters.table()
    }

    /// Adds what the counters counted to the totals of the opened events, and keeps the remainders of their periods.
    /// The counters stay lent.
    pub(crate) fn keep_counts(self) {
        let counters = self.counters;
        for (value, (counter, slot)) in
            self.values.into_iter().zip(counters.slots_of(counters.declared))
        {
            if let Some(entry) = slot.running().and_then(|event| counters.table().entry(event)) {
                let mask = counters.registers(counter).mask();
                match counters.due_on(counter, value) {
                    Some(entry) => {
                        entry.accumulate_precise(value, mask);
                        entry.period.set_resume(1);
                    }
                    None => {
                        entry.accumulate(value, mask);
                        entry.period.set_resume(value.wrapping_neg() & mask);
                    }
                }
            }
        }
    }

    /// Returns the counters that the session lends, to pass to a borrower, such as a hypervisor.
    pub const fn lent(&mut self) -> &mut LentCounters {
        &mut self.lent
    }

    /// Ends the window: every event continues with the count and period that it had before the window. Take `now` from
    /// the clock that you used for [`lend`](CounterSession::lend).
    ///
    /// Before this call, restore each bit of the interrupt's entry that you changed. On Intel, also restore the debug
    /// control register, because VM exits clear it.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// # use pmu_core::lending::LentCounters;
    /// /// Runs a guest in a window. Counters that could not be restored at its end are programmed again.
    /// fn end<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     clock: impl Fn() -> u64,
    ///     guest: impl FnOnce(&mut LentCounters),
    /// ) -> Result<(), CounterError> {
    ///     let mut window = counters.lend(clock(), |_| ())?;
    ///     guest(window.lent());
    ///     if window.end(clock()).is_err() {
    ///         counters.reprogram(|_| ())?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Context
    /// Task, on the processor on which the counters were lent. An interrupt may come at any time.
    ///
    /// # Errors
    /// Returns the counters that could not be restored, and the first failed access. All other counters run. If the
    /// facility could not be resumed, the error contains the facility's failed access, and the facility stays
    /// suspended.
    pub fn end(self, now: u64) -> Result<(), WindowError> {
        let Self { counters, lent, declared, gate, values } = self;
        let own = counters.declared;
        if counters.continue_software(now) {
            return Ok(());
        }
        let (ran, mut failures) = (counters.running(own), Failures::default());
        if lent.programmed {
            let status = lent.status | counters.division_bits();
            counters.disarm(lent.counters, status, &mut failures);
            // The borrower may have changed the facilities' registers, too.
            counters.source.facility().lose();
        }
        counters.restore_values(own, &values, &mut failures);
        if S::Facility::DIVIDES
            && let Err((counter, fault)) = counters.begin_parts_of_running(own)
            && let Some(slot) = counters.slot(counter)
        {
            failures.note(counter, slot, fault);
        }
        // From here on the interrupt path serves the counters: without a global control register they start one by
        // one.
        let interrupted = counters.memory.take_back(own);
        counters.declared = declared;
        if let Err(CounterError::StateUnknown(fault)) = counters.settle_facilities_of(own) {
            failures.fault.get_or_insert(fault);
        }
        counters.restore_controls(own, &mut failures);
        // The delivery of that interrupt masked the interrupt, and `service` accesses no register in a window.
        if interrupted && !counters.memory.serving.is_masked() {
            counters.hardware.unmask_performance_interrupt();
        }
        counters.table().opened().for_each(|(_, entry)| entry.skip_time(now));
        // Last: one write starts all counters, now that their values, controls and slots are restored.
        if let Err(CounterError::Unchanged(fault) | CounterError::StateUnknown(fault)) =
            counters.unpause(CounterSet::from_bits(gate))
        {
            failures.fault.get_or_insert(fault);
        }
        for (event, entry) in counters.table().opened() {
            if counters.check_counter(event, entry).is_err() {
                // A group counts together or not at all, so the other counters of the group stop, too.
                counters.memory.mark_faulted(Some(event), counters.table());
            }
        }
        // An interrupt may have met a fault, too.
        let lost = ran.without(counters.running(own));
        if let Some(counter) = lost.iter().next() {
            let register = counters.registers(counter).value_register();
            failures.fault.get_or_insert(marked_faulted(register));
        }
        failures.counters = failures.counters | lost;
        counters.settle_software();
        failures.outcome()
    }
}

/// Free counters of a processor: no owner uses these counters at present. A borrower's operations require this value as
/// proof that the counters are free.
///
/// A [`CounterWindow`](crate::lending::CounterWindow) provides this value while a session lends its counters. The
/// counters are stopped, and have no overflow pending. The counters' control and value registers still hold the owner's
/// values. The borrower programs a counter before it enables the counter, and stops the counter before the window ends.
#[derive(Debug)]
pub struct LentCounters {
    pub(crate) counters: CounterSet,
    global_control: u64,
    pub(crate) programmed: bool,
    pub(crate) status: u64,
    not_send: PhantomData<*mut ()>,
}

impl LentCounters {
    /// Declares that `counters` of the processor that executes the call have no owner and are stopped. `global_control`
    /// is the value of the global control register. A counter is stopped if its own control register disables it, or if
    /// its bit in `global_control` is clear. If a counter has an owner after all, the owner's counts become wrong.
    ///
    /// # Context
    /// Task. The returned value stays on the processor.
    ///
    /// ```
    /// use pmu_core::CounterSet;
    /// use pmu_core::lending::LentCounters;
    /// let lent = LentCounters::unowned(CounterSet::from_bits(0b1111), 0);
    /// assert_eq!(lent.counters().len(), 4);
    /// ```
    pub const fn unowned(counters: CounterSet, global_control: u64) -> Self {
        Self { counters, global_control, programmed: false, status: 0, not_send: PhantomData }
    }

    /// Adds `counters`, which have no owner, to the counters of this value. For example, a session whose source has no
    /// room for opened events does not take the fixed counters, so these counters can be added.
    ///
    /// ```
    /// # use pmu_core::CounterSet;
    /// # use pmu_core::lending::LentCounters;
    /// let mut lent = LentCounters::unowned(CounterSet::GENERAL, 0);
    /// lent.add_unowned(CounterSet::fixed(0b111)); // The guest gets fixed counters 0 to 2, too.
    /// assert_eq!(lent.counters().bits() >> 32, 0b111);
    /// ```
    pub fn add_unowned(&mut self, counters: CounterSet) {
        self.counters = self.counters | counters;
    }

    /// Returns the lent counters, including those that were added.
    pub const fn counters(&self) -> CounterSet {
        self.counters
    }

    /// Returns the global control register's value with the lent counters' bits clear. This value stops the lent
    /// counters, and leaves the counters of other owners running. The borrower writes this value back before the
    /// [window](crate::lending::CounterWindow) ends. On Intel, the hypervisor also writes this value to the VMCS, in
    /// the host-state field for this register.
    pub const fn global_control(&self) -> u64 {
        self.global_control
    }

    /// States whether the borrower of the counters, such as a guest, has programmed any register. The borrower calls
    /// this with `true` before its first register write. At the end, the borrower stops its counters, clears its
    /// registers and acknowledges its overflows, and then calls this with `false`. If the last call was with `true`,
    /// the window's [end](crate::lending::CounterWindow::end) does this work for the borrower.
    ///
    /// ```
    /// # use pmu_core::lending::LentCounters;
    /// # fn program(_: &LentCounters) {}
    /// # fn disarm(_: &LentCounters) -> bool { true }
    /// /// Runs a borrower that may fail to disarm its counters: the window's end then does it.
    /// fn borrow(lent: &mut LentCounters) {
    ///     lent.set_programmed(true);
    ///     program(lent);
    ///     let disarmed = disarm(lent);
    ///     lent.set_programmed(!disarmed);
    /// }
    /// ```
    pub const fn set_programmed(&mut self, programmed: bool) {
        self.programmed = programmed;
    }

    /// Announces that the borrower of the counters is about to set `bits` in the overflow status register. `bits`
    /// contains no counter's overflow bit. If the borrower still has registers programmed when the
    /// [window](crate::lending::CounterWindow) ends, the window's end also acknowledges `bits`. If `bits` stayed set,
    /// the processor would raise an interrupt each time the interrupt is unmasked.
    ///
    /// ```
    /// # use pmu_core::lending::LentCounters;
    /// # fn write_status_set(_: u64) {}
    /// /// Sets a guest's bits of the overflow status, among them bit 55 of Processor Trace.
    /// fn load_status(lent: &mut LentCounters, guest: u64) {
    ///     lent.set_status(guest & 1 << 55);
    ///     write_status_set(guest);
    /// }
    /// ```
    pub const fn set_status(&mut self, bits: u64) {
        self.status = bits;
    }
}
