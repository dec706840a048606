//! The control handle of one processor's counters: the session's counters, and the event for which each counter runs.
//!
//! The control path shares a [`CounterMemory`] and the registers with the interrupt path, and the interrupt may come
//! between any two instructions. So a counter's slot is set *after* the counter was loaded and *before* the counter can
//! run. The slot is cleared *after* the counter was stopped.

use core::marker::PhantomData;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::fence;

use crate::access::address::RegisterAddress;
use crate::access::backend::{AccessErrorKind, AccessFault, AccessOperation};
use crate::counters::error::CounterError;
use crate::counters::events::event::GuestMode;
use crate::counters::hooks::event_facility::{EventFacility, delay_of};
use crate::counters::hooks::facility::Facility;
use crate::counters::hooks::running::RunningEvent;
use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::counters::registers::counter::{Counter, EventSelect};
use crate::counters::registers::hybrid::HybridDelta;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::counters::shared::table::EventTable;
use crate::platform::Hardware;
use crate::profile::event_source::{
    EventSource, opens_events, registers_of, row_event_bit, row_period, row_select,
};

/// The control handle of one processor's counters: opens, enables, disables and reads events, and switches threads'
/// events in and out.
///
/// The session cannot move to another thread. Before dropping a session, call [`shut_down`](Self::shut_down) on its
/// processor. Dropping a session accesses no register. The counters of a session that was not shut down keep running,
/// and the session's [`CounterMemory`] stays in use. [`service`](crate::service) then keeps reporting overflows, until
/// the memory is [reclaimed](CounterMemory::reclaim).
///
/// # Context
/// Call every method in task context, on the processor of the counters. The performance interrupt may come at any time.
///
/// ```compile_fail,E0277
/// fn needs_send<T: Send>() {}
/// needs_send::<pmu_core::CounterSession<'static, pmu_core::Events<'static>, ()>>();
/// ```
#[derive(Debug)]
pub struct CounterSession<'a, S, H> {
    pub(crate) source: S,
    pub(crate) hardware: H,
    pub(crate) memory: &'a CounterMemory,
    /// Difference between the source's unit and the processor.
    pub(crate) hybrid: HybridDelta,
    /// Counters that were enabled in the global control register before the session.
    pub(crate) before: CounterSet,
    /// Requested counters that this processor shares with the unit; empty after shutdown.
    pub(crate) declared: CounterSet,
    /// The session has no counters, and a table for events that take none.
    pub(crate) has_table_alone: bool,
    /// The session has no counters, and is lent or suspended: its software events are paused.
    pub(crate) is_paused_alone: bool,
    not_send: PhantomData<*mut ()>,
}

/// The counters that a session uses, and the counters that it does not use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SessionCounters {
    /// Counters that the session took and [verified](CounterSession::take). The session's events run on these counters.
    /// If accesses to a counter fail later, the counter stays in this set, but no event uses the counter until
    /// [`reprogram`](CounterSession::reprogram).
    pub usable: CounterSet,
    /// Counters that the session does not use, because a register access failed, or because the counter did not keep a
    /// written value. Such a counter is absent, or belongs to another owner.
    pub unresponsive: CounterSet,
    /// Counters that the session does not use, because its memory has no [`CounterSlot`] for them.
    pub without_slot: CounterSet,
}

impl<'a, S: EventSource, H: Hardware> CounterSession<'a, S, H> {
    /// Creates a handle to counters that are not taken.
    pub(crate) fn unopened(
        source: S,
        declared: CounterSet,
        hardware: H,
        memory: &'a CounterMemory,
    ) -> Self {
        let (hybrid, before) = (HybridDelta::default(), CounterSet::NONE);
        Self {
            source,
            hardware,
            memory,
            hybrid,
            before,
            declared,
            has_table_alone: false,
            is_paused_alone: false,
            not_send: PhantomData,
        }
    }

    /// Returns the declared counters for which a slot was lent.
    pub(crate) fn candidates(&self) -> CounterSet {
        self.declared & self.unit().addressable_with(self.memory.counters())
    }

    /// Returns whether the session was not shut down.
    pub(crate) fn is_open(&self) -> bool {
        !self.declared.is_empty() && self.memory.counters() != 0
    }

    /// Returns whether the session has its table of events: it is open, or has no counters.
    pub(crate) fn has_table(&self) -> bool {
        self.is_open() || S::Facility::SOFTWARE && self.has_table_alone
    }

