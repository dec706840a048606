//! The driver's state of a processor's precise records, beside the area and the buffer.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use pmu_core::facility::RunningEvent;
use pmu_core::precise::SampleParts;
use pmu_core::registers::{CounterId, MAX_COUNTERS, MAX_GENERAL};
use pmu_core::{CounterSet, EventId};

use crate::precise::reading::AccessKind;

/// The session took the memory for its events.
pub(crate) const TAKEN: u8 = 1 << 0;
/// The registers have the values that are noted here.
pub(crate) const KNOWN: u8 = 1 << 1;

/// The counters that write records are stopped while the facility is settled.
pub(crate) const STOPPED: u8 = 1 << 2;

/// State that tasks and the interrupt share.
#[derive(Debug)]
pub(crate) struct State {
    slots: [EventSlot; MAX_COUNTERS],
    pub(crate) departed: DepartedEvents,
    /// Counters whose events write records.
    recording: AtomicU64,
    /// Counters whose records are enabled in the registers.
    enabled: AtomicU64,
    /// Counters that may have written records after their events had left, because registers did not answer.
    pub(crate) stuck: AtomicU64,
    /// Counter of an event that was about to be started: it may have failed, and has no records then.
    coming: AtomicU64,
    /// Value of the register that enables records.
    pub(crate) enable: AtomicU64,
    /// Part of the buffer that is read out and not reported yet: first byte, and end above it.
    batch: AtomicU64,
    /// Counters of the record that is reported, as far as they are not reported yet.
    pub(crate) pending: AtomicU64,
    /// Offset in the buffer from which on a record interrupts.
    pub(crate) threshold: AtomicU32,
    /// Number of times that the buffer was read out.
    generation: AtomicU16,
    /// The parts of adaptive records.
    parts: AtomicU16,
    mode: AtomicU8,
}

/// The interrupt's knowledge of the event on a counter.
#[derive(Debug)]
pub(crate) struct EventSlot {
    /// Number of events for which the processor loads the counter after each record.
    pub(crate) reload: AtomicU64,
    flags: AtomicU32,
    /// Place of the event in its table.
    event: AtomicU32,
}

/// Requests of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotFlags(pub(crate) u32);

const USER: u32 = 1 << 0;
const KERNEL: u32 = 1 << 1;
const LOADS: u32 = 1 << 2;
const STORES: u32 = 1 << 3;
const PARTS: u32 = 16;

impl State {
    pub(crate) const fn new() -> Self {
        Self {
            slots: [const { EventSlot::new() }; MAX_COUNTERS],
            departed: DepartedEvents::new(),
            recording: AtomicU64::new(0),
            enabled: AtomicU64::new(0),
            stuck: AtomicU64::new(0),
            coming: AtomicU64::new(0),
            enable: AtomicU64::new(0),
            batch: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            threshold: AtomicU32::new(0),
            generation: AtomicU16::new(0),
            parts: AtomicU16::new(0),
            mode: AtomicU8::new(0),
        }
    }

    #[inline(never)] // 96 bytes of the Hermit-like glue.
    pub(crate) fn slot(&self, counter: CounterId) -> Option<&EventSlot> {
        let first = if counter.is_fixed() { MAX_GENERAL } else { 0 };
        self.slots.get(first + usize::from(counter.number()))
    }

    /// Notes that an event was closed.
    pub(crate) fn forget(&self, event: EventId) {
        self.departed.forget(event);
        for slot in self.slots.iter().filter(|slot| slot.is_of(event)) {
            slot.event.store(u32::MAX, Relaxed);
        }
    }

    pub(crate) fn is(&self, mode: u8) -> bool {
        self.mode.load(Acquire) & mode == mode
    }

    pub(crate) fn set(&self, mode: u8) {
        self.mode.fetch_or(mode, Release);
    }

    pub(crate) fn clear(&self, mode: u8) {
        self.mode.fetch_and(!mode, Release);
    }

    pub(crate) fn recording(&self) -> CounterSet {
        CounterSet::from_bits(self.recording.load(Acquire))
    }

    pub(crate) fn set_recording(&self, counters: CounterSet) {
        self.recording.store(counters.bits(), Release);
    }

    pub(crate) fn coming(&self) -> CounterSet {
        CounterSet::from_bits(self.coming.load(Relaxed))
    }

    pub(crate) fn set_coming(&self, counters: CounterSet) {
        self.coming.store(counters.bits(), Relaxed);
    }

    pub(crate) fn enabled(&self) -> CounterSet {
        CounterSet::from_bits(self.enabled.load(Relaxed))
    }

    pub(crate) fn set_enabled(&self, counters: CounterSet) {
        self.enabled.store(counters.bits(), Relaxed);
    }

