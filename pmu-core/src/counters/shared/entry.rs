//! One opened event: its select, its total, its times, and its turn in rotation.

use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, fence};

use crate::access::address::{OptionalAddress, RegisterAddress};
use crate::branches::filter::PackedFilter;
use crate::counters::events::count::{EventCount, Membership};
use crate::counters::events::event::{Event, GuestMode};
use crate::counters::events::saved::SavedEvent;
use crate::counters::names::CounterSet;
use crate::counters::registers::counter::{Counter, EventSelect};
use crate::counters::registers::unit::CounterUnit;
use crate::counters::shared::extra_registers::SharedExtra;
use crate::counters::shared::period::{SharedPeriod, Waiting, since_record};
use crate::counters::shared::rate::SharedRate;
use crate::precise::request::PackedPrecise;

/// State of an opened event.
///
/// ```text
///          open             start: a counter is free
/// Closed ────────► Stopped ──────────────────────────► Counting ◄────────┐
///    ▲              ▲  │ │                                 │             │ rotate, switch in
///    │ close,       │  │ │ start: none, and it rotates     ▼             │
///    │ switch out   │  │ └─────────────────────────────► Waiting ────────┘
///    │              │  │                                   another event took its counter
///    │              │  ├─► Uncountable: this type of core cannot count it, or one of its group
///    │              │  └─► Refused: switched in, no counter is free, and it does not rotate
///    │              │           │
///    └──────────────┴───────────┘ stop, from each of these; close and switch out, too
/// ```
///
/// An event whose counter faulted stays `Counting`, on no counter, until a task enables or disables it. If it faulted
/// as the tick began a period, it is `Refused`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventState {
    /// The entry is free.
    Closed,
    Stopped,
    /// Started, and waiting for its turn.
    Waiting,
    /// On a counter.
    Counting,
    /// Started, but no counter was free for the event as it was switched in, or its counter faulted in a tick.
    Refused,
    /// Started; this processor cannot count the event, or another event of its group.
    Uncountable,
}

/// Declares the members of an open event that a [`SavedEvent`] has, too, with the same names and types.
macro_rules! shared_members {
    ($($member:ident: $cell:ident = $zero:expr;)+) => {
        #[derive(Debug)]
        #[repr(C)]
        struct SharedMembers {
            $($member: $cell,)+
        }

        impl SharedMembers {
            const fn new() -> Self {
                Self { $($member: $cell::new($zero),)+ }
            }

            fn store(&self, event: &SavedEvent) {
                $(self.$member.store(event.$member, Relaxed);)+
            }

            fn load_into(&self, event: &mut SavedEvent) {
                $(event.$member = self.$member.load(Relaxed);)+
            }
        }
    };
}

// In this order: what comes first is reached by shorter instructions.
shared_members! {
    total_wanted: AtomicBool = false;
    rotates: AtomicBool = false;
    attributes: AtomicU16 = 0;
    core_type: AtomicU32 = 0;
    membership: AtomicU64 = 0;
    select: AtomicU64 = 0;
    tag: AtomicU64 = 0;
    counters: AtomicU64 = 0;
}

/// An event as the facilities of a processor adapt it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnProcessor {
    /// Select of the event that is counted, perhaps in the event's place.
    pub(crate) select: EventSelect,
    pub(crate) counters: CounterSet,
    /// The extra register of a latency.
    pub(crate) latency: Option<RegisterAddress>,
}

/// Memory for one event in an [`EventTable`](crate::memory::EventTable).
///
/// Tasks change an entry. While the event is on a counter, [`service`](crate::service) also changes the event's total
/// and the remainder of the event's period.
#[derive(Debug)]
#[repr(C)]
pub struct EventEntry {
    state: AtomicU8,
    /// This processor can count the event.
    countable: AtomicBool,
    /// The [filter](PackedFilter) of the branches of its samples; 0 for none.
    branches: AtomicU16,
    turn: AtomicU32,
    members: SharedMembers,
    extra: SharedExtra,
    pub(crate) period: SharedPeriod,
    pub(crate) rate: SharedRate,
    pub(crate) total: AtomicU64,
    /// The counter's value up to which the total counts. Of a [software event](crate::SoftwareEvent), the total at
    /// which the period ends.
    pub(crate) counted_to: AtomicU64,
    enabled: AtomicU64,
    running: AtomicU64,
    /// Time up to which the enabled and the running time are added up.
    timed_to: AtomicU64,
    /// Number of events that came to this place.
    opening: AtomicU64,
    /// Parts of the enabled and the running time, in 256ths, that no longer count for the event's
    /// [share](EventEntry::share).
    forgotten: [AtomicU64; 2],
}

