//! Events of one processor, by handles.

use pmu_core::reading::{RemoteCount, remote_count};
use pmu_core::{CounterError, Event, EventCount, EventId, EventOverflow};

use crate::kernel::count::close as close_group;
use crate::kernel::error::PmuError;
use crate::kernel::of_processor::{Here, OfProcessor};
use crate::kernel::pmu::Pmu;
use crate::kernel::required::Kernel;
use crate::per_processor::Busy;

/// An event of one processor, which [`Pmu::open`] or [`Pmu::open_group`] opened. Once the event is closed, or its
/// processor went down, the handle stands for no event, also if another event has the same [`EventId`] by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PmuEvent {
    processor: usize,
    event: EventId,
    opening: u64,
}

impl PmuEvent {
    /// Returns the number of the event's processor.
    pub const fn processor(self) -> usize {
        self.processor
    }

    /// Returns the event's identity on its processor, as the [`Sample`](pmu_core::Sample)s of the event have it.
    pub const fn id(self) -> EventId {
        self.event
    }
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Opens an event on the processor that executes the call. The event does not count before it is
    /// [enabled](Self::enable). The handler of the performance interrupt gets the samples of an event that has a
    /// period: see [`interrupt_with`](Self::interrupt_with).
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use core::cell::Cell;
    /// use pmu::core::{Event, GenericEvent};
    /// use pmu::{Kernel, Pmu, PmuError, PmuEvent};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// Counts the mispredicted branches of this processor from now on.
    /// fn open() -> Result<PmuEvent, PmuError> {
    ///     MyKernel::pinned(|| {
    ///         let event = PMU.open(&Event::generic(GenericEvent::BranchMisses))?;
    ///         PMU.enable(event).map(|()| event)
    ///     })
    /// }
    ///
    /// /// Returns the count. The task may have moved: `on` runs a function on a processor.
    /// fn close(event: PmuEvent, on: impl FnOnce(usize, &dyn Fn())) -> Result<u64, PmuError> {
    ///     let count = Cell::new(Err(PmuError::NotUp));
    ///     on(event.processor(), &|| count.set(PMU.read(event).and_then(|count| PMU.close(event).map(|()| count))));
    ///     Ok(count.get()?.value)
    /// }
    /// # let _ = (open as fn() -> _, |event| close(event, |_, _| ()));
    /// ```
    ///
    /// # Context
    /// Task. The call is [pinned](Kernel::pinned).
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session): the processor
    ///   is not up, or its session is in use.
    /// - [`Counters`](PmuError::Counters): the processor cannot count or sample the event, or `E` events are open. See
    ///   [`open_event`](pmu_core::CounterSession::open_event).
    pub fn open(&'static self, event: &Event) -> Result<PmuEvent, PmuError> {
        self.on_processor(None, |of, here| {
            let event = here.session.counters_mut().open_event(&here.unit, event)?;
            Ok(of.opened(event))
        })
    }

    /// Opens events that are counted together or not at all. The first event leads the group: to
    /// [enable](Self::enable) or to [disable](Self::disable) it is to do so with the group.
    ///
    /// # Context
    /// Task. The call is [pinned](Kernel::pinned).
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and [`Events`](PmuError::Events): the processor cannot count these events
    /// together. See [`open_group`](pmu_core::CounterSession::open_group).
    pub fn open_group<const C: usize>(
        &'static self,
        events: &[Event; C],
    ) -> Result<[PmuEvent; C], PmuError> {
        self.on_processor(None, |of, here| {
            let counters = here.session.counters_mut();
            let group = counters.open_group(&here.unit, events)?;
            let mut members = counters.group_events(group);
            let mut member = EventId::of_place(0); // The group has as many events as the array.
            Ok(core::array::from_fn(|_| {
                member = members.next().unwrap_or(member);
                of.opened(member)
            }))
        })
    }

    /// Lets an event count. For the first event of a group, enables the group. If the event is enabled already, the
    /// call does nothing: see [`enable_event`](pmu_core::CounterSession::enable_event).
    ///
    /// # Context
    /// Task, on the event's processor.
    ///
    /// # Errors
    /// - [`OtherProcessor`](PmuError::OtherProcessor): the call is on another processor than the event.
    /// - [`Counters`](PmuError::Counters): the event was [closed](Self::close), its group is not whole on the
    ///   processor, there is no counter for it, or an access to a register failed.
    /// - [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session).
    pub fn enable(&'static self, event: PmuEvent) -> Result<(), PmuError> {
        self.with_event(event, |here| {
            here.session.counters_mut().enable_event(event.event, K::now())
        })
    }

    /// Stops an event. Its count stays. For the first event of a group, stops the group. If the event is not enabled,
    /// the call does nothing: see [`disable_event`](pmu_core::CounterSession::disable_event).
    ///
    /// # Context
    /// Task, on the event's processor.
    ///
    /// # Errors
    /// As [`enable`](Self::enable).
    pub fn disable(&'static self, event: PmuEvent) -> Result<(), PmuError> {
        self.with_event(event, |here| {
            here.session.counters_mut().disable_event(event.event, K::now())
        })
    }

    /// Returns an event's count, and the times for which it was enabled and on a counter.
    ///
    /// # Context
    /// Task, on any processor.
    ///
    /// # Errors
    /// - [`OtherProcessor`](PmuError::OtherProcessor): the call is on another processor than the event, and the event
    ///   is on a counter, which only its own processor can read.
    /// - [`Counters`](PmuError::Counters): the event was [closed](Self::close), or has
    ///   [no total](CounterError::NoTotal).
    /// - On the event's processor: [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session).
    pub fn read(&'static self, event: PmuEvent) -> Result<EventCount, PmuError> {
        let read =
            |here: &mut Here<K>| here.session.counters_mut().read_event(event.event, K::now());
        match self.with_event(event, read) {
            Err(PmuError::OtherProcessor(processor)) => {
                let of = self.processors.get(processor).filter(|of| of.is_open(event));
                let of = of.ok_or(CounterError::NoSuchEvent(event.event))?;
                match remote_count(&of.events, &of.counters, event.event, K::now())? {
                    RemoteCount::Current(count) if of.is_open(event) => Ok(count),
                    _ => Err(PmuError::OtherProcessor(processor)),
                }
            }
            read => read,
        }
    }

    /// Sets an event's count to 0. The times stay, and so does what is left of a period.
    ///
    /// # Context
    /// Task, on the event's processor.
    ///
    /// # Errors
    /// As [`enable`](Self::enable), and [`NoTotal`](CounterError::NoTotal).
    pub fn reset(&'static self, event: PmuEvent) -> Result<(), PmuError> {
        self.with_event(event, |here| {
            let counters = here.session.counters_mut();
            let count = counters.read_event(event.event, K::now())?;
            let back = EventCount { value: count.value.wrapping_neg(), ..EventCount::default() };
            counters.add_count(event.event, back)
        })
    }

    /// Begins an event's next period at once, with `period` occurrences. If the old period has ended by then, its
    /// overflow goes to `overflowed`: see [`apply_period`](pmu_core::CounterSession::apply_period).
    ///
    /// # Context
    /// Task, on the event's processor.
    ///
    /// # Errors
    /// As [`enable`](Self::enable), [`NoPeriod`](CounterError::NoPeriod) and [`Period`](CounterError::Period).
    pub fn set_period(
        &'static self,
        event: PmuEvent,
        period: u64,
        overflowed: impl FnMut(EventOverflow),
    ) -> Result<(), PmuError> {
        self.with_event(event, |here| {
            here.session.counters_mut().apply_period(event.event, period, K::now(), overflowed)
        })
    }

    /// Closes an event, or the whole group of an event. The handles of these events stand for no event afterwards.
    /// Records of the events that wait in memory are dropped.
    ///
    /// # Context
    /// Task, on the event's processor.
    ///
    /// # Errors
    /// As [`enable`](Self::enable). If an access to a register failed, the event is closed nevertheless.
    pub fn close(&'static self, event: PmuEvent) -> Result<(), PmuError> {
        self.on_processor(Some(event), |_, here| {
            let counters = here.session.counters_mut();
            let Some(group) = counters.event_group(event.event)? else {
                let closed = counters.close_event(event.event, K::now());
                // By now the event is stopped, so a second call accesses no register.
                let closed = closed
                    .or_else(|error| counters.close_event(event.event, K::now()).and(Err(error)));
                return Ok(closed.map(drop)?);
            };
            Ok(close_group(here, group)?)
        })
    }

    /// Uses the session of an event's processor, which executes the call.
    fn with_event<R>(
        &'static self,
        event: PmuEvent,
        act: impl FnOnce(&mut Here<K>) -> Result<R, CounterError>,
    ) -> Result<R, PmuError> {
        self.on_processor(Some(event), |_, here| Ok(act(here)?))
    }

    /// Uses the memory and the session of the processor that executes the call, which is to be that of an open event.
    fn on_processor<R>(
        &'static self,
        event: Option<PmuEvent>,
        act: impl FnOnce(&'static OfProcessor<K, E>, &mut Here<K>) -> Result<R, PmuError>,
    ) -> Result<R, PmuError> {
        K::pinned(|| {
            let this = K::this_processor();
            let of = self.processors.get(this).ok_or(Busy::NoPlace { processor: this })?;
            match event {
                Some(event) if event.processor != this => {
                    return Err(PmuError::OtherProcessor(event.processor));
                }
                Some(event) if !of.is_open(event) => {
                    return Err(CounterError::NoSuchEvent(event.event).into());
                }
                _ => {}
            }
            self.here(|here| act(of, here))?
        })
    }
}

impl<K: Kernel, const E: usize> OfProcessor<K, E> {
    /// Returns the handle of an event that was opened.
    fn opened(&self, event: EventId) -> PmuEvent {
        let opening = self.events.opening(event).unwrap_or(0);
        PmuEvent { processor: K::this_processor(), event, opening }
    }

    fn is_open(&self, event: PmuEvent) -> bool {
        self.events.opening(event.event) == Some(event.opening)
    }
}
