//! The assignment of events to counters: an event is moved where that makes room for another.

use crate::counters::entry::EventEntry;
use crate::counters::processor::marked_faulted;
use crate::counters::slot::SlotState;
use crate::{
    CounterError, CounterId, CounterSet, Counters, EventId, EventSource, MsrBackend, Platform,
};

/// One more than the last bit of a counter.
const BITS: usize = CounterSet::ALL.bits().ilog2() as usize + 1;

/// Remainder of an event's period at the time its counter was taken away.
pub(crate) struct Lifted {
    /// The period that the counter was loaded for.
    period: u64,
    /// Its remainder; 1 also stands for a pending overflow.
    rest: u64,
    /// An overflow was pending that ended a period, and was not reported.
    pub(crate) overflowed: bool,
}

impl<S: EventSource, M: MsrBackend, P: Platform> Counters<'_, S, M, P> {
    /// Returns a free counter of `capable`. A fixed counter is preferred: fewer events can be on it.
    pub(crate) fn free_counter(&self, capable: CounterSet) -> Result<CounterId, CounterError> {
        self.leave_switch()?;
        let own = self.own() & capable;
        let mut preferred =
            (own & CounterSet::FIXED).iter().chain((own & CounterSet::GENERAL).iter());
        preferred.find(|counter| self.is_free(*counter)).ok_or(CounterError::NoFreeCounter)
    }

    /// Returns a free counter of `capable`, moving other events if need be.
    pub(crate) fn make_room(&self, capable: CounterSet) -> Result<CounterId, CounterError> {
        match self.free_counter(capable) {
            // Row events can run on any counter that another row event can, so moving them makes no room.
            Err(CounterError::NoFreeCounter) if !self.table().is_empty() => {
                self.move_along(self.own() & capable)
            }
            room => room,
        }
    }

    fn is_free(&self, counter: CounterId) -> bool {
        let slot = self.slot(counter);
        slot.is_some_and(|slot| slot.load() == SlotState::Free)
    }

    /// Returns the event that runs on a counter, and the counters that can count it.
    fn occupant(&self, counter: CounterId) -> Option<(EventId, CounterSet)> {
        let slot = self.slot(counter)?;
        let SlotState::Running { event, .. } = slot.load() else { return None };
        let capable = match self.table().entry(event) {
            Some(entry) => entry.counters(),
            None => CounterSet::GENERAL,
        };
        Some((event, capable))
    }

    /// Searches, breadth first, for the shortest chain of events each of which can have the next one's counter,
    /// up to a free one; then moves them, from its end. (An augmenting path of the bipartite matching of events
    /// and counters: if any assignment of all of them exists, there is such a chain.)
    fn move_along(&self, capable: CounterSet) -> Result<CounterId, CounterError> {
        let mut taker = [None::<CounterId>; BITS];
        let (mut reached, mut frontier) = (capable, capable);
        while !frontier.is_empty() {
            let mut farther = CounterSet::NONE;
            for counter in frontier.iter() {
                let Some((_, alternatives)) = self.occupant(counter) else { continue };
                let next = (alternatives & self.own()).without(reached);
                for alternative in next.iter() {
                    if let Some(taker) = taker.get_mut(usize::from(alternative.bit())) {
                        *taker = Some(counter);
                    }
                }
                if let Some(free) = next.iter().find(|counter| self.is_free(*counter)) {
                    return self.move_chain(free, &taker);
                }
                reached = reached | next;
                farther = farther | next;
            }
            frontier = farther;
        }
        Err(CounterError::NoFreeCounter)
    }

    /// Returns the counters of which any, once free, makes room for an event of `capable`.
    pub(crate) fn within_reach(&self, capable: CounterSet) -> CounterSet {
        let mut reached = self.own() & capable;
        loop {
            let occupants = reached.iter().filter_map(|counter| self.occupant(counter));
            let next = occupants.fold(reached, |all, (_, capable)| all | capable & self.own());
            if next == reached {
                return reached;
            }
            reached = next;
        }
    }

    /// Moves each event of the chain that ends at `free`, and returns the counter that becomes free.
    fn move_chain(
        &self,
        mut free: CounterId,
        from: &[Option<CounterId>; BITS],
    ) -> Result<CounterId, CounterError> {
        while let Some(Some(counter)) = from.get(usize::from(free.bit())) {
            if let Some((event, _)) = self.occupant(*counter) {
                self.relocate(event, *counter, free)?;
            }
            free = *counter;
        }
        Ok(free)
    }

    /// Moves an event to a free counter; on failure it stays where it is. A pending overflow is reported when the
    /// event next happens.
    fn relocate(&self, event: EventId, from: CounterId, to: CounterId) -> Result<(), CounterError> {
        let lifted = self.lift(from, event)?;
        let entry = self.table().entry(event);
        if let Some(entry) = entry.filter(|_| lifted.overflowed) {
            entry.set_resume(1);
        }
        let go_on = |counter| {
            if entry.is_some() {
                return self.run(counter, event);
            }
            let (slot, registers) = self.place(counter).ok_or(CounterError::NoFreeCounter)?;
            let value = registers.preload(lifted.rest);
            self.run_from(slot, &registers, event, value, lifted.period)
        };
        go_on(to).map_err(|error| match go_on(from) {
            Ok(()) => error,
            Err(CounterError::Access(fault)) => CounterError::Faulted(fault),
            Err(error) => error,
        })
    }

    /// Stops an event's counter, frees it, and adds its count to the total. An opened event keeps the remainder of
    /// its period; where the period was over, a new one begins.
    pub(crate) fn lift(&self, counter: CounterId, event: EventId) -> Result<Lifted, CounterError> {
        let (slot, registers) = self.place(counter).ok_or(CounterError::NotStarted(event))?;
        let entry = self.table().entry(event);
        let mut booked = None;
        let mut stop_and_read = || {
            self.set_control_retrying(&registers, 0)?;
            booked = entry.map(EventEntry::booked);
            let again = match entry.filter(|entry| entry.counts_on()) {
                Some(entry) => self.wrapped_again(counter, entry, self.read(&registers)?)?,
                None => false,
            };
            // An interrupt of the counter that comes from here on finds nothing.
            self.memory.expect_late(1);
            let SlotState::Running { period, .. } = slot.replace(SlotState::Free) else {
                return Err(marked_faulted(registers.value_register()));
            };
            Ok((period, again, self.read(&registers)?))
        };
        let (period, again, value) = stop_and_read().map_err(|fault| {
            slot.store(SlotState::Faulted);
            CounterError::Faulted(fault)
        })?;
        let mut overflowed = registers.has_overflowed(value);
        if let Some(entry) = entry {
            if entry.counts_on() {
                // Unless an interrupt has added it since.
                overflowed = again && booked == Some(entry.booked());
                if overflowed {
                    entry.book_wrap(registers.mask());
                }
            }
            entry.book(value, registers.mask());
        }
        if !overflowed {
            self.memory.expect_one_fewer();
        } else if let Some(global) = self.unit().global() {
            let bit = counter.only().bits();
            let acknowledged = self.wrmsr_retrying(global.acknowledge, bit);
            acknowledged.map_err(|fault| {
                // This overflow would be reported for the counter's next event.
                slot.store(SlotState::Faulted);
                CounterError::Faulted(fault)
            })?;
        }
        let rest = if overflowed { 1 } else { value.wrapping_neg() & registers.mask() };
        let ended = match entry {
            _ if !overflowed => false,
            Some(entry) => entry.end_piece(),
            None => true,
        };
        if let Some(entry) = entry.filter(|_| !overflowed) {
            entry.set_resume(rest);
        }
        Ok(Lifted { period, rest, overflowed: ended })
    }
}
