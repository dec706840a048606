//! Sources that are not in an interface's table: the sources of later Windows versions, and the sources that are added
//! at run time.

use core::num::NonZeroU64;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use crate::counters::error::CounterError;
use crate::counters::events::count::EventOverflow;
use crate::counters::events::event::{Event, Reporting};
use crate::counters::names::{CounterId, CounterSet};
use crate::counters::registers::counter::EventSelect;
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::table::EventTable;
use crate::interval::{Interval, IntervalLimits, IntervalUnit};
use crate::profile::error::InterfaceError;
use crate::profile::source::{KProfileSource, ProfileSource, SourceTable};
use crate::windows::{HalInterface, Rules};
use crate::write_once::WriteOnce;

/// A profile source that the kernel adds to the sources of a [profile interface](crate::EventSource). An
/// `AddedSource` has the source's event, and the counters that can count the event.
#[derive(Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AddedSource {
    row: ProfileSource,
    event: Event,
}

impl AddedSource {
    /// Creates a source from `row`, which gives the source's value, names and event. `counters` are the counters that
    /// can count the event, for instance [`CounterSet::GENERAL`] or one fixed counter. If the processor's manual
    /// restricts the event to certain counters, pass these counters.
    pub const fn new(row: ProfileSource, counters: CounterSet) -> Self {
        Self { row, event: Event::raw(row.select()).on(counters) }
    }

    /// Creates the source of any event. Each processor counts the event by its own select if the event is a
    /// [generic](Event::generic) one; `row` gives the source's number and name.
    pub(crate) const fn of_event(row: ProfileSource, event: Event) -> Self {
        Self { row, event }
    }

    /// Returns the source as a row of a source table: its value, names and event.
    pub const fn row(&self) -> &ProfileSource {
        &self.row
    }

    /// Returns the counters that can count the source's event.
    pub const fn counters(&self) -> CounterSet {
        self.event.counters
    }

    /// Returns the source's event. This event has no period. The interval of the source determines the period.
    pub const fn event(&self) -> &Event {
        &self.event
    }

    /// Returns whether the source's event is a software event, which takes no counter.
    pub(crate) const fn is_software(&self) -> bool {
        self.event.software_event().is_some()
    }

    /// Returns the tag of the event that is opened for the source: its address, which no other object has.
    pub(crate) fn tag(&self) -> u64 {
        ptr::from_ref(self).addr() as u64
    }
}

/// Storage for one source of [`AddedSources`].
#[derive(Debug, Default)]
pub struct AddedSlot {
    source: AtomicPtr<AddedSource>,
    interval: AtomicU32,
    /// Events per second if the interval is a time; 0 if the interval is a number of events.
    hertz: AtomicU64,
    /// Number of users of the source.
    users: AtomicU32,
    /// The source of an event that [`add_event`](AddedSources::add_event) copied.
    of_event: WriteOnce<AddedSource>,
}

impl AddedSlot {
    const fn new() -> Self {
        Self {
            source: AtomicPtr::new(ptr::null_mut()),
            interval: AtomicU32::new(0),
            hertz: AtomicU64::new(0),
            users: AtomicU32::new(0),
            of_event: WriteOnce::new(),
        }
    }

    #[inline]
    fn source(&self) -> Option<&'static AddedSource> {
        // SAFETY: null, or the reference that `put` stored, which lives forever.
        unsafe { self.source.load(Acquire).as_ref() }
    }

    fn limits(&self) -> IntervalLimits {
        let limits = IntervalLimits::of(match self.hertz.load(Relaxed) {
            0 => IntervalUnit::Events,
            _ => IntervalUnit::HundredNanoseconds,
        });
        match self.source().and_then(|source| source.event.software_event()) {
            Some(software) => IntervalLimits { min: software.min_period() as u32, ..limits },
            None => limits,
        }
    }

    /// Returns the interval in events.
    fn period(&self) -> u64 {
        let interval = u64::from(self.interval.load(Relaxed));
        match self.hertz.load(Relaxed) {
            0 => interval,
            hertz => of_time(interval, hertz),
        }
    }
}