    pub(crate) fn parts(&self) -> SampleParts {
        SampleParts::from_bits(self.parts.load(Relaxed))
    }

    pub(crate) fn set_parts(&self, parts: SampleParts) {
        self.parts.store(parts.bits(), Relaxed);
    }

    pub(crate) fn generation(&self) -> u16 {
        self.generation.load(Acquire)
    }

    pub(crate) fn next_generation(&self) {
        self.generation.store(self.generation.load(Relaxed).wrapping_add(1), Release);
    }

    /// Returns the part of the buffer that is read out and not reported yet: first byte, and end.
    pub(crate) fn batch(&self) -> (u32, u32) {
        let batch = self.batch.load(Relaxed);
        (batch as u32, (batch >> 32) as u32)
    }

    pub(crate) fn set_batch(&self, (from, to): (u32, u32)) {
        self.batch.store(u64::from(from) | u64::from(to) << 32, Relaxed);
    }
}

impl EventSlot {
    const fn new() -> Self {
        let (flags, event) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { reload: AtomicU64::new(0), flags, event }
    }

    /// Notes what the interrupt has to know of an event.
    pub(crate) fn describe(&self, event: &RunningEvent<'_>, reload: u64) {
        self.flags.store(SlotFlags::of(event).0, Relaxed);
        self.reload.store(reload, Relaxed);
        self.event.store(place_of(event.id()), Relaxed);
    }

    pub(crate) fn is_of(&self, event: EventId) -> bool {
        self.event.load(Relaxed) == place_of(event)
    }

    pub(crate) fn event(&self) -> EventId {
        EventId::of_index(self.event.load(Relaxed) as usize)
    }

    pub(crate) fn flags(&self) -> SlotFlags {
        SlotFlags(self.flags.load(Relaxed))
    }
}

/// Returns the place of an opened event in its table.
fn place_of(event: EventId) -> u32 {
    event.index().unwrap_or(0) as u32
}

impl SlotFlags {
    fn of(event: &RunningEvent<'_>) -> Self {
        let of = |flag, set: bool| if set { flag } else { 0 };
        let select = event.select();
        // SDM vol. 3B, "Data Linear Address PEBS": the events of retired memory operations, 0xD0 to 0xD3; the stores'
        // unit masks of 0xD0 are 0x12, 0x22, 0x42 and 0x82. 0xCD/0x02 is the precise store.
        let is_store = matches!(
            (select.event_number(), select.event_unit_mask()),
            (0xCD, 0x02) | (0xD0, 0x12 | 0x22 | 0x42 | 0x82)
        );
        let has_latency = event.has_latency();
        Self(
            of(USER, select.select_bits() >> 16 & 1 != 0)
                | of(KERNEL, select.select_bits() >> 17 & 1 != 0)
                | of(LOADS, has_latency)
                | of(STORES, is_store && !has_latency)
                | u32::from(event.parts().bits()) << PARTS,
        )
    }

    pub(crate) const fn counts_user(self) -> bool {
        self.0 & USER != 0
    }

    pub(crate) const fn counts_kernel(self) -> bool {
        self.0 & KERNEL != 0
    }

    pub(crate) const fn access(self) -> AccessKind {
        if self.0 & LOADS != 0 {
            AccessKind::Loads
        } else if self.0 & STORES != 0 {
            AccessKind::Stores
        } else {
            AccessKind::Unknown
        }
    }

    pub(crate) const fn parts(self) -> SampleParts {
        SampleParts::from_bits((self.0 >> PARTS) as u16)
    }
}

// Events that left their counters while records of theirs wait in the buffer.
//
// A record names counters, not events. Records of a counter up to a place in the buffer are those of the event that
// left the counter when the buffer was filled up to there.

/// Greatest number of events that can have left since the buffer was last read out. The threshold then is one record,
/// so that only what happens before the next interrupt adds to them.
const ROOM: usize = 32;

/// Events that left their counters.
#[derive(Debug)]
pub(crate) struct DepartedEvents {
    /// Number of places up to the last one that has had an event: an interrupt looks at no other.
    used: AtomicU8,
    events: [Place; ROOM],
}

#[derive(Debug)]
struct Place {
    /// The end of the event's records in the buffer, in bytes; 0: the place is free. Stored last.
    until: AtomicU32,
    /// The buffer's generation.
    generation: AtomicU16,
    counter: AtomicU16,
    /// Number of the event's place in its table; `FORGOTTEN` if it was closed.
    event: AtomicU32,
    flags: AtomicU32,
    period: AtomicU64,
    reloaded: AtomicU64,
}

const FORGOTTEN: u32 = u32::MAX;

