//! Overflowed counters: reported, and loaded again.

use core::sync::atomic::Ordering;

use crate::access::address::{RegisterAddress, RegisterBits};
use crate::access::backend::{AccessFault, RegisterAccess, RegisterBackend};
use crate::counters::error::CounterError;
use crate::counters::events::count::{EventCount, EventOverflow};
use crate::counters::events::user_view::UserView;
use crate::counters::hooks::division::{Division, NotHarvested};
use crate::counters::hooks::event_facility::{EventFacility, UnitAccess, delay_of};
use crate::counters::hooks::running::Recorded;
use crate::counters::interrupt::pass::{Pass, Running, Shared};
use crate::counters::interrupt::sample::total_on;
use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::counters::registers::counter::{Counter, CounterControl};
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::period::Waiting;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::platform::Hardware;
use crate::profile::event_source::{
    EventSource, opens_events, read_counter, registers_of, row_period,
};

impl<'a, S, H, B, F> Pass<'a, S, H, B, F>
where
    S: EventSource,
    H: Hardware,
    B: EventFacility,
    F: FnMut(EventOverflow, &B),
{
    /// Loads an overflowed counter again, and reports the overflow. `value` is the counter's, if it was read.
    ///
    /// A row's period is its table's. For an opened event, the call adds to the event's total, and loads the next chunk
    /// of its period. If the status reported the wrap of an event without a period, its counter is not loaded, and
    /// simply continues.
    pub(crate) fn reload(
        &mut self,
        counter: CounterId,
        slot: &CounterSlot,
        running: Running,
        value: Option<u64>,
    ) {
        let Running { event, period } = running;
        // An opened event's number is above those of any table's rows.
        if let Some(next) = row_period(self.source, event.bits().into()) {
            let (next, registers) = (u64::from(next), self.unit.general(counter));
            let preload = registers.preload(next);
            self.load(slot, registers.value_register(), preload, running, next);
            return self.report(EventOverflow { event, period, counter, tag: 0 });
        }
        if !opens_events(self.source) {
            return;
        }
        let Some(entry) = self.source.opened().entry_in_interrupt(event) else { return };
        if B::RECORDS && entry.is_precise() {
            // Its records tell of its overflows, also while it leaves its counter.
            return;
        }
        if !entry.period.reports() {
            return self.continue_free_running(counter, event, entry, value);
        }
        if let Some(period) = entry.period.over() {
            // Before the counter is loaded, so that a period that the handler sets is the next one.
            self.report(EventOverflow { event, period, counter, tag: entry.tag() });
        }
        let registers = self.unit.registers(counter);
        if entry.wants_total() {
            let read = value.map_or_else(|| registers.read(self.hardware), Ok);
            let Some(read) = self.note(read) else { return self.mark_faulted(Some(event)) };
            entry.accumulate(read, registers.mask());
        }
        // The common case needs no arithmetic: the counter takes the whole period, and nothing has changed it.
        let chunk = if entry.period.is_whole(period) {
            period
        } else {
            let full_width = self.memory.full_width.load(Ordering::Relaxed);
            let delay = delay_of(&self.facility, entry);
            entry.period.next_chunk(registers.max_load(full_width), delay)
        };
        let preload = registers.preload(chunk);
        entry.loaded(preload);
        self.load(slot, registers.register_for(preload), preload, running, chunk);
    }

    /// Reports the records that a facility found. The counters are stopped. A counter whose period is another one from
    /// now on is loaded for it.
    #[inline(always)]
    pub(crate) fn report_records(&mut self) {
        let (mut changed, mut sampled) = (CounterSet::NONE, CounterSet::NONE);
        while let Some(record) = self.facility.next_record() {
            if B::UNITS {
                sampled = sampled | self.facility.units() & record.counter.only();
            }
            if self.report_record(record) {
                changed = changed | record.counter.only();
            }
        }
        // After the last record, so that a counter with several records is loaded once.
        for counter in changed.iter() {
            self.load_recorded(counter);
        }
        for counter in sampled.iter() {
            self.resume_unit(counter);
        }
    }

    /// Reports a record. Returns whether its counter is to be loaded for another period.
    fn report_record(&mut self, record: Recorded) -> bool {
        let Recorded { counter, event, reloaded, left, hidden } = record;
        let Some(entry) = self.source.opened().entry_in_interrupt(event) else { return false };
        let is_on = self.memory.slot(counter).and_then(CounterSlot::running) == Some(event);
        if let Some(period) = left.or((!is_on).then_some(reloaded)) {
            // The count up to here was added when the event left its counter, or is lost with the counter.
            if !hidden && period != 0 {
                self.report(EventOverflow { event, period, counter, tag: entry.tag() });
            }
            return false;
        }
        let unit = if B::UNITS { self.facility.unit(counter) } else { None };
        let registers = unit.unwrap_or_else(|| self.unit.registers(counter));
        let one = Waiting { records: 1, reloaded };
        entry.accumulate_records(one, &registers);
        if let Some(period) = entry.period.over().filter(|_| !hidden) {
            // Before the next period begins, so that it is the one that the handler sets.
            self.report(EventOverflow { event, period, counter, tag: entry.tag() });
        }
        entry.recorded(reloaded)
    }

    /// Loads a counter for the next part of its event's period, in place of what the processor loaded.
    #[cold]
    fn load_recorded(&mut self, counter: CounterId) {
        let slot = self.memory.slot(counter);
        let Some((slot, running)) = slot.and_then(|slot| Some((slot, Running::of(slot)?))) else {
            return;
        };
        let registers = registers_of(self.source, counter);
        let Some(entry) = self.source.opened().entry_in_interrupt(running.event) else { return };
        let read = read_counter(self.source, self.hardware, &registers);
        let Some(value) = self.note(read) else { return self.mark_faulted(Some(running.event)) };
        let (_, began) = entry.accumulated();
        entry.accumulate_precise(value, registers.mask());
        let chunk = entry.period.next_chunk(registers.max_reload(), 0);
        let mut preload = registers.preload(chunk);
        if S::Facility::UNITS && registers.is_unit() {
            // The unit has stopped. Its sample came as many events late as it has counted already.
            let late = value.wrapping_sub(began) & registers.mask();
            // At most all but one event: with more, the load would be beyond the unit's range.
            preload += late.min(chunk.saturating_sub(1));
        }
        entry.loaded(preload);
        if S::Facility::UNITS && registers.is_unit() {
            let access = UnitAccess::WriteValue(preload);
            // Nothing can fail: a unit's value is in memory until the unit goes on.
            let _ = self.source.facility().access_unit(self.hardware, &registers, access);
            slot.store(SlotState::Running { event: running.event, period: chunk });
        } else {
            self.load(slot, registers.register_for(preload), preload, running, chunk);
        }
        let set = self.facility.set_reload(self.hardware, counter, chunk);
        if self.note(set).is_none() {
            self.mark_faulted(Some(running.event));
        }
    }
}

