//! Events that are opened on a processor: counted, reported, and closed.

use crate::counters::control::assignment::plan::PlacementError;
use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::count::{EventCount, Period};
use crate::counters::events::event::Event;
use crate::counters::events::saved::SavedEvent;
use crate::counters::events::software::SoftwareEvent;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::hooks::facility::Facility;
use crate::counters::hooks::running::Asked;
use crate::counters::interrupt::sample::EventOverflow;
use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::counters::registers::counter::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Opens an event, but does not start it. `processor` describes the events and counters of the processor that
    /// executes the call.
    ///
    /// ```
    /// # use pmu_core::{
    /// #     CounterError, CounterSession, CounterUnit, Event, EventId, EventSource, GenericEvent, Platform,
    /// # };
    /// # use pmu_core::msr::MsrBackend;
    /// /// Opens a sampler of user mode's mispredicted branches. Its overflows carry the sampler's number.
    /// fn sample<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     this_processor: &CounterUnit,
    ///     sampler: u64,
    /// ) -> Result<EventId, CounterError> {
    ///     let event = Event::generic(GenericEvent::BranchMisses).user_only().every(100_003);
    ///     counters.open_event(this_processor, &event.tagged(sampler))
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`OtherProcessor`](CounterError::OtherProcessor): `processor` differs from the session's processor in its
    ///   generic events or in its select bits. A difference only in [`core_type`](CounterUnit::core_type) is no error:
    ///   a [raw](Event::raw) event then belongs to the core type of `processor`.
    /// - [`Unsupported`](CounterError::Unsupported): this processor lacks the generic event.
    /// - [`IllegalBits`](CounterError::IllegalBits): the event's select has bits that are illegal on this processor.
    /// - [`GuestModeUnsupported`](CounterError::GuestModeUnsupported): this processor cannot separate guests and host.
    /// - [`NeedsCounterPair`](CounterError::NeedsCounterPair): only a pair of counters counts the event.
    /// - [`NotReloadable`](CounterError::NotReloadable): an event that is to be [reloaded](Event::reloaded_by) must be
    ///   opened in a group.
    /// - [`BranchesUnsupported`](CounterError::BranchesUnsupported): the samples of the event cannot have the
    ///   [branches](Event::with_branches) that it asks for.
    /// - [`NotPrecise`](CounterError::NotPrecise): the event cannot be sampled as [precisely](Event::precise) as it
    ///   asks.
    /// - [`NotDivided`](CounterError::NotDivided): the event is a [part](Event::part), and no event before it in its
    ///   group is divided into this part.
    /// - [`SoftwareUnsupported`](CounterError::SoftwareUnsupported): the session counts no
    ///   [software events](Event::software).
    /// - [`NoCounterForEvent`](CounterError::NoCounterForEvent): no counter of this session can count the event.
    /// - [`Period`](CounterError::Period).
    /// - [`InsufficientMemory`](CounterError::InsufficientMemory): the session's table of opened events is full.
    #[inline(never)]
    pub fn open_event(
        &mut self,
        processor: &CounterUnit,
        event: &Event,
    ) -> Result<EventId, CounterError> {
        self.open_after(processor, event, &[], None)
    }

    /// Opens an event that comes after others in its group, in a place behind an opened one.
    #[inline(never)]
    pub(crate) fn open_after(
        &self,
        processor: &CounterUnit,
        event: &Event,
        before: &[Event],
        behind: Option<EventId>,
    ) -> Result<EventId, CounterError> {
        self.check_processor(processor)?;
        if let Some(software) = event.software_event() {
            return self.open_software(processor, event, software, behind);
        }
        let (select, counters) = match S::Facility::UNITS {
            true => processor.resolve_with_units(event)?,
            false => processor.resolve(event)?,
        };
        if event.reload != 0 {
            return Err(CounterError::NotReloadable);
        }
        let here = if S::Facility::OFFERS {
            let is_it = |other: u16| move |of: EventSelect| of.select_bits() == other.into();
            let is_beside =
                |other| before.iter().any(|event| event.select().is_some_and(is_it(other)));
            Some(self.resolve(Asked::of_event(event, select), counters, is_beside)?)
        } else {
            Self::check_plain(0, event.branches, event.precise)?;
            None
        };
        let usable = here.map_or(counters, |here| here.counters);
        let is_part = S::Facility::DIVIDES && event.is_part();
        if is_part {
            self.check_part(processor, event, before)?;
        } else if (usable & self.own()).is_empty() {
            return Err(CounterError::NoCounterForEvent);
        }
        if let Some(period) = event.period().filter(|_| event.frequency().is_none()) {
            self.table().check_period(period)?;
        }
        let (id, entry) = self.free_entry(behind)?;
        entry.open(event, processor, (select, counters));
        // Raised instead of refused: the first period of a frequency is a guess, which the samples correct.
        if entry.rate.has_frequency() {
            entry.period.set(self.table().at_least_min(entry.period.every()));
        }
        if let Some(here) = here {
            entry.adapt(&here);
        }
        if is_part {
            // Its group is counted without a counter for it.
            entry.set_disabled(true);
        }
        Ok(id)
    }

    fn open_software(
        &self,
        processor: &CounterUnit,
        event: &Event,
        software: SoftwareEvent,
        behind: Option<EventId>,
    ) -> Result<EventId, CounterError> {
        if !S::Facility::SOFTWARE {
            return Err(CounterError::SoftwareUnsupported);
        }
        let event = &event.checked_software(software)?;
        let resolved = processor.resolve(event)?;
        let (id, entry) = self.free_entry(behind)?;
        entry.open(event, processor, resolved);
        // A clock that does not run has the same count at any time, so 0 will do.
        entry.begin_software(0);
        Ok(id)
    }

    /// Starts an opened event on a counter that can count it. If all these counters are in use, the call tries to free
    /// one of them by moving other events to other counters. If no counter becomes free, a [rotating](Event::rotating)
    /// event waits for its turn, and a non-rotating event takes the counter of a rotating event.
    ///
    /// The event's total continues from its last value. If the event was stopped within a period, the rest of this
    /// period continues.
    ///
    /// `now` is the time by the caller's clock. The events' times are counted in the units of this clock. All calls for
    /// one [`EventTable`](crate::EventTable) use the same clock, because a call for one event may also advance the
    /// times of other events. If `now` is earlier than in a previous call, the call adds no time. A caller without a
    /// clock always passes 0.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventCount, EventId, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Counts an event while a function runs.
    /// fn count<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     event: EventId,
    ///     clock: impl Fn() -> u64,
    ///     function: impl FnOnce(),
    /// ) -> Result<EventCount, CounterError> {
    ///     counters.start_event(event, clock())?;
    ///     function();
    ///     counters.stop_event(event, clock())?;
    ///     counters.read_event(event, clock())
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent).
    /// - [`InGroup`](CounterError::InGroup): the event starts only with its group.
    /// - [`AlreadyStarted`](CounterError::AlreadyStarted).
    /// - [`NoFreeCounter`](CounterError::NoFreeCounter), [`ExtraRegisterInUse`](CounterError::ExtraRegisterInUse),
    ///   [`BranchFilterInUse`](CounterError::BranchFilterInUse): the event finds no counter or extra register, or
    ///   branches are recorded by another filter, and the event does not rotate.
    /// - [`Unchanged`](CounterError::Unchanged).
    /// - [`StateUnknown`](CounterError::StateUnknown): a counter could not be stopped.
    ///
    /// # Limitations
    /// A counter whose control register answers but whose value register faults is not marked as faulted. It is planned
    /// again at each start and rotation, which fails each time.
    pub fn start_event(&mut self, event: EventId, now: u64) -> Result<(), CounterError> {
        self.begin_time(event, now)?;
        self.give_counters(event, now).map_err(|unplaced| unplaced.reason)
    }

    /// Starts an opened event that does not rotate, like [`start_event`](Self::start_event) at time 0, on less stack.
    pub(crate) fn start_without_clock(&mut self, event: EventId) -> Result<(), CounterError> {
        self.begin_time(event, 0)?;
        self.assign(event, Some(0)).map_err(|unplaced| unplaced.reason)
    }

    /// Starts an opened event on a free counter that can count it. No other event moves to another counter, or loses
    /// its counter. If no counter is free, the call fails, even for an event that [rotates](Event::rotating). If a
    /// kernel calls only this method, the code with which [`start_event`](Self::start_event) moves events is not
    /// linked.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventId, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Starts an event if a counter is free, and returns whether the event runs.
    /// fn try_start<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     event: EventId,
    ///     now: u64,
    /// ) -> Result<bool, CounterError> {
    ///     match counters.start_event_if_free(event, now) {
    ///         Err(CounterError::NoFreeCounter) => Ok(false),
    ///         started => started.map(|()| true),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// - The errors of [`start_event`](Self::start_event). After [`NoFreeCounter`](CounterError::NoFreeCounter) the
    ///   event stays stopped.
    /// - [`NoCounterForEvent`](CounterError::NoCounterForEvent): only `start_event` can start an event of one of these
    ///   kinds: [exclusive](Event::exclusive) events, events with an [extra register](Event::with_extra), every event
    ///   of an [`OnSharedCore`](crate::shared_core::OnSharedCore) source, and, on Intel, events that count only
    ///   [in guests](Event::in_guests).
    /// - [`BranchFilterInUse`](CounterError::BranchFilterInUse): an event that runs records
    ///   [branches](Event::with_branches) by another filter.
    /// - [`NoFreeCounter`](CounterError::NoFreeCounter): no counter is free, or an exclusive event runs. On Intel, the
    ///   error is also returned while another event that counts only in guests runs. `start_event` does not fail for
    ///   this reason.
    ///
    /// # Limitations
    /// Groups, and events with an extra register, are refused.
    pub fn start_event_if_free(&mut self, event: EventId, now: u64) -> Result<(), CounterError> {
        let entry = self.begin_time(event, now)?;
        // Each of these takes a plan, and this call makes none.
        if self.start_in_software(event)? {
            return Ok(());
        }
        if entry.needs_more_than_a_counter() || self.source.core_thread().is_some() {
            return Err(CounterError::NoCounterForEvent);
        }
        if self.table().runs_exclusive_or_of_guests() {
            return Err(CounterError::NoFreeCounter);
        }
        self.check_branches(entry)?;
        let state = if entry.is_countable() {
            let room = self.free_counter(entry.counters());
            if S::Facility::OFFERS {
                self.run_settled(room?, event)?;
            } else {
                room.and_then(|counter| self.run(counter, event))?;
            }
            EventState::Counting
        } else {
            EventState::Uncountable
        };
        self.enter_state(entry, state);
        Ok(())
    }

    /// Returns an opened event that is not started, and counts its times from `now` on.
    fn begin_time(&self, event: EventId, now: u64) -> Result<&EventEntry, CounterError> {
        let entry = self.ungrouped(event)?;
        if self.is_started(event) {
            return Err(CounterError::AlreadyStarted(event));
        }
        entry.begin_time(now);
        if self.is_software(entry) {
            // Of an event that was silent: its steps go on.
            entry.end_periods(entry.software_value(now), |_| ());
        }
        Ok(entry)
    }

    /// Returns an opened event that is in no group.
    pub(super) fn ungrouped(&self, event: EventId) -> Result<&EventEntry, CounterError> {
        let entry = self.entry(event)?;
        entry.group().map_or(Ok(entry), |group| Err(CounterError::InGroup(group)))
    }

    /// Starts an opened event and its group. If every counter is in use, an event that rotates waits for its turn; any
    /// other takes the counters of events that rotate.
    pub(crate) fn give_counters(&self, event: EventId, now: u64) -> Result<(), PlacementError> {
        let unplaced = |reason| PlacementError { event, reason };
        let entry = self.entry(event).map_err(unplaced)?;
        let (rotates, refused) = (entry.rotates(), entry.state() == EventState::Refused);
        if !self.is_countable(event) {
            self.change_group(event, EventState::Uncountable);
            return Ok(());
        }
        // One of them may have to give way.
        self.add_times(now);
        self.await_group(event);
        let mut outcome = self.assign(event, (!rotates).then_some(0));
        let waits = rotates && outcome.is_err_and(|unplaced| unplaced.reason.is_no_room());
        if outcome.is_err() {
            if S::Facility::OFFERS {
                // Registers of other events' facilities may be at fault.
                let taken_off = self.take_off(event);
                outcome = outcome.map_err(|unplaced| match taken_off {
                    Ok(()) => unplaced,
                    Err(_) => PlacementError { reason: unplaced.reason.faulted(), ..unplaced },
                });
            }
            let state = match (waits, refused) {
                (true, _) => EventState::Waiting,
                (false, true) => EventState::Refused,
                (false, false) => EventState::Stopped,
            };
            self.change_group(event, state);
        }
        if waits { Ok(()) } else { outcome }
    }

    /// Detaches an event and its group, of which the start failed. Fails if other events faulted.
    #[inline(never)]
    fn take_off(&self, event: EventId) -> Result<(), CounterError> {
        for event in self.table().with_group(event) {
            if let Some(counter) = self.counter_of(event) {
                // A counter that does not stop is marked as faulted. The caller gets the failure of the start.
                let _ = self.detach(counter, event);
            }
        }
        self.settle_facilities()
    }

    /// Sets the state of an event and its group, none of which is on a counter.
    #[inline(never)]
    pub(crate) fn change_group(&self, event: EventId, state: EventState) {
        let off_counters =
            self.table().with_group(event).filter(|event| self.counter_of(*event).is_none());
        off_counters.for_each(|event| self.change_state(event, state));
    }

    /// Stops an opened event. A pending overflow is not reported. The event's total includes everything counted until
    /// the stop.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventId, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Runs a function whose events are not to be counted.
    /// fn uncounted<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     event: EventId,
    ///     clock: impl Fn() -> u64,
    ///     function: impl FnOnce(),
    /// ) -> Result<(), CounterError> {
    ///     counters.stop_event(event, clock())?;
    ///     function();
    ///     counters.start_event(event, clock()) // The period and the total continue.
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent).
    /// - [`InGroup`](CounterError::InGroup): the event stops only with its group.
    /// - [`NotStarted`](CounterError::NotStarted).
    /// - [`StateUnknown`](CounterError::StateUnknown): the count since the last read of the event's counter is lost.
    pub fn stop_event(&mut self, event: EventId, now: u64) -> Result<(), CounterError> {
        let entry = self.ungrouped(event)?;
        if !self.is_started(event) {
            return Err(CounterError::NotStarted(event));
        }
        self.detach_and_stop(event, entry, now)
    }

    /// Reads an opened event's count. The result includes the event's `enabled` and `running` times up to `now`. If
    /// the event is on a counter, this costs one read of the counter. If hardware divides the event into
    /// [parts](Event::part), the call also updates the parts' counts; a read of a part reads the event that is
    /// divided.
    ///
    /// ```
    /// # use pmu_core::{CounterError, CounterSession, EventId, EventSource, Platform};
    /// # use pmu_core::msr::MsrBackend;
    /// /// Returns the number of times that a running event occurs in a function.
    /// fn events_in<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &CounterSession<'_, S, M, P>,
    ///     event: EventId,
    ///     now: u64,
    ///     function: impl FnOnce(),
    /// ) -> Result<u64, CounterError> {
    ///     let before = counters.read_event(event, now)?.value;
    ///     function();
    ///     Ok(counters.read_event(event, now)?.value - before)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent).
    /// - [`NoTotal`](CounterError::NoTotal): the event interrupts, and was opened without a [total](Event::with_total).
    /// - [`CounterLost`](CounterError::CounterLost).
    /// - [`RegistersLost`](CounterError::RegistersLost): the registers of the event's counter lost their contents.
    /// - [`Unchanged`](CounterError::Unchanged): the event's counter could not be read.
    pub fn read_event(&self, event: EventId, now: u64) -> Result<EventCount, CounterError> {
        let entry = self.entry(event)?;
        if !entry.wants_total() {
            return Err(CounterError::NoTotal(event));
        }
        if self.is_part(event) {
            self.update_part(entry, now)?;
            return Ok(entry.count());
        }
        if self.is_software(entry) {
            entry.add_software_time(now);
            return Ok(entry.count());
        }
        let on = self.counter_of(event);
        entry.add_time(now, on.is_some());
        match on {
            Some(counter) => {
                let (value, _) = self.read_total(counter, event, entry)?;
                Ok(EventCount { value, ..entry.count() })
            }
            None if entry.state() == EventState::Counting => Err(CounterError::CounterLost(event)),
            None => Ok(entry.count()),
        }
    }

    /// Sets the period of an opened event that interrupts, as `PERF_EVENT_IOC_PERIOD` does. A whole period of the new
    /// length begins at once. The event's count continues. In contrast,
    /// [`EventTable::set_period`](crate::EventTable::set_period) keeps the old period until the next overflow.
    ///
    /// If an overflow is pending, the call itself reports the overflow to `overflowed`. If the overflow's interrupt
    /// still comes, [`service`](crate::service) claims the interrupt, and does not report the overflow again.
    ///
    /// There is one exception: the event waits for a counter, and at most one occurrence of its old period remains. The
    /// old period then ends, and its overflow is reported, when the event has a counter again. Only then does the new
    /// period begin. The same holds for a [precise](crate::Event::precise) event whose counter has overflowed and whose
    /// record is yet to be written.
    ///
    /// On a processor with a global control register, the event's group is stopped during the call.
    ///
    /// ```
    /// use pmu_core::{CounterError, CounterSession, EventId, EventOverflow, EventSource, Platform};
    /// use pmu_core::msr::MsrBackend;
    /// fn ioc_period<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     event: EventId,
    ///     period: u64,
    ///     now: u64,
    ///     mut sample: impl FnMut(EventOverflow),
    /// ) -> Result<(), CounterError> {
    ///     counters.apply_period(event, period, now, |overflow| sample(overflow))
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoSuchEvent`](CounterError::NoSuchEvent), [`NoPeriod`](CounterError::NoPeriod),
    ///   [`Period`](CounterError::Period).
    /// - [`Unchanged`](CounterError::Unchanged): the event and its group run on as before, or are stopped, and no part
    ///   of the event's count is lost.
    /// - [`StateUnknown`](CounterError::StateUnknown): the event and its group are stopped, and the event's count since
    ///   the last interrupt of its counter is lost.
    pub fn apply_period(
        &mut self,
        event: EventId,
        period: u64,
        now: u64,
        overflowed: impl FnMut(EventOverflow),
    ) -> Result<(), CounterError> {
        if !self.entry(event)?.period.reports() {
            return Err(CounterError::NoPeriod(event));
        }
        self.table().check_period_of(self.entry(event)?, period)?;
        self.begin_period(event, Some(period), now, overflowed)
    }

    /// Begins a period at once: of this length, or of the one that is set. In the second case, an event stays silent
    /// whose user has silenced it, perhaps in an interrupt that comes meanwhile.
    pub(crate) fn begin_period(
        &self,
        event: EventId,
        period: Option<u64>,
        now: u64,
        mut overflowed: impl FnMut(EventOverflow),
    ) -> Result<(), CounterError> {
        let entry = self.entry(event)?;
        // The event is on no counter, but samples that waited may throttle it, and a handler may silence it.
        let begin = |keeps| {
            let throttled = if entry.rate.is_throttled() { Period::SILENT } else { 0 };
            entry.rate.unthrottle();
            entry.period.begin_anew(|set| period.unwrap_or(set & !throttled), keeps);
        };
        if self.is_software(entry) {
            let counter = CounterId::SOFTWARE;
            entry.add_software_time(now);
            entry.end_periods(entry.software_value(now), |period| {
                overflowed(EventOverflow { event, period, counter, tag: entry.tag() });
            });
            entry.begin_software_anew(now, |set| {
                let throttled = if entry.rate.is_throttled() { Period::SILENT } else { 0 };
                entry.rate.unthrottle();
                period.unwrap_or(set & !throttled)
            });
            return Ok(());
        }
        let Some(counter) = self.counter_of(event) else {
            // A stopped event has no overflow pending.
            let keeps = self.is_started(event);
            begin(keeps);
            return Ok(());
        };
        let group = self.table().with_group(event).filter_map(|event| self.counter_of(event));
        let group = match entry.is_grouped() {
            true => group.collect(),
            // Its records from before the facilities are settled would belong to no event.
            false if S::Facility::RECORDS && entry.is_precise() => counter.only(),
            false => CounterSet::NONE,
        };
        self.pause(group).inspect_err(|_| self.settle_software())?;
        let applied = self.detach(counter, event).and_then(|detached| {
            if detached.overflowed {
                let (period, tag) = (entry.period.ended(), entry.tag());
                overflowed(EventOverflow { event, period, counter, tag });
            }
            begin(S::Facility::RECORDS && detached.is_due);
            self.run_for(counter, event, None, true)
        });
        if applied.is_err() {
            for member in self.table().with_group(event) {
                if let Ok(entry) = self.entry(member) {
                    // Those that do not answer are marked as faulted; the first error is the reason.
                    let _ = self.detach_and_stop(member, entry, now);
                }
            }
        }
        let settled = self.settle_facilities();
        let resumed = self.unpause(group | counter.only());
        self.settle_software();
        applied.and(settled).and(resumed)
    }

    /// Returns a [child](SavedEvent::child) of an opened event, for a thread that the running thread creates. The
    /// opened event continues.
    ///
    /// ```
    /// use pmu_core::{CounterError, CounterSession, EventSource, Platform};
    /// use pmu_core::msr::MsrBackend;
    /// use pmu_core::thread::ThreadEvent;
    /// /// Returns the events that a new thread inherits from the running thread.
    /// fn fork<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &CounterSession<'_, S, M, P>,
    ///     parent: ThreadEvent,
    ///     tag: u64,
    /// ) -> Result<ThreadEvent, CounterError> {
    ///     let child = match parent {
    ///         ThreadEvent::Opened(event) => counters.child_event(event, tag)?,
    ///         ThreadEvent::SwitchedOut(event) => event.child(tag),
    ///         ThreadEvent::Unused => return Ok(parent),
    ///     };
    ///     Ok(ThreadEvent::SwitchedOut(child))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent).
    pub fn child_event(&self, event: EventId, tag: u64) -> Result<SavedEvent, CounterError> {
        Ok(self.extract(self.entry(event)?).child(tag))
    }

    /// Adds a child event's count to the count of an opened event: the value, and the `enabled` and `running` times.
    /// The call may be made while the opened event is on a counter. A [`UserView`](crate::reading::UserView) that was
    /// made before the call does not include the child's count.
    ///
    /// For an event that is on no processor, use [`SavedEvent::add_count`].
    ///
    /// # Errors
    /// [`NoSuchEvent`](CounterError::NoSuchEvent), [`NoTotal`](CounterError::NoTotal).
    pub fn add_count(&mut self, event: EventId, child: EventCount) -> Result<(), CounterError> {
        let entry = self.entry(event)?;
        if !entry.wants_total() {
            return Err(CounterError::NoTotal(event));
        }
        // The end of a period never comes nearer, whatever interrupts in between.
        let (is_software, grows) = (self.is_software(entry), child.value <= Period::MAX);
        if is_software && grows {
            entry.shift_period(child.value);
        }
        entry.add_count(child);
        if is_software && !grows {
            entry.shift_period(child.value);
        }
        Ok(())
    }
}
