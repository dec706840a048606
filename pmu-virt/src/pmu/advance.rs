//! Counting of events that happen in the guest.

use crate::events::feed::{FedEvents, FedEventsError, Feed};
use crate::events::key::EventKey;
use crate::model::{Advanced, OverflowBudget};
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::EventPolicy;
use crate::registers::table::{Counters, Family, MAX_PER_KIND, places};

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
    /// use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
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
        // A slot of another list of events would be counted as a different event.
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
        // In a loop of their own, because all fixed counters have one width, and the general ones may have another.
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
    /// use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};
    /// use pmu_virt::configuration::{AmdConfiguration, Configuration};
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
        // The first overflow may have frozen them.
        let running = self.model.running();
        Ok(first.and(self.model.count(&rest, running)))
    }

    /// Returns the events that the embedder can feed to this PMU.
    pub fn events(&self) -> &FedEvents {
        &self.model.events
    }

    /// Replaces the events that the embedder can feed to this PMU. The call is allowed while counters are running. So
    /// an embedder can add an event after the guest has programmed a counter to count it. [`unfed`](Self::unfed)
    /// returns each running counter whose event the embedder cannot feed yet.
    ///
    /// The call does not change registers, and a pending interrupt stays pending. The call converts `feed` to the new
    /// events, and keeps its counts. A running counter begins to count if `events` adds the counter's event.
    ///
    /// ```
    /// use pmu_virt::{EventKey, FedEvents, Feed, Privilege, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// let mut events = FedEvents::new(&[CYCLES])?;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let (mut pmu, mut feed) = (VirtualPmu::new(configuration, events)?, Feed::new(&events));
    /// let _ = pmu.write(0x187, 0x53_00C4);
    /// let unfed = pmu.unfed().next().map(|event| event.key);
    /// if let Some(branches) = unfed {
    ///     events = FedEvents::new(&[CYCLES, branches])?;
    ///     pmu.set_events(events, &mut feed)?;
    ///     feed.add(events.find(branches).unwrap(), Privilege::User, 7)?;
    /// }
    /// pmu.advance(&mut feed)?;
    /// assert_eq!(pmu.read(0xC2), pmu_virt::Read::Value(7));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - The events of the feed differ from the [events](Self::events) of this PMU.
    /// - The feed still has counts of an event that `events` lacks. Call [`advance`](Self::advance) first.
    ///
    /// After an error, nothing is changed.
    pub fn set_events(&mut self, events: FedEvents, feed: &mut Feed) -> Result<(), FedEventsError> {
        if !feed.is_of(&self.model.events) {
            return Err(FedEventsError::OtherEvents);
        }
        *feed = feed.exchanged(&self.model.events, &events).ok_or(FedEventsError::Remainder)?;
        self.model.events = events;
        self.model.derive(&self.policy);
        Ok(())
    }

    /// Returns the running counters with their events. Each item says whether the embedder can feed the event.
    ///
    /// ```
    /// use pmu_virt::{EventKey, FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let _ = pmu.write(0x38F, 1 << 33); // enables fixed counter 1 alone
    /// let _ = pmu.write(0x38D, 0x0B0); // in the kernel and in user mode, with an interrupt
    /// let _ = pmu.write(0x186, 0x53_00C4); // enabled, but not in the global control
    /// let running: Vec<_> = pmu.running().collect();
    /// assert_eq!((running.len(), running[0].counter), (1, 33));
    /// assert!(running[0].key == EventKey::general(0x3C, 0) && running[0].kernel && running[0].user);
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn running(&self) -> impl Iterator<Item = RunningEvent> + '_ {
        let running = self.model.running();
        places(running).map(|counter| self.running_event(counter))
    }

    /// Returns each running counter whose event the embedder cannot feed. The value of such a counter does not change.
    ///
    /// ```
    /// use pmu_virt::{EventKey, FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let events = FedEvents::new(&[EventKey::general(0x3C, 0)])?;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, events)?;
    /// let _ = pmu.write(0x186, 0x53_003C);
    /// let _ = pmu.write(0x187, 0x53_00C4);
    /// let mut unfed = pmu.unfed().map(|event| (event.counter, event.key));
    /// assert_eq!(unfed.next(), Some((1, EventKey::general(0xC4, 0))));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn unfed(&self) -> impl Iterator<Item = RunningEvent> + '_ {
        self.running().filter(|event| !event.fed)
    }

    fn running_event(&self, place: usize) -> RunningEvent {
        let registers = &self.model.registers;
        let (counter, key, user, kernel) = if place < MAX_PER_KIND {
            let select = registers.select(place);
            (
                place,
                EventKey::of_select(self.vendor(), select),
                select >> 16 & 1 != 0,
                select >> 17 & 1 != 0,
            )
        } else {
            let fixed = place % MAX_PER_KIND;
            let nibble = registers.of(Family::FixedControl) >> (4 * fixed);
            let key = EventKey::of_fixed(fixed);
            let key = if nibble & 0b0100 != 0 { key.any_thread() } else { key };
            (32 + fixed, key, nibble & 0b0010 != 0, nibble & 0b0001 != 0)
        };
        let fed = self.model.events.find(key).is_some();
        RunningEvent { counter: counter as u8, key, user, kernel, fed }
    }

    /// Returns, for each event, how many times the event must happen to cause an interrupt. The embedder can use these
    /// numbers to set a timer. A call computes the numbers only if the PMU has changed since the last call.
    ///
    /// ```
    /// use pmu_virt::{EventKey, FedEvents, Privilege, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// let events = FedEvents::new(&[CYCLES])?;
    /// let cycles = events.find(CYCLES).unwrap();
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, events)?;
    /// // The guest's kernel counts its cycles, and asks for an interrupt in a thousand of them.
    /// let _ = pmu.write(0xC1, 1000u64.wrapping_neg());
    /// let _ = pmu.write(0x186, 0x52_003C);
    /// assert_eq!(pmu.next_overflow().of(cycles, Privilege::Kernel), Some(1000));
    /// assert_eq!(pmu.next_overflow().of(cycles, Privilege::User), None);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[inline]
    pub fn next_overflow(&mut self) -> &OverflowBudget {
        if self.model.budget_is_stale {
            self.model.refresh_budget();
        }
        &self.model.budget
    }
}

/// A running counter and its event, as an item of [`VirtualPmu::running`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct RunningEvent {
    /// Position of the counter's bit in the global registers: general counters from bit 0, fixed counters from bit 32.
    pub counter: u8,
    /// Key of the event that the counter is programmed to count.
    pub key: EventKey,
    /// The counter counts at CPL 1–3.
    pub user: bool,
    /// The counter counts at CPL 0.
    pub kernel: bool,
    /// The event is in the PMU's [`FedEvents`](crate::FedEvents). Otherwise the counter's value does not change.
    pub fed: bool,
}
