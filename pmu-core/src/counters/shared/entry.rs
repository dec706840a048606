//! One opened event: its select, total, times and turn.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

use crate::counters::events::count::EventCount;
use crate::counters::events::event::{Event, GuestMode};
use crate::counters::events::extra::Extra;
use crate::counters::events::membership::Membership;
use crate::counters::events::stopped::StoppedEvent;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::names::group_id::GroupId;
use crate::counters::registers::select::EventSelect;
use crate::msr::MsrAddress;

/// State of an opened event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventState {
    /// The place is free.
    Closed,
    Stopped,
    /// Started, and waiting for a counter.
    Waiting,
    /// On a counter.
    Counting,
    /// Started elsewhere; here it found no counter.
    Refused,
    /// Started; this processor cannot count it, or another event of its group.
    Uncountable,
}

/// One place of an [`EventTable`](crate::EventTable).
///
/// The control path alone changes it, but for the total and the rest of the period, which are the interrupt
/// path's while the event is on a counter.
// In this order: what comes first is reached by shorter instructions.
#[derive(Debug)]
#[repr(C)]
pub struct EventEntry {
    state: AtomicU8,
    total_wanted: AtomicBool,
    rotates: AtomicBool,
    guest: AtomicU8,
    turn: AtomicU32,
    core_type: AtomicU32,
    /// This processor can count it.
    countable: AtomicBool,
    membership: AtomicU64,
    extra_value: AtomicU64,
    extra_registers: [AtomicU64; 2],
    extra_differences: AtomicU64,
    select: AtomicU64,
    tag: AtomicU64,
    counters: AtomicU64,
    /// Events between two reports, from the next one on; 0: no reports.
    period: AtomicU64,
    /// Period that the next report stands for.
    current: AtomicU64,
    /// Events of that period beyond those that the counter is loaded with.
    left: AtomicU64,
    /// Events that the counter is to be loaded with; 0: a period begins.
    resume: AtomicU64,
    total: AtomicU64,
    /// The counter's value up to which the total counts.
    counted_to: AtomicU64,
    enabled: AtomicU64,
    running: AtomicU64,
    /// Time up to which both are added up.
    timed_to: AtomicU64,
    /// Both times, in 256ths, up to which they are forgotten for the event's [share](EventEntry::share).
    forgotten: [AtomicU64; 2],
}

/// Stores two values.
#[inline]
fn store_all([first, second]: &[AtomicU64; 2], values: [u64; 2]) {
    first.store(values[0], Relaxed);
    second.store(values[1], Relaxed);
}

impl EventEntry {
    /// Creates an unused place.
    pub const fn new() -> Self {
        Self {
            state: AtomicU8::new(EventState::Closed as u8),
            total_wanted: AtomicBool::new(false),
            rotates: AtomicBool::new(false),
            guest: AtomicU8::new(0),
            turn: AtomicU32::new(0),
            core_type: AtomicU32::new(0),
            countable: AtomicBool::new(false),
            membership: AtomicU64::new(0),
            extra_value: AtomicU64::new(0),
            extra_registers: [const { AtomicU64::new(0) }; 2],
            extra_differences: AtomicU64::new(0),
            select: AtomicU64::new(0),
            tag: AtomicU64::new(0),
            counters: AtomicU64::new(0),
            period: AtomicU64::new(0),
            current: AtomicU64::new(0),
            left: AtomicU64::new(0),
            resume: AtomicU64::new(0),
            total: AtomicU64::new(0),
            counted_to: AtomicU64::new(0),
            enabled: AtomicU64::new(0),
            running: AtomicU64::new(0),
            forgotten: [const { AtomicU64::new(0) }; 2],
            timed_to: AtomicU64::new(0),
        }
    }

