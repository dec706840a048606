//! The count of an event, its period, and its place in a group.

use crate::counters::names::{CounterId, EventId, GenericEvent};

/// Count of an event, with two times: how long the event was enabled, and how long the event was on a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventCount {
    /// Number of occurrences that were counted after the event was opened. Only occurrences while the event was on a
    /// counter are included.
    pub value: u64,
    /// Time for which the event was enabled, in the units of the caller's clock.
    pub enabled: u64,
    /// Time for which the event was on a counter, in the units of the caller's clock.
    pub running: u64,
}

impl EventCount {
    /// Returns the count extrapolated to the whole time for which the event was enabled. Returns `None` if the event
    /// was never on a counter, or if the result exceeds 64 bits.
    ///
    /// ```
    /// # use pmu_core::EventCount;
    /// // The event was enabled for 300 units of time, and was on a counter for 100 of them.
    /// let count = EventCount { value: 5_000, enabled: 300, running: 100 };
    /// assert_eq!(count.scaled(), Some(15_000));
    /// assert_eq!(EventCount::default().scaled(), None); // Never on a counter.
    /// ```
    pub fn scaled(&self) -> Option<u64> {
        let scaled = u128::from(self.value) * u128::from(self.enabled);
        scaled.checked_div(self.running.into())?.try_into().ok()
    }
}

/// One overflow of an event. The interrupt path reports overflows in this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventOverflow {
    /// The event that overflowed.
    pub event: EventId,
    /// The event's period. The overflow stands for this number of occurrences of the event.
    pub period: u64,
    /// The counter that overflowed.
    pub counter: CounterId,
    /// The event's [tag](crate::Event::tagged). During [`switch_in`](crate::CounterSession::switch_in), an overflow can
    /// be reported before the caller knows the event's new [identity](Self::event). The handler then identifies the
    /// event by its tag. The tag of a [profile source](crate::profile) is not the caller's.
    pub tag: u64,
}

/// The period of an event while the event is in no table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Period {
    /// Events between two reports, from the next report on; 0: no reports.
    pub(crate) every: u64,
    /// Period that the next report stands for.
    pub(crate) current: u64,
    /// Events of that period beyond those that the counter is loaded with.
    pub(crate) left: u64,
    /// Events that the counter is to be loaded with; 0: a period begins.
    pub(crate) resume: u64,
}

impl Period {
    /// Shortest period, unless a table has another minimum.
    pub(crate) const DEFAULT_MIN: u64 = 0x1000;

    /// Longest period.
    pub(crate) const MAX: u64 = i64::MAX as u64;

    /// Bit of `every`, above any period: the event does not report until it is enabled again. No counter ever gets to
    /// the end of such a period.
    pub(crate) const SILENT: u64 = 1 << 63;

    /// Creates a period that has not begun.
    pub(crate) const fn new(every: u64) -> Self {
        Self { every, current: 0, left: 0, resume: 0 }
    }

    /// Returns the period of an event that reports again, if it had stopped reporting: a whole one.
    pub(crate) const fn reporting(self) -> Self {
        if self.every & Self::SILENT == 0 { self } else { Self::new(self.every & !Self::SILENT) }
    }
}

/// The rate of one event, as data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Rate {
    /// Samples per second that are wanted; 0: the event keeps its period.
    pub(crate) hertz: u32,
    /// Interrupts with samples in this tick, or [`THROTTLED`](Self::THROTTLED).
    pub(crate) in_tick: u16,
    /// Samples of the last interrupt that had any.
    pub(crate) batch: u8,
    /// The low bits of the tick's number.
    pub(crate) tick: u8,
    /// Time of the last interrupt that had a sample; 0: unknown.
    pub(crate) sampled_at: u64,
    /// The event's count at the last tick.
    pub(crate) counted: u64,
}

impl Rate {
    /// The event has had the last sample of its tick. It is silent, and not because anything else silenced it.
    pub(crate) const THROTTLED: u16 = u16::MAX;

    /// Creates the rate of an event without samples.
    pub(crate) const fn new(hertz: u32) -> Self {
        Self { hertz, in_tick: 0, batch: 0, tick: 0, sampled_at: 0, counted: 0 }
    }

    pub(crate) const fn is_throttled(&self) -> bool {
        self.in_tick == Self::THROTTLED
    }

    /// Ends the event's throttle.
    pub(crate) const fn unthrottle(&mut self) {
        if self.is_throttled() {
            self.in_tick = 0;
        }
    }
}

/// An event's group, present encoding, name and flags, in 8 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Membership {
    /// 0: the event is ungrouped.
    pub(crate) group: u32,
    /// Number of events of the group.
    pub(crate) members: u8,
    /// Present encoding.
    pub(crate) encoding: u8,
    /// Bit of the generic event's name; 0xFF: it has none.
    pub(crate) name: u8,
    /// Those below.
    pub(crate) flags: u8,
    /// Members of the group whose overflow reloads the event's counter, one bit each of six.
    pub(crate) reload: u8,
}

impl Membership {
    /// User mode may read the event's counter.
    pub(crate) const USER_READS: u8 = 1 << 0;

    /// The event is not counted with its group.
    pub(crate) const DISABLED: u8 = 1 << 1;

    /// No other event is counted while this one is, except those of its group.
    pub(crate) const EXCLUSIVE: u8 = 1 << 2;

    /// The event has an [extra register](crate::Event::with_extra).
    pub(crate) const EXTRA: u8 = 1 << 3;

    /// The event counts in guests only, by the value of the global control register with which guests run.
    pub(crate) const IN_GUESTS: u8 = 1 << 4;

    /// The event is the first of its group.
    pub(crate) const FIRST: u8 = 1 << 5;

    /// The event's overflow reloads counters of its group.
    pub(crate) const RELOADS: u8 = 1 << 7;

    /// The list of a processor's events does not contain the event.
    pub(crate) const UNLISTED: u8 = 1 << 6;

    /// Creates the word of an ungrouped event in its first encoding.
    pub(crate) const fn ungrouped(name: Option<GenericEvent>, flags: u8) -> Self {
        let name = match name {
            Some(name) => name as u8,
            None => u8::MAX,
        };
        Self { group: 0, members: 0, encoding: 0, name, flags, reload: 0 }
    }

    /// Returns whether the event is in the group of this other event.
    pub(crate) const fn is_of_group(self, other: Self) -> bool {
        self.group != 0 && self.group == other.group
    }

    pub(crate) fn name(self) -> Option<GenericEvent> {
        GenericEvent::of_bit(self.name)
    }

    /// Returns whether any of these flags is set.
    pub(crate) const fn has(self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Sets or clears flags.
    pub(crate) const fn with(self, flags: u8, set: bool) -> Self {
        let flags = if set { self.flags | flags } else { self.flags & !flags };
        Self { flags, ..self }
    }

    pub(crate) const fn pack(self) -> u64 {
        let Self { group, members, encoding, name, flags, reload } = self;
        let [a, b, c, d] = group.to_le_bytes();
        u64::from_le_bytes([a, b, c, d, members, encoding & 3 | reload << 2, name, flags])
    }

    pub(crate) const fn unpack(bits: u64) -> Self {
        let [.., members, encoding, name, flags] = bits.to_le_bytes();
        let (encoding, reload) = (encoding & 3, encoding >> 2);
        Self { group: bits as u32, members, encoding, name, flags, reload }
    }
}
