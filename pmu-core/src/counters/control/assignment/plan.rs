//! A plan: which event is to be on which counter.

use core::num::NonZero;

use crate::access::address::RegisterAddress;
use crate::counters::control::assignment::planner::Planner;
use crate::counters::control::handle::CounterSession;
use crate::counters::error::CounterError;
use crate::counters::events::resolve::MAX_ENCODINGS;
use crate::counters::names::{CounterId, CounterSet, EventId, MAX_COUNTERS};
use crate::counters::shared::core_counters::{CoreThread, InUse};
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::extra_registers::MAX_REGISTERS;
use crate::counters::shared::slot::SlotState;
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

/// An event on a counter, counted by one of its encodings: the event's identity, and the encoding above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement(NonZero<u16>);

impl Placement {
    // Without it, row 0 by its first encoding would be 0, which stands for no event.
    const PRESENT: NonZero<u16> = NonZero::new(1 << 15).unwrap();

    const FIRST_OF_ENCODING: u32 = 12;

    /// `encoding` is below 4.
    pub(crate) fn new(event: EventId, encoding: u8) -> Self {
        let encoding = u16::from(encoding & 3) << Self::FIRST_OF_ENCODING;
        Self(Self::PRESENT | encoding | event.bits())
    }

    pub(crate) const fn event(self) -> EventId {
        EventId::of_bits(self.0.get())
    }

    pub(crate) const fn encoding(self) -> u8 {
        (self.0.get() >> Self::FIRST_OF_ENCODING & 3) as u8
    }
}

/// The event that each counter has, or is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    on: [Option<Placement>; MAX_COUNTERS],
    /// The counters that have an event.
    used: CounterSet,
}

/// The event of a group for which there is no room, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacementError {
    pub(crate) event: EventId,
    pub(crate) reason: CounterError,
}

impl Plan {
    pub(crate) const EMPTY: Self = Self { on: [None; MAX_COUNTERS], used: CounterSet::NONE };

    #[inline(never)] // 144 bytes of the glue.
    pub(crate) fn at(&self, counter: CounterId) -> Option<Placement> {
        self.on.get(counter.place()).copied().flatten()
    }

    #[inline(never)] // Linked once: each step of a plan sets counters. 64 bytes of the glue.
    pub(crate) fn set(&mut self, counter: CounterId, placed: Option<Placement>) {
        if let Some(on) = self.on.get_mut(counter.place()) {
            *on = placed;
            let others = self.used.without(counter.only());
            self.used = if placed.is_some() { others | counter.only() } else { others };
        }
    }

    /// Returns the counters that have an event.
    pub(crate) const fn counters(&self) -> CounterSet {
        self.used
    }

    /// Returns the counters whose event another plan does not have there, or has with another encoding.
    // Linked once: a change compares its plans both ways.
    #[inline(never)] // 560 bytes of the Hermit-like glue, at `opt-level` 3.
    pub(crate) fn besides(&self, other: &Self) -> CounterSet {
        self.used.retain(|counter| self.at(counter) != other.at(counter))
    }

    /// Returns the events.
    pub(crate) fn events(&self) -> impl Iterator<Item = EventId> {
        self.used.iter().filter_map(|counter| self.at(counter).map(Placement::event))
    }

    /// Returns an event's counter.
    // Linked once: each step of a plan looks for events.
    #[inline(never)] // 768 bytes of the Hermit-like glue, at `opt-level` 3.
    pub(crate) fn find(&self, event: EventId) -> Option<CounterId> {
        self.used.iter().find(|counter| self.at(*counter).map(Placement::event) == Some(event))
    }

    pub(crate) fn remove(&mut self, event: EventId) {
        if let Some(counter) = self.find(event) {
            self.set(counter, None);
        }
    }
}