    /// Opens the event here, stopped, with the `select` and the `counters` that it resolves to.
    pub(crate) fn open(
        &self,
        event: &Event,
        select: EventSelect,
        counters: CounterSet,
        core_type: u32,
    ) {
        let guest = event.guest as u8;
        let opened = StoppedEvent {
            started: false,
            total_wanted: event.total,
            rotates: event.rotates,
            guest,
            core_type,
            membership: Membership::alone(event.name(), event.user_rdpmc).pack(),
            extra: event.extra,
            select: select.select_bits(),
            tag: event.tag,
            counters: counters.bits(),
            period: event.period,
            current: 0,
            left: 0,
            resume: 0,
            count: EventCount::default(),
            forgotten: [0; 2],
        };
        self.insert(&opened, true);
    }

    /// Puts a stopped event here, which this processor can count, or cannot.
    pub(crate) fn insert(&self, event: &StoppedEvent, countable: bool) {
        self.core_type.store(event.core_type, Relaxed);
        self.countable.store(countable, Relaxed);
        self.total_wanted.store(event.total_wanted, Relaxed);
        self.rotates.store(event.rotates, Relaxed);
        self.guest.store(event.guest, Relaxed);
        self.membership.store(event.membership, Relaxed);
        self.extra_value.store(event.extra.value, Relaxed);
        store_all(&self.extra_registers, event.extra.registers);
        self.extra_differences.store(event.extra.differences, Relaxed);
        self.select.store(event.select, Relaxed);
        self.tag.store(event.tag, Relaxed);
        self.counters.store(event.counters, Relaxed);
        self.period.store(event.period, Relaxed);
        self.current.store(event.current, Relaxed);
        self.left.store(event.left, Relaxed);
        self.resume.store(event.resume, Relaxed);
        self.total.store(event.count.value, Relaxed);
        self.enabled.store(event.count.enabled, Relaxed);
        self.running.store(event.count.running, Relaxed);
        store_all(&self.forgotten, event.forgotten);
        self.timed_to.store(0, Relaxed);
        self.set_state(EventState::Stopped);
    }

    /// Returns the event as data, after its counter was taken from it.
    pub(crate) fn extract(&self) -> StoppedEvent {
        StoppedEvent {
            started: self.state() as u8 >= EventState::Waiting as u8,
            total_wanted: self.wants_total(),
            rotates: self.rotates(),
            guest: self.guest.load(Relaxed),
            core_type: self.core_type.load(Relaxed),
            membership: self.membership.load(Relaxed),
            extra: self.extra(),
            select: self.select.load(Relaxed),
            tag: self.tag(),
            counters: self.counters.load(Relaxed),
            period: self.period.load(Relaxed),
            current: self.current.load(Relaxed),
            left: self.left.load(Relaxed),
            resume: self.resume.load(Relaxed),
            count: self.count(),
            forgotten: self.forgotten.each_ref().map(|time| time.load(Relaxed)),
        }
    }

    #[inline]
    pub(crate) fn state(&self) -> EventState {
        match self.state.load(Relaxed) {
            0 => EventState::Closed,
            1 => EventState::Stopped,
            2 => EventState::Waiting,
            3 => EventState::Counting,
            4 => EventState::Refused,
            _ => EventState::Uncountable,
        }
    }

    pub(crate) fn set_state(&self, state: EventState) {
        self.state.store(state as u8, Relaxed);
    }

    /// Returns the select of the present encoding.
    pub(crate) fn select(&self) -> EventSelect {
        let difference = self.extra_differences.load(Relaxed) >> (16 * (self.encoding() & 3));
        EventSelect::from_bits(self.select.load(Relaxed) ^ difference & 0xFFFF)
    }

    pub(crate) fn membership(&self) -> Membership {
        Membership::unpack(self.membership.load(Relaxed))
    }

    /// Returns the place of the present encoding.
    pub(crate) fn encoding(&self) -> u8 {
        self.membership().encoding
    }

    pub(crate) fn set_encoding(&self, encoding: u8) {
        self.membership.store(Membership { encoding, ..self.membership() }.pack(), Relaxed);
    }

