//! Profiles of all processors, during a function.

use core::ops::Range;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use pmu_core::error::{CounterError, EventsError};
use pmu_core::profile::{AddedSources, KProfileSource};
use pmu_core::{Event, EventCount, EventId, EventSource};
use pmu_kprofile::{Affinity, BasicProfile, ProfileCallback, ProfileError, ProfileObject};

use crate::kernel::events::PmuEvent;
use crate::kernel::pmu::{LocalState, Pmu, PmuError, ProcessorMemory};
use crate::kernel::required::Kernel;
use crate::kernel::software::check_software;
use crate::per_processor::Busy;

/// The origin of a profile's interrupts: a profile source of the machine, or an event with a period.
///
/// ```
/// use pmu::{Event, GenericEvent, KProfileSource, Profiled};
/// use pmu::core::registers::EventSelect;
/// let by_source = Profiled::from(KProfileSource::BRANCH_MISPREDICTIONS); // at the source's interval
/// let by_name = Profiled::from(Event::generic(GenericEvent::Cycles).every(1_000_003));
/// let by_number = Profiled::from(Event::raw(EventSelect::from_bits(0x412E)).every(10_007));
/// # let _ = (by_source, by_name, by_number);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Profiled {
    /// A profile source of the machine. All profiles of this source use the same interval.
    Source(KProfileSource),
    /// An event with a period.
    Event(Event),
}

impl From<KProfileSource> for Profiled {
    fn from(source: KProfileSource) -> Self {
        Self::Source(source)
    }
}

