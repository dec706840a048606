//! Events that left their counters while records of theirs wait in the buffer.
//!
//! A record names counters, not events. Records of a counter up to a place in the buffer are those of the event that
//! left the counter when the buffer was filled up to there.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use pmu_core::{CounterId, CounterSet, EventId};

/// Greatest number of events that can have left since the buffer was last read out. The threshold then is one record,
/// so that only what happens before the next interrupt adds to them.
const ROOM: usize = 32;

/// Events that left their counters.
#[derive(Debug)]
pub(crate) struct DepartedEvents {
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
        Self { events: [const { Place::new() }; ROOM] }
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
}

impl DepartedEvents {
    /// Adds an event. Returns `false` if there is no room.
    pub(crate) fn add(&self, departed: Departed, generation: u16) -> bool {
        let is_usable = |place: &&Place| place.get(generation).is_none();
        let Some(place) = self.events.iter().find(is_usable) else { return false };
        let event = departed.event.and_then(EventId::place);
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
        self.events.iter().filter_map(move |place| place.get(generation))
    }

    /// Returns the end of the records of the events that left this counter.
    pub(crate) fn end(&self, counter: CounterId, generation: u16) -> u32 {
        let of_counter = self.of(generation).filter(|departed| departed.counter == counter);
        of_counter.map(|departed| departed.until).max().unwrap_or(0)
    }

    /// Finds the event of a counter's record at this place in the buffer.
    fn at(&self, counter: CounterId, place: u32, generation: u16) -> Option<(&Place, Departed)> {
        let is_its = |departed: &Departed| departed.counter == counter && departed.until > place;
        let of = self.events.iter().filter_map(|event| Some((event, event.get(generation)?)));
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
        let Some(closed) = event.place() else { return };
        for place in &self.events {
            if place.event.load(Relaxed) == closed as u32 {
                place.event.store(FORGOTTEN, Relaxed);
            }
        }
    }

    /// Removes all events.
    pub(crate) fn clear(&self) {
        self.events.iter().for_each(|place| place.until.store(0, Relaxed));
    }
}

impl Place {
    fn get(&self, generation: u16) -> Option<Departed> {
        let until = self.until.load(Acquire);
        if until == 0 || self.generation.load(Relaxed) != generation {
            return None;
        }
        let bit = self.counter.load(Relaxed) as u8;
        let event = self.event.load(Relaxed);
        Some(Departed {
            counter: CounterSet::from_bits(1 << (bit & 63)).iter().next()?,
            event: (event != FORGOTTEN).then(|| EventId::of_place(event as usize)),
            period: self.period.load(Relaxed),
            reloaded: self.reloaded.load(Relaxed),
            flags: self.flags.load(Relaxed),
            until,
        })
    }
}
