//! The running sources of one processor.

use core::slice;
use core::sync::atomic::Ordering::Relaxed;

use crate::counters::control::handle::{CounterSession, SessionCounters};
use crate::counters::control::switch::saved::SavedCounters;
use crate::counters::control::window::CounterWindow;
use crate::counters::error::CounterError;
use crate::counters::events::count::EventOverflow;
use crate::counters::events::event::Event;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::interrupt::sample::Sample;
use crate::counters::names::{CounterSet, EventId};
use crate::counters::shared::memory::CounterMemory;
use crate::interval::Interval;
use crate::platform::Hardware;
use crate::profile::added::AddedSource;
use crate::profile::error::InterfaceError;
use crate::profile::event_source::{EventSource, information};
use crate::profile::source::{Availability, KProfileSource, SourceInformation};

/// Controls one processor's profile sources. The sources run on a [`CounterSession`] and on a profile timer.
///
/// A session cannot move to another thread. Before dropping a session, [shut it down](Self::shut_down) on its
/// processor. Otherwise the counters keep running, [`service`](crate::service()) keeps
/// reporting overflows, and the [`CounterMemory`] stays in use until [`reclaim`](CounterMemory::reclaim) is called.
///
/// # Context
/// Call every method in task context, on the session's processor. The performance interrupt may come at any time.
///
/// ```compile_fail,E0277
/// fn needs_send<T: Send>() {}
/// needs_send::<pmu_core::profile::Session<'static, &'static pmu_core::profile::DefaultInterface, ()>>();
/// ```
#[derive(Debug)]
pub struct Session<'a, I, H> {
    counters: CounterSession<'a, I, H>,
    /// Sources can be started: the embedder has provided the memory, and the session is open.
    usable: bool,
    /// The profile timer runs.
    has_timer: bool,
}

impl<'a, I: EventSource, H: Hardware> Session<'a, I, H> {
    /// Takes ownership of those counters in `only` that the processor has, and returns a session that starts sources on
    /// the general ones of them. [Opened](CounterSession::open) events run on general and fixed counters. Counters
    /// outside `only` stay with their owners. If `only` is empty, the session takes no counter, and supports only
    /// `ProfileTime`.
    ///
    /// `source` is the profile interface, or one processor's [`Events`](crate::Events) with it. `processor` describes
    /// the processor that executes the call. The call clears the event selects of all the counters that it takes, even
    /// of a counter that the session does not use because `memory` has no slot for it.
    ///
    /// ```
    /// # use pmu_core::{CounterSet, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// # use pmu_core::memory::{CounterMemory, CounterSlot};
    /// # use pmu_core::profile::{InterfaceError, Session};
    /// # use pmu_core::registers::MAX_COUNTERS;
    /// static COUNTERS: CounterMemory<[CounterSlot; MAX_COUNTERS]> = CounterMemory::new(); // one per processor
    ///
    /// /// Each processor, as it comes up. Without counters, profiling by time remains.
    /// fn processor_up<I: EventSource, H: Hardware>(
    ///     interface: &'static I,
    ///     this_processor: &I::Processor,
    ///     hardware: H,
    /// ) -> Result<Option<Session<'static, &'static I, H>>, InterfaceError> {
    ///     match Session::take(interface, this_processor, CounterSet::GENERAL, hardware, &COUNTERS) {
    ///         Err(InterfaceError::Counters(CounterError::Unresponsive)) => Ok(None),
    ///         session => session.map(Some),
    ///     }
    /// }
    /// ```
    ///
    /// # Context
    /// Task. The session stays on the processor that executes the call. An interrupt may come at any time.
    ///
    /// # Errors
    /// The errors of [`CounterSession::take`]. If `memory` has no slots for counters, the method
    /// [`requires_memory`](EventSource::requires_memory) decides. If `requires_memory` returns `true`, the call fails.
    /// If `requires_memory` returns `false`, the session supports no source.
    ///
    /// After an error, no counter runs. The kernel can still profile by time: see
    /// [`DefaultInterface`](crate::profile::DefaultInterface).
    pub fn take(
        source: I,
        processor: &I::Processor,
        only: CounterSet,
        hardware: H,
        memory: &'a CounterMemory,
    ) -> Result<Self, InterfaceError>
    where
        I: Copy,
    {
        let has_counters = !source.unit().counters().is_empty();
        let usable = !has_counters || memory.counters() > 0;
        let own = source.unit_of(processor);
        let declared = source.unit().shared_with(&own) & only;
        if !usable && source.requires_memory() {
            let error = CounterError::InsufficientMemory { needed: declared.len() as u16, lent: 0 };
            return Err(error.into());
        }
        let wanted = has_counters && !only.is_empty();
        let counters = if wanted && (usable || declared.is_empty()) {
            let taken = CounterSession::take(source, &own, only, hardware, memory);
            // Only these outcomes tell whether the counters answer. Another error is of this call alone.
            if matches!(taken, Ok(_) | Err(CounterError::Unresponsive)) {
                source.profile_sources().answer.note(taken.is_ok());
            }
            taken?
        } else {
            if wanted && !usable {
                source.profile_sources().answer.note_no_memory();
            }
            CounterSession::unopened(source, declared, hardware, memory).without_counters()
        };
        Ok(Self { counters, usable, has_timer: false })
    }