/// The profile sources that the kernel adds to the sources of a profile interface. The kernel may add and remove
/// sources while other sources run.
///
/// An added source runs as an [opened](crate::CounterSession::open) event. While the source runs on a processor,
/// the source's event occupies an entry of the processor's [`EventTable`].
///
/// ```
/// use pmu_core::CounterSet;
/// use pmu_core::profile::{AddedSlot, AddedSource, AddedSources, KProfileSource, ProfileSource};
/// use pmu_core::registers::EventSelect;
///
/// static ADDED: AddedSources<[AddedSlot; 8]> = AddedSources::new();
/// // Taken branches, under a source value that is not in use.
/// static TAKEN: AddedSource = AddedSource::new(
///     ProfileSource::new(0x25, "ProfileTakenBranches", EventSelect::from_bits(0x3_20C4)),
///     CounterSet::GENERAL,
/// );
///
/// ADDED.add(&TAKEN)?;
/// assert_eq!(ADDED.named("TakenBranches"), KProfileSource::new(0x25));
/// # Ok::<(), pmu_core::profile::InterfaceError>(())
/// ```
///
/// # Context
/// Any context to look sources up. To add or to remove them, task context, and one caller at a time, unless a method
/// says otherwise.
#[derive(Debug)]
pub struct AddedSources<S: ?Sized = [AddedSlot]> {
    /// Number of slots up to the last one that has had a source: an interrupt looks at no other.
    used: AtomicUsize,
    slots: S,
}

/// Returns how often an event with this frequency happens during a time in units of 100 ns. The result is at least 1,
/// because an event with a period of 0 does not interrupt.
#[inline(never)] // Few sources are timers. 144 bytes of the glue.
fn of_time(interval: u64, hertz: u64) -> u64 {
    const UNITS: u64 = 10_000_000; // per second
    // The product of both takes more than 64 bits.
    let (whole, rest) = (hertz / UNITS, hertz % UNITS);
    interval.saturating_mul(whole).saturating_add(interval * rest / UNITS).max(1)
}

/// Number of the first slot's source, if the source is that of an event. Trace records have 16 bits for a source.
const FIRST_EVENT: u32 = 0x8000;

static NONE: AddedSources<[AddedSlot; 0]> = AddedSources::new();

impl<const N: usize> AddedSources<[AddedSlot; N]> {
    /// Creates an empty set with room for `N` sources.
    pub const fn new() -> Self {
        Self { used: AtomicUsize::new(0), slots: [const { AddedSlot::new() }; N] }
    }
}

impl<const N: usize> Default for AddedSources<[AddedSlot; N]> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> core::ops::Deref for AddedSources<[AddedSlot; N]> {
    type Target = AddedSources;

    fn deref(&self) -> &AddedSources {
        self
    }
}

