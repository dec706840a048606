//! Events of threads: made, switched with their threads, and read, also in user mode, by pages that are published
//! whenever a counter may have moved.

use pmu_core::error::CounterError;
use pmu_core::facility::EventFacility;
use pmu_core::reading::{UserView, user_view};
use pmu_core::thread::{SavedEvent, ThreadEvent};
use pmu_core::{Event, EventCount, EventId};

use crate::kernel::architecture::FacilityOf;
use crate::kernel::pmu::{LocalState, Pmu, PmuError, ProcessorMemory};
use crate::kernel::required::Kernel;
use crate::kernel::software::check_clock;

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Makes an event of a thread, which counts from the next [`switch`](Self::switch) to the thread on. A thread that
    /// does not run keeps its events as plain data, which may be copied and dropped. While the thread runs, its events
    /// are places on the processor. A raw event is counted on this processor's type of core only.
    ///
    /// An event that is precise or has branches is accepted also if the processor cannot sample so. It is then not
    /// counted on this processor.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::core::thread::ThreadEvent;
    /// use pmu::{Event, GenericEvent, Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// struct Thread {
    ///     events: [ThreadEvent; 4], // `Unused` in a new thread
    /// }
    ///
    /// /// Counts the instructions of a new thread.
    /// fn count(new: &mut Thread) -> Result<(), PmuError> {
    ///     new.events[0] = PMU.thread_event(&Event::generic(GenericEvent::Instructions))?;
    ///     Ok(())
    /// }
    ///
    /// /// The scheduler's switch.
    /// fn switch(from: &mut Thread, to: &mut Thread) {
    ///     if let Err(error) = PMU.switch(&mut from.events, &mut to.events) {
    ///         println!("events of threads: {error}");
    ///     }
    /// }
    ///
    /// /// The instructions of a thread that has ended, or of the running one.
    /// fn instructions(of: &Thread) -> Result<u64, PmuError> {
    ///     Ok(PMU.read_thread(&of.events[0])?.value)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session).
    /// - [`Counters`](PmuError::Counters): no counter of this processor can count the event, or its parts contradict
    ///   each other: see [`SavedEvent::new`].
    pub fn thread_event(&'static self, event: &Event) -> Result<ThreadEvent, PmuError> {
        check_clock::<K>(event)?;
        let event = self.with(|_, unit| SavedEvent::new(unit, event))??;
        Ok(ThreadEvent::SwitchedOut(event.to_be_enabled(true)))
    }

    /// Makes a group of a thread, whose events are counted together or not at all. The events come in the same order in
    /// the thread's slice.
    ///
    /// # Errors
    /// The errors of [`thread_event`](Self::thread_event), also for no events, and [`Events`](PmuError::Events): see
    /// [`SavedEvent::make_group`].
    pub fn thread_group<const C: usize>(
        &'static self,
        events: &[Event; C],
    ) -> Result<[ThreadEvent; C], PmuError> {
        events.iter().try_for_each(check_clock::<K>)?;
        let mut group = self.with(|_, unit| {
            let first = SavedEvent::new(unit, events.first().ok_or(CounterError::NoEvents)?)?;
            let mut group = [first.to_be_enabled(true); C];
            for (saved, event) in group.iter_mut().zip(events).skip(1) {
                *saved = SavedEvent::new(unit, event)?.to_be_enabled(true);
            }
            Ok::<_, CounterError>(group)
        })??;
        SavedEvent::make_group(&mut group)?;
        Ok(group.map(ThreadEvent::SwitchedOut))
    }

    /// Makes an event in the group of another event of a thread that is on no processor, and puts it into an unused
    /// place of the thread's `events`; returns its index. See [`ThreadEvent::join`], and
    /// [`with_thread`](Self::with_thread) for a thread that runs.
    ///
    /// # Errors
    /// The errors of [`thread_event`](Self::thread_event), and [`Events`](PmuError::Events): see [`ThreadEvent::join`].
    pub fn thread_member(
        &'static self,
        events: &mut [ThreadEvent],
        other: usize,
        event: &Event,
    ) -> Result<usize, PmuError> {
        check_clock::<K>(event)?;
        let event = self.with(|_, unit| SavedEvent::new(unit, event))??;
        Ok(ThreadEvent::join(events, other, event)?)
    }

    /// Switches from the events of one thread to those of another, as the scheduler switches the threads. Either slice
    /// may be empty: for a thread without events, or to begin with the events of the running thread.
    ///
    /// [`Kernel::sampled`] takes the overflows of `from` whose interrupts have not come. If an event of `from` is
    /// precise, and records wait, it takes the samples of all events that the kernel opened; those of profiles are
    /// lost.
    ///
    /// # Context
    /// Task, or the interrupt in which the scheduler switches. The call is [pinned](Kernel::pinned).
    ///
    /// # Errors
    /// - [`Events`](PmuError::Events): some events could not be switched. All others were, those of `to` in any case.
    ///   The mask is of `from` if some of these failed, and of `to` otherwise.
    /// - [`NotUp`](PmuError::NotUp): events of both threads that were on the processor as it went down are
    ///   [`Unused`](ThreadEvent::Unused) now. Their counts are lost. Where no thread has events, this is no error.
    /// - [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session): nothing was switched. The kernel does not
    ///   switch threads within [`with`](Self::with) or [`lend`](Self::lend). The thread of `from` must not run on
    ///   another processor before a switch from it succeeded on this one.
    pub fn switch(
        &'static self,
        from: &mut [ThreadEvent],
        to: &mut [ThreadEvent],
    ) -> Result<(), PmuError> {
        let switched = K::pinned(|| {
            self.with_local(|local| {
                let counters = local.session.counters_mut();
                let out = counters.switch_out(from, K::now(), self.of_kernel());
                // Evaluated in any case: a failure on the way out does not keep the other thread's events off.
                out.and(local.session.counters_mut().switch_in(&local.unit, to, K::now()))
            })
        });
        if <FacilityOf<K> as EventFacility>::KEEPS && switched.is_err() {
            // The thread ran without those that are not on the processor.
            ThreadEvent::forget_call_stacks(from);
        }
        if let Err(PmuError::NotUp) = switched {
            let is_unused = |event: &ThreadEvent| matches!(event, ThreadEvent::Unused);
            if from.iter().chain(&*to).all(is_unused) {
                return Ok(());
            }
            // The events were closed with the processor's session. Their places are others' some day.
            lose_opened(from);
            lose_opened(to);
        }
        Ok(switched??)
    }

    /// Changes the events of the thread that executes the call. Within `change`, they are off the processor, so they
    /// are plain data, as those of a thread that does not run: see [`ThreadEvent::enable`],
    /// [`disable`](ThreadEvent::disable), [`remove`](ThreadEvent::remove), [`inherit`](ThreadEvent::inherit),
    /// [`add_counts`](ThreadEvent::add_counts), [`join`](ThreadEvent::join), and of one event
    /// [`SavedEvent::reset_count`] and [`SavedEvent::set_period`].
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::core::memory::EventTable;
    /// use pmu::{Event, Pmu, PmuError, ThreadEvent};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// `perf_event_open` of a task for itself, with the index of a `group_fd`.
    /// fn open(task: &mut [ThreadEvent; 8], group: usize, event: &Event) -> Result<usize, PmuError> {
    ///     PMU.with_thread(task, |task| PMU.thread_member(task, group, event))?
    /// }
    ///
    /// /// `PERF_EVENT_IOC_DISABLE` of a task's own event.
    /// fn disable(task: &mut [ThreadEvent; 8], index: usize) -> Result<(), PmuError> {
    ///     Ok(PMU.with_thread(task, |task| ThreadEvent::disable(task, index))??)
    /// }
    ///
    /// /// `PERF_EVENT_IOC_PERIOD` of a task's own event, with the default minimum of a period.
    /// fn set_period(task: &mut [ThreadEvent; 8], index: usize, period: u64) -> Result<(), PmuError> {
    ///     let set = |task: &mut [ThreadEvent]| match task.get_mut(index) {
    ///         Some(ThreadEvent::SwitchedOut(event)) => event.set_period(EventTable::none(), period),
    ///         _ => Ok(()), // there is no event
    ///     };
    ///     Ok(PMU.with_thread(task, set)??)
    /// }
    ///
    /// /// `fork`: the child counts from its first switch on.
    /// fn fork(task: &mut [ThreadEvent; 8]) -> Result<[ThreadEvent; 8], PmuError> {
    ///     let mut child = [ThreadEvent::Unused; 8];
    ///     PMU.with_thread(task, |task| ThreadEvent::inherit(task, &mut child, |tag| tag))??;
    ///     Ok(child)
    /// }
    /// # let _ = (open, disable, set_period, fork);
    /// ```
    ///
    /// # Context
    /// The task to which the events belong. The call is [pinned](Kernel::pinned).
    ///
    /// # Errors
    /// Those of [`switch`](Self::switch). If `change` was called, it is complete, and the events are on the processor
    /// again but for those that the error names.
    pub fn with_thread<R>(
        &'static self,
        events: &mut [ThreadEvent],
        change: impl FnOnce(&mut [ThreadEvent]) -> R,
    ) -> Result<R, PmuError> {
        K::pinned(|| {
            // An event that failed is off the processor, too.
            let left = match self.switch(events, &mut []) {
                Err(error @ (PmuError::Suspended | PmuError::Session(_) | PmuError::NotUp)) => {
                    return Err(error);
                }
                left => left,
            };
            let changed = change(events);
            self.switch(&mut [], events)?;
            left.map(|()| changed)
        })
    }

    /// Returns the count of a thread's event: of the thread that runs on this processor, or of one that does not run. A
    /// sampling event without a [total](Event::with_total) has none: its count is 0 while the thread does not run.
    ///
    /// # Context
    /// Task. The thread does not begin or cease to run meanwhile: a task that reads its own events is
    /// [pinned](Kernel::pinned), and no task reads those of a thread that runs elsewhere.
    ///
    /// # Errors
    /// - [`Counters`](PmuError::Counters): the event has [no total](CounterError::NoTotal).
    /// - For the running thread: [`NotUp`](PmuError::NotUp), [`Suspended`](PmuError::Suspended),
    ///   [`Session`](PmuError::Session).
    pub fn read_thread(&'static self, event: &ThreadEvent) -> Result<EventCount, PmuError> {
        match event {
            ThreadEvent::Unused => Ok(EventCount::default()),
            ThreadEvent::SwitchedOut(event) => Ok(event.count()),
            ThreadEvent::Opened(event) => {
                Ok(self.with(|session, _| session.counters_mut().read(*event, K::now()))??)
            }
        }
    }
}