impl EventEntry {
    /// Creates an entry that no event uses.
    pub const fn new() -> Self {
        Self {
            state: AtomicU8::new(EventState::Closed as u8),
            countable: AtomicBool::new(false),
            branches: AtomicU16::new(0),
            turn: AtomicU32::new(0),
            members: SharedMembers::new(),
            extra: SharedExtra::new(),
            period: SharedPeriod::new(),
            rate: SharedRate::new(),
            total: AtomicU64::new(0),
            counted_to: AtomicU64::new(0),
            enabled: AtomicU64::new(0),
            running: AtomicU64::new(0),
            timed_to: AtomicU64::new(0),
            opening: AtomicU64::new(0),
            forgotten: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Opens an event on a processor, by the select and the counters that the processor has for it.
    pub(crate) fn open(
        &self,
        event: &Event,
        processor: &CounterUnit,
        (select, counters): (EventSelect, CounterSet),
    ) {
        self.insert(&SavedEvent::resolved(event, processor, select, counters), true);
    }

    /// Puts a switched-out event into this entry. `countable` is set if this processor can count the event.
    #[inline(never)] // 48 bytes of the glue, at `opt-level` 3.
    pub(crate) fn insert(&self, event: &SavedEvent, countable: bool) {
        self.opening.fetch_add(1, Relaxed);
        fence(Release); // Another processor that reads this event's count finds its number, too.
        self.countable.store(countable, Relaxed);
        self.members.store(event);
        self.extra.store(&event.extra);
        self.branches.store(event.branches.bits(), Relaxed);
        self.period.store(event.period);
        self.rate.store(event.rate);
        self.total.store(event.count.value, Relaxed);
        self.enabled.store(event.count.enabled, Relaxed);
        self.running.store(event.count.running, Relaxed);
        for (shared, time) in self.forgotten.iter().zip(event.forgotten) {
            shared.store(time, Relaxed);
        }
        self.timed_to.store(0, Relaxed);
        // Last: until then the entry is closed, and no interrupt finds the event.
        self.set_state(EventState::Stopped);
    }

    /// Returns the event as data, after it was detached from its counter.
    #[inline(never)] // Inlined, the parts are moved one by one. 144 bytes of the glue.
    pub(crate) fn extract(&self) -> SavedEvent {
        // Part by part: a literal has all of them in registers before it stores the first.
        let mut event = SavedEvent::NONE;
        event.enabled = self.state() as u8 >= EventState::Waiting as u8;
        self.members.load_into(&mut event);
        event.extra = self.extra.load();
        event.branches = self.branches();
        event.period = self.period.load();
        event.rate = self.rate.load();
        event.count = self.count();
        for (time, shared) in event.forgotten.iter_mut().zip(&self.forgotten) {
            *time = shared.load(Relaxed);
        }
        event
    }

    pub(crate) fn opening(&self) -> u64 {
        self.opening.load(Relaxed)
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
        // An encoding is kept as the bits in which it differs from the first.
        let difference = self.extra.differences.load(Relaxed) >> (16 * (self.encoding() & 3));
        EventSelect::from_bits(self.members.select.load(Relaxed) ^ difference & 0xFFFF)
    }

    pub(crate) fn membership(&self) -> Membership {
        Membership::unpack(self.members.membership.load(Relaxed))
    }

    /// Returns the number of the present encoding.
    pub(crate) fn encoding(&self) -> u8 {
        self.membership().encoding
    }

    pub(crate) fn set_membership(&self, membership: Membership) {
        self.members.membership.store(membership.pack(), Relaxed);
    }

    /// Returns the filter of the branches that the event's samples have.
    #[inline]
    pub(crate) fn branches(&self) -> PackedFilter {
        PackedFilter::of_bits(self.branches.load(Relaxed))
    }

    /// Returns what the event asks of precise sampling.
    #[inline]
    pub(crate) fn precise(&self) -> PackedPrecise {
        PackedPrecise::of_bits(self.members.attributes.load(Relaxed))
    }

    pub(crate) fn is_precise(&self) -> bool {
        !self.precise().is_none()
    }

    /// Returns the extra register of the present encoding.
    pub(crate) fn register(&self) -> Option<RegisterAddress> {
        self.extra_register(self.encoding())
    }

    /// Returns the extra register of an encoding.
    pub(crate) fn extra_register(&self, encoding: u8) -> Option<RegisterAddress> {
        self.extra.registers.get(usize::from(encoding))?.load().get()
    }

    /// Returns the value that the extra registers of all encodings are to have.
    pub(crate) fn extra_value(&self) -> u64 {
        self.extra.value.load(Relaxed)
    }

    pub(crate) fn guest_mode(&self) -> GuestMode {
        GuestMode::of_bits(self.members.attributes.load(Relaxed))
    }

    pub(crate) fn counters(&self) -> CounterSet {
        CounterSet::from_bits(self.members.counters.load(Relaxed))
    }

    /// Makes the event what the facilities of this processor need it to be. What was asked for is kept: the counters in
    /// bits that stand for no counter, and the select as a difference.
    pub(crate) fn adapt(&self, here: &OnProcessor) {
        let asked = self.counters().bits();
        let kept = (asked & 0xFFFF) << 16 | (asked & 0xFF << 32) << 8;
        self.members.counters.store(here.counters.bits() | kept, Relaxed);
        if let Some(register) = here.latency {
            self.extra.registers[0].store(OptionalAddress::some(register));
        } else if self.register().is_none() {
            let (asked, select) = (self.members.select.load(Relaxed), here.select.select_bits());
            self.members.select.store(select, Relaxed);
            self.extra.differences.store((asked ^ select) << 32, Relaxed);
        }
    }

    /// Confines the event, which is on no counter, to these counters, too.
    pub(crate) fn narrow(&self, counters: CounterSet) {
        self.members.counters.fetch_and(counters.bits() | !CounterSet::ALL.bits(), Relaxed);
    }

    /// Keeps the event from these general counters; from none again if `counters` is 0.
    pub(crate) fn confine(&self, counters: u16) {
        let bits = self.members.counters.load(Relaxed);
        // While the event is confined, its general counters are in the bits above those of any counter.
        let all = bits | bits >> 48 & 0xFFFF;
        let confined = match counters {
            0 => all & !(0xFFFF << 48),
            from => all & !u64::from(from) | all << 48,
        };
        self.members.counters.store(confined, Relaxed);
    }

    /// Returns whether this processor can count the event.
    pub(crate) fn is_countable(&self) -> bool {
        self.countable.load(Relaxed)
    }

    /// Notes that the processor recorded an overflow: see [`SharedPeriod::recorded`].
    pub(crate) fn recorded(&self, reloaded: u64) -> bool {
        self.period.recorded(reloaded, self.rate.is_throttled())
    }

    /// Silences the event until it is enabled again. A tick that comes meanwhile may let it go on if it was throttled.
    pub(crate) fn silence(&self) {
        self.period.silence();
        while self.rate.is_throttled() {
            self.rate.unthrottle();
            self.period.silence();
        }
    }

    /// Returns whether user mode may read the event's counter by RDPMC.
    pub(crate) fn permits_user_rdpmc(&self) -> bool {
        self.select().select_bits() & EventSelect::NO_USER_RDPMC == 0
    }

    /// Returns whether the event's enabled time runs.
    pub(crate) fn is_enabled(&self) -> bool {
        !matches!(self.state(), EventState::Closed | EventState::Stopped | EventState::Refused)
    }

    pub(crate) fn rotates(&self) -> bool {
        self.members.rotates.load(Relaxed)
    }

    pub(crate) fn turn(&self) -> u32 {
        self.turn.load(Relaxed)
    }

    pub(crate) fn set_turn(&self, turn: u32) {
        self.turn.store(turn, Relaxed);
    }

    #[inline]
    pub(crate) fn wants_total(&self) -> bool {
        self.members.total_wanted.load(Relaxed)
    }

    /// Makes the event's times count from `now` on. The event stays stopped.
    #[inline(never)] // 32 bytes of the glue.
    pub(crate) fn begin_time(&self, now: u64) {
        // In this order: a sample that waited may throttle the event in between, and the tick ends that.
        self.rate.unthrottle();
        self.period.report_again();
        self.continue_time(now);
    }

    /// Makes the event's times count from `now` on, and lets it be silent or throttled if it is. The event stays
    /// stopped.
    #[inline(always)]
    pub(crate) fn continue_time(&self, now: u64) {
        // An event that was refused is refused again if it finds no counter.
        if self.state() != EventState::Refused {
            self.set_state(EventState::Stopped);
        }
        self.skip_time(now);
    }

    /// Adds the time up to `now`. If the clock went back, nothing is added until the clock has passed the previous
    /// `now`. `runs` is clear if the event's counter has faulted.
    #[inline(never)] // 448 bytes of the glue, at `opt-level` 3.
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
            // This time does not count for the event's share.
            EventState::Uncountable => add(&self.forgotten[0], passed << 8),
        }
        add(&self.enabled, passed);
    }

