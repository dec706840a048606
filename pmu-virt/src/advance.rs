//! Events that happen in the guest, and their overflows.

use crate::feed::FeedSlot;
use crate::layout::{Counters, Freeze, Layout, to_global};
use crate::model::{MAX_COUNTERS, Model};
use crate::table::{Family, MAX_PER_KIND};
use crate::{EventPolicy, ExchangeError, FedEvents, Feed, OtherEvents, VirtualPmu};

/// The outcome of an [`advance`](VirtualPmu::advance).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Advanced {
    /// The counters that wrapped, in the layout of the global status: general from bit 0, fixed from
    /// bit 32.
    pub overflowed: u64,
    /// An interrupt was raised: [deliver](VirtualPmu::deliver_pmi) it.
    pub pmi: bool,
    wraps: [u32; MAX_COUNTERS],
}

impl Advanced {
    const NOTHING: Self = Self { overflowed: 0, pmi: false, wraps: [0; MAX_COUNTERS] };

    /// Returns the number of times that a counter wrapped, by its bit in [`overflowed`](Self::overflowed).
    pub fn wraps(&self, bit: u8) -> u32 {
        let place = match bit {
            0..8 => bit,
            32..40 => bit - 24,
            _ => return 0,
        };
        self.wraps.get(usize::from(place)).copied().unwrap_or(0)
    }

    fn and(mut self, later: Self) -> Self {
        self.overflowed |= later.overflowed;
        self.pmi |= later.pmi;
        for (wraps, later) in self.wraps.iter_mut().zip(later.wraps) {
            *wraps = wraps.saturating_add(later);
        }
        self
    }
}

impl<P: EventPolicy> VirtualPmu<P> {
    /// Returns the events that this PMU is fed.
    pub fn events(&self) -> &FedEvents {
        &self.model.events
    }

    /// Exchanges the events that this PMU is fed, also while counters run, for a monitor that learns of an event as its
    /// guest programs it ([`unfed`](Self::unfed)). The guest sees nothing of it: registers stay as they are, and so do
    /// an interrupt that waits and `feed`, whose remainder becomes one of the new events. Those that were not fed
    /// before count from now on.
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
    /// The feed is of other events than those of this PMU, or has a remainder of one that `events` lack:
    /// [advance](Self::advance) first. Nothing is changed.
    pub fn set_events(&mut self, events: FedEvents, feed: &mut Feed) -> Result<(), ExchangeError> {
        if !feed.is_of(&self.model.events) {
            return Err(ExchangeError::OtherEvents);
        }
        *feed = feed.exchanged(&self.model.events, &events).ok_or(ExchangeError::Remainder)?;
        self.model.events = events;
        self.model.derive(&self.policy);
        Ok(())
    }