    /// Returns the counters that the session uses, and the counters that [`take`](Self::take) could not take.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, CounterSet, EventSource, Hardware};
    /// /// Returns the counters that CPUID declares and that do not answer: a hypervisor's, for instance.
    /// fn missing<S: EventSource, H: Hardware>(
    ///     counters: &CounterSession<'_, S, H>,
    /// ) -> Option<CounterSet> {
    ///     let missing = counters.counters().unresponsive;
    ///     (!missing.is_empty()).then_some(missing)
    /// }
    /// ```
    ///
    /// # Limitations
    /// After a suspend, the result does not name the counters that did not respond when the session took them.
    pub fn counters(&self) -> SessionCounters {
        let (usable, candidates) = (self.own(), self.candidates());
        SessionCounters {
            usable,
            unresponsive: candidates.without(usable),
            without_slot: self.declared.without(candidates),
        }
    }

    /// Returns the source's description of the counters.
    pub(crate) fn unit(&self) -> &CounterUnit {
        self.source.unit()
    }

    /// Returns the source's unit, with the events of this processor.
    pub(crate) fn unit_here(&self) -> CounterUnit {
        self.hybrid.applied_to(self.unit())
    }

    /// Checks that a unit is not that of another type of core than the session's processor.
    #[inline(never)] // 64 bytes of the glue, at `opt-level` 3.
    pub(crate) fn check_processor(&self, processor: &CounterUnit) -> Result<(), CounterError> {
        let difference = HybridDelta::between(self.unit(), processor);
        let same = !self.is_open() || difference == self.hybrid;
        if same { Ok(()) } else { Err(CounterError::OtherProcessor) }
    }

    /// Returns the select of a row's event on a counter, if this processor has the event.
    #[inline(always)] // For the sake of the stack: 48 bytes of a start.
    pub(crate) fn row_select(&self, row: usize) -> Option<EventSelect> {
        let select = row_select(&self.source, row)?;
        let (difference, bit) = (self.hybrid, row_event_bit(&self.source, row));
        let lacks = bit.is_some_and(|bit| difference.lacks(bit));
        let has = select.select_bits() & !difference.event_bits(self.unit()) == 0 && !lacks;
        has.then(|| select.without_user_reads(difference.can_deny_user_reads(self.unit())))
    }

    /// Returns the registers of one of the unit's counters. A source that opens no events has general counters only:
    /// the code for fixed counters is not linked.
    // Linked once: each operation on a counter asks for its registers.
    #[inline(never)] // 172 bytes of `pmu-small`.
    pub(crate) fn registers(&self, counter: CounterId) -> Counter {
        let unit = self.unit();
        if opens_events(&self.source) {
            registers_of(&self.source, counter)
        } else {
            unit.general(counter)
        }
    }