impl From<Event> for Profiled {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Counts the interrupts of an event or a source by the interrupted address, while `work` runs. The profile covers
    /// all processors that are up, and those that come up while `work` runs. Returns the stopped profile object. The
    /// object's [`hits`](ProfileObject::hits) are the addresses with their counts.
    ///
    /// The addresses of `range` are divided into buckets of equal size, each with a counter in `buffer`. The size of a
    /// bucket is the smallest power of two for which the buffer has enough counters. Each interrupt in `range` adds 1
    /// to the counter of its bucket. Each sample of a [precise](pmu_core::Event::precise) event adds 1 at the sampled
    /// instruction. The call does not clear the buffer first.
    ///
    /// Two profiles of one event, with different periods, can run at the same time. Each profile uses a hardware
    /// counter of its own.
    ///
    /// A kernel with [`SoftwareEvents`](crate::facilities::SoftwareEvents) can profile a [software
    /// event](Event::software), too: on any processor, also without counters, at the frame that
    /// [`happened`](Self::happened) and [`clock_interrupt`](Self::clock_interrupt) get.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use core::sync::atomic::AtomicU32;
    /// use pmu::{Event, GenericEvent, Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    /// static BUCKETS: [AtomicU32; 0x4000] = [const { AtomicU32::new(0) }; 0x4000];
    ///
    /// fn profile(kernel_text: core::ops::Range<u64>, workload: fn()) -> Result<(), PmuError> {
    ///     let cycles = Event::generic(GenericEvent::Cycles).every(1_000_003);
    ///     let profile = PMU.profile(cycles, kernel_text, &BUCKETS, workload)?;
    ///     for (addresses, count) in profile.hits() {
    ///         println!("{:#x} {count}", addresses.start);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Context
    /// Task. Waits for other processors, and for other tasks that start and stop profiles. `work` is not pinned.
    ///
    /// A processor starts or stops the source only while the processor's session is not in use. If a processor stays in
    /// [`with`](Self::with) or [`lend`](Self::lend), for example while a guest runs, the call
    /// waits as long as [`Kernel::keep_waiting`] returns `true`. When `keep_waiting` returns `false`, the call fails
    /// with [`NoAnswer`](pmu_core::profile::InterfaceError::NoAnswer).
    ///
    /// # Errors
    /// - [`Interface`](PmuError::Interface): the event has no period, its period is too short or too long for a profile
    ///   source, or the machine lacks the event. The error also occurs if `N` other events are already sources. An
    ///   event that is used with two periods counts as two events.
    /// - [`Counters`](PmuError::Counters), [`NoClockTimer`](PmuError::NoClockTimer): the kernel cannot count, or not
    ///   sample, the software event.
    /// - [`NotUp`](PmuError::NotUp): no processor is up.
    /// - [`Create`](PmuError::Create): the machine lacks the source, or the buffer is too small.
    /// - [`Profile`](PmuError::Profile), and `work` was not run: the profile could not start on a processor.
    /// - [`Profile`](PmuError::Profile), and `work` was run: the profile could not stop. The counts are in `buffer`,
    ///   and the profile's source may still run on the processor that the error names.
    pub fn profile<'b>(
        &'static self,
        by: impl Into<Profiled>,
        range: Range<u64>,
        buffer: &'b [AtomicU32],
        work: impl FnOnce(),
    ) -> Result<ProfileObject<'b>, PmuError> {
        let size = range.end.saturating_sub(range.start);
        let fits = |log2: &u32| size.div_ceil(1 << log2) <= buffer.len() as u64;
        let acquired = self.acquire_for_profile(by.into())?;
        let request = BasicProfile {
            process: None,
            base: range.start,
            size,
            // If none fits, `basic` refuses the largest one, with the error that says why.
            bucket_log2: (2..31).find(fits).unwrap_or(31),
            buffer,
            source: acquired.source,
            affinity: Some(Affinity::ALL),
        };
        let object = ProfileObject::basic(self.profiles.rules(), request, &self.hardware())?;
        self.during(&object, work)?;
        Ok(object)
    }

    /// Calls `callback` for each interrupt that an event or a source raises while `work` runs, on every processor that
    /// is up. The callback receives the interrupt's frame and the source.
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use core::sync::atomic::{AtomicU64, Ordering};
    /// use pmu::{Event, GenericEvent};
    /// use pmu::frame::InterruptFrame;
    /// use pmu::{KProfileSource, Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    /// static IN_USER_MODE: AtomicU64 = AtomicU64::new(0);
    ///
    /// fn user_mode_misses(workload: fn()) -> Result<u64, PmuError> {
    ///     let callback = |frame: &dyn InterruptFrame, _: KProfileSource| {
    ///         if frame.cs() & 3 == 3 {
    ///             IN_USER_MODE.fetch_add(1, Ordering::Relaxed);
    ///         }
    ///     };
    ///     PMU.sample(Event::generic(GenericEvent::CacheMisses).every(10_007), &callback, workload)?;
    ///     Ok(IN_USER_MODE.load(Ordering::Relaxed))
    /// }
    /// ```
    ///
    /// # Context
    /// Task. Waits as [`profile`](Self::profile) does. The callback is called in interrupt or NMI context.
    ///
    /// # Errors
    /// The errors of [`profile`](Self::profile).
    pub fn sample(
        &'static self,
        by: impl Into<Profiled>,
        callback: &dyn ProfileCallback,
        work: impl FnOnce(),
    ) -> Result<(), PmuError> {
        let acquired = self.acquire_for_profile(by.into())?;
        let object = ProfileObject::callback(self.profiles.rules(), acquired.source, callback)?;
        self.during(&object, work)
    }

    /// Returns the profile source for `by`. With this source, the kernel can create a profile object itself. If `by` is
    /// an event, the call adds a source for the event, as
    /// [`AddedSources::acquire`](pmu_core::profile::AddedSources::acquire) does. The added source is never removed. At
    /// most `N` sources can be added: one for each pair of event and period.
    ///
    /// The call refuses an event that the machine lacks, and then adds no source. Before the first
    /// [`processor_up`](Self::processor_up) the machine is not known, so any event is accepted.
    ///
    /// # Errors
    /// [`Interface`](PmuError::Interface): the event cannot be a profile source.
    pub fn source(&'static self, by: impl Into<Profiled>) -> Result<KProfileSource, PmuError> {
        let acquired = self.acquire(by.into())?;
        let source = acquired.source;
        // The caller has the source from now on: it is not released.
        core::mem::forget(acquired);
        Ok(source)
    }

    fn acquire_for_profile(&'static self, by: Profiled) -> Result<Acquired, PmuError> {
        let acquired = self.acquire(by)?;
        let is_any_up = self.processors.iter().any(|of| of.is_up.load(Relaxed));
        if is_any_up { Ok(acquired) } else { Err(PmuError::NotUp) }
    }

    fn acquire(&'static self, by: Profiled) -> Result<Acquired, PmuError> {
        match by {
            Profiled::Source(source) => Ok(Acquired { source, of: None }),
            Profiled::Event(event) => {
                check_software::<K>(&event)?;
                K::pinned(|| {
                    // One task at a time adds sources; the other one runs on another processor.
                    while self.is_adding.swap(true, Acquire) {
                        core::hint::spin_loop();
                    }
                    let source = self.added.acquire(&event, self.machine().map(EventSource::unit));
                    self.is_adding.store(false, Release);
                    Ok(Acquired { source: source?, of: Some(&self.added) })
                })
            }
        }
    }

    /// Runs a function while an object is started.
    fn during(
        &'static self,
        object: &ProfileObject<'_>,
        work: impl FnOnce(),
    ) -> Result<(), PmuError> {
        // SAFETY: (1) the object, and everything that it borrows, is borrowed until this function returns or unwinds;
        // (2) `started` stops the object before that.
        self.change(|profiles, hardware| unsafe { profiles.try_start_borrowed(object, hardware) })?;
        let started = Started { pmu: self, object };
        work();
        let stopped = started.stop();
        // It is stopped: dropping the guard would stop it once more.
        core::mem::forget(started);
        stopped
    }

    /// Counts events of this processor while `work` runs. The events form one group, whose members are counted during
    /// the same time. So the caller can compare their counts.
    ///
    /// `work` runs [pinned](Kernel::pinned), so the counts include no other task. The counts include interrupt handlers
    /// that run during `work`. To count only one thread, make an event of the thread:
    /// [`thread_event`](Self::thread_event).
    ///
    /// ```
    /// # mod stand_in { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kernel.rs")); }
    /// # use stand_in::*;
    /// use pmu::{Event, GenericEvent, Pmu, PmuError};
    ///
    /// static PMU: Pmu<MyKernel, 8> = Pmu::new();
    ///
    /// /// Returns the share of cache references that missed, in percent.
    /// fn misses(work: fn()) -> Result<Option<u64>, PmuError> {
    ///     let events = [GenericEvent::CacheMisses, GenericEvent::CacheReferences].map(Event::generic);
    ///     let [misses, references] = PMU.count(&events, work)?.map(|count| count.value);
    ///     Ok((misses * 100).checked_div(references))
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Session`](PmuError::Session).
    /// - [`Events`](PmuError::Events): the events cannot be counted together on this processor, or an access to a
    ///   counter's register failed. After this error, none of the events is counted any longer. If `work` was run, the
    ///   counts are lost.
    ///
    /// If `work` panics and unwinds, the call closes the events.
    pub fn count<const C: usize>(
        &'static self,
        events: &[Event; C],
        work: impl FnOnce(),
    ) -> Result<[EventCount; C], PmuError> {
        self.count_up_to(events, work)
    }

    /// Counts at most `C` events.
    pub(super) fn count_up_to<const C: usize>(
        &'static self,
        events: &[Event],
        work: impl FnOnce(),
    ) -> Result<[EventCount; C], PmuError> {
        K::pinned(|| {
            let this = K::this_processor();
            let of = self.processors.get(this).ok_or(Busy::NoSlot { processor: this })?;
            let group = of.opened(self.with_local(|local| begin(local, events))??);
            let counted = Counted { pmu: self, of, group };
            work();
            // From here on, `close` closes the group.
            core::mem::forget(counted);
            let mut counts = [EventCount::default(); C];
            // On a processor that `work` suspended, too. If `work` closed the events, others may have their places.
            self.session_slot(|slot| match slot {
                Some(_) if !of.is_open(group) => Err(CounterError::NoSuchEvent(group.id()).into()),
                Some(local) => Ok(close(local, group.id(), &mut counts)?),
                None => Err(PmuError::NotUp),
            })??;
            Ok(counts)
        })
    }
}

/// A source that a profile uses, and that is released if it was added for the profile.
struct Acquired {
    source: KProfileSource,
    of: Option<&'static AddedSources>,
}

impl Drop for Acquired {
    fn drop(&mut self) {
        if let Some(added) = self.of {
            added.release(self.source);
        }
    }
}

/// An object that is started, and is stopped before its memory is used for something else.
struct Started<'o, K: Kernel, const P: usize, const E: usize, const N: usize> {
    pmu: &'static Pmu<K, P, E, N>,
    object: &'o ProfileObject<'o>,
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Started<'_, K, P, E, N> {
    fn stop(&self) -> Result<(), PmuError> {
        let (profiles, object) = (&self.pmu.profiles, self.object);
        // The object must not be listed any more when this returns, whatever the error is.
        loop {
            match K::pinned(|| profiles.try_stop(object, &mut self.pmu.hardware())) {
                Ok(stopping) => {
                    while !K::pinned(|| stopping.is_over()) {
                        core::hint::spin_loop();
                    }
                    return Ok(stopping.hardware()?);
                }
                Err(error @ ProfileError::NotStarted) => return Err(error.into()),
                Err(_) => core::hint::spin_loop(),
            }
        }
    }
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Drop for Started<'_, K, P, E, N> {
    /// Stops the object while `work` unwinds.
    fn drop(&mut self) {
        // While `work` unwinds, no caller takes the outcome.
        let _ = self.stop();
    }
}

/// Opens and starts a group.
// Linked once for all numbers of events, and for `start`.
pub(super) fn begin<K: Kernel>(
    local: &mut LocalState<K>,
    events: &[Event],
) -> Result<EventId, EventsError> {
    local.session.counters_mut().start(&local.unit, events, K::now())
}

/// Closes an event and its group, also if their counters do not answer, and returns the last counts.
// Linked once, as `begin`.
#[inline(never)] // 96 bytes of the glue.
pub(super) fn close<K: Kernel>(
    local: &mut LocalState<K>,
    group: EventId,
    counts: &mut [EventCount],
) -> Result<(), EventsError> {
    let counters = local.session.counters_mut();
    counters.close_group(group, K::now(), counts).map(drop).inspect_err(|_| {
        // If the group is still open, it is stopped by now, so this accesses no register.
        let _ = counters.close_group(group, K::now(), &mut []);
    })
}

/// A group that counts, and is closed if `work` unwinds.
struct Counted<K: Kernel, const P: usize, const E: usize, const N: usize> {
    pmu: &'static Pmu<K, P, E, N>,
    of: &'static ProcessorMemory<K, E>,
    group: PmuEvent,
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Drop for Counted<K, P, E, N> {
    fn drop(&mut self) {
        // No caller takes an error while `work` unwinds. The slot of a suspended processor is used, too.
        let _ = self.pmu.session_slot(|slot| {
            let local = slot.as_mut().filter(|_| self.of.is_open(self.group));
            local.map(|local| close(local, self.group.id(), &mut []))
        });
    }
}
