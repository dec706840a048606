//! A detector of hard lockups: processors that no longer take their timer tick.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};

use pmu_core::{CounterMemory, CounterUnit, Event, EventId, NamedEvent};

/// The hard-lockup detector of one processor.
///
/// An event of cycles interrupts, by NMI, every few seconds of the processor's work. If the processor's own timer
/// tick has not come since the interrupt before, it is stuck with interrupts off. The event is armed again by
/// [`service`](pmu_core::service), as any other. It counts cycles in which the processor is not halted, so that an
/// idle one needs no tick.
///
/// # Examples
/// A kernel's whole part, on a machine of two processors; `Registers` and `Apic` are its
/// [`MsrBackend`](pmu_core::MsrBackend) and its [`Platform`](pmu_core::Platform).
///
/// ```
/// use pmu::Watchdog;
/// use pmu::core::{
///     Claim, CounterError, CounterMemory, CounterSet, CounterSlot, CounterUnit, Counters, EventEntry, EventTable,
///     MAX_COUNTERS, OpenedEvents, service,
/// };
/// # use pmu::core::{MsrAddress, MsrBackend, MsrErrorKind, MsrUpdate, Platform, PmcIndex, Interval};
/// # #[derive(Clone, Copy)] struct Registers;
/// # impl MsrBackend for Registers {
/// #     type Error = MsrErrorKind;
/// #     fn read(&self, _: MsrAddress) -> Result<u64, MsrErrorKind> { Err(MsrErrorKind::Unreachable) }
/// #     fn write(&self, _: MsrAddress, _: u64) -> Result<(), MsrErrorKind> { Err(MsrErrorKind::Unreachable) }
/// #     fn read_pmc(&self, _: PmcIndex) -> Result<u64, MsrErrorKind> { Err(MsrErrorKind::Unreachable) }
/// #     fn update(&self, _: MsrUpdate) -> Result<u64, MsrErrorKind> { Err(MsrErrorKind::Unreachable) }
/// # }
/// # #[derive(Clone, Copy)] struct Apic;
/// # impl Platform for Apic {
/// #     fn unmask_performance_interrupt(&self) {}
/// #     fn mask_performance_interrupt(&self) {}
/// #     fn start_profile_timer(&self, _: Interval) -> Result<(), pmu::core::TimerUnavailable> { Ok(()) }
/// #     fn stop_profile_timer(&self) {}
/// # }
/// static WATCHDOGS: [Watchdog; 2] = [const { Watchdog::new() }; 2];
/// static EVENTS: [EventTable<[EventEntry; 4]>; 2] = [const { EventTable::new() }; 2];
/// static MEMORY: [CounterMemory<[CounterSlot; MAX_COUNTERS]>; 2] = [const { CounterMemory::new() }; 2];
///
/// /// Each processor as it comes up. The handle is to be kept: it stops the watchdog.
/// fn watch(
///     processor: usize,
///     unit: &'static CounterUnit,
///     hertz: u64,
/// ) -> Result<Counters<'static, OpenedEvents<'static>, Registers, Apic>, CounterError> {
///     let events = OpenedEvents::new(unit, &EVENTS[processor]);
///     let event = Watchdog::event(unit, hertz, 10).ok_or(CounterError::NoCounterForEvent)?;
///     let mut counters = Counters::take(events, unit, CounterSet::ALL, Registers, Apic, &MEMORY[processor])?;
///     let id = counters.open_event(unit, &event)?;
///     WATCHDOGS[processor].watch(id);
///     counters.start_event(id, 0).map(|()| counters)
/// }
///
/// /// Each processor's timer tick.
/// fn tick(processor: usize) {
///     WATCHDOGS[processor].touch();
/// }
///
/// /// The performance interrupt, which is an NMI.
/// fn nmi(processor: usize, unit: &'static CounterUnit) -> Claim {
///     let (events, watchdog) = (OpenedEvents::new(unit, &EVENTS[processor]), &WATCHDOGS[processor]);
///     let serviced = service(&events, &Registers, &Apic, &MEMORY[processor], |overflow| {
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
    /// Place of the watched event, plus 1; 0: none.
    place: AtomicU32,
    /// The tick came since the event's last interrupt.
    touched: AtomicBool,
}

impl Watchdog {
    /// Creates a watchdog that watches nothing yet.
    pub const fn new() -> Self {
        Self { place: AtomicU32::new(0), touched: AtomicBool::new(false) }
    }

    /// Returns the event to open on a processor with these counters: cycles at every privilege level, one interrupt
    /// per `seconds` at `hertz`; or reference cycles, if the processor has no event of cycles. It takes a fixed
    /// counter that counts them, if one is free.
    ///
    /// `hertz` is the highest frequency that the core reaches: below it the interrupt comes later than
    /// `seconds`, never sooner. `seconds` is several times the timer's tick.
    ///
    /// `None`: the processor knows neither event by name (a kernel that knows one by number opens
    /// [`Event::raw`] with that period), or the period is 0 or beyond 63 bits.
    pub fn event(unit: &CounterUnit, hertz: u64, seconds: u32) -> Option<Event> {
        let period = hertz.checked_mul(seconds.into())?;
        let known = [NamedEvent::Cycles, NamedEvent::ReferenceCycles];
        let event = known.into_iter().find(|event| unit.named(*event).is_some())?;
        let fits = period != 0 && i64::try_from(period).is_ok();
        fits.then(|| Event::named(event).every(period))
    }

    /// Stops watching. Call it before the event is closed: another one may have its identity then.
    pub fn unwatch(&self) {
        self.place.store(0, Relaxed);
    }

    /// Watches an opened event from now on: the processor has one whole period for its first tick. Another one
    /// that was watched is watched no more.
    ///
    /// # Context
    /// Task, on the watchdog's processor, before the event is started.
    pub fn watch(&self, event: EventId) {
        let place = event.place().map_or(0, |place| place as u32 + 1);
        self.touch();
        self.place.store(place, Relaxed);
    }

    /// Returns whether the watched event has no counter, so that a processor that gets stuck is not noticed: it was not
    /// started yet, or its counter fell out. `memory` is the processor's.
    ///
    /// Ask after [`service`](pmu_core::service) failed. To move the watchdog to another counter, a task starts the
    /// event again: [`start_event`](pmu_core::Counters::start_event).
    ///
    /// # Context
    /// Any, on the watchdog's processor.
    pub fn is_blind(&self, memory: &CounterMemory) -> bool {
        let watched = self.place.load(Relaxed).checked_sub(1);
        let event = watched.map(|place| EventId::of_place(place as usize));
        event.is_some_and(|event| memory.counter_of(event).is_none())
    }

    /// Tells that the processor is alive.
    ///
    /// # Context
    /// The timer tick of the watchdog's processor; any other, where the processor is busy with interrupts off and
    /// is known to be.
    #[inline]
    pub fn touch(&self) {
        self.touched.store(true, Relaxed);
    }

    /// Returns whether the processor is stuck: `event`, which overflowed, is the one that is watched, and there was
    /// no [`touch`](Self::touch) since its overflow before.
    ///
    /// Call it once for each overflow that is reported. A processor that stays stuck is told again at each.
    ///
    /// # Context
    /// The performance interrupt of the watchdog's processor, NMI included: one atomic swap, no lock.
    #[inline]
    pub fn is_stuck(&self, event: EventId) -> bool {
        let watched =
            event.place().is_some_and(|place| self.place.load(Relaxed) == place as u32 + 1);
        watched && !self.touched.swap(false, Relaxed)
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        Self::new()
    }
}
