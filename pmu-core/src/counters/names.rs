//! Identities of counters, events and groups.

use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::num::NonZero;
use core::ops::{BitAnd, BitOr, Not};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// Greatest number of general counters in a [`CounterUnit`](crate::CounterUnit). The SDM calls these counters
/// general-purpose counters.
pub const MAX_GENERAL: usize = 16;

/// Greatest number of fixed counters in a [`CounterUnit`](crate::CounterUnit). The control register that all fixed
/// counters share has no room for more.
pub const MAX_FIXED: usize = 8;

/// Number of [`CounterSlot`](crate::memory::CounterSlot)s that suffices for the counters of any processor.
pub const MAX_COUNTERS: usize = MAX_GENERAL + MAX_FIXED;

/// One counter of a processor, identified by its bit in the global control register: general counters from bit 0,
/// fixed counters from bit 32 on.
///
/// ```
/// use pmu_core::registers::CounterId;
/// assert_eq!(CounterId::fixed(1).map(CounterId::bit), Some(33));
/// assert_eq!(CounterId::general(16), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterId(u8);

impl CounterId {
    const FIRST_FIXED: u8 = 32;

    /// The unit that samples fetches (AMD's IBS), if the session's facility drives
    /// [sampling units](crate::facility::EventFacility::UNITS). Such processors have no fixed counters.
    pub const FETCH_UNIT: Self = Self(Self::FIRST_FIXED);

    /// The unit that samples ops (AMD's IBS).
    pub const OP_UNIT: Self = Self(Self::FIRST_FIXED + 1);

    /// Stands for no counter: the kernel's calls count the event, which is a
    /// [`SoftwareEvent`](crate::SoftwareEvent).
    pub const SOFTWARE: Self = Self(63);

    /// Returns the general counter with this number, or `None` if `number` is [`MAX_GENERAL`] or greater.
    pub const fn general(number: u8) -> Option<Self> {
        if number < MAX_GENERAL as u8 { Some(Self(number)) } else { None }
    }

    /// Returns the fixed counter with this number, or `None` if `number` is [`MAX_FIXED`] or greater.
    pub const fn fixed(number: u8) -> Option<Self> {
        if number < MAX_FIXED as u8 { Some(Self(number + Self::FIRST_FIXED)) } else { None }
    }

    /// Returns the number of the counter's bit in the [global registers](crate::registers::GlobalRegisters).
    #[inline]
    pub const fn bit(self) -> u8 {
        self.0
    }

    /// Returns the counter's number, counted from 0 separately for general and for fixed counters.
    #[inline]
    pub const fn number(self) -> u8 {
        self.0 % Self::FIRST_FIXED
    }

    /// Returns whether the counter is a fixed counter.
    #[inline]
    pub const fn is_fixed(self) -> bool {
        self.0 >= Self::FIRST_FIXED
    }

    /// Returns its place among all counters that there can be, below [`MAX_COUNTERS`].
    #[inline]
    pub(crate) const fn place(self) -> usize {
        let first = if self.is_fixed() { MAX_GENERAL } else { 0 };
        first + self.number() as usize
    }

    /// Returns the set that contains only this counter.
    #[inline]
    pub const fn only(self) -> CounterSet {
        CounterSet(1 << self.0)
    }
}

impl fmt::Debug for CounterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::SOFTWARE {
            return f.write_str("no counter");
        }
        let kind = if self.is_fixed() { "fixed" } else { "general" };
        write!(f, "{kind} counter {}", self.number())
    }
}

impl fmt::Display for CounterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A set of a processor's counters. The set is a mask in which each counter has the same bit as in the global control
/// register. The counters need not be adjacent.
///
/// ```
/// use pmu_core::CounterSet;
/// use pmu_core::registers::CounterId;
/// let set = CounterSet::from_bits(0b1001) | CounterSet::fixed(0b1);
/// assert_eq!(set.bits(), 1 << 32 | 0b1001);
/// assert_eq!(set.iter().map(CounterId::bit).collect::<Vec<_>>(), [0, 3, 32]);
/// assert!(!set.contains(CounterId::general(1).unwrap()));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterSet(u64);

impl CounterSet {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// The set of the general counters that a processor can have.
    pub const GENERAL: Self = Self((1 << MAX_GENERAL) - 1);

    /// The set of the fixed counters that a processor can have.
    pub const FIXED: Self = Self(((1 << MAX_FIXED) - 1) << CounterId::FIRST_FIXED);

    /// The set of the [sampling units](crate::facility::EventFacility::UNITS) that a processor can have. They take the
    /// places of fixed counters, which such processors lack.
    pub const UNITS: Self = Self(0b11 << CounterId::FIRST_FIXED);

    /// The set of all counters that a processor can have.
    pub const ALL: Self = Self(Self::GENERAL.0 | Self::FIXED.0);