impl<S: EventSource, H: Hardware> CounterSession<'_, S, H> {
    /// Writes the present assignment into `plan`.
    #[inline(never)] // 496 bytes of the glue, at `opt-level` 3.
    pub(crate) fn present(&self, plan: &mut Plan) {
        *plan = Plan::EMPTY;
        for (counter, slot) in self.slots() {
            if let Some(event) = slot.running() {
                let encoding = self.table().entry(event).map_or(0, EventEntry::encoding);
                plan.set(counter, Some(Placement::new(event, encoding)));
            }
        }
    }

    /// Plans for an event, with counters that the core's other logical processor leaves to it, and claims them.
    // Inlined into its few callers, for the sake of the stack.
    #[inline(always)]
    pub(crate) fn plan_beside(
        &self,
        planner: &mut Planner<'_>,
        event: EventId,
        great: Option<u32>,
    ) -> Result<(), NoRoom> {
        let Some(thread) = self.source.core_thread() else { return planner.plan(event, great) };
        let others = thread.others();
        let taken = CounterSet::from_bits(others.exclusive.into());
        planner.counters = planner.counters.without(taken);
        // For this plan only: an event that corrupts counters of the other logical processor stays off those it uses.
        self.confine(&thread, others.counters);
        let planned = planner.plan(event, great);
        self.confine(&thread, 0);
        planned?;
        // Both assignments: until the plan is applied, the events count where they are, and after a failure they stay
        // there.
        let mut wanted = self.used(&thread);
        self.add_plan(&thread, &planner.plan, &mut wanted);
        // The other processor may have claimed one of them meanwhile.
        if thread.claim(wanted) { Ok(()) } else { Err(NoRoom { event, register: 0 }) }
    }

    /// Declares which counters are in use now, after a change. Events of groups that take none follow them.
    pub(crate) fn settle_core(&self) {
        self.settle_software();
        if let Some(thread) = self.source.core_thread() {
            thread.keep(self.used(&thread));
        }
    }

    /// Claims these counters for rows that are restored.
    pub(crate) fn claim_rows(
        &self,
        counters: CounterSet,
        mut rows: impl Iterator<Item = usize>,
    ) -> bool {
        self.source.core_thread().is_none_or(|thread| {
            let corrupts = |row| self.row_select(row).is_some_and(|event| thread.corrupts(event));
            let mut wanted = self.used(&thread);
            wanted.add(counters, rows.any(corrupts));
            thread.claim(wanted)
        })
    }

    /// Keeps the events that corrupt the other processor's counters from these counters.
    fn confine(&self, thread: &CoreThread<'_>, from: u16) {
        for (_, entry) in self.table().opened() {
            if thread.corrupts(entry.select()) {
                entry.confine(from);
            }
        }
    }

    /// Returns the counters that are in use at present. A counter that faulted is presumed running.
    fn used(&self, thread: &CoreThread<'_>) -> InUse {
        let (mut used, own) = (InUse::default(), thread.own());
        for (counter, slot) in self.slots() {
            let is_exclusive = match slot.load() {
                SlotState::Free => continue,
                SlotState::Running { event, .. } | SlotState::Parked { event } => {
                    self.corrupts(thread, event)
                }
                // The counter's event is not known any more, so what was claimed for it stays claimed.
                SlotState::Faulted => u64::from(own.exclusive) & counter.only().bits() != 0,
            };
            used.add(counter.only() & CounterSet::GENERAL, is_exclusive);
        }
        used
    }

    fn add_plan(&self, thread: &CoreThread<'_>, plan: &Plan, used: &mut InUse) {
        for counter in (plan.counters() & CounterSet::GENERAL).iter() {
            let placed = plan.at(counter);
            let is_exclusive = placed.is_some_and(|placed| self.corrupts(thread, placed.event()));
            used.add(counter.only(), is_exclusive);
        }
    }

    fn corrupts(&self, thread: &CoreThread<'_>, event: EventId) -> bool {
        match (event.row(), self.table().entry(event)) {
            (Some(row), _) => self.row_select(row).is_some_and(|select| thread.corrupts(select)),
            (None, Some(entry)) => thread.corrupts(entry.select()),
            (None, None) => false,
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

/// The counters whose events have extra registers, in the order of the search: those of events that run come first.
#[derive(Clone, Copy)]
struct Refined {
    running: CounterSet,
    others: CounterSet,
}

impl Refined {
    #[inline(never)] // Linked once: each loop over the events asks for one. 32 bytes of the glue.
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
            if self.table().entry(placed.event()).is_some_and(EventEntry::has_extra) {
                let runs = self.running(placed.event()).is_some();
                let alike = if runs { &mut refined.running } else { &mut refined.others };
                *alike = *alike | counter.only();
            }
        }
        // An event that runs would have to be stopped and started again for another encoding.
        self.search(refined, refined.running.len()) || self.search(refined, 0)
    }

    /// Tries for the first event each register that has no value yet, and then chooses for the others. Prefers a
    /// register that already holds the value: sharing it costs the other events nothing. So each step of the search
    /// gives one more register its value. The first `kept` events keep their encodings.
    fn search(&mut self, refined: Refined, kept: usize) -> bool {
        // A byte per event, because plans are made on the stack of a context switch.
        let mut all = [Tried(0); MAX_COUNTERS];
        let (mut depth, mut registers, mut goes_back) = (0, 0, false);
        loop {
            let Some(counter) = refined.nth(depth) else { return true };
            let Some((placed, tried)) = self.plan.at(counter).zip(all.get_mut(depth)) else {
                return false;
            };
            if !goes_back {
                *tried = Tried::nothing(placed.encoding());
            }
            // The register that got its value by this encoding has none again.
            registers -= usize::from(tried.gave_value());
            let encodings = if depth < kept { 1 } else { MAX_ENCODINGS };
            // A session can write, and later restore, no more registers than this.
            let step = Step { depth, encodings, adds: registers < MAX_REGISTERS };
            let next = self.next_encoding(refined, step, placed.event(), tried);
            let encoding = next.unwrap_or(tried.own());
            self.plan.set(counter, Some(Placement::new(placed.event(), encoding)));
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
    fn value_of(&self, refined: Refined, events: usize, register: RegisterAddress) -> Option<u64> {
        for number in 0..events {
            let placed = self.plan.at(refined.nth(number)?)?;
            let entry = self.table().entry(placed.event())?;
            if entry.extra_register(placed.encoding()) == Some(register) {
                return Some(entry.extra_value());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_gives_back_what_was_placed_in_two_bytes_per_counter() {
        assert_eq!(size_of::<Plan>(), 2 * MAX_COUNTERS + size_of::<CounterSet>());
        let mut plan = Plan::EMPTY;
        let counters = [CounterId::general(0), CounterId::general(15), CounterId::fixed(7)];
        let events = [EventId::of_row(0), EventId::of_index(0x7FF), EventId::of_index(0)];
        for encoding in 0..4 {
            for (counter, event) in counters.into_iter().flatten().zip(events) {
                let placed = Placement::new(event, encoding);
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
