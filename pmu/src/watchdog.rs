//! A detector of hard lockups: processors that no longer take their timer tick.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};

use pmu_core::memory::CounterMemory;
use pmu_core::{CounterUnit, Event, EventId, GenericEvent};

/// Hard-lockup detector of one processor. At regular NMIs, the detector checks whether the processor still takes its
/// timer tick.
///
/// The detector watches an event that counts cycles. The event causes an NMI every few seconds, unless the processor is
/// halted. If no timer tick came between two such NMIs, the processor is stuck with interrupts off.
/// [`service`](pmu_core::service) re-arms the event like any other event. The event does not count while the processor
/// is halted. So the detector does not report an idle processor, which may take no tick.
///
/// # Examples
/// This example has all the code that a kernel needs, on a machine of two processors. `Registers` and `Apic` are the
/// kernel's [`RegisterBackend`](pmu_core::access::RegisterBackend) and [`Platform`](pmu_core::Platform).
///
/// ```
/// use pmu::Watchdog;
/// use pmu::core::{Claim, CounterSession, CounterSet, CounterUnit, Events, service};
/// use pmu::core::error::CounterError;
/// use pmu::core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
/// use pmu::core::registers::MAX_COUNTERS;
/// # use pmu::core::access::{RegisterAddress, RegisterBackend, AccessErrorKind, RegisterUpdate, CounterIndex};
/// # use pmu::core::Platform;
/// # use pmu::core::interval::Interval;
/// # #[derive(Clone, Copy)] struct Registers;
/// # impl RegisterBackend for Registers {
/// #     type Error = AccessErrorKind;
/// #     fn read(&self, _: RegisterAddress) -> Result<u64, AccessErrorKind> { Err(AccessErrorKind::Unreachable) }
/// #     fn write(&self, _: RegisterAddress, _: u64) -> Result<(), Self::Error> { Err(AccessErrorKind::Unreachable) }
/// #     fn read_counter(&self, _: CounterIndex) -> Result<u64, AccessErrorKind> { Err(AccessErrorKind::Unreachable) }
/// #     fn update(&self, _: RegisterUpdate) -> Result<u64, AccessErrorKind> { Err(AccessErrorKind::Unreachable) }
/// # }
/// # impl Platform for Registers {
/// #     fn unmask_performance_interrupt(&self) {}
/// #     fn mask_performance_interrupt(&self) {}
/// #     fn start_profile_timer(&self, _: Interval) -> Result<(), pmu::core::error::PlatformError> { Ok(()) }
/// #     fn stop_profile_timer(&self) {}
/// # }
/// static WATCHDOGS: [Watchdog; 2] = [const { Watchdog::new() }; 2];
/// static EVENTS: [EventTable<[EventEntry; 4]>; 2] = [const { EventTable::new() }; 2];
/// static MEMORY: [CounterMemory<[CounterSlot; MAX_COUNTERS]>; 2] = [const { CounterMemory::new() }; 2];
///
/// /// Called on each processor as it comes up. The kernel keeps the handle, which stops the watchdog.
/// fn watch(
///     processor: usize,
///     unit: &'static CounterUnit,
///     hertz: u64,
/// ) -> Result<CounterSession<'static, Events<'static>, Registers>, CounterError> {
///     let events = Events::new(unit, &EVENTS[processor]);
///     let event = Watchdog::event(unit, hertz, 10).ok_or(CounterError::NoCounterForEvent)?;
///     let mut counters = CounterSession::take(events, unit, CounterSet::ALL, Registers, &MEMORY[processor])?;
///     let id = counters.open(unit, &[event])?;
///     WATCHDOGS[processor].watch(id);
///     counters.enable(id, 0)?;
///     Ok(counters)
/// }
///
/// /// Called by each processor's timer tick.
/// fn tick(processor: usize) {
///     WATCHDOGS[processor].touch();
/// }
///
/// /// The performance interrupt, which is an NMI.
/// fn nmi(processor: usize, unit: &'static CounterUnit) -> Claim {
///     let (events, watchdog) = (Events::new(unit, &EVENTS[processor]), &WATCHDOGS[processor]);
///     let serviced = service(&events, &Registers, &MEMORY[processor], |overflow| {
///         if watchdog.is_stuck(overflow.event) {
///             println!("processor {processor} is stuck");
///         }
///     });
///     if let Err(error) = serviced
///         && watchdog.is_blind(&MEMORY[processor])
///     {
///         println!("processor {processor} is not watched: {error}");
///     }
///     serviced.map_or(Claim::OursAndMore, |serviced| serviced.claim)
/// }
/// # // No counters here.
/// # static UNIT: CounterUnit = CounterUnit::NONE;
/// # assert!(watch(0, &UNIT, 3_000_000_000).is_err());
/// # tick(1);
/// # assert_eq!(nmi(1, &UNIT), Claim::NotOurs);
/// ```
#[derive(Debug)]
pub struct Watchdog {
    /// Place of the watched event, plus 1; 0 for none.
    place: AtomicU32,
    /// The tick came since the event's last interrupt.
    touched: AtomicBool,
}

impl Watchdog {
    /// Creates a detector that does not watch an event yet.
    pub const fn new() -> Self {
        Self { place: AtomicU32::new(0), touched: AtomicBool::new(false) }
    }

