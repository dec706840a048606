//! Counting with auto counter reload.

use crate::events::error::FedEventsError;
use crate::events::feed::Feed;
use crate::model::advanced::Advanced;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;
use crate::registers::counters::{Counters, MAX_COUNTERS, from_global, places, to_global};
use crate::reload::virtual_reload::VirtualReload;

/// Reloads within one call. A guest may choose any period, and a call is to end.
const MOST_RELOADS: usize = 1024;

impl VirtualReload {
    /// Counts the events of a feed up to the first overflow that interrupts, as [`VirtualPmu::advance`] does. An
    /// overflow also reloads counters. The register CFG_B of a counter selects the overflows that reload this counter.
    ///
    /// The overflow of a counter that reloads itself does not set a bit of the status. The overflow nevertheless
    /// interrupts if the counter's interrupt is enabled. One call reloads at most 1,024 times, and counts the later
    /// events of the feed without reloads.
    ///
    /// A loop that repeats the call until the feed is empty may take long, because a counter that reloads itself may
    /// overflow at each event. In such a loop, let the guest run between two calls, or drop the remainder of the feed
    /// after some calls.
    ///
    /// # Errors
    /// The events of the feed differ from the [events](VirtualPmu::events) of `pmu`.
    pub fn advance<P: EventPolicy>(
        &self,
        pmu: &mut VirtualPmu<P>,
        feed: &mut Feed,
    ) -> Result<Advanced, FedEventsError> {
        self.advance_by(pmu, feed, |pmu, feed| pmu.advance(feed))
    }

    /// Counts the events of a feed as [`advance`](Self::advance) does, but calls `pass` instead of
    /// [`VirtualPmu::advance`]. Each call of `pass` counts up to the next overflow. This method reloads counters before
    /// it calls `pass` again. On a processor that also has top-down metrics, `pass` calls
    /// [`VirtualTopDown::observe`](crate::VirtualTopDown::observe):
    ///
    /// ```
    /// use pmu_virt::{Advanced, FedEventsError, Feed, TopDownMix, VirtualPmu, VirtualReload, VirtualTopDown};
    /// fn count(
    ///     (pmu, reload, metrics): (&mut VirtualPmu, &VirtualReload, &mut VirtualTopDown),
    ///     (feed, mix): (&mut Feed, &TopDownMix),
    /// ) -> Result<Advanced, FedEventsError> {
    ///     reload.advance_by(pmu, feed, |pmu, feed| metrics.observe(pmu, mix, |pmu| pmu.advance(feed)))
    /// }
    /// # let _ = count;
    /// ```
    ///
    /// # Errors
    /// Returns the error of `pass`.
    pub fn advance_by<P: EventPolicy, E>(
        &self,
        pmu: &mut VirtualPmu<P>,
        feed: &mut Feed,
        mut pass: impl FnMut(&mut VirtualPmu<P>, &mut Feed) -> Result<Advanced, E>,
    ) -> Result<Advanced, E> {
        let mut all = Advanced::NOTHING;
        let causes = from_global(self.causes.into_iter().fold(0, |all, causes| all | causes));
        if causes != 0 {
            for _ in 0..MOST_RELOADS {
                let recorded = pmu.model.recorded;
                // Such an overflow ends a span like one that is recorded.
                pmu.model.recorded |= causes;
                let advanced = pass(pmu, feed);
                pmu.model.recorded = recorded;
                let mut advanced = advanced?;
                let caused = from_global(advanced.records) & causes;
                advanced.records &= to_global(recorded);
                advanced.pmi |= self.reload(pmu, caused, caused & !recorded);
                all = all.and(advanced);
                if all.pmi || all.records != 0 || feed.is_empty() {
                    return Ok(all);
                }
            }
        }
        Ok(all.and(pass(pmu, feed)?))
    }

    /// Reloads the counters that the overflows of `overflowed` reload, and notes the overflows of `reported`, which
    /// write no records. Returns whether an interrupt is due.
    fn reload<P: EventPolicy>(
        &self,
        pmu: &mut VirtualPmu<P>,
        overflowed: Counters,
        reported: Counters,
    ) -> bool {
        let reloads = |counter: usize, by: Counters| {
            self.causes.get(counter).is_some_and(|causes| from_global(*causes) & by != 0)
        };
        let own = places(reported).filter(|counter| reloads(*counter, 1 << counter));
        let own = own.fold(0, |own, counter| own | 1 << counter);
        for counter in (0..MAX_COUNTERS).filter(|counter| reloads(*counter, overflowed)) {
            let value = self.values.get(counter).copied().unwrap_or(0);
            pmu.model.load(counter, i64::from(value as i32) as u64);
        }
        let raised = pmu.model.raise(reported & !own);
        let silent = own & pmu.model.interrupting() != 0;
        if silent && !raised {
            pmu.model.interrupt();
        }
        raised || silent
    }
}