    /// Returns the parts of the enabled and the running time, in 256ths, that count for the event's share.
    fn recent(&self) -> [u64; 2] {
        let [enabled, running] = &self.forgotten;
        let recent = |time: &AtomicU64, forgotten: &AtomicU64| {
            (time.load(Relaxed) << 8).wrapping_sub(forgotten.load(Relaxed))
        };
        [recent(&self.enabled, enabled), recent(&self.running, running)]
    }

    /// Forgets a 16th of the recent times of an enabled event, so that about 16 rotations count. Without a clock, adds
    /// a unit of time first.
    pub(crate) fn forget(&self, has_clock: bool, runs: bool) {
        if !matches!(self.state(), EventState::Waiting | EventState::Counting) {
            return;
        }
        let units = if has_clock { [0; 2] } else { [1 << 8, u64::from(runs) << 8] };
        for ((forgotten, recent), unit) in self.forgotten.iter().zip(self.recent()).zip(units) {
            // Without a clock the times stand still. A unit of time is then added by forgetting less, below zero if
            // need be: `recent` subtracts modulo 2^64.
            let more = (recent.wrapping_add(unit) / 16).wrapping_sub(unit);
            forgotten.store(forgotten.load(Relaxed).wrapping_add(more), Relaxed);
        }
    }