    /// Returns the extra registers of its encodings, and their value.
    fn extra(&self) -> Extra {
        Extra {
            value: self.extra_value(),
            registers: self.extra_registers.each_ref().map(|registers| registers.load(Relaxed)),
            differences: self.extra_differences.load(Relaxed),
        }
    }

    /// Returns the extra register of the present encoding.
    pub(crate) fn register(&self) -> Option<MsrAddress> {
        self.extra_register(self.encoding())
    }

    pub(crate) fn has_extra(&self) -> bool {
        self.extra_registers[0].load(Relaxed) != 0
    }

    /// Returns the extra register of an encoding.
    pub(crate) fn extra_register(&self, encoding: u8) -> Option<MsrAddress> {
        let [first, second] = &self.extra_registers;
        let pair = if encoding < 2 { first } else { second };
        Extra::register_of(pair.load(Relaxed), encoding)
    }

    /// Returns the value of the extra registers of its encodings.
    pub(crate) fn extra_value(&self) -> u64 {
        self.extra_value.load(Relaxed)
    }

    /// Returns the group to which it belongs.
    pub(crate) fn group(&self) -> Option<GroupId> {
        GroupId::of_bits(self.membership().group)
    }

    pub(crate) fn is_grouped(&self) -> bool {
        self.group().is_some()
    }

    /// Returns the number of events of its group.
    pub(crate) fn members(&self) -> u8 {
        self.membership().members
    }

    /// Puts it into a group of so many events.
    pub(crate) fn set_group(&self, group: GroupId, members: u8) {
        let membership = Membership { group: group.bits(), members, ..self.membership() };
        self.membership.store(membership.pack(), Relaxed);
    }

    pub(crate) fn guest_mode(&self) -> GuestMode {
        match self.guest.load(Relaxed) {
            0 => GuestMode::Everywhere,
            1 => GuestMode::GuestOnly,
            _ => GuestMode::HostOnly,
        }
    }

    pub(crate) fn counters(&self) -> CounterSet {
        CounterSet::from_bits(self.counters.load(Relaxed))
    }

    /// Returns whether this processor can count it.
    pub(crate) fn is_countable(&self) -> bool {
        self.countable.load(Relaxed)
    }

    pub(crate) fn rotates(&self) -> bool {
        self.rotates.load(Relaxed)
    }

    pub(crate) fn turn(&self) -> u32 {
        self.turn.load(Relaxed)
    }

    pub(crate) fn set_turn(&self, turn: u32) {
        self.turn.store(turn, Relaxed);
    }

    /// Sets the period that begins next.
    pub(crate) fn set_period(&self, period: u64) {
        self.period.store(period, Relaxed);
    }

    /// Returns whether it interrupts.
    pub(crate) fn has_period(&self) -> bool {
        self.period.load(Relaxed) != 0
    }

    #[inline]
    pub(crate) fn wants_total(&self) -> bool {
        self.total_wanted.load(Relaxed)
    }

    /// Counts its times from `now` on, stopped.
    pub(crate) fn begin_time(&self, now: u64) {
        // One that was refused is again, if it finds no counter.
        if self.state() != EventState::Refused {
            self.set_state(EventState::Stopped);
        }
        self.add_time(now, false);
    }

    /// Adds the time up to `now`. One before the last adds nothing, and neither does the clock's way back from it.
    /// `runs`: its counter, if it is on one, has not faulted.
    pub(crate) fn add_time(&self, now: u64, runs: bool) {
        let before = self.timed_to.load(Relaxed);
        let passed = now.saturating_sub(before);
        self.timed_to.store(before + passed, Relaxed);
        let add =
            |time: &AtomicU64, more| time.store(time.load(Relaxed).wrapping_add(more), Relaxed);
        match self.state() {
            EventState::Closed | EventState::Stopped | EventState::Refused => return,
            EventState::Counting if runs => add(&self.running, passed),
            EventState::Waiting | EventState::Counting => {}
            // It has no share of this time to claim.
            EventState::Uncountable => add(&self.forgotten[0], passed << 8),
        }
        add(&self.enabled, passed);
    }