/// Takes the events of a thread that were on the processor out of it.
#[cold]
// Inlined, it is unrolled for the kernel's number of events.
#[inline(never)] // 96 bytes of the Hermit-like glue.
fn lose_opened(events: &mut [ThreadEvent]) {
    let is_opened = |event: &&mut ThreadEvent| matches!(event, ThreadEvent::Opened(_));
    while let Some(event) = events.iter_mut().find(is_opened) {
        *event = ThreadEvent::Unused;
    }
}

/// The tags of the events that have pages on a processor, of at most `E`.
pub(super) struct Pages<const E: usize> {
    tags: [u64; E],
    count: usize,
}

impl<const E: usize> Pages<E> {
    const NONE: Self = Self { tags: [0; E], count: 0 };

    fn tags(&self) -> impl Iterator<Item = u64> {
        self.tags.iter().take(self.count).copied()
    }
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Returns the pages of this processor's events.
    #[inline]
    pub(super) fn pages(&'static self) -> Pages<E> {
        let of = self.processors.get(K::this_processor()).filter(|_| K::USER_PAGES);
        of.map_or(Pages::NONE, ProcessorMemory::pages)
    }

    /// Hides the pages of this processor's events.
    #[inline]
    pub(super) fn hide_pages(&'static self) {
        self.pages().tags().for_each(hide::<K>);
    }

