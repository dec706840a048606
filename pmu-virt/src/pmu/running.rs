//! The running counters and their events.

use crate::events::error::FedEventsError;
use crate::events::fed::FedEvents;
use crate::events::feed::Feed;
use crate::events::key::EventKey;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;
use crate::registers::counters::{MAX_PER_KIND, places};
use crate::registers::family::Family;

impl<P: EventPolicy> VirtualPmu<P> {
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
    /// use pmu_virt::{Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Privilege, VirtualPmu};
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

    /// Returns the running counters with their events. Each item tells whether the embedder can feed the event.
    ///
    /// ```
    /// use pmu_virt::{Configuration, EventKey, FedEvents, IntelConfiguration, VirtualPmu};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(2, 4, 3));
    /// let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let _ = pmu.write(0x38F, 1 << 33); // enables fixed counter 1 alone
    /// let _ = pmu.write(0x38D, 0x0B0); // in the kernel and in user mode, with an interrupt
    /// let _ = pmu.write(0x186, 0x53_00C4); // enabled, but not in the global control
    /// let running: Vec<_> = pmu.running().collect();
    /// assert_eq!((running.len(), running[0].counter), (1, 33));
    /// assert!(running[0].key == EventKey::general(0x3C, 0) && running[0].kernel && running[0].user);
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    pub fn running(&self) -> impl Iterator<Item = RunningEvent> + '_ {
        let running = self.model.running();
        places(running).map(|counter| self.running_event(counter))
    }

    /// Returns each running counter whose event the embedder cannot feed. The value of such a counter does not change.
    ///
    /// ```
    /// use pmu_virt::{Configuration, EventKey, FedEvents, IntelConfiguration, VirtualPmu};
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
