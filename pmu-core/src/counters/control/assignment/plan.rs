//! A plan: which event is to be on which counter.

use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::names::counter_id::{CounterId, CounterSet, MAX_COUNTERS};
use crate::counters::names::event_id::EventId;
use crate::counters::shared::entry::EventEntry;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

/// An event on a counter, counted by one of its encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) event: EventId,
    /// Below 4.
    pub(crate) encoding: u8,
}

impl Placement {
    const PRESENT: u16 = 1 << 15;

    /// The event's identity is in the 12 bits below the encoding.
    const FIRST_OF_ENCODING: u32 = 12;

    pub(crate) const fn pack(self) -> u16 {
        let encoding = (self.encoding & 3) as u16;
        Self::PRESENT | encoding << Self::FIRST_OF_ENCODING | self.event.bits()
    }

    pub(crate) fn unpack(bits: u16) -> Option<Self> {
        let encoding = (bits >> Self::FIRST_OF_ENCODING & 3) as u8;
        (bits & Self::PRESENT != 0).then(|| Self { event: EventId::of_bits(bits), encoding })
    }
}

/// The event that each counter has, or is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// 0: none.
    on: [u16; MAX_COUNTERS],
}

/// The event of a group for which there is no room, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacementError {
    pub(crate) event: EventId,
    pub(crate) reason: CounterError,
}

impl Plan {
    pub(crate) const EMPTY: Self = Self { on: [0; MAX_COUNTERS] };

    pub(crate) fn at(&self, counter: CounterId) -> Option<Placement> {
        Placement::unpack(self.bits(counter))
    }

    fn bits(&self, counter: CounterId) -> u16 {
        self.on.get(counter.place()).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, counter: CounterId, placed: Option<Placement>) {
        if let Some(on) = self.on.get_mut(counter.place()) {
            *on = placed.map_or(0, Placement::pack);
        }
    }

    /// Returns the counters that have an event.
    pub(crate) fn counters(&self) -> CounterSet {
        self.besides(&Self::EMPTY)
    }

    /// Returns the counters whose event another plan does not have there, or has with another encoding.
    #[inline(never)] // Linked once: a change compares its plans both ways.
    pub(crate) fn besides(&self, other: &Self) -> CounterSet {
        CounterSet::all_in_a_loop().retain(|counter| {
            let placed = self.bits(counter);
            placed != 0 && placed != other.bits(counter)
        })
    }

    /// Returns the events.
    pub(crate) fn events(&self) -> impl Iterator<Item = EventId> {
        self.on.iter().filter_map(|on| Placement::unpack(*on)).map(|placed| placed.event)
    }

    /// Returns an event's counter.
    #[inline(never)] // Linked once: each step of a plan looks for events.
    pub(crate) fn find(&self, event: EventId) -> Option<CounterId> {
        let is_it = |placed: Placement| placed.event == event;
        CounterSet::all_in_a_loop().iter().find(|counter| self.at(*counter).is_some_and(is_it))
    }

    pub(crate) fn remove(&mut self, event: EventId) {
        if let Some(counter) = self.find(event) {
            self.set(counter, None);
        }
    }
}

impl<S: EventSource, M: MsrBackend, P: Platform> CounterSession<'_, S, M, P> {
    /// Writes the present assignment into `plan`.
    #[inline(never)]
    pub(crate) fn present(&self, plan: &mut Plan) {
        *plan = Plan::EMPTY;
        for (counter, slot) in self.slots() {
            if let Some(event) = slot.running() {
                let encoding = self.table().entry(event).map_or(0, EventEntry::encoding);
                plan.set(counter, Some(Placement { event, encoding }));
            }
        }
    }
}

/// The event of a group for which there is no room.
#[derive(Clone, Copy)]
pub(crate) struct NoRoom {
    pub(crate) event: EventId,
    /// Address of the extra register that another value occupies; 0: a counter is lacking.
    pub(crate) register: u32,
}

impl NoRoom {
    /// A value of [`register`](Self::register): the filter of the branch records has another value.
    pub(crate) const BRANCHES: u32 = u32::MAX;
}

impl From<NoRoom> for PlacementError {
    fn from(NoRoom { event, register }: NoRoom) -> Self {
        let reason = match register {
            0 => CounterError::NoFreeCounter,
            NoRoom::BRANCHES => CounterError::BranchFilterInUse,
            register => CounterError::ExtraRegisterInUse(register),
        };
        Self { event, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_gives_back_what_was_placed_in_two_bytes_per_counter() {
        assert_eq!(size_of::<Plan>(), 2 * MAX_COUNTERS);
        let mut plan = Plan::EMPTY;
        let counters = [CounterId::general(0), CounterId::general(15), CounterId::fixed(7)];
        let events = [EventId::of_row(0), EventId::of_place(0x7FF), EventId::of_place(0)];
        for encoding in 0..4 {
            for (counter, event) in counters.into_iter().flatten().zip(events) {
                let placed = Placement { event, encoding };
                plan.set(counter, Some(placed));
                assert_eq!((plan.at(counter), plan.find(event)), (Some(placed), Some(counter)));
            }
        }
        assert_eq!(plan.counters().bits(), 1 << 39 | 1 << 15 | 1);
        assert_eq!(plan.events().count(), 3);
        let mut other = plan;
        other.remove(events[1]);
        assert_eq!(plan.besides(&other).bits(), 1 << 15);
        assert_eq!(other.besides(&plan), CounterSet::NONE);
    }
}