    /// Publishes the pages of this processor's events, as a use of the session leaves them, and hides those of the
    /// events that it closed. While the processor is suspended, all are hidden.
    ///
    /// They are hidden after the events are closed, because an interrupt publishes the pages of open ones.
    #[inline]
    pub(super) fn publish(&'static self, local: Option<&mut LocalState<K>>, before: &Pages<E>) {
        if !K::USER_PAGES {
            return;
        }
        let Some(of) = self.processors.get(K::this_processor()) else { return };
        if let Some(local) = local {
            let counters = local.session.counters_mut();
            of.publish(|event| counters.user_view(event, K::now()));
            // Events that left: their pages would show a counter that another event has by now.
            before.tags().filter(|tag| !of.has_page(*tag)).for_each(hide::<K>);
        } else {
            of.pages().tags().chain(before.tags()).for_each(hide::<K>);
        }
    }

    /// Publishes the pages of this processor's events, after the handler of the performance interrupt has serviced the
    /// counters.
    #[inline]
    pub(super) fn publish_in_interrupt(&'static self) {
        if K::USER_PAGES
            && let Some((events, memory)) = self.events_of(K::this_processor())
            && let Some(of) = self.processors.get(K::this_processor())
        {
            let msr = K::registers();
            of.publish(|event| user_view(&events, &msr, memory, event, K::now()));
        }
    }
}

impl<K: Kernel, const E: usize> ProcessorMemory<K, E> {
    /// Returns the events that have pages now.
    fn pages(&self) -> Pages<E> {
        let mut pages = Pages::NONE;
        for (place, (_, tag)) in pages.tags.iter_mut().zip(self.events.with_user_reads()) {
            *place = tag;
            pages.count += 1;
        }
        pages
    }

    fn has_page(&self, tag: u64) -> bool {
        self.events.with_user_reads().any(|(_, of)| of == tag)
    }

    fn publish(&self, view: impl Fn(EventId) -> Result<UserView, CounterError>) {
        let clock = K::user_clock();
        for (event, tag) in self.events.with_user_reads() {
            if let Some(page) = K::user_page(tag) {
                // An event that cannot be read has an empty page, and the thread makes a system call.
                let _ = page.publish(clock.as_ref(), || view(event));
            }
        }
    }
}

/// Lets the thread make a system call.
fn hide<K: Kernel>(tag: u64) {
    if let Some(page) = K::user_page(tag) {
        page.hide();
    }
}