    /// Returns the set of the counters whose bits are set in `bits`. Bits that stand for no counter are ignored.
    ///
    /// ```
    /// # use pmu_core::CounterSet;
    /// // Bits 0 to 3 and 32: four general counters and a fixed one. No counter has bit 63.
    /// let counters = CounterSet::from_bits(1 << 63 | 1 << 32 | 0b1111);
    /// assert_eq!(counters.len(), 5);
    /// assert_eq!(counters.iter().filter(|counter| counter.is_fixed()).count(), 1);
    /// ```
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self::ALL.of_bits(bits)
    }

    /// Returns the set of the fixed counters whose bits are set in `numbers`: bit *n* stands for fixed counter *n*. If
    /// `numbers` is 0, the set is empty.
    pub const fn fixed(numbers: u8) -> Self {
        Self::from_bits((numbers as u64) << CounterId::FIRST_FIXED)
    }

    /// Returns the set as a mask, in which each counter has the same bit as in the global control register.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns whether the set is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of counters in the set.
    #[inline(never)] // 112 bytes of the glue.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns whether the set has one counter.
    pub(crate) const fn is_one(self) -> bool {
        self.0.is_power_of_two()
    }

    /// Returns whether `counter` is in the set.
    #[inline]
    pub const fn contains(self, counter: CounterId) -> bool {
        self.0 >> counter.0 & 1 != 0
    }

    /// Returns the counters of the set, in ascending order of their bits.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = CounterId> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let first = NonZero::new(left)?;
            left &= left.wrapping_sub(1);
            Some(CounterId(first.trailing_zeros() as u8))
        })
    }

    /// Returns the counter with the lowest bit.
    pub(crate) fn first(self) -> Option<CounterId> {
        self.nth(0)
    }

    /// Returns the counter with this number, from 0, ascending by bit.
    pub(crate) fn nth(self, number: usize) -> Option<CounterId> {
        self.iter().nth(number)
    }

    /// Returns the counter with the highest bit.
    pub(crate) const fn last(self) -> Option<CounterId> {
        match self.0.checked_ilog2() {
            Some(bit) => Some(CounterId(bit as u8)),
            None => None,
        }
    }

    /// Returns the subset whose bits are set.
    #[inline]
    pub(crate) const fn of_bits(self, bits: u64) -> Self {
        Self(self.0 & bits)
    }

    /// Returns the counters of this set that are not in `others`.
    ///
    /// ```
    /// # use pmu_core::CounterSet;
    /// # use pmu_core::registers::CounterId;
    /// let watchdog = CounterSet::fixed(1 << 1);
    /// let own = CounterSet::ALL.without(watchdog);
    /// assert!(!own.contains(CounterId::fixed(1).unwrap()) && own.len() == CounterSet::ALL.len() - 1);
    /// ```
    #[inline]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Returns the counters for which `keep` is true, called in ascending order.
    pub(crate) fn retain(self, mut keep: impl FnMut(CounterId) -> bool) -> Self {
        let mut kept = self;
        for counter in self.iter() {
            if !keep(counter) {
                kept = kept.without(counter.only());
            }
        }
        kept
    }
}

impl FromIterator<CounterId> for CounterSet {
    fn from_iter<C: IntoIterator<Item = CounterId>>(counters: C) -> Self {
        counters.into_iter().fold(Self::NONE, |set, counter| set | counter.only())
    }
}

impl BitOr for CounterSet {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for CounterSet {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for CounterSet {
    type Output = Self;
    #[inline]
    fn not(self) -> Self {
        Self(!self.0 & Self::ALL.0)
    }
}

impl fmt::Debug for CounterSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CounterSet({:#X})", self.0)
    }
}

/// The identity of an event on a processor's counters. The event was opened on this processor, or is a row in the table
/// of the processor's [`EventSource`](crate::EventSource).
///
/// An operation on an event refuses an identity whose event was closed, also if another event has its place by then:
/// that of [`open`](crate::CounterSession::open), of [`switch_in`](crate::CounterSession::switch_in) or of
/// [`group_events`](crate::CounterSession::group_events) knows by which of the last 32,768 openings in its place it
/// came about.
///
/// Identities of one place are equal, whatever event is in the place. The identity in a
/// [`Sample`](crate::Sample) names the event that is in the place now: the interrupt path compares no opening.
// The low half is the place or the row. The high half is the opening: its number, with the highest bit set; 0: whatever
// event is in the place.
#[derive(Clone, Copy)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventId(u32);

impl PartialEq for EventId {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.bits() == other.bits()
    }
}

impl Eq for EventId {}

impl PartialOrd for EventId {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for EventId {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.bits().cmp(&other.bits())
    }
}

impl Hash for EventId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bits().hash(state);
    }
}

impl EventId {
    /// A slot has 12 bits for an identity.
    const MASK: u16 = 0xFFF;

    /// From here on: opened events, by their places in an [`EventTable`](crate::memory::EventTable).
    const FIRST_OPENED: u16 = 0x800;

    #[inline]
    pub(crate) const fn of_bits(bits: u16) -> Self {
        Self((bits & Self::MASK) as u32)
    }

    #[inline]
    pub(crate) const fn bits(self) -> u16 {
        self.0 as u16
    }