impl<S: EventSource, H: Hardware> Shared<'_, S, H> {
    #[inline]
    pub(crate) fn load(
        &mut self,
        slot: &CounterSlot,
        register: RegisterAddress,
        preload: u64,
        Running { event, period }: Running,
        next: u64,
    ) {
        if !self.wrmsr(register, preload) {
            // A counter that is not loaded again does not overflow for a long time.
            self.mark_faulted(Some(event));
        } else if next != period {
            slot.store(SlotState::Running { event, period: next });
        }
    }

    /// Lets the counter of an event without a period go on after its wrap.
    #[cold]
    fn continue_free_running(
        &mut self,
        counter: CounterId,
        event: EventId,
        entry: &EventEntry,
        value: Option<u64>,
    ) {
        let registers = self.unit.registers(counter);
        match value {
            None if self.is_divided(event) => {}
            None => entry.accumulate_wrap(registers.mask()),
            Some(_) => self.rearm_free_running(event, &registers, entry),
        }
    }

    /// Re-arms the counter of an event without a period: as far before its next wrap as it can be loaded.
    ///
    /// Without a status, only the value shows a wrap, and only if the counter was past half its range before. The
    /// counter is stopped meanwhile, so that the total misses none of its events. Its select is left as it was found:
    /// the interrupted operation may have stopped it.
    fn rearm_free_running(&mut self, event: EventId, registers: &Counter, entry: &EventEntry) {
        let select = registers.control.register();
        let full_width = self.memory.full_width.load(Ordering::Relaxed);
        let write = |register, value| self.hardware.write_retrying(register, value);
        let done = self.hardware.read_retrying(select).and_then(|found| {
            write(select, 0)?;
            let value = registers.read(self.hardware)?;
            entry.accumulate(value, registers.mask());
            let value = registers.rearmed_value(value, full_width);
            entry.loaded(value);
            write(registers.register_for(value), value)?;
            write(select, found)
        });
        if self.note(done).is_none() {
            self.mark_faulted(Some(event));
        }
    }

    /// Harvests at an overflow of a counter that is divided, or of its shares. If a task has the registers, the task
    /// finds the wrap.
    #[cold]
    pub(crate) fn divide(&mut self, status: u64) {
        let facility = self.source.facility();
        let Some(division) = facility.division() else { return };
        let wrapped = status & division.counter.only().bits() != 0;
        if !wrapped && status & division.bits == 0 {
            return;
        }
        let Some(Running { event, .. }) = self.memory.slot(division.counter).and_then(Running::of)
        else {
            return;
        };
        if !division.divides(self.source.opened(), event) {
            return;
        }
        // Noted before the registers are claimed: if a task has them, its harvest needs the wrap.
        if wrapped {
            division.memory.note_wrap();
        }
        if !division.memory.begin() {
            return;
        }
        let harvested = self.harvest(&division, event);
        division.memory.end();
        if let Err(fault) = harvested {
            self.note::<()>(Err(fault));
        }
    }

    /// Stops the counter, harvests, and starts the counter again. A task may be about to write other bits of the
    /// control register, so only the counter's own bits are changed.
    fn harvest(&mut self, division: &Division<'_>, event: EventId) -> Result<(), AccessFault> {
        let registers = self.unit.registers(division.counter);
        let CounterControl::Shared { register, .. } = registers.control else { return Ok(()) };
        // SAFETY: the bits decide what a counter counts, and whether it interrupts.
        let control = unsafe { RegisterBits::new(register.get(), registers.control.mask()) };
        let found = self.hardware.update_retrying(control.set_to(0))?;
        let value = registers.read(self.hardware).map_err(NotHarvested::Unchanged);
        let harvested = value.and_then(|value| {
            division.harvest(self.hardware, &registers, (self.source.opened(), event), value)
        });
        division.memory.note_use();
        // Started again even if the harvest failed: the event still counts.
        let restarted = self.hardware.update_retrying(control.set_to(found));
        if restarted.is_err() {
            self.mark_faulted(Some(event));
        }
        harvested.map_err(NotHarvested::fault).and(restarted.map(|_| ()))
    }

    /// Returns whether an overflow of an event's counter is [harvested](Self::divide).
    #[inline(always)]
    pub(crate) fn is_divided(&self, event: EventId) -> bool {
        S::Facility::DIVIDES
            && self
                .source
                .facility()
                .division()
                .is_some_and(|division| division.divides(self.source.opened(), event))
    }

    /// Lets a unit go on after its sample.
    fn resume_unit(&mut self, counter: CounterId) {
        let event = self.memory.slot(counter).and_then(CounterSlot::running);
        let registers = registers_of(self.source, counter);
        // The event may have faulted with another one of its group.
        let access = event.map_or(UnitAccess::WriteControl(0), |_| UnitAccess::Resume);
        let went_on = self.source.facility().access_unit(self.hardware, &registers, access);
        if self.note(went_on).is_none() {
            self.mark_faulted(event);
        }
    }
}

