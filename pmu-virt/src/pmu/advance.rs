//! Counting of events that happen in the guest.

use crate::events::error::FedEventsError;
use crate::events::feed::Feed;
use crate::model::advanced::Advanced;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;
use crate::registers::counters::{Counters, MAX_PER_KIND};

impl<P: EventPolicy> VirtualPmu<P> {
    /// Counts the events of a feed up to the first overflow that interrupts. The feed keeps the later events as its
    /// remainder, because the guest's interrupt handler may reprogram the counters.
    ///
    /// [`state`](Self::state) does not save the remainder. If the embedder drops the feed, the events in the remainder
    /// are never counted.
    ///
    /// The PMU assumes that the feed's events are spread evenly over one span of time. If an overflow ends the call
    /// after a part of this span, the PMU has counted that part of every event's count in the feed. The count is exact
    /// for the event that caused the overflow. For every other event, the PMU rounds the count down. A counter without
    /// an enabled interrupt may wrap several times in one call.
    ///
    /// The number of counters limits the duration of a call. A loop that repeats the call `while !feed.is_empty()`
    /// always ends: a call leaves a remainder only if a counter overflowed, and this counter overflows again only after
    /// at least 2³² more events.
    ///
    /// ```
    /// use pmu_virt::{Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Privilege};
    /// use pmu_virt::VirtualPmu;
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// let events = FedEvents::new(&[CYCLES])?;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, events)?;
    /// let _ = pmu.write(0xC1, 1000u64.wrapping_neg());
    /// let _ = pmu.write(0x186, 0x53_003C);
    ///
    /// let cycles = events.find(CYCLES).unwrap();
    /// let mut feed = Feed::new(&events);
    /// feed.add(cycles, Privilege::User, 2_500)?;
    /// let advanced = pmu.advance(&mut feed)?;
    /// assert!(advanced.pmi && advanced.overflowed == 1);
    /// // The guest's handler runs here; then the rest.
    /// assert_eq!(feed.count(cycles, Privilege::User), 1_500);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The events of the feed differ from the [events](Self::events) of this PMU.
    #[inline]
    pub fn advance(&mut self, feed: &mut Feed) -> Result<Advanced, FedEventsError> {
        let model = &mut self.model;
        if !feed.is_of(&model.events) {
            return Err(FedEventsError::OtherEvents);
        }
        model.budget_is_stale = true;
        let running = model.running();
        let mut general = u32::from(running & 0xFF);
        while general != 0 {
            let counter = general.trailing_zeros() as usize % MAX_PER_KIND;
            if model.overflows_in(feed, counter, model.layout.mask(0)) {
                // The counters before this one have counted the whole span already; `overflow` undoes that.
                return Ok(model.overflow(feed, running, (running & 0xFF) - general as Counters));
            }
            general &= general - 1;
        }
        let mut fixed = u32::from(running >> MAX_PER_KIND);
        while fixed != 0 {
            let counter = MAX_PER_KIND + fixed.trailing_zeros() as usize % MAX_PER_KIND;
            if model.overflows_in(feed, counter, model.layout.mask(MAX_PER_KIND)) {
                let left = (fixed << MAX_PER_KIND) as Counters;
                return Ok(model.overflow(feed, running, running - left));
            }
            fixed &= fixed - 1;
        }
        feed.clear();
        Ok(Advanced::NOTHING)
    }

    /// Counts a whole feed, including the events after an overflow. Use this call if the guest could not take an
    /// interrupt while the events of the feed happened.
    ///
    /// The guest gets at most one interrupt. [`Advanced::wraps`] returns how many times each counter wrapped. If the
    /// first overflow freezes the counters, later events are not counted.
    ///
    /// ```
    /// use pmu_virt::{AmdConfiguration, Configuration, EventKey, FedEvents, Feed, Privilege, VirtualPmu};
    /// const CYCLES: EventKey = EventKey::general(0x76, 0);
    /// let events = FedEvents::new(&[CYCLES])?;
    /// let configuration = Configuration::Amd(AmdConfiguration::LEGACY);
    /// let mut pmu = VirtualPmu::new(configuration, events)?;
    /// let _ = pmu.write(0xC001_0004, 1_000u64.wrapping_neg());
    /// let _ = pmu.write(0xC001_0000, 0x53_0076);
    ///
    /// let mut feed = Feed::new(&events);
    /// feed.add(events.find(CYCLES).unwrap(), Privilege::User, 2_500)?;
    /// let advanced = pmu.advance_through(&mut feed)?;
    /// assert!(advanced.pmi && feed.is_empty());
    /// assert_eq!(advanced.wraps(0), 1);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The events of the feed differ from the [events](Self::events) of this PMU.
    pub fn advance_through(&mut self, feed: &mut Feed) -> Result<Advanced, FedEventsError> {
        let first = self.advance(feed)?;
        if feed.is_empty() {
            return Ok(first);
        }
        let rest = feed.take_all();
        let running = self.model.running();
        Ok(first.and(self.model.count(&rest, running)))
    }
}
