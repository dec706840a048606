//! Search for a counter for one more event: an augmenting path through counters and events.

use crate::counters::control::assignment::planner::Planner;
use crate::counters::names::counter_id::{CounterId, CounterSet, MAX_COUNTERS};
use crate::counters::names::event_id::EventId;

impl Planner<'_> {
    /// Frees a counter for an event, and returns it. Prefers a counter that is free, and a fixed to a general one,
    /// because fewer events can use it. Otherwise finds the shortest chain of events: each moves to the next one's
    /// counter, and the last to a free counter.
    ///
    /// This is an augmenting path of the bipartite matching of events and counters, searched breadth first: if any
    /// assignment of all these events exists, there is such a path.
    #[inline(never)]
    pub(crate) fn make_room(&mut self, event: EventId) -> Option<CounterId> {
        let used = self.plan.counters();
        let capable = self.capable(event);
        let free = capable.without(used);
        if let Some(counter) = (free & CounterSet::FIXED).first().or(free.first()) {
            return Some(counter);
        }
        let mut taker = [None::<CounterId>; MAX_COUNTERS];
        let (mut reached, mut frontier) = (capable, capable);
        while !frontier.is_empty() {
            let mut farther = CounterSet::NONE;
            for counter in frontier.iter() {
                let Some(placed) = self.plan.at(counter) else { continue };
                let next = self.capable(placed.event).without(reached);
                for alternative in next.iter() {
                    if let Some(taker) = taker.get_mut(alternative.place()) {
                        *taker = Some(counter);
                    }
                }
                if let Some(mut free) = next.without(used).first() {
                    while let Some(Some(from)) = taker.get(free.place()) {
                        self.plan.set(free, self.plan.at(*from));
                        free = *from;
                    }
                    self.plan.set(free, None);
                    return Some(free);
                }
                reached = reached | next;
                farther = farther | next;
            }
            frontier = farther;
        }
        None
    }
}