    /// Returns the event's share, in units of 2⁻³¹: the part of its recent enabled time in which it was on a counter.
    /// The share of an event that was not enabled recently is 1.
    #[inline(never)] // 112 bytes of the glue.
    pub(crate) fn share(&self) -> u32 {
        let [enabled, running] = self.recent();
        // Both times are cut to 32 bits, so that the quotient's 31 bits of fraction fit. The running time is never the
        // longer one.
        let shift = u32::BITS.saturating_sub(enabled.leading_zeros());
        let share = ((running >> shift) << 31).checked_div(enabled >> shift);
        share.map_or(1 << 31, |share| share as u32)
    }

    /// Skips the time up to `now`: it is added to none of the event's times.
    pub(crate) fn skip_time(&self, now: u64) {
        self.timed_to.store(self.timed_to.load(Relaxed).max(now), Relaxed);
    }

    /// Returns the count as of the counter's last reading, or of the event's stop.
    pub(crate) fn count(&self) -> EventCount {
        EventCount {
            value: self.total.load(Relaxed),
            enabled: self.enabled.load(Relaxed),
            running: self.running.load(Relaxed),
        }
    }

    /// Adds a child's count. The event's share stays the same. The interrupt path may add to the total between any two
    /// instructions, on this processor.
    pub(crate) fn add_count(&self, child: EventCount) {
        // Atomic additions: the event may be on a counter, whose interrupt also adds to the total.
        self.total.fetch_add(child.value, Relaxed);
        self.rate.add_count(child.value);
        self.enabled.fetch_add(child.enabled, Relaxed);
        self.running.fetch_add(child.running, Relaxed);
        for (forgotten, time) in self.forgotten.iter().zip([child.enabled, child.running]) {
            forgotten.fetch_add(time << 8, Relaxed);
        }
    }

