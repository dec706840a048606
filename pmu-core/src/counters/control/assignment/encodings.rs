//! Encodings for the events of a plan, such that each extra register has one value.

use crate::counters::control::assignment::plan::Placement;
use crate::counters::control::assignment::planner::Planner;
use crate::counters::events::extra::MAX_ENCODINGS;
use crate::counters::names::counter_id::{CounterId, CounterSet, MAX_COUNTERS};
use crate::counters::names::event_id::EventId;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::extra_registers::MAX_REGISTERS;
use crate::msr::address::MsrAddress;

/// The counters whose events have extra registers, in the order of the search: those of events that run come first.
#[derive(Clone, Copy)]
struct Refined {
    running: CounterSet,
    others: CounterSet,
}

impl Refined {
    #[inline(never)] // Linked once: each loop over the events asks for one.
    fn nth(self, number: usize) -> Option<CounterId> {
        match number.checked_sub(self.running.len()) {
            None => self.running.nth(number),
            Some(number) => self.others.nth(number),
        }
    }
}

/// The encoding that an event had before the search, and the encodings that were tried.
#[derive(Clone, Copy)]
struct Tried(u8);

impl Tried {
    /// In place of the count: the encoding that was tried last found its value in the register.
    const SHARED: u8 = u8::MAX >> 2;

    const fn nothing(own: u8) -> Self {
        Self(own & 3)
    }

    const fn own(self) -> u8 {
        self.0 & 3
    }

    /// Returns the number of encodings that were tried.
    const fn count(self) -> u8 {
        self.0 >> 2
    }

    /// Returns whether the encoding that was tried last gave its register the value.
    const fn gave_value(self) -> bool {
        self.count() != 0 && self.count() != Self::SHARED
    }

    const fn with_count(self, count: u8) -> Self {
        Self(self.own() | count << 2)
    }

    /// Returns the encoding with this number: the event's own comes first.
    const fn encoding(self, number: u8) -> u8 {
        match number.checked_sub(1) {
            None => self.own(),
            Some(other) if other < self.own() => other,
            Some(_) => number,
        }
    }
}

/// One step of the search.
#[derive(Clone, Copy)]
struct Step {
    /// Number of events that have encodings already.
    depth: usize,
    /// Number of encodings that the next event may have.
    encodings: u8,
    /// One more register may get a value.
    adds: bool,
}

impl Planner<'_> {
    /// Chooses encodings for the events of the plan such that no two need different values of one extra register, and
    /// none needs another value than a facility.
    /// Events on counters keep their encodings if possible. Returns `false`, with the plan as it was, if there are no
    /// such encodings.
    pub(crate) fn choose_encodings(&mut self) -> bool {
        let mut refined = Refined { running: CounterSet::NONE, others: CounterSet::NONE };
        for counter in self.plan.counters().iter() {
            let Some(placed) = self.plan.at(counter) else { continue };
            if self.table().entry(placed.event).is_some_and(EventEntry::has_extra) {
                let runs = self.running(placed.event).is_some();
                let alike = if runs { &mut refined.running } else { &mut refined.others };
                *alike = *alike | counter.only();
            }
        }
        self.search(refined, refined.running.len()) || self.search(refined, 0)
    }

    /// Tries for the first event each register that has no value yet, and then chooses for the others. Prefers a
    /// register that already holds the value: sharing it costs the other events nothing. So each step of the search
    /// gives one more register its value. The first `kept` events keep their encodings.
    #[inline(never)]
    fn search(&mut self, refined: Refined, kept: usize) -> bool {
        let mut all = [Tried(0); MAX_COUNTERS];
        let (mut depth, mut registers, mut goes_back) = (0, 0, false);
        loop {
            let Some(counter) = refined.nth(depth) else { return true };
            let Some((placed, tried)) = self.plan.at(counter).zip(all.get_mut(depth)) else {
                return false;
            };
            if !goes_back {
                *tried = Tried::nothing(placed.encoding);
            }
            // The register that got its value by this encoding has none again.
            registers -= usize::from(tried.gave_value());
            let encodings = if depth < kept { 1 } else { MAX_ENCODINGS };
            let step = Step { depth, encodings, adds: registers < MAX_REGISTERS };
            let next = self.next_encoding(refined, step, placed.event, tried);
            let encoding = next.unwrap_or(tried.own());
            self.plan.set(counter, Some(Placement { encoding, ..placed }));
            goes_back = next.is_none();
            if goes_back {
                let Some(before) = depth.checked_sub(1) else { return false };
                depth = before;
            } else {
                registers += usize::from(tried.gave_value());
                depth += 1;
            }
        }
    }

    /// Returns the next encoding of an event to try: the first whose register has the value; if there is none, each
    /// whose register has no value.
    fn next_encoding(
        &self,
        refined: Refined,
        step: Step,
        event: EventId,
        tried: &mut Tried,
    ) -> Option<u8> {
        let entry = self.table().entry(event)?;
        let value = |number| {
            let register = entry.extra_register(tried.encoding(number))?;
            Some(self.value_of(refined, step.depth, register))
        };
        // First a register that has the value, then one that has none.
        let mut wanted = if tried.count() == 0 { Some(entry.extra_value()) } else { None };
        loop {
            let number =
                (tried.count()..step.encodings).find(|number| value(*number) == Some(wanted));
            match (number, wanted) {
                (Some(number), Some(_)) => {
                    *tried = tried.with_count(Tried::SHARED);
                    return Some(tried.encoding(number));
                }
                (None, Some(_)) => wanted = None,
                (Some(number), None) if step.adds => {
                    *tried = tried.with_count(number + 1);
                    return Some(tried.encoding(number));
                }
                (_, None) => return None,
            }
        }
    }

    /// Returns the value that the first `events` events give a register.
    #[inline(never)] // Linked once: both searches for a register ask.
    fn value_of(&self, refined: Refined, events: usize, register: MsrAddress) -> Option<u64> {
        for number in 0..events {
            let placed = self.plan.at(refined.nth(number)?)?;
            let entry = self.table().entry(placed.event)?;
            if entry.extra_register(placed.encoding) == Some(register) {
                return Some(entry.extra_value());
            }
        }
        None
    }
}