impl AddedSources {
    /// Returns an empty set to which no source can be added.
    #[inline]
    pub const fn none() -> &'static Self {
        &NONE
    }

    /// Adds a source whose interval is a number of events, within [`IntervalLimits::EVENTS`]. At first the source has
    /// the default interval.
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub fn add(&self, source: &'static AddedSource) -> Result<(), InterfaceError> {
        self.put(source, 0)
    }

    /// Adds a source whose event happens `hertz` times per second. The source's interval is a time, in units of 100 ns.
    ///
    /// # Errors
    /// See [`InterfaceError`].
    pub fn add_timer(
        &self,
        source: &'static AddedSource,
        hertz: NonZeroU64,
    ) -> Result<(), InterfaceError> {
        self.put(source, hertz.get())
    }

    fn put(&self, source: &'static AddedSource, hertz: u64) -> Result<(), InterfaceError> {
        let value = source.row.source();
        if self.find(value).is_some() {
            return Err(InterfaceError::Exists(value));
        }
        let mut slots = self.slots.iter().enumerate();
        let free = slots.find(|(_, slot)| slot.source().is_none());
        let (index, slot) = free.ok_or_else(|| self.full())?;
        slot.hertz.store(hertz, Relaxed);
        let interval = slot.limits().default;
        self.fill((index, slot), source, interval);
        Ok(())
    }

    fn fill(
        &self,
        (index, slot): (usize, &AddedSlot),
        source: &'static AddedSource,
        interval: u32,
    ) {
        slot.interval.store(interval, Relaxed);
        self.used.fetch_max(index + 1, Relaxed);
        // Last: an interrupt that finds the source also finds its interval, and looks at its slot.
        slot.source.store(ptr::from_ref(source).cast_mut(), Release);
    }

    fn full(&self) -> InterfaceError {
        InterfaceError::Full { room: self.slots.len() }
    }

    /// Adds any event as a source, and returns the source. The event may be [generic](Event::generic),
    /// [raw](Event::raw), or found in a vendor's list of events. The event's period becomes the source's interval.
    ///
    /// The source gets a value of 0x8000 or above, which no interface's table uses. The source ignores the event's
    /// [tag](Event::tagged). The source never [rotates](Event::rotating), even if the event does. If the event was
    /// added before, the call returns the existing source. The source's interval becomes the new period.
    ///
    /// The call copies the event into a slot of the `AddedSources`, and this slot is never used for another event. An
    /// `AddedSources` with `N` slots therefore accepts at most `N` different events.
    ///
    /// ```
    /// use pmu_core::profile::{AddedSlot, AddedSources};
    /// use pmu_core::{Event, GenericEvent};
    ///
    /// static ADDED: AddedSources<[AddedSlot; 8]> = AddedSources::new();
    /// let cycles = Event::generic(GenericEvent::Cycles).every(1_000_003);
    /// let source = ADDED.add_event(&cycles)?; // to create a profile object
    /// assert_eq!(ADDED.add_event(&cycles.every(100_003))?, source);
    /// # Ok::<(), pmu_core::profile::InterfaceError>(())
    /// ```
    ///
    /// # Errors
    /// - [`NoPeriod`](InterfaceError::NoPeriod): the event has no period, or a [frequency](Event::at_frequency).
    /// - [`Interval`](InterfaceError::Interval): the period is outside the [limits](IntervalLimits::EVENTS).
    /// - [`Counters`](InterfaceError::Counters): the period is too short for the
    ///   [software event](crate::Event::software), or 2³¹ or more.
    /// - [`Full`](InterfaceError::Full).
    pub fn add_event(&'static self, event: &Event) -> Result<KProfileSource, InterfaceError> {
        let interval = interval_of(event)?;
        self.take(event, interval, |_| true).map(|(_, source)| source)
    }

    /// Adds an event as a source for one user, such as a running profile, until the user [releases](Self::release) the
    /// source. If another user has already acquired the event with a different period, the call adds a second source
    /// for the event. The second source occupies its own slot, and the first source keeps its interval. In every other
    /// case the call adds the event as [`add_event`](Self::add_event) does.
    ///
    /// If `processor` is given, the call checks that this processor can count the event. If the processor cannot count
    /// the event, the event occupies no slot.
    ///
    /// ```
    /// use pmu_core::{CounterUnit, Event, GenericEvent};
    /// use pmu_core::error::{CounterError, NoInterface};
    /// use pmu_core::profile::{AddedSlot, AddedSources, InterfaceError};
    ///
    /// static ADDED: AddedSources<[AddedSlot; 8]> = AddedSources::new();
    /// let cycles = Event::generic(GenericEvent::Cycles).every(1_000_003);
    /// let refused = CounterError::NoCounters(NoInterface::NoPerformanceMonitoring).into();
    /// assert_eq!(ADDED.acquire(&cycles, Some(&CounterUnit::NONE)), Err(refused));
    ///
    /// let source = ADDED.acquire(&cycles, None)?;
    /// let other = ADDED.acquire(&cycles.every(100_003), None)?;
    /// assert_ne!(source, other); // Two profiles, each with its own period.
    /// ADDED.release(source);
    /// ADDED.release(other);
    /// # Ok::<(), InterfaceError>(())
    /// ```
    ///
    /// # Errors
    /// - [`Counters`](InterfaceError::Counters): the processor cannot count the event.
    /// - The errors of [`add_event`](Self::add_event).
    pub fn acquire(
        &'static self,
        event: &Event,
        processor: Option<&CounterUnit>,
    ) -> Result<KProfileSource, InterfaceError> {
        let interval = interval_of(event)?;
        if let Some(processor) = processor.filter(|_| event.software_event().is_none()) {
            let counters = processor.all_counters_of(event).map_err(InterfaceError::Counters)?;
            if counters.is_empty() {
                return Err(InterfaceError::Counters(CounterError::NoCounterForEvent));
            }
        }
        let period = interval.get();
        let fits = |slot: &AddedSlot| {
            // Users of one slot share its interval.
            slot.users.load(Relaxed) == 0 || slot.interval.load(Relaxed) == period
        };
        let (slot, source) = self.take(event, interval, fits)?;
        slot.users.fetch_add(1, Relaxed);
        Ok(source)
    }

    /// Undoes one [`acquire`](Self::acquire) of a source. No other event can use the slot of this source afterwards.
    ///
    /// # Context
    /// Task. Other callers may add sources at the same time.
    #[inline(never)] // 16 bytes of the glue.
    pub fn release(&self, source: KProfileSource) {
        if let Some(slot) = self.find(source) {
            let fewer = |users: u32| users.checked_sub(1);
            let _ = slot.users.fetch_update(Relaxed, Relaxed, fewer);
        }
    }

    /// Returns the source of an event with its slot: one that the event has and that `fits`, or a free one.
    fn take(
        &'static self,
        event: &Event,
        interval: Interval,
        fits: impl Fn(&AddedSlot) -> bool,
    ) -> Result<(&'static AddedSlot, KProfileSource), InterfaceError> {
        let event = Event { reporting: Reporting::NONE, tag: 0, rotates: false, ..*event };
        let (mut known, mut free) = (None, None);
        for (index, slot) in self.slots.iter().enumerate() {
            let added = slot.source();
            let holds = |source| added.is_none_or(|other| ptr::eq(other, source));
            match slot.of_event.get() {
                Some(source) if source.event == event && holds(source) && fits(slot) => {
                    known = known.or(Some((index, slot, source)));
                }
                None if added.is_none() => free = free.or(Some((index, slot))),
                _ => {}
            }
        }
        let (index, slot, source) = match (known, free) {
            (Some(known), _) => known,
            (None, Some((index, slot))) => {
                let select = event.select().unwrap_or(EventSelect::from_bits(0));
                let row = ProfileSource::new(FIRST_EVENT | index as u32, "ProfileEvent", select);
                let source = slot.of_event.set(AddedSource::of_event(row, event));
                (index, slot, source.map_err(|_| self.full())?)
            }
            (None, None) => return Err(self.full()),
        };
        slot.hertz.store(0, Relaxed);
        self.fill((index, slot), source, interval.get());
        Ok((slot, source.row.source()))
    }

    /// Removes a source, and returns the removed source. Returns `None` if the source was not added. Stop the source on
    /// every processor first. If the source still runs on a processor, the source's counter keeps counting and
    /// interrupting. The driver then reports the overflows as those of an [opened](crate::CounterSession::open)
    /// event, no longer as those of a source.
    ///
    /// ```
    /// # use pmu_core::profile::{AddedSources, KProfileSource};
    /// /// Removes a driver's sources, which the driver has stopped on all processors.
    /// fn unload(added: &AddedSources, sources: &[KProfileSource]) -> usize {
    ///     sources.iter().filter(|source| added.remove(**source).is_some()).count()
    /// }
    /// ```
    pub fn remove(&self, source: KProfileSource) -> Option<&'static AddedSource> {
        let slot = self.find(source)?;
        let removed = slot.source();
        slot.source.store(ptr::null_mut(), Release);
        removed
    }

    /// Returns the added sources.
    pub fn iter(&self) -> impl Iterator<Item = &'static AddedSource> + '_ {
        self.slots.iter().filter_map(AddedSlot::source)
    }

    /// Returns the added source with this name. `name` is the documented name or the name that Windows reports. Case
    /// matters.
    pub fn named(&self, name: &str) -> Option<KProfileSource> {
        self.iter().find(|source| source.row.is_named(name)).map(|source| source.row.source())
    }

    #[inline(never)] // Linked once: each use would unroll the search. 96 bytes of the glue.
    fn find(&self, source: KProfileSource) -> Option<&AddedSlot> {
        self.slots.iter().find(|slot| slot.source().is_some_and(|of| of.row.source() == source))
    }

    /// Returns whether a source was added.
    pub(crate) fn contains(&self, source: KProfileSource) -> bool {
        self.find(source).is_some()
    }

    /// Returns a source and the event to open for it.
    #[inline]
    pub(crate) fn event(&self, source: KProfileSource) -> Option<(&'static AddedSource, Event)> {
        let slot = self.find(source)?;
        let source = slot.source()?;
        Some((source, source.event.every(slot.period()).tagged(source.tag()).unlisted()))
    }

    /// Returns the interval of a source that these counters can count.
    #[inline]
    pub(crate) fn interval(
        &self,
        source: KProfileSource,
        unit: &CounterUnit,
    ) -> Option<(&AtomicU32, IntervalLimits)> {
        let slot = self.find(source)?;
        let source = slot.source()?;
        let is_declared = || unit.all_counters_of(&source.event).is_ok_and(|all| !all.is_empty());
        (source.is_software() || is_declared()).then(|| (&slot.interval, slot.limits()))
    }

    /// Returns the source that an opened event belongs to.
    #[inline]
    pub(crate) fn of(&self, overflow: &EventOverflow) -> Option<KProfileSource> {
        self.by_tag(overflow).map(|(source, _)| source.row.source())
    }

    /// Applies the interval of its source to an event of the table `events` that overflowed.
    /// [`service`](crate::service()) does so for the events on counters. A kernel calls this for each overflow of a
    /// [software event](crate::Event::software). The call does nothing for an event that is no source's.
    ///
    /// ```
    /// use pmu_core::SoftwareEvent;
    /// use pmu_core::memory::EventTable;
    /// use pmu_core::profile::AddedSources;
    /// /// The end of the page fault handler of a kernel that profiles page faults.
    /// fn faulted(events: &EventTable, added: &AddedSources, in_user: bool, hit: impl Fn(u64)) {
    ///     events.happened(SoftwareEvent::MinorFaults, 1, in_user, |overflow| {
    ///         added.take_up_interval(events, &overflow);
    ///         hit(overflow.tag);
    ///     });
    /// }
    /// ```
    ///
    /// # Context
    /// The handler of the event's overflow.
    #[inline]
    pub fn take_up_interval(&self, events: &EventTable, overflow: &EventOverflow) {
        if let Some((_, slot)) = self.by_tag(overflow)
            && slot.period() != overflow.period
        {
            // A period below the table's minimum is refused, and stays as it was.
            let _ = events.set_period(overflow.event, slot.period());
        }
    }

    #[inline]
    fn by_tag(&self, overflow: &EventOverflow) -> Option<(&'static AddedSource, &AddedSlot)> {
        overflow.event.index()?;
        let used = self.slots.iter().take(self.used.load(Relaxed));
        let with_source = used.filter_map(|slot| Some((slot.source()?, slot)));
        with_source.into_iter().find(|(source, _)| source.tag() == overflow.tag)
    }
}

