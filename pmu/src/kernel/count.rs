//! Counts of a function.

use pmu_core::{Event, EventCount, EventsError, GroupId};

use crate::kernel::error::PmuError;
use crate::kernel::of_processor::Here;
use crate::kernel::pmu::Pmu;
use crate::kernel::required::Kernel;

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
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
    /// use pmu::core::{Event, GenericEvent};
    /// use pmu::{Pmu, PmuError};
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
    /// # Context
    /// Task.
    ///
    /// # Errors
    /// - [`NotUp`](PmuError::NotUp), [`Session`](PmuError::Session): the processor is not up, or its session is in use.
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
        K::pinned(|| {
            let group = self.here(|here| begin(here, events))??;
            let counted = Counted { pmu: self, group };
            work();
            core::mem::forget(counted);
            let mut counts = [EventCount::default(); C];
            // On a processor that `work` suspended, too.
            self.place(|place| match place {
                Some(here) => Ok(end(here, group, &mut counts)?),
                None => Err(PmuError::NotUp),
            })??;
            Ok(counts)
        })
    }
}

/// Opens and starts a group.
#[inline(never)] // Linked once for all numbers of events.
fn begin<K: Kernel>(here: &mut Here<K>, events: &[Event]) -> Result<GroupId, EventsError> {
    let counters = here.session.counters_mut();
    let group = counters.open_group(&here.unit, events)?;
    let started = counters.start_group(group, K::now());
    if started.is_err() {
        // The first error is returned.
        let _ = close(here, group);
    }
    started.map(|()| group)
}

/// Reads and closes a group.
#[inline(never)] // As `begin`.
fn end<K: Kernel>(
    here: &mut Here<K>,
    group: GroupId,
    counts: &mut [EventCount],
) -> Result<(), EventsError> {
    let read = here.session.counters_mut().read_group(group, K::now(), counts);
    let closed = close(here, group);
    read.and(closed)
}

/// Closes a group, also if its counters do not answer.
#[inline(never)] // It has three callers.
pub(super) fn close<K: Kernel>(here: &mut Here<K>, group: GroupId) -> Result<(), EventsError> {
    let counters = here.session.counters_mut();
    counters.close_group(group, K::now()).inspect_err(|_| {
        // By now the group is stopped, so this accesses no register.
        let _ = counters.close_group(group, K::now());
    })
}

/// A group that counts, and is closed if `work` unwinds.
struct Counted<K: Kernel, const P: usize, const E: usize, const N: usize> {
    pmu: &'static Pmu<K, P, E, N>,
    group: GroupId,
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Drop for Counted<K, P, E, N> {
    fn drop(&mut self) {
        let _ = self.pmu.place(|place| place.as_mut().map(|here| close(here, self.group)));
    }
}