    /// Returns the event that a kernel opens for the watchdog. The event counts cycles at every privilege level, and
    /// interrupts once per `seconds` seconds while the core runs at `hertz`.
    ///
    /// If the processor has no event of core cycles, the returned event counts reference cycles. The event runs on a
    /// fixed counter, if a free fixed counter can count it.
    ///
    /// `hertz` is the highest frequency that the core reaches. At a lower frequency the interrupt comes after more than
    /// `seconds` seconds. Choose `seconds` as several times the interval of the timer tick.
    ///
    /// Returns `None` if `unit` has no event of core cycles and no event of reference cycles. Also returns `None` if
    /// the period, `hertz` · `seconds`, is 0 or exceeds 63 bits. If `unit` has neither of the two events, a kernel can
    /// open an [`Event::raw`] with this period. For this, the kernel must know the event select of an event that counts
    /// cycles.
    ///
    /// ```
    /// use pmu::Watchdog;
    /// use pmu::core::EventSource;
    /// # use pmu_virt::{FedEvents, VirtualPmu};
    /// # use pmu_virt::configuration::{AmdConfiguration, Configuration};
    /// # use pmu_virt::mock::MockMsr;
    /// # let configuration = Configuration::Amd(AmdConfiguration::CORE_EXTENSION);
    /// # let processor = MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE)?);
    /// let machine = pmu::Machine::detect(&processor.snapshot());
    /// let event = Watchdog::event(machine.unit(), 4_000_000_000, 10).unwrap();
    /// assert_eq!(event.period(), Some(40_000_000_000));
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn event(unit: &CounterUnit, hertz: u64, seconds: u32) -> Option<Event> {
        let period = hertz.checked_mul(seconds.into())?;
        let known = [GenericEvent::Cycles, GenericEvent::ReferenceCycles];
        let event = known.into_iter().find(|event| unit.generic(*event).is_some())?;
        let fits = period != 0 && i64::try_from(period).is_ok();
        fits.then(|| Event::generic(event).every(period))
    }

    /// Stops watching the event. A kernel calls this before it closes the event, because an event that is opened later
    /// may get the identity of the closed event.
    pub fn unwatch(&self) {
        self.place.store(0, Relaxed);
    }

    /// Starts to watch the opened event `event`, and stops watching any earlier event. The call counts as a timer tick,
    /// so the processor is never reported as stuck at the first overflow of the event.
    ///
    /// # Context
    /// Task, on the watchdog's processor, before the event is enabled.
    pub fn watch(&self, event: EventId) {
        let place = event.index().map_or(0, |place| place as u32 + 1);
        // First: the event may interrupt before the first tick.
        self.touch();
        self.place.store(place, Relaxed);
    }

    /// Returns whether the watched event has no counter. The watchdog then cannot detect a stuck processor. An event
    /// has no counter before it is enabled, or after its counter failed. `memory` is the memory of this processor's
    /// counters.
    ///
    /// A kernel calls this after [`service`](pmu_core::service) failed. To move the watchdog to another counter, a task
    /// enables the event again by [`CounterSession::enable`](pmu_core::CounterSession::enable).
    ///
    /// # Context
    /// Any, on the watchdog's processor.
    pub fn is_blind(&self, memory: &CounterMemory) -> bool {
        self.watched().is_some_and(|event| memory.counter_of(event).is_none())
    }

    /// Returns the watched event.
    #[inline]
    pub(crate) fn watched(&self) -> Option<EventId> {
        let place = self.place.load(Relaxed).checked_sub(1)?;
        Some(EventId::of_index(place as usize))
    }

    /// Tells the watchdog that the processor is alive.
    ///
    /// # Context
    /// The kernel calls this in the timer tick of the watchdog's processor. A kernel that keeps interrupts off for a
    /// long time on purpose may also call this in any other context.
    #[inline]
    pub fn touch(&self) {
        self.touched.store(true, Relaxed);
    }

    /// Returns whether the processor is stuck. The result is `true` if `event` is the watched event, and
    /// [`touch`](Self::touch) was not called after the event's previous overflow.
    ///
    /// A kernel calls this once for each reported overflow. While a processor stays stuck, the result is `true` at each
    /// overflow.
    ///
    /// ```
    /// use pmu::Watchdog;
    /// use pmu::core::EventId;
    /// let (watchdog, event) = (Watchdog::new(), EventId::of_index(0)); // from `CounterSession::open`
    /// watchdog.watch(event);
    /// assert!(!watchdog.is_stuck(event)); // the first period is given
    /// watchdog.touch(); // a tick
    /// assert!(!watchdog.is_stuck(event));
    /// assert!(watchdog.is_stuck(event)); // a whole period without a tick
    /// ```
    ///
    /// # Context
    /// The handler of the performance interrupt, which may be an NMI, on the watchdog's processor. The call makes one
    /// atomic swap, and takes no lock.
    #[inline]
    pub fn is_stuck(&self, event: EventId) -> bool {
        let watched =
            event.index().is_some_and(|place| self.place.load(Relaxed) == place as u32 + 1);
        // Relaxed: the tick and the interrupt are this processor's own.
        watched && !self.touched.swap(false, Relaxed)
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        Self::new()
    }
}