    /// Counts the events of a feed, up to the first overflow that interrupts. The feed then holds the remainder: the
    /// events after the overflow, which the guest's handler may want to count differently. A remainder that is not
    /// consumed never happened: no [`state`](Self::state) holds it.
    ///
    /// All events of a feed happened evenly over the same span of time. At the overflow as much of each has passed,
    /// rounded down, as of the one that overflowed; of that one, exactly the amount that was missing. A counter that
    /// does not interrupt wraps on the way, as often as need be.
    ///
    /// Bounded by the number of counters. Each call that leaves a remainder has brought a counter to an overflow, so
    /// `while !feed.is_empty()` ends: no counter wraps again before 2³² events.
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
    /// The feed is of other events than those of this PMU.
    #[inline]
    pub fn advance(&mut self, feed: &mut Feed) -> Result<Advanced, OtherEvents> {
        let model = &mut self.model;
        if !feed.is_of(&model.events) {
            return Err(OtherEvents);
        }
        model.budget_is_stale = true;
        let running = model.running();
        let mut general = u32::from(running & 0xFF);
        while general != 0 {
            let counter = general.trailing_zeros() as usize % MAX_PER_KIND;
            if model.overflows_in(feed, counter, model.layout.mask(0)) {
                // Those before this one were counted to the end of the span: undo that.
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

    /// Counts a whole feed, without a stop at the first overflow: the span is over, and the guest could not be
    /// interrupted within it. It gets one interrupt, and [`Advanced::wraps`] has the number of wraps of each counter.
    /// Later events are not counted if the overflow froze the counters.
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
    /// The feed is of other events than those of this PMU.
    pub fn advance_through(&mut self, feed: &mut Feed) -> Result<Advanced, OtherEvents> {
        let first = self.advance(feed)?;
        if feed.is_empty() {
            return Ok(first);
        }
        let rest = feed.take_all();
        let running = self.model.running();
        Ok(first.and(self.model.count(&rest, running)))
    }
}

impl Model {
    /// Counts the whole span on one counter, unless it overflows.
    #[inline]
    fn overflows_in(&mut self, feed: &Feed, counter: usize, greatest: u64) -> bool {
        let value = self.registers.counter_mut(counter);
        let (sum, carry) = value.overflowing_add(feed.at(self.cells[counter % MAX_COUNTERS]));
        let overflows = carry || sum > greatest;
        if !overflows {
            *value = sum;
        }
        overflows
    }

    /// Handles an overflow within the feed. `counted` are the counters that have had all of it already.
    #[cold]
    #[inline(never)]
    fn overflow(&mut self, feed: &mut Feed, running: Counters, counted: Counters) -> Advanced {
        // The earliest overflow that interrupts: missing/count is its time within the span.
        let mut first: Option<(u64, u64, FeedSlot)> = None;
        for counter in (0..MAX_COUNTERS).filter(|counter| running >> counter & 1 != 0) {
            let cell = self.cells[counter];
            let count = feed.at(cell);
            let value = self.registers.counter_mut(counter);
            if counted >> counter & 1 != 0 {
                *value = value.wrapping_sub(count);
            }
            let room = self.layout.mask(counter) - *value;
            if self.interrupting() >> counter & 1 == 0 || count <= room {
                continue;
            }
            let missing = room.saturating_add(1);
            let sooner = first.is_none_or(|(part, whole, _)| {
                u128::from(missing) * u128::from(whole) < u128::from(part) * u128::from(count)
            });
            if sooner {
                first = Some((missing, count, cell));
            }
        }
        let passed = match first {
            Some((part, whole, cell)) => feed.take(part, whole, cell),
            None => feed.take_all(),
        };
        self.count(&passed, running)
    }

    /// Counts all of a feed, raises the interrupt if one is due, and returns each counter's wraps.
    fn count(&mut self, feed: &Feed, running: Counters) -> Advanced {
        let mut advanced = Advanced::NOTHING;
        let mut overflowed = 0;
        for counter in (0..MAX_COUNTERS).filter(|counter| running >> counter & 1 != 0) {
            let mask = self.layout.mask(counter);
            let value = self.registers.counter_mut(counter);
            let sum = u128::from(*value) + u128::from(feed.at(self.cells[counter]));
            *value = sum as u64 & mask;
            // A feed is below 2⁶³ and a counter has 32 bits or more.
            let wraps = (sum >> mask.count_ones()) as u32;
            if wraps != 0 {
                advanced.wraps[counter] = wraps;
                overflowed |= 1 << counter;
            }
        }
        advanced.overflowed = to_global(overflowed);
        advanced.pmi = self.raise(overflowed);
        advanced
    }

    /// Records the overflow of these counters: sets their status bits, and raises an interrupt if one of them
    /// requests it. Returns whether it did.
    fn raise(&mut self, overflowed: Counters) -> bool {
        if self.layout.global() != 0 {
            *self.registers.of_mut(Family::GlobalStatus) |= to_global(overflowed);
        }
        let pmi = overflowed & self.interrupting() != 0;
        if pmi {
            self.pmi_pending = true;
            self.freeze();
        }
        pmi
    }

    fn freeze(&mut self) {
        if self.registers.of(Family::DebugControl) & Layout::FREEZE_ON_INTERRUPT == 0 {
            return;
        }
        match self.layout.freeze {
            Freeze::Never => {}
            Freeze::ClearsControl => *self.registers.of_mut(Family::GlobalControl) = 0,
            Freeze::SetsStatus => {
                *self.registers.of_mut(Family::GlobalStatus) |= Layout::FROZEN;
            }
        }
    }

    /// Overflows every running counter that interrupts, for the mock.
    pub(crate) fn overflow_all(&mut self) {
        let overflowing = self.running() & self.interrupting();
        for counter in (0..MAX_COUNTERS).filter(|counter| overflowing >> counter & 1 != 0) {
            *self.registers.counter_mut(counter) = 0;
        }
        self.budget_is_stale = true;
        self.raise(overflowing);
    }
}