    /// Returns both times, in 256ths, as far as they are not forgotten.
    fn recent(&self) -> [u64; 2] {
        let [enabled, running] = &self.forgotten;
        let recent = |time: &AtomicU64, forgotten: &AtomicU64| {
            (time.load(Relaxed) << 8).wrapping_sub(forgotten.load(Relaxed))
        };
        [recent(&self.enabled, enabled), recent(&self.running, running)]
    }

    /// Forgets a 16th of the recent times of a started event, so that about 16 rotations count. Without a clock, adds a
    /// unit before.
    pub(crate) fn forget(&self, has_clock: bool, runs: bool) {
        if !matches!(self.state(), EventState::Waiting | EventState::Counting) {
            return;
        }
        let units = if has_clock { [0; 2] } else { [1 << 8, u64::from(runs) << 8] };
        for ((forgotten, recent), unit) in self.forgotten.iter().zip(self.recent()).zip(units) {
            let more = (recent.wrapping_add(unit) / 16).wrapping_sub(unit);
            forgotten.store(forgotten.load(Relaxed).wrapping_add(more), Relaxed);
        }
    }

    /// Returns the part of the recent time in which it was started that it had a counter, of 2³¹. All of it: it was
    /// not started recently.
    pub(crate) fn share(&self) -> u32 {
        let [enabled, running] = self.recent();
        let shift = u32::BITS.saturating_sub(enabled.leading_zeros());
        let share = ((running >> shift) << 31).checked_div(enabled >> shift);
        share.map_or(1 << 31, |share| share as u32)
    }

    /// Lets the time up to `now` pass uncounted.
    pub(crate) fn skip_time(&self, now: u64) {
        self.timed_to.fetch_max(now, Relaxed);
    }

    /// Returns the count as of the counter's last reading, or of the event's stop.
    pub(crate) fn count(&self) -> EventCount {
        EventCount {
            value: self.total.load(Relaxed),
            enabled: self.enabled.load(Relaxed),
            running: self.running.load(Relaxed),
        }
    }

    /// Returns the total so far, and the counter's value up to which it is.
    pub(crate) fn booked(&self) -> (u64, u64) {
        (self.total.load(Relaxed), self.counted_to.load(Relaxed))
    }

    /// Notes that the counter was loaded with `value`.
    #[inline]
    pub(crate) fn loaded(&self, value: u64) {
        self.counted_to.store(value, Relaxed);
    }

    /// Returns the period that was over when the counter was taken.
    pub(crate) fn ended_period(&self) -> u64 {
        self.current.load(Relaxed)
    }

    /// Adds the events that the counter counted up to `value`. Correct over a wrap, for the counter was loaded at
    /// half its range or beyond.
    #[inline]
    pub(crate) fn book(&self, value: u64, mask: u64) {
        let counted = value.wrapping_sub(self.counted_to.swap(value, Relaxed)) & mask;
        self.total.store(self.total.load(Relaxed).wrapping_add(counted), Relaxed);
    }

    /// Adds the events that the counter counted up to its wrap. It was not loaded since, and continues from 0.
    #[inline]
    pub(crate) fn book_wrap(&self, mask: u64) {
        let counted = mask.wrapping_add(1).wrapping_sub(self.counted_to.swap(0, Relaxed));
        self.total.store(self.total.load(Relaxed).wrapping_add(counted), Relaxed);
    }

    /// Returns whether the counter of an event without a period has wrapped since it was loaded. From then on its
    /// value alone does not show the next wrap.
    pub(crate) fn counts_on(&self) -> bool {
        !self.has_period() && self.counted_to.load(Relaxed) == 0
    }

