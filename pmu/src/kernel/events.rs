//! Events of one processor, by handles.

use core::slice;

use pmu_core::error::{CounterError, EventsError};
use pmu_core::reading::{RemoteCount, remote_count};
use pmu_core::registers::{EventList, EventSelect, MAX_COUNTERS};
use pmu_core::{CounterSet, Event, EventCount, EventId, EventStatus};

use crate::kernel::architecture::Architecture;
use crate::kernel::pmu::{LocalState, Pmu, PmuError, ProcessorMemory};
use crate::kernel::processors::overflowed;
use crate::kernel::profile::{begin, close};
use crate::kernel::required::Kernel;
use crate::kernel::software::check_clock;
use crate::per_processor::Busy;
use crate::perf::PerfEventAttr;

/// An event of one processor, which [`Pmu::open`], [`Pmu::start`] or one of their variants for groups opened.
///
/// Once the event is closed, or its processor went down, the handle stands for no event, also if another event has the
/// same [`EventId`] by then.
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
    /// [enabled](Self::enable). [`Kernel::sampled`] takes the samples of an event that has a period.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use core::cell::Cell;
    /// use pmu::{Event, GenericEvent, Pmu, PmuError, PmuEvent};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// Prepares to count the mispredicted branches of this processor.
    /// fn open() -> Result<PmuEvent, PmuError> {
    ///     PMU.open(&Event::generic(GenericEvent::BranchMisses))
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
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session): the processor
    ///   is not up, or its session is in use.
    /// - [`Counters`](PmuError::Counters): the processor cannot count or sample the event, or `E` events are open. See
    ///   [`CounterSession::open`](pmu_core::CounterSession::open).
    pub fn open(&'static self, event: &Event) -> Result<PmuEvent, PmuError> {
        check_clock::<K>(event)?;
        self.on_processor(None, |of, local| {
            let opened = local.session.counters_mut().open(&local.unit, slice::from_ref(event));
            let event = opened.map_err(CounterError::from)?;
            Ok(of.opened(event))
        })
    }

    /// [Opens](Self::open) an event on the processor that executes the call, and lets it count. If it cannot count, it
    /// is not opened.
    ///
    /// # Errors
    /// Those of [`open`](Self::open) and [`enable`](Self::enable).
    pub fn start(&'static self, event: &Event) -> Result<PmuEvent, PmuError> {
        check_clock::<K>(event)?;
        self.on_processor(None, |of, local| {
            let started = begin(local, slice::from_ref(event));
            Ok(of.opened(started.map_err(CounterError::from)?))
        })
    }

    /// [Opens](Self::open_group) a group on the processor that executes the call, and lets it count. If it cannot
    /// count, it is not opened.
    ///
    /// # Errors
    /// Those of [`open_group`](Self::open_group). [`Events`](PmuError::Events) also says for which event there is no
    /// counter, and that an access to a register failed.
    pub fn start_group<const C: usize>(
        &'static self,
        events: &[Event; C],
    ) -> Result<[PmuEvent; C], PmuError> {
        self.make_group(events, begin)
    }

    /// Opens events that are counted together or not at all. The first event leads the group: to
    /// [enable](Self::enable) or to [disable](Self::disable) it is to do so with the group.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and [`Events`](PmuError::Events): the processor cannot count these events
    /// together. See [`CounterSession::open`](pmu_core::CounterSession::open).
    pub fn open_group<const C: usize>(
        &'static self,
        events: &[Event; C],
    ) -> Result<[PmuEvent; C], PmuError> {
        self.make_group(events, |local, events| {
            local.session.counters_mut().open(&local.unit, events)
        })
    }

    fn make_group<const C: usize>(
        &'static self,
        events: &[Event; C],
        make: fn(&mut LocalState<K>, &[Event]) -> Result<EventId, EventsError>,
    ) -> Result<[PmuEvent; C], PmuError> {
        events.iter().try_for_each(check_clock::<K>)?;
        self.on_processor(None, |of, local| {
            let group = make(local, events)?;
            let mut members = local.session.counters_mut().group_events(group);
            let mut member = EventId::of_index(0); // The group has as many events as the array.
            Ok(core::array::from_fn(|_| {
                member = members.next().unwrap_or(member);
                of.opened(member)
            }))
        })
    }

    /// Returns the event for which attributes of perf stand on this machine: that of
    /// [`PerfEventAttr::event`](PerfEventAttr::event), which says what `list` is. On Intel, the raw events
    /// 0x8000 to 0x8700, Linux' `topdown-*`, are the [parts](Event::part) of the slots (0x0400, Linux' `slots`) that
    /// lead the group.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::perf::PerfEventAttr;
    /// use pmu::{Pmu, PmuEvent};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// `perf_event_open` for this processor. Returns Linux' number of an error.
    /// fn open(attr: &[u8], group: Option<PmuEvent>) -> Result<PmuEvent, i32> {
    ///     let attr = PerfEventAttr::from_bytes(attr).map_err(|error| error.errno())?;
    ///     let event = PMU.perf_event(&attr, &()).and_then(|event| match group {
    ///         Some(leader) => PMU.open_member(leader, &event),
    ///         None => PMU.open(&event),
    ///     });
    ///     event.map_err(|error| error.errno())
    /// }
    /// # let _ = open;
    /// ```
    ///
    /// # Context
    /// Any in which `list` may be used.
    ///
    /// # Errors
    /// [`Perf`](PmuError::Perf): the attributes are no event of a counter.
    pub fn perf_event(
        &'static self,
        attr: &PerfEventAttr,
        list: &dyn EventList,
    ) -> Result<Event, PmuError> {
        Ok(attr.event(&OfMachine::<K::Architecture> { machine: self.machine(), list })?)
    }

    /// Opens an event in the group of `other`, behind the group's events, as Linux' `perf_event_open` does with a
    /// `group_fd`. If `other` is in no group, it leads a new one. The group is to be [disabled](Self::disable).
    ///
    /// # Errors
    /// Those of [`enable`](Self::enable), and [`Events`](PmuError::Events): the processor cannot count the event beside
    /// the group, which is as before, or the group is enabled. See
    /// [`open_member`](pmu_core::CounterSession::open_member).
    pub fn open_member(
        &'static self,
        other: PmuEvent,
        event: &Event,
    ) -> Result<PmuEvent, PmuError> {
        check_clock::<K>(event)?;
        self.on_processor(Some(other), |of, local| {
            let counters = local.session.counters_mut();
            Ok(of.opened(counters.open_member(&local.unit, other.event, event)?))
        })
    }

    /// Lets an event count. For the first event of a group, enables the group. If the event is enabled already, the
    /// call does nothing: see [`CounterSession::enable`](pmu_core::CounterSession::enable).
    ///
    /// # Errors
    /// - [`OtherProcessor`](PmuError::OtherProcessor): the call is on another processor than the event.
    /// - [`Counters`](PmuError::Counters): the event was [closed](Self::close), its group is not whole on the
    ///   processor, there is no counter for it, or an access to a register failed.
    /// - [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session).
    pub fn enable(&'static self, event: PmuEvent) -> Result<(), PmuError> {
        self.with_event(event, |local| {
            Ok(local.session.counters_mut().enable(event.event, K::now())?)
        })
    }

    /// Stops an event. Its count stays. For the first event of a group, stops the group. If the event is not enabled,
    /// the call does nothing: see [`CounterSession::disable`](pmu_core::CounterSession::disable).
    ///
    /// # Errors
    /// As [`enable`](Self::enable).
    pub fn disable(&'static self, event: PmuEvent) -> Result<(), PmuError> {
        self.with_event(event, |local| {
            Ok(local.session.counters_mut().disable(event.event, K::now())?)
        })
    }

    /// Returns the state of an event, with the names of Linux: whether it is enabled, on which counter it is, and
    /// whether it lost its counter.
    ///
    /// # Errors
    /// As [`enable`](Self::enable).
    pub fn status(&'static self, event: PmuEvent) -> Result<EventStatus, PmuError> {
        self.with_event(event, |local| local.session.counters_mut().event_status(event.event))
    }

    /// Lets an event count on without samples, from the next one on, as `PERF_EVENT_IOC_REFRESH` ends. `event` is that
    /// of the sample: see [`EventTable::stop_reporting`](pmu_core::memory::EventTable::stop_reporting).
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{Pmu, PmuSample};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// Is called by the kernel's `sampled`: samples until the reader has enough.
    /// fn record(sample: &PmuSample<'_, MyKernel>, mut is_last: impl FnMut(u64) -> bool) {
    ///     if sample.source().is_none() // no profile's
    ///         && is_last(sample.tag)
    ///     {
    ///         let _ = PMU.stop_reporting(sample.event);
    ///     }
    /// }
    /// # let _ = |sample: &PmuSample<'_, MyKernel>| record(sample, |_| false);
    /// ```
    ///
    /// # Context
    /// Any context on the event's processor, including [`Kernel::sampled`].
    ///
    /// # Errors
    /// [`NotUp`](PmuError::NotUp), and [`Counters`](PmuError::Counters): the event is not open, or has no period.
    pub fn stop_reporting(&'static self, event: EventId) -> Result<(), PmuError> {
        let of = self.processors.get(K::this_processor()).ok_or(PmuError::NotUp)?;
        Ok(of.events.stop_reporting(event)?)
    }

    /// Reports the precise samples that wait in this processor's memory, before the process whose addresses they have
    /// ends or maps other files. [`Kernel::sampled`] takes those of the events that the kernel opened; those of
    /// profiles are lost. See [`CounterSession::report_samples`](pmu_core::CounterSession::report_samples).
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// fn before_unmap() -> Result<(), PmuError> {
    ///     PMU.report_samples()
    /// }
    /// # let _ = before_unmap();
    /// ```
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Suspended`](PmuError::Suspended), [`Session`](PmuError::Session).
    /// - [`Counters`](PmuError::Counters): accesses to registers failed.
    pub fn report_samples(&'static self) -> Result<(), PmuError> {
        self.on_processor(None, |_, local| {
            Ok(local.session.counters_mut().report_samples(self.of_kernel())?)
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
            |local: &mut LocalState<K>| local.session.counters_mut().read(event.event, K::now());
        match self.with_event(event, read) {
            Err(PmuError::OtherProcessor(processor)) => {
                let of = self.processors.get(processor).filter(|of| of.is_open(event));
                let of = of.ok_or(CounterError::NoSuchEvent(event.event))?;
                match remote_count(&of.events, &of.counters, event.event, K::now())? {
                    // Asked once more: the place may have gone to another event meanwhile.
                    RemoteCount::Current(count) if of.is_open(event) => Ok(count),
                    _ => Err(PmuError::OtherProcessor(processor)),
                }
            }
            read => read,
        }
    }

    /// Reads an event, or all events of its group in the order in which they were opened: the tag and the count of
    /// each, as [`RecordFormat::read`](crate::perf::RecordFormat::read) takes them. Returns how many of `counts` were
    /// written. If `counts` is shorter than the group, the call writes the first ones; no group is longer than
    /// [`MAX_COUNTERS`].
    ///
    /// # Errors
    /// As [`enable`](Self::enable), and [`Events`](PmuError::Events): see
    /// [`read_group`](pmu_core::CounterSession::read_group).
    pub fn read_group(
        &'static self,
        event: PmuEvent,
        counts: &mut [(u64, EventCount)],
    ) -> Result<usize, PmuError> {
        self.on_processor(Some(event), |_, local| {
            let counters = local.session.counters_mut();
            let mut values = [EventCount::default(); MAX_COUNTERS];
            let read = counters.read_group(event.event, K::now(), &mut values)?.min(counts.len());
            let members = counters.group_events(event.event).zip(values);
            for (count, (member, value)) in counts.iter_mut().zip(members) {
                *count = (counters.event_tag(member)?, value);
            }
            Ok(read)
        })
    }

    /// Sets an event's count to 0. The times stay, and so does what is left of a period.
    ///
    /// # Errors
    /// As [`enable`](Self::enable), and [`NoTotal`](CounterError::NoTotal).
    pub fn reset(&'static self, event: PmuEvent) -> Result<(), PmuError> {
        self.with_event(event, |local| {
            let counters = local.session.counters_mut();
            let count = counters.read(event.event, K::now())?;
            // The complement is added, so that the counter is not written and its period continues.
            let back = EventCount { value: count.value.wrapping_neg(), ..EventCount::default() };
            counters.add_count(event.event, back)
        })
    }

    /// Begins an event's next period at once, with `period` occurrences. If the old period has ended by then,
    /// [`Kernel::sampled`] takes its overflow: see [`apply_period`](pmu_core::CounterSession::apply_period).
    ///
    /// # Errors
    /// As [`enable`](Self::enable), [`NoPeriod`](CounterError::NoPeriod) and [`Period`](CounterError::Period).
    pub fn set_period(&'static self, event: PmuEvent, period: u64) -> Result<(), PmuError> {
        self.with_event(event, |local| {
            let counters = local.session.counters_mut();
            counters.apply_period(event.event, period, K::now(), overflowed::<K>)
        })
    }

    /// Closes an event, or the whole group of an event. The handles of these events stand for no event afterwards.
    /// Records of the events that wait in memory are dropped.
    ///
    /// # Errors
    /// As [`enable`](Self::enable). If an access to a register failed, the event is closed nevertheless.
    pub fn close(&'static self, event: PmuEvent) -> Result<(), PmuError> {
        self.with_event(event, |local| Ok(close(local, event.event, &mut [])?))
    }

    /// Closes one event, as Linux does when the last descriptor of the event is closed. The other events of its group
    /// continue without a gap. If the event is the first of its group, the others are in no group afterwards. Events
    /// that need each other are closed together: see [`close_member`](pmu_core::CounterSession::close_member).
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub fn close_member(&'static self, event: PmuEvent) -> Result<(), PmuError> {
        self.with_event(event, |local| {
            let counters = local.session.counters_mut();
            counters.close_member(event.event, K::now()).map(drop).inspect_err(|_| {
                // An event in no group is still open. By now it is stopped, so this accesses no register.
                let _ = counters.close_member(event.event, K::now());
            })
        })
    }

    /// Uses the session of an event's processor, which executes the call.
    fn with_event<R>(
        &'static self,
        event: PmuEvent,
        act: impl FnOnce(&mut LocalState<K>) -> Result<R, CounterError>,
    ) -> Result<R, PmuError> {
        self.on_processor(Some(event), |_, local| Ok(act(local)?))
    }

    /// Uses the memory and the session of the processor that executes the call, which is to be that of an open event.
    pub(super) fn on_processor<R>(
        &'static self,
        event: Option<PmuEvent>,
        act: impl FnOnce(&'static ProcessorMemory<K, E>, &mut LocalState<K>) -> Result<R, PmuError>,
    ) -> Result<R, PmuError> {
        K::pinned(|| {
            let this = K::this_processor();
            let of = self.processors.get(this).ok_or(Busy::NoSlot { processor: this })?;
            match event {
                Some(event) if event.processor != this => {
                    return Err(PmuError::OtherProcessor(event.processor));
                }
                Some(event) if !of.is_open(event) => {
                    return Err(CounterError::NoSuchEvent(event.event).into());
                }
                _ => {}
            }
            self.with_local(|local| act(of, local))?
        })
    }
}

impl<K: Kernel, const E: usize> ProcessorMemory<K, E> {
    /// Returns the handle of an event that was opened.
    pub(super) fn opened(&self, event: EventId) -> PmuEvent {
        // The event was just opened on this processor, so it has a number.
        let opening = self.events.opening(event).unwrap_or(0);
        PmuEvent { processor: K::this_processor(), event, opening }
    }

    pub(super) fn is_open(&self, event: PmuEvent) -> bool {
        self.events.opening(event.event) == Some(event.opening)
    }
}

/// The list of a kernel, with the selects to which Linux gives another meaning on this machine.
struct OfMachine<'l, A: Architecture> {
    machine: Option<&'l A::Machine>,
    list: &'l dyn EventList,
}

impl<A: Architecture> EventList for OfMachine<'_, A> {
    fn perf_config(&self, name: &str) -> Option<(u64, u64)> {
        self.list.perf_config(name)
    }

    fn constraints(&self, select: EventSelect) -> Option<CounterSet> {
        let of_machine = self.machine.and_then(|machine| A::perf_counters(machine, select));
        of_machine.or_else(|| self.list.constraints(select))
    }
}
