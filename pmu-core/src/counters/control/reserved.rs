//! Counters of the session that a facility uses: their overflows are the facility's to report.

use core::sync::atomic::Ordering::Relaxed;

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::event::Event;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::counter_id::{CounterId, CounterSet};
use crate::counters::registers::counter::Counter;
use crate::counters::registers::select::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::slot::SlotState;
use crate::msr::address::MsrAddress;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

/// Operations that reserve counters for a [`Facility`](crate::Facility), such as Intel's precise records. The facility
/// itself reports the overflows of its [reserved counters](crate::Facility::own_counters).
///
/// A reserved counter still belongs to the session, but counts no event of the session. While an interrupt is serviced,
/// the session stops the counter, and acknowledges the counter's overflows. When the session [lends](Self::lend) its
/// counters, it lends the reserved counter, too. All reservations end when [`reprogram`](Self::reprogram) is called, or
/// when [`service`](crate::service) fails.
impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Reserves a free counter for a [facility](crate::Facility) that records overflows itself, such as precise
    /// sampling. The call chooses a counter that is in `among` and can count the event. Returns this counter, and the
    /// select that the event has on this processor. The call ignores the event's period and tag. It also ignores the
    /// event's extra register, which [`reserve_extra_register`](Self::reserve_extra_register) reserves.
    ///
    /// ```
    /// # use pmu_core::{
    /// #     CounterError, CounterId, CounterSession, CounterSet, CounterUnit, Event, EventSource, GenericEvent,
    /// #     MsrBackend, Platform,
    /// # };
    /// /// Counts instructions on a counter that no interrupt reports.
    /// fn count_silently<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     this_processor: &CounterUnit,
    /// ) -> Result<CounterId, CounterError> {
    ///     let event = Event::generic(GenericEvent::Instructions);
    ///     let (counter, select) = counters.reserve(this_processor, &event, CounterSet::ALL)?;
    ///     counters.start_reserved(counter, select, false)?;
    ///     Ok(counter)
    /// }
    /// ```
    ///
    /// # Errors
    /// - The errors of [`open_event`](Self::open_event) for an event that the processor cannot count.
    /// - [`NoCounterForEvent`](CounterError::NoCounterForEvent): no counter in `among` can count the event.
    /// - [`NoFreeCounter`](CounterError::NoFreeCounter): each counter in `among` that can count the event is in use, or
    ///   an [exclusive](Event::exclusive) event runs. With [`OnSharedCore`](crate::OnSharedCore), a counter is also in
    ///   use while the core's other logical processor uses the counter with the same index.
    /// - [`Access`](CounterError::Access): a register access failed, and no counter was reserved.
    /// - [`Faulted`](CounterError::Faulted): accesses to the global control register failed. The session's events may
    ///   no longer run.
    pub fn reserve(
        &mut self,
        processor: &CounterUnit,
        event: &Event,
        among: CounterSet,
    ) -> Result<(CounterId, EventSelect), CounterError> {
        self.check_processor(processor)?;
        let (select, capable) = processor.resolve(event)?;
        let capable = capable & among & self.own();
        if capable.is_empty() {
            return Err(CounterError::NoCounterForEvent);
        }
        self.check_unmuted()?;
        if self.table().runs_exclusive() {
            return Err(CounterError::NoFreeCounter);
        }
        self.unpark_all(self.outside_guests(self.own()))?;
        let counter = self.first_free(capable)?;
        if !self.claim_reserved(counter, select) {
            return Err(CounterError::NoFreeCounter);
        }
        if let Some(slot) = self.slot(counter) {
            // Presumed to run, for no event of the session.
            slot.store(SlotState::Faulted);
        }
        Ok((counter, select))
    }

    /// Reserves a counter again after [`reprogram`](Self::reprogram), which ends every reservation. `select` is the
    /// select that [`reserve`](Self::reserve) returned.
    ///
    /// # Errors
    /// - [`NotAvailable`](CounterError::NotAvailable): the counter is in use, does not belong to the session, or is
    ///   [lent](Self::lend).
    /// - [`NoFreeCounter`](CounterError::NoFreeCounter), only with [`OnSharedCore`](crate::OnSharedCore): the core's
    ///   other logical processor now uses the counter with the same index.
    pub fn reserve_again(
        &mut self,
        counter: CounterId,
        select: EventSelect,
    ) -> Result<(), CounterError> {
        let own = self.own().contains(counter) && self.has_own();
        match self.slot(counter).filter(|_| own) {
            Some(slot) if matches!(slot.load(), SlotState::Free | SlotState::Faulted) => {
                if !self.claim_reserved(counter, select) {
                    return Err(CounterError::NoFreeCounter);
                }
                slot.store(SlotState::Faulted);
                Ok(())
            }
            _ => Err(CounterError::NotAvailable(counter.only())),
        }
    }

    /// Returns the registers of a reserved counter.
    fn reserved(&self, counter: CounterId) -> Result<Counter, CounterError> {
        let not_reserved = CounterError::NotAvailable(counter.only());
        let own = self.own().contains(counter) && self.has_own();
        let place = self.place(counter).filter(|_| own).ok_or(not_reserved)?;
        match place {
            (slot, registers) if slot.load() == SlotState::Faulted => Ok(registers),
            _ => Err(not_reserved),
        }
    }

    /// Loads a [reserved](Self::reserve) counter so that it overflows after `period` events. Returns the loaded value.
    ///
    /// # Errors
    /// - [`NotAvailable`](CounterError::NotAvailable): the counter is not reserved, or is [lent](Self::lend).
    /// - [`Period`](CounterError::Period): the period is 0, or is too long for the counter.
    /// - [`Access`](CounterError::Access): the write to the counter's value register failed.
    pub fn load_reserved(&mut self, counter: CounterId, period: u64) -> Result<u64, CounterError> {
        let registers = self.reserved(counter)?;
        let longest = registers.max_load(self.memory.full_width.load(Relaxed));
        if !(1..=longest).contains(&period) {
            return Err(CounterError::Period(period));
        }
        let value = registers.preload(period);
        let written = self.wrmsr_retrying(registers.register_for(value), value);
        written.map(|()| value).map_err(CounterError::Access)
    }

    /// Starts a [reserved](Self::reserve) counter: it counts the event that `select` describes, and its overflows do
    /// not interrupt. If `adaptive` is set, the counter's precise records are adaptive (SDM vol. 3B, "Adaptive PEBS").
    /// The call then sets bit 34 of the event select. For fixed counter *n*, the call instead sets bit 32 + 4*n* of the
    /// fixed counters' control register.
    ///
    /// # Errors
    /// - [`NotAvailable`](CounterError::NotAvailable): the counter is not reserved, or is [lent](Self::lend).
    /// - [`Access`](CounterError::Access): the write to the counter's control register failed.
    pub fn start_reserved(
        &mut self,
        counter: CounterId,
        select: EventSelect,
        adaptive: bool,
    ) -> Result<(), CounterError> {
        let registers = self.reserved(counter)?;
        let bits = registers.control.running_silently(select, adaptive);
        self.set_control(&registers, bits).map_err(CounterError::Access)
    }

    /// Stops a [reserved](Self::reserve) counter. The counter stays reserved.
    ///
    /// # Errors
    /// The errors of [`start_reserved`](Self::start_reserved).
    pub fn stop_reserved(&mut self, counter: CounterId) -> Result<(), CounterError> {
        let registers = self.reserved(counter)?;
        self.set_control(&registers, 0).map_err(CounterError::Access)
    }

    /// Returns the value of a [reserved](Self::reserve) counter.
    ///
    /// # Errors
    /// - [`NotAvailable`](CounterError::NotAvailable): the counter is not reserved, or is [lent](Self::lend).
    /// - [`Access`](CounterError::Access): the counter could not be read.
    pub fn read_reserved(&mut self, counter: CounterId) -> Result<u64, CounterError> {
        let registers = self.reserved(counter)?;
        self.read(&registers).map_err(CounterError::Access)
    }

    /// Stops several [reserved](Self::reserve) counters at once, by the global control register, if `pause` is `true`.
    /// If `pause` is `false`, the counters count again.
    ///
    /// # Errors
    /// - [`NotAvailable`](CounterError::NotAvailable): a counter is not reserved, or is [lent](Self::lend).
    /// - [`Access`](CounterError::Access): the write failed, and the counters are unchanged.
    /// - [`Faulted`](CounterError::Faulted): accesses to the global control register failed. The session's events may
    ///   no longer run.
    pub fn pause_reserved(
        &mut self,
        counters: CounterSet,
        pause: bool,
    ) -> Result<(), CounterError> {
        for counter in counters.iter() {
            self.reserved(counter)?;
        }
        if pause { self.pause(counters) } else { self.unpause(counters) }
    }

    /// Acknowledges the overflows of the [reserved](Self::reserve) `counters`, and the bits of the overflow status that
    /// the mask `facility` selects. The bits in `facility` belong to the [facility](crate::Facility) itself, not to a
    /// counter. If an interrupt for one of the facility's bits still comes, [`service`](crate::service) claims the
    /// interrupt.
    ///
    /// # Errors
    /// - [`NotAvailable`](CounterError::NotAvailable): a counter is not reserved, or is [lent](Self::lend).
    /// - [`Access`](CounterError::Access): the read of the overflow status or the write that acknowledges it failed.
    pub fn acknowledge_reserved(
        &mut self,
        counters: CounterSet,
        facility: u64,
    ) -> Result<(), CounterError> {
        for counter in counters.iter() {
            self.reserved(counter)?;
        }
        let Some(global) = self.unit().global() else { return Ok(()) };
        let status = self.rdmsr_retrying(global.status).map_err(CounterError::Access)?;
        let pending = status & (counters.bits() | facility);
        if pending & facility != 0 {
            self.memory.expect_spurious(1);
        }
        if pending == 0 {
            return Ok(());
        }
        self.clear_status(global, pending).map_err(CounterError::Access)
    }

    /// Stops a [reserved](Self::reserve) counter and ends its reservation. The session's events can then use the
    /// counter.
    ///
    /// # Errors
    /// - [`NotAvailable`](CounterError::NotAvailable): the counter is not reserved, or is [lent](Self::lend).
    /// - [`Faulted`](CounterError::Faulted): accesses to the counter's control register failed, and the counter stays
    ///   reserved.
    pub fn release_reserved(&mut self, counter: CounterId) -> Result<(), CounterError> {
        self.reserved(counter)?;
        self.release(counter).map_err(CounterError::Faulted)
    }

    /// Writes `value` to an extra register for a [facility](crate::Facility), and reserves the register. Until
    /// [`release_extra_register`](Self::release_extra_register), the session's events can use this register only with
    /// the same value. A facility may call this method again with the same value.
    ///
    /// [`reprogram`](Self::reprogram) does not end the reservation, and writes the value again.
    /// [`shut_down`](Self::shut_down) ends the reservation, and restores the value from before the session. A session
    /// without a table of events only writes the value.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventSource, MsrAddress, MsrBackend, Platform};
    /// /// Lets only loads pass whose latency is at least `cycles`, for the counters of a facility.
    /// fn set_least_latency<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     cycles: u16,
    /// ) -> Result<(), CounterError> {
    ///     // SAFETY: the register MSR_PEBS_LD_LAT_THRESHOLD selects loads, and changes no memory.
    ///     let threshold = unsafe { MsrAddress::new(0x3F6) };
    ///     counters.release_extra_register(threshold);
    ///     counters.reserve_extra_register(threshold, cycles.into())
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`ExtraRegisterInUse`](CounterError::ExtraRegisterInUse): an event of the session that is now on a counter
    ///   uses the register with another value, a facility has reserved the register with another value, or the
    ///   session's events use more extra registers than the session has room for. The register was not written.
    /// - [`NotAvailable`](CounterError::NotAvailable): the session is shut down, or its counters are
    ///   [lent](Self::lend).
    /// - [`Access`](CounterError::Access): the register could not be read or written, and is not reserved.
    pub fn reserve_extra_register(
        &mut self,
        register: MsrAddress,
        value: u64,
    ) -> Result<(), CounterError> {
        if !self.has_own() {
            return Err(CounterError::NotAvailable(self.own()));
        }
        let table = self.table();
        if table.is_empty() {
            return self.wrmsr_retrying(register, value).map_err(CounterError::Access);
        }
        let needs_other =
            |entry: &EventEntry| entry.register() == Some(register) && entry.extra_value() != value;
        let mut events = self.slots().filter_map(|(_, slot)| table.entry(slot.running()?));
        let reserved = table.extra.reserved(register);
        if events.any(needs_other) || reserved.is_some_and(|reserved| reserved != value) {
            return Err(CounterError::ExtraRegisterInUse(register.get()));
        }
        table.extra.set(register, value, &self.msr)?;
        table.extra.set_reserved(register, true);
        Ok(())
    }

    /// Ends the reservation of an extra register. The register keeps its value until an event of the session uses the
    /// register. If the register is not reserved, the call does nothing.
    pub fn release_extra_register(&mut self, register: MsrAddress) {
        self.table().extra.set_reserved(register, false);
    }
}