/// Returns an event's period as the interval of a source.
fn interval_of(event: &Event) -> Result<Interval, InterfaceError> {
    let period = event.period().filter(|_| event.frequency().is_none());
    let period = period.ok_or(InterfaceError::NoPeriod)?;
    if let Some(software) = event.software_event() {
        let is_legal = (software.min_period()..1 << 31).contains(&period);
        let refused = InterfaceError::Counters(CounterError::Period(period));
        return if is_legal { Ok(Interval::stored(period as u32)) } else { Err(refused) };
    }
    IntervalLimits::EVENTS.check(period).map_err(InterfaceError::Interval)
}

/// General sources of the Emon interface, one bit per value: 0x02, 0x06, 0x0A, 0x0B and 0x13.
const GENERAL_OF_EMON: u32 = 1 << 0x02 | 1 << 0x06 | 1 << 0x0A | 1 << 0x0B | 1 << 0x13;

/// General sources of the Amd64 interface, one bit per value: 0x02, 0x06, 0x08, 0x09, 0x0B, 0x0D, 0x14 and 0x15.
const GENERAL_OF_AMD64: u32 =
    1 << 0x02 | 1 << 0x06 | 1 << 0x08 | 1 << 0x09 | 1 << 0x0B | 1 << 0x0D | 1 << 0x14 | 1 << 0x15;