    /// Returns the number of events that a counter of this reach is loaded with as it begins or resumes.
    pub(crate) fn first_piece(&self, reach: u64) -> u64 {
        match self.resume.swap(0, Relaxed) {
            0 => self.begin_period(reach),
            // Another counter's reach may be shorter, and so may a period that was set since.
            resume => match self.left.load(Relaxed).saturating_add(resume) {
                left if left <= self.period.load(Relaxed) => self.take_piece(left, reach),
                _ => self.begin_period(reach),
            },
        }
    }

    /// Returns the number of events that the counter is loaded with after an overflow.
    #[inline]
    pub(crate) fn next_piece(&self, reach: u64) -> u64 {
        match self.left.load(Relaxed) {
            0 => self.begin_period(reach),
            left => self.take_piece(left, reach),
        }
    }

    /// Returns the period that ended with an overflow, if this was its last piece.
    #[inline]
    pub(crate) fn period_over(&self) -> Option<u64> {
        let over = self.current.load(Relaxed);
        (self.left.load(Relaxed) == 0 && over != 0).then_some(over)
    }

    /// Returns the caller's tag of the event.
    pub(crate) fn tag(&self) -> u64 {
        self.tag.load(Relaxed)
    }

    /// Begins a period, and returns its first piece. An event without a period wraps as late as it can: a wrap that
    /// the interrupt did not see would be lost.
    fn begin_period(&self, reach: u64) -> u64 {
        let period = self.period.load(Relaxed);
        self.current.store(period, Relaxed);
        self.take_piece(if period == 0 { reach } else { period }, reach)
    }

    /// Takes the next piece of a period: half of an amount slightly above the reach, so that no piece is so short
    /// that its interrupt comes at once.
    fn take_piece(&self, events: u64, reach: u64) -> u64 {
        let piece = match events {
            _ if events <= reach => events,
            _ if events / 2 < reach => events / 2,
            _ => reach,
        };
        self.left.store(events - piece, Relaxed);
        piece
    }

    /// Notes that the counter was taken from it with `events` to go.
    pub(crate) fn set_resume(&self, events: u64) {
        let interrupts = self.current.load(Relaxed) != 0;
        self.resume.store(if interrupts { events } else { 0 }, Relaxed);
    }

    /// Notes that the counter was taken from it with an overflow pending. Returns whether the period is over; it then
    /// begins anew.
    pub(crate) fn end_piece(&self) -> bool {
        let left = self.left.swap(0, Relaxed);
        self.resume.store(left, Relaxed);
        left == 0 && self.current.load(Relaxed) != 0
    }
}

impl Default for EventEntry {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(period: u64) -> EventEntry {
        let entry = EventEntry::new();
        entry.open(
            &Event { period, ..Event::raw(EventSelect::from_bits(0xC0)) },
            EventSelect::from_bits(0),
            CounterSet::ALL,
            0,
        );
        entry
    }

    #[test]
    fn the_pieces_of_a_period_add_up_to_it() {
        for (period, reach) in
            [(1, 100), (100, 100), (101, 100), (199, 100), (200, 100), (201, 100), (12_345, 100)]
        {
            let entry = entry(period);
            let mut sum = entry.first_piece(reach);
            let mut pieces = 1;
            loop {
                let over = entry.period_over();
                let next = entry.next_piece(reach);
                if let Some(over) = over {
                    assert_eq!((over, sum), (period, period));
                    break;
                }
                assert!(next <= reach && next >= reach / 2);
                sum += next;
                pieces += 1;
            }
            assert_eq!(pieces, period.div_ceil(reach), "{period}");
        }
    }

    #[test]
    fn a_period_that_changes_is_reported_as_it_was_loaded() {
        let entry = entry(1000);
        assert_eq!(entry.first_piece(100_000), 1000);
        entry.period.store(2000, Relaxed);
        assert_eq!((entry.period_over(), entry.next_piece(100_000)), (Some(1000), 2000));
        assert_eq!((entry.period_over(), entry.next_piece(100_000)), (Some(2000), 2000));
    }