/// An event that left its counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departed {
    pub(crate) counter: CounterId,
    /// `None` if the event was closed since.
    pub(crate) event: Option<EventId>,
    /// The period that ends with the event's first record.
    pub(crate) period: u64,
    /// Number of events for which the processor loaded the counter after each record.
    pub(crate) reloaded: u64,
    /// The flags of the counter's slot.
    pub(crate) flags: u32,
    pub(crate) until: u32,
}

impl DepartedEvents {
    pub(crate) const fn new() -> Self {
        Self { used: AtomicU8::new(0), events: [const { Place::new() }; ROOM] }
    }

    /// Adds an event. Returns `false` if there is no room.
    pub(crate) fn add(&self, departed: Departed, generation: u16) -> bool {
        let is_usable = |(_, place): &(usize, &Place)| place.get(generation).is_none();
        let mut places = self.events.iter().enumerate();
        let Some((index, place)) = places.find(is_usable) else { return false };
        // Before `until`, so that whoever sees the event looks at its place. The number never falls: an interrupt that
        // lowered it meanwhile would hide the event.
        self.used.fetch_max(index as u8 + 1, Relaxed);
        let event = departed.event.and_then(EventId::index);
        // The place is void while it is filled: an interrupt in between must not see a mixture. `until` comes last, and
        // releases.
        place.until.store(0, Relaxed);
        place.generation.store(generation, Relaxed);
        place.counter.store(departed.counter.bit().into(), Relaxed);
        place.event.store(event.map_or(FORGOTTEN, |place| place as u32), Relaxed);
        place.flags.store(departed.flags, Relaxed);
        place.period.store(departed.period, Relaxed);
        place.reloaded.store(departed.reloaded, Relaxed);
        place.until.store(departed.until, Release);
        true
    }

    /// Returns the events that left while the buffer was of this generation.
    pub(crate) fn of(&self, generation: u16) -> impl Iterator<Item = Departed> {
        self.used().filter_map(move |place| place.get(generation))
    }

    /// Returns the end of the records of the events that left this counter.
    #[inline(never)] // 256 bytes of the Hermit-like glue, at `opt-level` 3.
    pub(crate) fn end(&self, counter: CounterId, generation: u16) -> u32 {
        let of_counter = self.of(generation).filter(|departed| departed.counter == counter);
        of_counter.map(|departed| departed.until).max().unwrap_or(0)
    }

    /// Finds the event of a counter's record at this place in the buffer.
    fn at(&self, counter: CounterId, place: u32, generation: u16) -> Option<(&Place, Departed)> {
        let is_its = |departed: &Departed| departed.counter == counter && departed.until > place;
        let of = self.used().filter_map(|event| Some((event, event.get(generation)?)));
        of.filter(|(_, departed)| is_its(departed)).min_by_key(|(_, departed)| departed.until)
    }

    /// Takes the next record of a counter, at this place in the buffer, if its event left the counter. The event's next
    /// record ends the period for which the processor loaded the counter with this one.
    pub(crate) fn take_at(
        &self,
        counter: CounterId,
        place: u32,
        generation: u16,
    ) -> Option<Departed> {
        let (event, departed) = self.at(counter, place, generation)?;
        event.period.store(departed.reloaded, Relaxed);
        Some(departed)
    }

    /// Notes that an event was closed.
    pub(crate) fn forget(&self, event: EventId) {
        let Some(closed) = event.index() else { return };
        for place in self.used() {
            if place.event.load(Relaxed) == closed as u32 {
                place.event.store(FORGOTTEN, Relaxed);
            }
        }
    }

    /// Removes all events.
    #[inline(never)] // 48 bytes of the Hermit-like glue.
    pub(crate) fn clear(&self) {
        self.used().for_each(|place| place.until.store(0, Relaxed));
    }

    fn used(&self) -> impl Iterator<Item = &Place> {
        self.events.iter().take(self.used.load(Relaxed).into())
    }
}

impl Place {
    const fn new() -> Self {
        Self {
            until: AtomicU32::new(0),
            generation: AtomicU16::new(0),
            counter: AtomicU16::new(0),
            event: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            period: AtomicU64::new(0),
            reloaded: AtomicU64::new(0),
        }
    }

    fn get(&self, generation: u16) -> Option<Departed> {
        // Pairs with the release in `add`: what is read below was stored before it.
        let until = self.until.load(Acquire);
        if until == 0 || self.generation.load(Relaxed) != generation {
            return None;
        }
        let bit = self.counter.load(Relaxed) as u8;
        let event = self.event.load(Relaxed);
        Some(Departed {
            counter: CounterSet::from_bits(1 << (bit & 63)).iter().next()?,
            event: (event != FORGOTTEN).then(|| EventId::of_index(event as usize)),
            period: self.period.load(Relaxed),
            reloaded: self.reloaded.load(Relaxed),
            flags: self.flags.load(Relaxed),
            until,
        })
    }
}