    /// Returns the identity of the event that came to its place by the opening of this number.
    pub(crate) const fn of_opening(self, number: u64) -> Self {
        let opening = number as u16 | 0x8000;
        Self(self.bits() as u32 | (opening as u32) << 16)
    }

    /// Returns whether it names the event that came to its place by this opening.
    #[inline]
    pub(crate) const fn is_of_opening(self, number: u64) -> bool {
        let opening = self.0 >> 16;
        opening == 0 || (opening ^ number as u32) & 0x7FFF == 0
    }

    /// Returns the identity of the event of a row.
    #[inline]
    pub(crate) const fn of_row(row: usize) -> Self {
        Self::of_bits(row as u16 & (Self::FIRST_OPENED - 1))
    }

    /// Returns the event's row in the [`EventSource`](crate::EventSource)'s table, or `None` for an opened event.
    #[inline]
    pub const fn row(self) -> Option<usize> {
        if self.bits() < Self::FIRST_OPENED { Some(self.bits() as usize) } else { None }
    }

    /// Returns the identity of the opened event whose index in its [`EventTable`](crate::memory::EventTable) is
    /// `index`: of whatever event is there.
    pub const fn of_index(index: usize) -> Self {
        Self::of_bits(Self::FIRST_OPENED | index as u16 & (Self::FIRST_OPENED - 1))
    }

    /// Returns the index of an opened event in its [`EventTable`](crate::memory::EventTable). Returns `None` for a row
    /// of the [`EventSource`](crate::EventSource)'s table.
    ///
    /// ```
    /// # use pmu_core::EventId;
    /// /// Finds a kernel's own data of an opened event, by the event's index in the table.
    /// fn data_of<T>(all: &[T], event: EventId) -> Option<&T> {
    ///     all.get(event.index()?)
    /// }
    /// assert_eq!(data_of(&["first", "second"], EventId::of_index(1)), Some(&"second"));
    /// ```
    #[inline]
    pub const fn index(self) -> Option<usize> {
        match self.bits().checked_sub(Self::FIRST_OPENED) {
            Some(place) => Some(place as usize),
            None => None,
        }
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index() {
            Some(place) => write!(f, "opened event {place}"),
            None => write!(f, "event of row {}", self.bits()),
        }
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The number of a group. It is unique in the machine until 2³² groups were made, and stays the same when the group
/// moves to another processor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupId(NonZero<u32>);

impl GroupId {
    pub(crate) fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        loop {
            if let Some(group) = Self::of_bits(LAST.fetch_add(1, Relaxed).wrapping_add(1)) {
                return group;
            }
        }
    }

    /// Returns the group with this number; 0: none.
    pub(crate) fn of_bits(bits: u32) -> Option<Self> {
        NonZero::new(bits).map(Self)
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0.get()
    }
}

/// An event that both Intel's and AMD's processors have, under one name.
///
/// Source: SDM vol. 3B, "Pre-defined Architectural Performance Events"; AMD's processor programming references. AMD's
/// encodings of these events differ from Intel's.
///
/// ```
/// use pmu_core::{CounterUnit, GenericEvent};
/// // Lists a processor's generic events. `CounterUnit::NONE` stands for a unit that a vendor crate detects.
/// let unit = CounterUnit::NONE;
/// assert!(GenericEvent::ALL.iter().all(|event| unit.generic(*event).is_none()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum GenericEvent {
    /// Cycles of the core's clock, at the core's present frequency, counted while the core is not halted.
    Cycles,
    /// Instructions retired.
    Instructions,
    /// Cycles of a clock of constant frequency, counted while the core is not halted. The clock is the TSC's clock on
    /// AMD processors from Zen 4 on, and on Intel's fixed counter 2. If an Intel processor has no fixed counter 2, the
    /// processor's manual names the clock.
    ReferenceCycles,
    /// On Intel, accesses to the last-level cache. On AMD's Zen processors, accesses to the second-level cache.
    CacheReferences,
    /// Those [`CacheReferences`](Self::CacheReferences) that missed the cache.
    CacheMisses,
    /// Branch instructions retired.
    Branches,
    /// Mispredicted branch instructions retired.
    BranchMisses,
}

impl GenericEvent {
    /// The number of generic events.
    pub const COUNT: usize = 7;

    /// All generic events, in the order of their bits in EBX of CPUID leaf 0x0A.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Cycles,
        Self::Instructions,
        Self::ReferenceCycles,
        Self::CacheReferences,
        Self::CacheMisses,
        Self::Branches,
        Self::BranchMisses,
    ];

    /// Returns the architectural event of this number, its bit in EBX of CPUID leaf 0x0A.
    pub(crate) fn of_bit(bit: u8) -> Option<Self> {
        Self::ALL.get(usize::from(bit)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_bits_of_counters_alone() {
        for bits in [0, 1, 0x8001, 1 << 32, 0x81_0000_0101] {
            let set = CounterSet::from_bits(bits);
            assert_eq!(set.bits(), bits);
        }
        assert_eq!(CounterSet::from_bits(u64::MAX), CounterSet::ALL);
        assert_eq!(!CounterSet::ALL, CounterSet::NONE);
    }
}