    #[test]
    fn an_event_that_resumes_on_a_shorter_counter_loses_nothing() {
        let entry = entry(1000);
        assert_eq!(entry.first_piece(100_000), 1000);
        entry.set_resume(700);
        assert_eq!(entry.first_piece(400), 350);
        assert_eq!((entry.period_over(), entry.next_piece(400)), (None, 350));
        assert_eq!(entry.period_over(), Some(1000));
    }

    #[test]
    fn an_event_that_resumes_with_a_period_shorter_than_what_is_left_begins_that_period() {
        for (period, first) in [(699, 699), (700, 700), (701, 700), (1000, 700)] {
            let entry = entry(1000);
            assert_eq!(entry.first_piece(100_000), 1000);
            entry.set_resume(700);
            entry.set_period(period);
            assert_eq!(entry.first_piece(100_000), first, "{period}");
        }
    }

    #[test]
    fn a_total_counts_on_over_a_wrap() {
        let entry = entry(1000);
        entry.loaded(0xFFF0);
        entry.book(0xFFF8, 0xFFFF);
        entry.book(0x0005, 0xFFFF);
        assert_eq!(entry.count().value, 0x15);
    }

    #[test]
    fn what_is_only_counted_wraps_as_late_as_it_can_and_is_not_reported() {
        let entry = entry(0);
        assert_eq!(entry.first_piece(100), 100);
        assert_eq!((entry.period_over(), entry.next_piece(100)), (None, 100));
        entry.set_resume(7);
        assert_eq!(entry.first_piece(100), 100);
        assert!(!entry.end_piece());
    }

    #[test]
    fn time_runs_while_it_is_started_and_while_it_has_a_counter() {
        let entry = entry(1000);
        entry.add_time(100, false);
        entry.set_state(EventState::Waiting);
        entry.add_time(130, false);
        entry.set_state(EventState::Counting);
        entry.add_time(150, true);
        entry.add_time(140, true); // the clock goes back, and comes again
        entry.add_time(150, true);
        entry.add_time(160, false); // its counter has faulted
        entry.set_state(EventState::Stopped);
        entry.add_time(1000, false);
        let count = EventCount { value: 10, ..entry.count() };
        assert_eq!((count.enabled, count.running, count.scaled()), (60, 20, Some(30)));
        assert_eq!(EventCount { running: 0, ..count }.scaled(), None);
    }

    #[test]
    fn a_share_is_of_recent_time_by_a_clock_of_any_unit() {
        for unit in [1, 10, 1_000_003, 3_000_000_000, 1 << 48] {
            let entry = entry(1000);
            entry.add_time(7, false);
            assert_eq!(entry.share(), 1 << 31, "it was not started");
            let mut now = 7;
            let mut pass = |runs: bool, rotations: u32| {
                entry.set_state(if runs { EventState::Counting } else { EventState::Waiting });
                for _ in 0..rotations {
                    now += unit;
                    entry.add_time(now, runs);
                    entry.forget(true, runs);
                }
                f64::from(entry.share()) / f64::from(1_u32 << 31)
            };
            assert!((pass(true, 200) - 1.0).abs() < f64::EPSILON);
            // By then, (15/16)^16 of the former is left, or 0.356.
            let share = pass(false, 16);
            assert!((share - 0.356).abs() < 0.01, "{unit}: {share}");
            let share = pass(true, 16);
            assert!((share - (0.644 + 0.356 * 0.356)).abs() < 0.01, "{unit}: {share}");
        }
    }

    #[test]
    fn a_share_without_a_clock_is_of_rotations() {
        let entry = entry(1000);
        entry.forget(false, false);
        assert_eq!(entry.share(), 1 << 31, "it was not started");
        entry.set_state(EventState::Counting);
        entry.forget(false, true);
        entry.set_state(EventState::Waiting);
        entry.forget(false, false);
        let share = entry.share() >> 20;
        assert!((950..1024).contains(&share), "slightly less than a half: {share}");
        assert_eq!(entry.extract().count(), EventCount::default());
    }
}