    /// Returns a counter's slot, if the memory has room for it.
    // Linked once: each operation on a counter asks for its slot.
    #[inline(never)] // 448 bytes of the glue.
    pub(crate) fn slot(&self, counter: CounterId) -> Option<&'a CounterSlot> {
        self.slot_in_line(counter)
    }

    #[inline(always)]
    fn slot_in_line(&self, counter: CounterId) -> Option<&'a CounterSlot> {
        if opens_events(&self.source) {
            self.memory.slot(counter)
        } else {
            self.memory.general_slot(counter)
        }
    }

    /// Returns the session's counters. A session without candidates did not take the memory: its present counters are
    /// another session's.
    pub(crate) fn own(&self) -> CounterSet {
        self.memory.verified(self.declared)
    }

    /// Checks that an overflow would interrupt: the interrupt is not masked.
    pub(crate) fn check_unmasked(&self) -> Result<(), CounterError> {
        if self.memory.serving.is_masked() { Err(CounterError::NoFreeCounter) } else { Ok(()) }
    }

    /// Returns these counters with their slots.
    pub(crate) fn slots_of(
        &self,
        counters: CounterSet,
    ) -> impl Iterator<Item = (CounterId, &'a CounterSlot)> {
        counters.iter().filter_map(move |counter| Some((counter, self.slot(counter)?)))
    }

    /// Returns the session's counters with their slots.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (CounterId, &'a CounterSlot)> {
        self.slots_of(self.own())
    }

    /// Returns the counter that runs for an event, and the period that it was loaded for.
    #[inline(never)] // 768 bytes of the glue, at `opt-level` 3.
    pub(crate) fn find(&self, event: EventId) -> Option<(CounterId, u64)> {
        let mut slots = self.own().iter().filter_map(|on| Some((on, self.slot_in_line(on)?)));
        slots.find_map(|(counter, slot)| match slot.load() {
            SlotState::Running { event: of, period } if of == event => Some((counter, period)),
            _ => None,
        })
    }

    /// Returns the event select that an event has on a counter at present; `None`: there is no such event.
    pub(crate) fn select(&self, event: EventId) -> Option<EventSelect> {
        match event.row() {
            Some(row) => self.row_select(row),
            None => self.opened_select(event),
        }
    }

    /// Returns the value of a counter's own bits of its control while it counts an event.
    // Linked once: a start and a reprogramming ask for the bits.
    #[inline(never)] // 48 bytes of counters with branches.
    pub(crate) fn running_bits(&self, counter: &Counter, event: EventId) -> Option<u64> {
        let select = self.select(event)?;
        // An event that counts in guests only has no bits while virtualization is off.
        let paused = select.select_bits() == 0 && event.row().is_none();
        let running = if paused { 0 } else { counter.control.running(select) };
        if !S::Facility::OFFERS {
            return Some(running);
        }
        let event = RunningEvent::of(self.table(), event);
        let control = event.map(|event| self.source.facility().control(&event)).unwrap_or_default();
        let bits = counter.control.with(running, control.silent, control.adaptive);
        Some(if paused { running } else { bits })
    }

    /// Returns the value with which a counter is loaded for an event, and the period until it overflows. An opened
    /// event's total counts from that value.
    pub(crate) fn first_load(&self, counter: &Counter, event: EventId) -> Option<(u64, u64)> {
        let period = match event.row() {
            Some(row) => row_period(&self.source, row)?.into(),
            None => {
                let mut max_load = counter.max_load(self.memory.full_width.load(Relaxed));
                let entry = self.table().entry(event)?;
                if S::Facility::RECORDS && entry.is_precise() {
                    // The processor's own load takes 31 bits.
                    max_load = counter.max_reload();
                }
                let delay = delay_of(&self.source.facility(), entry);
                let period = entry.period.first_chunk(max_load, delay);
                entry.loaded(counter.preload(period));
                if self.has_parts(event) {
                    // The shares are of what was counted since 0.
                    entry.loaded(0);
                    return Some((0, period));
                }
                period
            }
        };
        Some((counter.preload(period), period))
    }

    /// Returns the registers of a counter, and its slot.
    pub(crate) fn place(&self, counter: CounterId) -> Option<(&CounterSlot, Counter)> {
        Some((self.slot(counter)?, self.registers(counter)))
    }

    pub(crate) fn table(&self) -> &EventTable {
        self.source.opened()
    }

    pub(crate) fn entry(&self, event: EventId) -> Result<&EventEntry, CounterError> {
        self.open_entry(event).ok_or(CounterError::NoSuchEvent(event))
    }

    #[inline(never)] // 135 bytes of events alone.
    fn open_entry(&self, event: EventId) -> Option<&EventEntry> {
        // After a shutdown the entries are another session's.
        self.table().named(event).filter(|_| self.has_table())
    }

    pub(crate) fn free_entry(
        &self,
        behind: Option<EventId>,
    ) -> Result<(EventId, &EventEntry), CounterError> {
        let lent = self.table().len();
        let free = self.table().free(behind);
        let (id, entry) = free.ok_or_else(|| too_little_memory(lent + 1, lent))?;
        Ok((id.of_opening(entry.opening().wrapping_add(1)), entry)) // The caller opens it.
    }

    /// Returns whether an opened event is enabled. An enabled event is not always on a counter: the event may wait for
    /// its turn in [`rotate`](Self::rotate), or this processor may be unable to count the event.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventId, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// /// Enables the events again whose counters faulted in an interrupt. Returns how many these were.
    /// fn restart<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     events: &[EventId],
    ///     now: u64,
    /// ) -> Result<usize, CounterError> {
    ///     let faulted = events.iter().filter(|event| !counters.is_enabled(**event)).count();
    ///     for event in events {
    ///         counters.enable(*event, now)?; // does nothing for the others
    ///     }
    ///     Ok(faulted)
    /// }
    /// ```
    #[inline(never)] // 4 bytes of events alone.
    pub fn is_enabled(&self, event: EventId) -> bool {
        match self.entry(event).map(EventEntry::state) {
            // While the counters are lent, the event keeps its counter.
            Ok(EventState::Counting) => {
                let counts = self.memory.is_lent() || self.find(event).is_some();
                counts || self.counts_in_software(event)
            }
            Ok(EventState::Waiting | EventState::Uncountable) => true,
            Ok(EventState::Stopped | EventState::Closed | EventState::Refused) | Err(_) => false,
        }
    }

    /// Returns the counter on which an event runs at present, or `None` if the event does not run. `event` identifies
    /// an opened event, or an event in the table of the session's [`EventSource`](crate::EventSource).
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventId, EventSource, Hardware};
    /// /// Returns the enabled events that wait for their turn.
    /// fn waiting<'e, S: EventSource, H: Hardware>(
    ///     counters: &'e CounterSession<'_, S, H>,
    ///     events: &'e [EventId],
    /// ) -> impl Iterator<Item = EventId> + 'e {
    ///     let enabled = events.iter().copied().filter(|event| counters.is_enabled(*event));
    ///     enabled.filter(|event| counters.counter_of(*event).is_none())
    /// }
    /// ```
    // Linked once: each operation on an event looks for its counter.
    #[inline(never)] // 144 bytes of the glue.
    pub fn counter_of(&self, event: EventId) -> Option<CounterId> {
        if event.row().is_none() {
            self.open_entry(event)?;
        }
        self.find(event).map(|(counter, _)| counter)
    }

    /// Checks that an event's counter has not faulted.
    pub(crate) fn check_counter(
        &self,
        event: EventId,
        entry: &EventEntry,
    ) -> Result<(), CounterError> {
        let lost = entry.state() == EventState::Counting
            && self.counter_of(event).is_none()
            && !self.is_software(entry);
        if lost { Err(CounterError::CounterLost(event)) } else { Ok(()) }
    }

    /// Adds the time up to `now` to an event's times.
    pub(crate) fn add_time(&self, event: EventId, entry: &EventEntry, now: u64) {
        if self.is_software(entry) {
            entry.add_software_time(now);
        } else {
            entry.add_time(now, self.counter_of(event).is_some());
        }
    }

    /// Adds the time until `now` to the times of every opened event.
    #[inline(never)] // 176 bytes of the glue, at `opt-level` 3.
    pub(crate) fn add_times(&self, now: u64) {
        self.table().opened().for_each(|(event, entry)| self.add_time(event, entry, now));
    }

    /// Returns the event select of an opened event at present.
    pub(crate) fn opened_select(&self, event: EventId) -> Option<EventSelect> {
        let entry = self.table().entry(event)?;
        let [guest, host] = self.unit().guest_bits();
        let bits = entry.select().select_bits();
        let bits = match entry.guest_mode() {
            _ if self.table().virtualization() => bits,
            GuestMode::Everywhere => bits,
            // While EFER.SVME is clear, a counter with the host-only bit counts nothing.
            GuestMode::HostOnly => bits & !(guest | host),
            GuestMode::GuestOnly => 0,
        };
        Some(EventSelect::from_bits(bits))
    }

    // Linked once: each operation on an event changes its state.
    #[inline(never)] // 64 bytes of the glue.
    pub(crate) fn change_state(&self, event: EventId, state: EventState) {
        if let Some(entry) = self.table().entry(event) {
            self.enter_state(entry, state);
        }
    }

    pub(crate) fn enter_state(&self, entry: &EventEntry, state: EventState) {
        // After the total: `remote_count` reads both on another processor.
        fence(Release);
        entry.set_state(state);
        entry.set_turn(self.table().next_turn());
        // Before the next total: a reader that gets that one finds the new turn.
        fence(Release);
    }

    /// Returns the counters that can be used.
    #[inline(never)] // 32 bytes of the glue.
    pub(crate) fn not_faulted(&self) -> CounterSet {
        self.own().retain(|counter| !self.is_faulted(counter))
    }

    /// Returns whether a counter cannot be used.
    pub(crate) fn is_faulted(&self, counter: CounterId) -> bool {
        self.slot(counter).is_none_or(|slot| slot.load() == SlotState::Faulted)
    }
}

/// Returns the fault of a counter that an interrupt marked as faulted; the backend's own error is not known here.
pub(crate) fn marked_faulted(register: RegisterAddress) -> AccessFault {
    let (operation, register) = (AccessOperation::Write, register.get());
    AccessFault { operation, register, kind: AccessErrorKind::Other }
}

/// Returns the error for too few lent places.
pub(crate) fn too_little_memory(needed: usize, lent: usize) -> CounterError {
    CounterError::InsufficientMemory { needed: needed as u16, lent: lent as u16 }
}