    /// Returns the count as of `now`, without adding up the times. `runs`: as in [`add_time`](Self::add_time).
    pub(crate) fn count_at(&self, now: u64, runs: bool) -> EventCount {
        let (passed, count) = (now.saturating_sub(self.timed_to.load(Relaxed)), self.count());
        let [enabled, running] = match self.state() {
            EventState::Closed | EventState::Stopped | EventState::Refused => [0, 0],
            EventState::Counting if runs => [passed, passed],
            EventState::Waiting | EventState::Counting | EventState::Uncountable => [passed, 0],
        };
        EventCount {
            enabled: count.enabled.wrapping_add(enabled),
            running: count.running.wrapping_add(running),
            ..count
        }
    }

    /// Returns the total so far, and the counter's value to which it corresponds.
    pub(crate) fn accumulated(&self) -> (u64, u64) {
        (self.total.load(Relaxed), self.counted_to.load(Relaxed))
    }

    /// Adds to the total.
    pub(crate) fn add(&self, more: u64) {
        self.total.store(self.total.load(Relaxed).wrapping_add(more), Relaxed);
    }

    /// Takes over the times of the event of which this one is a part.
    pub(crate) fn take_times(&self, of: &Self) {
        self.enabled.store(of.enabled.load(Relaxed), Relaxed);
        self.running.store(of.running.load(Relaxed), Relaxed);
    }

    /// Returns whether the event is a [part](crate::Event::part) of another one: no counter can count it.
    pub(crate) fn is_part(&self) -> bool {
        self.is_without_counter() && !self.is_software()
    }

    /// Returns whether the event takes no counter.
    pub(crate) fn is_without_counter(&self) -> bool {
        self.members.counters.load(Relaxed) == 0
    }

    /// Returns the select as it was stored: the bits that all encodings have.
    pub(crate) fn members_select(&self) -> EventSelect {
        EventSelect::from_bits(self.members.select.load(Relaxed))
    }

    /// Returns the time since the times were added up.
    pub(crate) fn time_since(&self, now: u64) -> u64 {
        now.saturating_sub(self.timed_to.load(Relaxed))
    }

    /// Notes that the counter was loaded with `value`.
    #[inline]
    pub(crate) fn loaded(&self, value: u64) {
        self.counted_to.store(value, Relaxed);
    }

    /// Adds the events that the counter counted up to `value`. Correct across a wrap, because the counter was loaded
    /// at half its range or beyond.
    #[inline]
    pub(crate) fn accumulate(&self, value: u64, mask: u64) {
        let counted = value.wrapping_sub(self.counted_to.swap(value, Relaxed)) & mask;
        // No atomic addition: while the event is on a counter, only the interrupt path adds what was counted, and
        // afterwards only a task.
        self.total.store(self.total.load(Relaxed).wrapping_add(counted), Relaxed);
    }

    /// Adds the events that the counter counted up to its wrap. The counter was not loaded since, and continues from
    /// 0.
    #[inline]
    pub(crate) fn accumulate_wrap(&self, mask: u64) {
        let counted = mask.wrapping_add(1).wrapping_sub(self.counted_to.swap(0, Relaxed));
        self.total.store(self.total.load(Relaxed).wrapping_add(counted), Relaxed);
    }

    /// Returns whether the counter of an event without a period has wrapped since it was loaded. From then on the
    /// counter's value alone does not show the next wrap.
    #[inline(never)] // 144 bytes of the glue, at `opt-level` 3.
    pub(crate) fn has_wrapped(&self) -> bool {
        !self.period.reports() && self.counted_to.load(Relaxed) == 0
    }

    /// Adds what was counted up to the last of the records that wait of the event's counter.
    pub(crate) fn accumulate_records(&self, waiting: Waiting, registers: &Counter) {
        let (total, counted_to) = waiting.added_to(self.accumulated(), registers);
        self.total.store(total, Relaxed);
        self.counted_to.store(counted_to, Relaxed);
    }

    /// Adds the events since a value that a precise event's counter is known to have had.
    pub(crate) fn accumulate_precise(&self, value: u64, mask: u64) {
        let counted = since_record(value, self.counted_to.swap(value, Relaxed), mask);
        self.total.store(self.total.load(Relaxed).wrapping_add(counted), Relaxed);
    }

    /// Returns the caller's tag of the event.
    pub(crate) fn tag(&self) -> u64 {
        self.members.tag.load(Relaxed)
    }
}

impl Default for EventEntry {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