impl Rules {
    /// Returns whether this Windows version has the profile source `source` on a machine whose profile interface is
    /// `interface`. The version has the following sources:
    ///
    /// - `ProfileTime`;
    /// - the sources of the interface's table, if this version's HAL has the counters of the interface;
    /// - Intel's sources 0x20 to 0x24, if this version has them
    ///   ([`has_fixed_sources`](crate::windows::WindowsVersion::has_fixed_sources));
    /// - the sources of higher values that are in `added`, if this version can add sources at run time
    ///   ([`adds_sources`](crate::windows::WindowsVersion::adds_sources)). If the kernel adds no sources, pass
    ///   [`AddedSources::none`].
    ///
    /// ```
    /// # use pmu_core::profile::{AddedSources, KProfileSource};
    /// # use pmu_core::windows::{HalInterface, Rules, WindowsVersion};
    /// // Intel's fixed counters are sources from version 1903 on.
    /// let (fixed, none) = (KProfileSource::new(0x20).unwrap(), AddedSources::none());
    /// assert!(Rules::LATEST.has_source(HalInterface::Emon, fixed, none));
    /// let before = Rules { version: WindowsVersion::Windows8, ..Rules::LATEST };
    /// assert!(!before.has_source(HalInterface::Emon, fixed, none));
    /// // A higher value is no source, unless the kernel adds it.
    /// assert!(!Rules::LATEST.has_source(HalInterface::Emon, KProfileSource::new(0x25).unwrap(), none));
    /// ```
    pub fn has_source(
        self,
        interface: HalInterface,
        source: KProfileSource,
        added: &AddedSources,
    ) -> bool {
        let (version, value) = (self.version, source.value());
        let in_version = match (interface, value) {
            (HalInterface::Emon, 0x20..=0x24) => version.has_fixed_sources(),
            (HalInterface::Emon, 0x25..) | (HalInterface::Amd64, 0xC0..) => {
                version.adds_sources() && added.contains(source)
            }
            (HalInterface::Emon, 0..0x19) => GENERAL_OF_EMON >> value & 1 != 0,
            (HalInterface::Amd64, 0..0x19) => GENERAL_OF_AMD64 >> value & 1 != 0,
            _ => true,
        };
        value == KProfileSource::TIME.value()
            || (version.has_counters(interface, self.width) && in_version)
    }
}

/// An overflow of one source: see [`EventSource::overflow`](crate::EventSource::overflow).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Overflow {
    /// Source whose counter overflowed.
    pub source: KProfileSource,
    /// Number of events counted up to this overflow: the interval with which the driver loaded the counter.
    pub events: u64,
    /// Counter that overflowed.
    pub counter: CounterId,
}

impl Overflow {
    #[inline]
    pub(crate) fn of(
        table: &SourceTable,
        added: &AddedSources,
        overflow: &EventOverflow,
    ) -> Option<Self> {
        let EventOverflow { event, period, counter, .. } = *overflow;
        let source = match event.row() {
            Some(row) => table.rows().get(row)?.source(),
            None => added.of(overflow)?,
        };
        Some(Self { source, events: period, counter })
    }
}