    /// Returns the counter session on which the sources run. Use this session to open further events.
    pub fn counters_mut(&mut self) -> &mut CounterSession<'a, I, H> {
        &mut self.counters
    }

    /// Returns three sets: the usable counters, the counters that failed the verification, and the counters for which
    /// the memory has no slot.
    pub fn counters(&self) -> SessionCounters {
        self.counters.counters()
    }

    /// Returns information on a source, for this processor. The session has checked that the counters work, so a
    /// supported source on a counter is [`Verified`](crate::profile::Availability::Verified). On a hybrid machine, one
    /// core may lack an event that another core has. On such a core the source is unsupported, even if the interface's
    /// [`query`](crate::EventSource::query) reports the source as supported.
    pub fn query(&self, source: KProfileSource) -> SourceInformation {
        let mut information = information(self.interface(), source);
        let available = if let Some((added, _)) = self.added_source(source) {
            // The machine's are the boot processor's.
            let here = self.interface().added().interval(source, &self.counters.unit_here());
            if let Some((cell, limits)) = here {
                information.availability = Availability::Declared;
                information.interval = cell.load(Relaxed);
                information.limits = limits;
            }
            let is_software = I::Facility::SOFTWARE && added.is_software();
            here.is_some()
                && (is_software || !(added.counters() & self.counters().usable).is_empty())
        } else {
            self.supported_row(source).is_ok()
        };
        if !(available && self.usable && information.is_supported()) {
            information.availability = Availability::Unsupported;
            information.interval = 0;
        } else if source != KProfileSource::TIME {
            information.availability = Availability::Verified;
        }
        information
    }

    /// Returns whether the source runs on this processor.
    pub fn is_running(&self, source: KProfileSource) -> bool {
        if source == KProfileSource::TIME {
            self.has_timer
        } else {
            let runs = |event| {
                self.counters.find(event).is_some() || self.counters.counts_in_software(event)
            };
            self.event(source).is_some_and(runs)
        }
    }

    /// Returns the index of a source in the interface's table.
    #[inline(never)] // 32 bytes of the glue, at `opt-level` 3.
    fn row(&self, source: KProfileSource) -> Option<usize> {
        self.interface().table().row_by_call(source)
    }

    /// Returns whether a source is not one of the table, but was added.
    #[inline(never)] // Linked once: a start and a stop ask. 16 bytes of the glue, at `opt-level` 3.
    fn is_added(&self, source: KProfileSource) -> bool {
        self.row(source).is_none() && self.interface().added().contains(source)
    }

    /// Returns an added source and the event to open for it; `None` for a source of the table.
    #[inline(never)] // 192 bytes of the glue, at `opt-level` 3.
    fn added_source(&self, source: KProfileSource) -> Option<(&'static AddedSource, Event)> {
        let added = self.interface().added();
        if self.row(source).is_some() { None } else { added.event(source) }
    }

    /// Returns the event of a source here: that of its row, or the one that was opened for it.
    fn event(&self, source: KProfileSource) -> Option<EventId> {
        let Some((added, _)) = self.added_source(source) else {
            return self.row(source).map(EventId::of_row);
        };
        let mut opened = self.interface().opened().opened();
        opened.find(|(_, entry)| entry.tag() == added.tag()).map(|(event, _)| event)
    }

    /// Returns the row of a source that can be started on this processor.
    fn supported_row(&self, source: KProfileSource) -> Result<usize, InterfaceError> {
        self.row(source)
            .filter(|row| {
                // Time is no counter's.
                let here = match *row {
                    0 => self.interface().is_declared(0),
                    _ if self.counters.own().is_empty() => false,
                    row => self.counters.row_select(row).is_some(),
                };
                here && self.usable
            })
            .ok_or(InterfaceError::UnsupportedSource(source))
    }

    /// Starts a source at its interval.
    ///
    /// `ProfileTime` runs on the platform's timer. Any other source runs on a free general counter, which interrupts
    /// once per interval. For an [added](crate::profile::AddedSources) source, the call opens an event on one of the
    /// counters that can count the source.
    ///
    /// ```
    /// # use pmu_core::{EventSource, Hardware};
    /// # use pmu_core::profile::{InterfaceError, KProfileSource, Session};
    /// /// Starts the first of some sources that this processor has.
    /// fn start_any<I: EventSource, H: Hardware>(
    ///     session: &mut Session<'_, I, H>,
    ///     sources: &[KProfileSource],
    /// ) -> Result<Option<KProfileSource>, InterfaceError> {
    ///     for source in sources {
    ///         match session.start(*source) {
    ///             Err(InterfaceError::UnsupportedSource(_)) => {}
    ///             started => return started.map(|()| Some(*source)),
    ///         }
    ///     }
    ///     Ok(None)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`UnsupportedSource`](InterfaceError::UnsupportedSource): this processor lacks the source's event, even if the
    ///   boot processor has the event.
    /// - [`AlreadyStarted`](InterfaceError::AlreadyStarted): the source runs already.
    /// - [`NoFreeCounter`](InterfaceError::NoFreeCounter): every counter that can count the source is in use.
    /// - [`Platform`](InterfaceError::Platform): the platform's timer cannot run at the interval.
    /// - [`IllegalBits`](CounterError::IllegalBits): the event select of an added source has bits that are illegal on
    ///   this processor.
    /// - [`Unchanged`](CounterError::Unchanged).
    /// - [`StateUnknown`](CounterError::StateUnknown): the counter could not be stopped again.
    #[inline]
    pub fn start(&mut self, source: KProfileSource) -> Result<(), InterfaceError> {
        self.start_at(source, 0)
    }

    /// Starts a source as [`start`](Self::start) does, at the time `now` of the kernel's clock: see
    /// [`CounterSession::enable`]. A source of a clock, which is a [software event](Event::software), needs the time.
    ///
    /// # Errors
    /// - The errors of [`start`](Self::start).
    /// - [`SoftwareUnsupported`](CounterError::SoftwareUnsupported): the source's event is a software event, and the
    ///   session counts none.
    pub fn start_at(&mut self, source: KProfileSource, now: u64) -> Result<(), InterfaceError> {
        if self.is_added(source) {
            return self.start_added(source, now);
        }
        let row = self.supported_row(source)?;
        if source != KProfileSource::TIME {
            return self.counters.start_row(row).map_err(|error| of_source(error, source));
        }
        if self.has_timer {
            return Err(InterfaceError::AlreadyStarted(source));
        }
        self.start_timer(row)?;
        self.has_timer = true;
        Ok(())
    }

    /// Opens the event of an added source and starts it.
    fn start_added(&mut self, source: KProfileSource, now: u64) -> Result<(), InterfaceError> {
        self.close_faulted(source)?;
        let opened = self.open_added(source)?;
        self.counters.start_added(opened, now).map_err(|error| {
            // Closing cannot fail: the event is stopped.
            let _ = self.counters.close_without_clock(opened);
            of_source(error, source)
        })
    }

    /// Closes the event of an added source whose counter has faulted.
    fn close_faulted(&mut self, source: KProfileSource) -> Result<(), InterfaceError> {
        match self.event(source) {
            Some(_) if self.is_running(source) => Err(InterfaceError::AlreadyStarted(source)),
            Some(faulted) => self.close_added(faulted, source),
            None => Ok(()),
        }
    }

    /// Opens the event of an added source that has none. Not inlined: its stack is free when the event starts.
    #[inline(never)] // 112 bytes of the glue.
    fn open_added(&mut self, source: KProfileSource) -> Result<EventId, InterfaceError> {
        let unsupported = InterfaceError::UnsupportedSource(source);
        let (_, event) = self.added_source(source).ok_or(unsupported)?;
        if !self.usable {
            return Err(unsupported);
        }
        let opened = self.counters.open(&self.counters.unit_here(), slice::from_ref(&event));
        opened.map_err(|error| of_source(error.reason, source))
    }

    fn close_added(
        &mut self,
        event: EventId,
        source: KProfileSource,
    ) -> Result<(), InterfaceError> {
        self.counters.close_without_clock(event).map_err(|error| of_source(error, source))
    }

    fn start_timer(&self, row: usize) -> Result<(), InterfaceError> {
        let unsupported = InterfaceError::UnsupportedSource(KProfileSource::TIME);
        let cell = self.interface().intervals().get(row).ok_or(unsupported)?;
        self.counters.hardware.start_profile_timer(Interval::stored(cell.load(Relaxed)))?;
        Ok(())
    }

    /// Stops a source. An overflow of the source that is not reported yet is lost.
    ///
    /// # Errors
    /// - [`NotStarted`](InterfaceError::NotStarted): the source does not run.
    /// - [`StateUnknown`](CounterError::StateUnknown).
    pub fn stop(&mut self, source: KProfileSource) -> Result<(), InterfaceError> {
        let not_started = InterfaceError::NotStarted(source);
        if self.is_added(source) {
            let event = self.event(source).ok_or(not_started)?;
            let runs = self.is_running(source);
            // Also an event whose counter has faulted: nothing else is to start it again.
            self.close_added(event, source)?;
            return if runs { Ok(()) } else { Err(not_started) };
        }
        if source != KProfileSource::TIME {
            let row = self.row(source).ok_or(not_started)?;
            return self.counters.stop_row(row).map_err(|error| of_source(error, source));
        }
        if !self.has_timer {
            return Err(not_started);
        }
        self.counters.hardware.stop_profile_timer();
        self.has_timer = false;
        Ok(())
    }

    /// Applies a changed interval of `ProfileTime` to this processor's running profile timer. A source on a counter
    /// needs no call: the counter uses the new interval from its next overflow on.
    ///
    /// ```
    /// # use pmu_core::{EventSource, Hardware};
    /// # use pmu_core::profile::{InterfaceError, KProfileSource, Session};
    /// /// Sets the interval of `ProfileTime`, and applies it to this processor's timer at once.
    /// fn set_time<I: EventSource, H: Hardware>(
    ///     session: &mut Session<'_, I, H>,
    ///     units: u64,
    /// ) -> Result<(), InterfaceError> {
    ///     session.interface().set_interval(KProfileSource::TIME, units)?;
    ///     if session.is_running(KProfileSource::TIME) {
    ///         session.apply_interval(KProfileSource::TIME)?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NotStarted`](InterfaceError::NotStarted): the source does not run.
    /// - [`Platform`](InterfaceError::Platform): the timer cannot run at the interval.
    pub fn apply_interval(&mut self, source: KProfileSource) -> Result<(), InterfaceError> {
        if !self.is_running(source) {
            return Err(InterfaceError::NotStarted(source));
        }
        if source == KProfileSource::TIME {
            self.start_timer(self.supported_row(source)?)?;
        }
        Ok(())
    }

    /// Returns the number of events that a running source has counted since its counter was last loaded. The call reads
    /// the counter by RDPMC.
    ///
    /// ```
    /// # use pmu_core::{EventSource, Hardware};
    /// # use pmu_core::profile::{InterfaceError, KProfileSource, Session};
    /// /// Returns a running source's events in a function, which takes less than the source's interval.
    /// fn events_in<I: EventSource, H: Hardware>(
    ///     session: &Session<'_, I, H>,
    ///     source: KProfileSource,
    ///     function: impl FnOnce(),
    /// ) -> Result<Option<u64>, InterfaceError> {
    ///     let before = session.read(source)?;
    ///     function();
    ///     Ok(session.read(source)?.checked_sub(before)) // `None`: the counter was reloaded meanwhile.
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NotStarted`](InterfaceError::NotStarted): no counter runs for the source.
    /// - [`RegistersLost`](CounterError::RegistersLost): the counter's registers lost their contents.
    /// - [`Unchanged`](CounterError::Unchanged): the counter could not be read.
    pub fn read(&self, source: KProfileSource) -> Result<u64, InterfaceError> {
        let event = self.event(source).ok_or(InterfaceError::NotStarted(source))?;
        self.counters.read_loaded(event).map_err(|error| of_source(error, source))
    }

    /// Makes the processor freeze all its counters at each performance interrupt. This method calls
    /// [`CounterSession::freeze_on_interrupt`].
    ///
    /// # Errors
    /// The errors of [`CounterSession::freeze_on_interrupt`].
    pub fn freeze_on_interrupt(&mut self) -> Result<(), InterfaceError> {
        Ok(self.counters.freeze_on_interrupt()?)
    }

    /// Sets or clears bits of the global control register that this session does not own. This method calls
    /// [`CounterSession::set_others_control`].
    ///
    /// # Errors
    /// The errors of [`CounterSession::set_others_control`].
    pub fn set_others_control(&mut self, bits: u64, enabled: bool) -> Result<(), InterfaceError> {
        Ok(self.counters.set_others_control(bits, enabled)?)
    }

    /// Stops every running source that is in the interface's table, and saves the state of the source's counter in
    /// `area`. This method calls [`CounterSession::save`]. `overflowed` gets the pending overflows of these sources:
    /// [`EventSource::overflow`] tells the source.
    ///
    /// `area` has no room for [added](crate::profile::AddedSources) sources. Added sources keep running and reporting
    /// overflows. If an added source must not count the next thread, [stop](Self::stop) the source.
    ///
    /// # Errors
    /// The errors of [`CounterSession::save`].
    pub fn save(
        &mut self,
        area: &mut SavedCounters,
        overflowed: impl FnMut(EventOverflow),
    ) -> Result<(), InterfaceError> {
        Ok(self.counters.save(area, overflowed)?)
    }

    /// Resumes the counters that [`save`](Self::save) saved. This method calls [`CounterSession::restore`]. Added
    /// sources are not affected.
    ///
    /// # Errors
    /// The errors of [`CounterSession::restore`].
    pub fn restore(&mut self, area: &SavedCounters) -> Result<(), InterfaceError> {
        Ok(self.counters.restore(area)?)
    }

    /// Lends the counters to another user, such as a guest, until the returned [window](crate::lending::CounterWindow)
    /// ends. This method calls [`CounterSession::lend`]. The profile timer keeps running. `overflowed` gets the pending
    /// overflows of sources and of opened events, which [`EventSource::overflow`] tells apart. The session is borrowed
    /// meanwhile, so the caller has a copy of its source.
    ///
    /// ```
    /// # use pmu_core::{EventSource, Hardware};
    /// # use pmu_core::profile::{InterfaceError, KProfileSource, Session};
    /// # fn hit(_: KProfileSource) {}
    /// /// Runs a guest on the counters. What overflowed before is told first.
    /// fn run<S: EventSource + Copy, H: Hardware>(
    ///     session: &mut Session<'_, S, H>,
    ///     now: impl Fn() -> u64,
    ///     guest: impl FnOnce(),
    /// ) -> Result<(), InterfaceError> {
    ///     let sources = *session.interface();
    ///     let window = session.lend(now(), |sample| {
    ///         sources.overflow(&sample).into_iter().for_each(|overflow| hit(overflow.source));
    ///     })?;
    ///     guest();
    ///     window.end(now()).map_err(|error| InterfaceError::Counters(error.into()))
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`CounterSession::lend`].
    pub fn lend(
        &mut self,
        now: u64,
        overflowed: impl FnMut(Sample<'_, I::Facility>),
    ) -> Result<CounterWindow<'_, 'a, I, H>, InterfaceError> {
        Ok(self.counters.lend(now, overflowed)?)
    }

    /// Stops this processor's counters before a suspend, and keeps the counts in memory. This method calls
    /// [`CounterSession::suspend`]. The profile timer keeps running. `overflowed` gets what that of
    /// [`lend`](Self::lend) does.
    ///
    /// ```
    /// # use pmu_core::{EventSource, Hardware};
    /// # use pmu_core::profile::{InterfaceError, Session};
    /// /// Sleeps in a state in which the registers lose their contents.
    /// fn sleep<S: EventSource, H: Hardware>(
    ///     session: &mut Session<'_, S, H>,
    ///     now: impl Fn() -> u64,
    ///     until_woken: impl FnOnce(),
    /// ) -> Result<(), InterfaceError> {
    ///     session.suspend(now(), |_| ())?;
    ///     until_woken();
    ///     session.resume(now(), |_| ()).map(|_| ())
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`CounterSession::suspend`].
    pub fn suspend(
        &mut self,
        now: u64,
        overflowed: impl FnMut(Sample<'_, I::Facility>),
    ) -> Result<(), InterfaceError> {
        Ok(self.counters.suspend(now, overflowed)?)
    }

    /// Programs this processor's counters again after [`suspend`](Self::suspend). This method calls
    /// [`CounterSession::resume`]. The sources run again. Each source of the interface's table begins a new interval.
    /// Each [added](crate::profile::AddedSources) source continues the interval that the suspend interrupted. The
    /// platform's timer is started again if it was running. `overflowed` gets what that of [`lend`](Self::lend) does.
    ///
    /// # Errors
    /// The errors of [`reprogram`](Self::reprogram).
    pub fn resume(
        &mut self,
        now: u64,
        overflowed: impl FnMut(Sample<'_, I::Facility>),
    ) -> Result<CounterSet, InterfaceError> {
        self.program_again(|counters| counters.resume(now, overflowed))
    }

    /// Programs this processor's counters again after their registers lost their contents. This method calls
    /// [`CounterSession::reprogram`]. If the platform's timer was running, the call starts the timer again.
    /// `overflowed` gets what that of [`lend`](Self::lend) does.
    ///
    /// ```
    /// # use pmu_core::{EventSource, Hardware};
    /// # use pmu_core::profile::Session;
    /// /// Programs the counters again after a reset of the processor. Returns how many of them lost their counts.
    /// fn after_a_reset<S: EventSource, H: Hardware>(session: &mut Session<'_, S, H>) -> Option<usize> {
    ///     session.reprogram(|_| ()).ok().map(|anew| anew.len())
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`CounterSession::reprogram`], and [`Platform`](InterfaceError::Platform).
    pub fn reprogram(
        &mut self,
        overflowed: impl FnMut(Sample<'_, I::Facility>),
    ) -> Result<CounterSet, InterfaceError> {
        self.program_again(|counters| counters.reprogram(overflowed))
    }

    /// Programs the counters again, and starts the timer if it was running.
    fn program_again(
        &mut self,
        program: impl FnOnce(&mut CounterSession<'a, I, H>) -> Result<CounterSet, CounterError>,
    ) -> Result<CounterSet, InterfaceError> {
        let outcome = program(&mut self.counters);
        if self.has_timer {
            let timer = self.apply_interval(KProfileSource::TIME);
            self.has_timer = timer.is_ok();
            return outcome.map_err(InterfaceError::Counters).and_then(|anew| timer.map(|()| anew));
        }
        Ok(outcome?)
    }

    /// Stops every source and event, and releases the counters and the memory. This method calls
    /// [`CounterSession::shut_down`].
    ///
    /// # Errors
    /// The errors of [`CounterSession::shut_down`]. After an error, the session stays open, and `shut_down` may be
    /// called again.
    pub fn shut_down(&mut self) -> Result<(), InterfaceError> {
        if self.has_timer {
            self.counters.hardware.stop_profile_timer();
            self.has_timer = false;
        }
        self.counters.shut_down()?;
        self.usable = false;
        Ok(())
    }

    /// Returns the profile interface whose sources this session runs.
    pub fn interface(&self) -> &I {
        &self.counters.source
    }
}

/// Adds the source of the operation to an error of the counters.
#[inline(never)] // Linked once: each operation has errors. 448 bytes of the glue.
fn of_source(error: CounterError, source: KProfileSource) -> InterfaceError {
    match error {
        CounterError::NoCounterForEvent => InterfaceError::UnsupportedSource(source),
        CounterError::NoFreeCounter => InterfaceError::NoFreeCounter(source),
        CounterError::IsEnabled(_) => InterfaceError::AlreadyStarted(source),
        CounterError::NotEnabled(_) => InterfaceError::NotStarted(source),
        error => InterfaceError::Counters(error),
    }
}