/// Returns the data that lets user mode read an opened event's count by RDPMC. The call needs no session. If the event
/// is on a counter, the call costs one RDPMC. `source` and `memory` are the arguments of [`service`](crate::service()),
/// and `msr` accesses the same registers as its `hardware`. `now` is the current time by the clock that the processor's
/// session uses.
///
/// An interrupt handler calls this function after `service`. If `service` loads the event's counter, the data from
/// before is no longer valid. A task calls [`CounterSession::user_view`](crate::CounterSession::user_view) instead. The
/// documentation of that method says how long the data is valid.
///
/// ```
/// use pmu_core::{EventId, EventSource, Hardware, service};
/// use pmu_core::memory::CounterMemory;
/// use pmu_core::reading::{UserView, user_view};
/// /// Serves a counter's interrupt, and shows user mode the event's counter as it is now.
/// fn handler<S: EventSource, H: Hardware>(
///     (source, hardware, memory): (&S, &H, &CounterMemory),
///     (event, now): (EventId, u64),
///     publish: impl FnOnce(Option<UserView>),
/// ) {
///     let _ = service(source, hardware, memory, |_| ());
///     publish(user_view(source, hardware, memory, event, now).ok());
/// }
/// ```
///
/// # Context
/// Interrupt or NMI, after `service`. The call is wait-free. If the interrupt interrupted `service`, or a task's
/// operation on this event, the data may be wrong. The interrupted handler or task then calls `user_view` again.
///
/// # Errors
/// - [`NoSuchEvent`](CounterError::NoSuchEvent), [`NoTotal`](CounterError::NoTotal).
/// - [`CounterLost`](CounterError::CounterLost): the event's counter faulted or is [lent](crate::CounterSession::lend),
///   or a task was removing the event from its counter.
/// - [`Unchanged`](CounterError::Unchanged): the counter or the overflow status could not be read.
/// - [`NotAvailable`](CounterError::NotAvailable), only within the closure given to `service`: the event has no period,
///   and its counter may have wrapped since `service` last handled the counter. After `service`, the call succeeds.
pub fn user_view<S: EventSource, M: RegisterBackend>(
    source: &S,
    msr: &M,
    memory: &CounterMemory,
    event: EventId,
    now: u64,
) -> Result<UserView, CounterError> {
    let entry = source.opened().entry(event).ok_or(CounterError::NoSuchEvent(event))?;
    if !entry.wants_total() {
        return Err(CounterError::NoTotal(event));
    }
    let on = memory.counter_of(event);
    if S::Facility::SOFTWARE && entry.is_software() {
        let runs = entry.state() == EventState::Counting;
        let count = EventCount { value: entry.software_value(now), ..entry.count_at(now, runs) };
        return Ok(UserView::off_counter(false, entry.is_enabled(), count, now));
    }
    let mut count = entry.count_at(now, on.is_some());
    let permitted = entry.permits_user_rdpmc();
    let Some(counter) = on else {
        return match entry.state() {
            EventState::Counting => Err(CounterError::CounterLost(event)),
            _ => Ok(UserView::off_counter(permitted, entry.is_enabled(), count, now)),
        };
    };
    let value;
    (count.value, value) = total_on((source, msr, memory), counter, None, entry)?;
    let registers = registers_of(source, counter);
    let index = registers.user_index(msr, permitted);
    Ok(UserView::on_counter(&registers, index, value, count, now))
}
