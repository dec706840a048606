//! Counts of a function.

use pmu_core::{Event, EventCount, GroupId};

use crate::kernel::error::PmuError;
use crate::kernel::pmu::Pmu;
use crate::kernel::required::Kernel;

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Pmu<K, P, E, N> {
    /// Counts events of this processor while `work` runs. The events are a group, which is counted as a whole, so that
    /// the counts can be compared with each other.
    ///
    /// `work` runs [pinned](Kernel::pinned), so no other task is counted. Interrupt handlers that run during `work` are
    /// counted, too. To count one thread only, open the thread's events in [`with`](Self::with).
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
    /// - [`Group`](PmuError::Group): the events cannot be counted together on this processor, or an access failed.
    ///   After an error the events do not run. If `work` was run, its counts are lost.
    ///
    /// If `work` unwinds, the events are closed.
    pub fn count<const C: usize>(
        &'static self,
        events: &[Event; C],
        work: impl FnOnce(),
    ) -> Result<[EventCount; C], PmuError> {
        K::pinned(|| {
            let group = self.here(|here| {
                let counters = here.session.counters_mut();
                let group = counters.open_group(&here.unit, events)?;
                let started = counters.start_group(group, K::now());
                if started.is_err() {
                    // The first error is returned.
                    let _ = counters.close_group(group, K::now());
                }
                started.map(|()| group)
            })??;
            let counted = Counted { pmu: self, group };
            work();
            core::mem::forget(counted);
            self.here(|here| {
                let counters = here.session.counters_mut();
                let mut counts = [EventCount::default(); C];
                let read = counters.read_group(group, K::now(), &mut counts);
                let closed = counters.close_group(group, K::now());
                read.and(closed).map(|()| counts)
            })?
            .map_err(PmuError::Group)
        })
    }
}

/// A group that counts, and is closed if `work` unwinds.
struct Counted<K: Kernel, const P: usize, const E: usize, const N: usize> {
    pmu: &'static Pmu<K, P, E, N>,
    group: GroupId,
}

impl<K: Kernel, const P: usize, const E: usize, const N: usize> Drop for Counted<K, P, E, N> {
    fn drop(&mut self) {
        let _ = self.pmu.here(|here| here.session.counters_mut().close_group(self.group, K::now()));
    }
}
