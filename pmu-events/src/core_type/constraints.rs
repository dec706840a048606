//! The counters that can count an encoding.

use pmu_core::{CounterSet, EventSelect};

use crate::event::PmuEvent;
use crate::format::core_type::CoreType;
use crate::format::record::Precise;

impl CoreType {
    /// Returns the counters that can count the event with this encoding. For a raw event, pass the result to
    /// [`Event::on`](pmu_core::Event::on). The result follows these rules:
    ///
    /// - If the core type's table has no event with this event number, the result is `None`.
    /// - If the event number is 0, the encoding stands for a fixed counter, and the result has only this counter.
    /// - Otherwise the result has the general counters that the table gives for the encoding, and every fixed counter.
    ///   The [`CounterUnit`](pmu_core::CounterUnit) later excludes each fixed counter that does not count this event.
    ///
    /// The function ignores mode bits and other bits that select no event.
    ///
    /// The function looks for matching events in the table. It tries three sets of events in this order, and uses the
    /// first set that is not empty:
    /// 1. the events with the same event number, unit mask and qualifiers;
    /// 2. the events with the same event number and unit mask;
    /// 3. the events with the same event number.
    ///
    /// If this set contains events that must be sampled precisely and also other events, the function uses only the
    /// other events. The result has the counters that can count every used event. If no counter can count every used
    /// event, the result has each counter that can count at least one used event.
    ///
    /// ```
    /// use pmu_core::{CounterSet, Event, EventSelect};
    /// // MEM_LOAD_RETIRED.L3_MISS of Sapphire Rapids is confined to counters 0–3.
    /// let select = EventSelect::from_bits(0x20D1);
    /// let counters = pmu_events::SAPPHIRERAPIDS.constraints(select).unwrap_or(CounterSet::ALL);
    /// assert_eq!(counters & CounterSet::GENERAL, CounterSet::from_bits(0b1111));
    /// let event = Event::raw(select).on(counters);
    /// # let _ = event;
    /// ```
    ///
    /// # Context
    /// Task: the function reads every event of the table, at most 2,344.
    pub fn constraints(&self, select: EventSelect) -> Option<CounterSet> {
        const UNIT_MASK: u64 = 0xFF00_0000_FF00;
        /// Edge, any thread, inversion, counter mask.
        const QUALIFIERS: u64 = 0xFFA4_0000;
        let bits = select.select_bits();
        // From the narrowest mask of bits that are an event's.
        let masks = [QUALIFIERS | UNIT_MASK | self.number, UNIT_MASK | self.number, self.number];
        let counters = masks.iter().find_map(|mask| {
            let counted = |precise_only: bool| {
                let mut sets = self.events().filter(|event| {
                    let mut encodings = event.encodings();
                    (event.precise() == Precise::Only) == precise_only
                        && encodings.any(|way| (way.select.select_bits() ^ bits) & mask == 0)
                });
                let first = sets.next()?.counters();
                let both = |(every, any), event: PmuEvent| {
                    (every & event.counters(), any | event.counters())
                };
                let (every, any) = sets.fold((first, first), both);
                Some(if every.is_empty() { any } else { every })
            };
            counted(false).or_else(|| counted(true))
        })?;
        let general = !(counters & CounterSet::GENERAL).is_empty();
        Some(if general { counters | CounterSet::FIXED } else { counters })
    }
}
