//! The counters of a core's two logical processors, where an event of one can corrupt the counters of the other.

use core::ops::RangeInclusive;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::counters::names::{CounterSet, MAX_GENERAL};
use crate::counters::registers::counter::EventSelect;

/// Memory that the two logical processors of a core share. These 8 bytes record which general counters are in use.
///
/// [`OnSharedCore`](crate::shared_core::OnSharedCore) gives this memory to the sessions of both logical processors.
#[derive(Debug, Default)]
pub struct CoreCounters {
    in_use: AtomicU64,
}

impl CoreCounters {
    /// Creates memory for a core whose counters are not in use.
    pub const fn new() -> Self {
        Self { in_use: AtomicU64::new(0) }
    }
}

/// One of the two logical processors of a core, with the range of event numbers that corrupt the other logical
/// processor's counters.
///
/// ```
/// use pmu_core::shared_core::{CoreCounters, CoreThread};
/// static CORE: CoreCounters = CoreCounters::new(); // one per core
/// // 0xD0 to 0xD3: what `pmu_intel::SiblingErratum` says of the processor.
/// let threads = [false, true].map(|second| CoreThread::new(&CORE, second, 0xD0..=0xD3));
/// # let _ = threads;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CoreThread<'a> {
    core: &'a CoreCounters,
    second: bool,
    /// The first and the last event number.
    events: [u16; 2],
}

/// General counters of a logical processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InUse {
    /// Counters that are in use.
    pub(crate) counters: u16,
    /// Counters whose number the other logical processor may not use.
    pub(crate) exclusive: u16,
}

impl InUse {
    pub(crate) fn add(&mut self, counters: CounterSet, is_exclusive: bool) {
        let bits = counters.bits() as u16;
        self.counters |= bits;
        self.exclusive |= if is_exclusive { bits } else { 0 };
    }

    const fn pack(self) -> u64 {
        self.counters as u64 | (self.exclusive as u64) << MAX_GENERAL
    }

    const fn unpack(bits: u64) -> Self {
        Self { counters: bits as u16, exclusive: (bits >> MAX_GENERAL) as u16 }
    }
}

impl<'a> CoreThread<'a> {
    /// Describes a logical processor of a core: the second one if `second` is set, otherwise the first. `events` is the
    /// range of event numbers that corrupt the counters of the other logical processor. Both logical processors have
    /// the same `core` and `events`.
    pub const fn new(core: &'a CoreCounters, second: bool, events: RangeInclusive<u16>) -> Self {
        Self { core, second, events: [*events.start(), *events.end()] }
    }

    /// Returns whether the event of a select corrupts the other processor's counter of the same number.
    pub(crate) fn corrupts(&self, select: EventSelect) -> bool {
        let [first, last] = self.events;
        (first..=last).contains(&select.event_number())
    }

    /// Returns the counters that the other logical processor uses.
    pub(crate) fn others(&self) -> InUse {
        InUse::unpack(self.core.in_use.load(Acquire) >> self.shift(!self.second))
    }

    /// Returns the counters that this logical processor uses.
    pub(crate) fn own(&self) -> InUse {
        InUse::unpack(self.core.in_use.load(Acquire) >> self.shift(self.second))
    }

    /// Declares the counters that this logical processor uses from now on, unless the other one's use forbids that.
    pub(crate) fn claim(&self, wanted: InUse) -> bool {
        // The other logical processor may claim at the same time, so the check and the claim are one exchange.
        let claimed = self.core.in_use.fetch_update(AcqRel, Acquire, |all| {
            let others = InUse::unpack(all >> self.shift(!self.second));
            let conflict = wanted.exclusive & others.counters | wanted.counters & others.exclusive;
            (conflict == 0).then_some(self.with(all, wanted))
        });
        claimed.is_ok()
    }

    /// Declares that this logical processor uses no counters but these, which it has claimed.
    pub(crate) fn keep(&self, used: InUse) {
        let keep = |all| Some(self.with(all, used));
        // One exchange, as the other logical processor may change its half meanwhile. It cannot fail: there is always a
        // value.
        let _ = self.core.in_use.fetch_update(AcqRel, Acquire, keep);
    }

    const fn with(&self, all: u64, own: InUse) -> u64 {
        let shift = self.shift(self.second);
        all & !(0xFFFF_FFFF << shift) | own.pack() << shift
    }

    const fn shift(&self, second: bool) -> u32 {
        if second { 32 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each side's use of one counter, and whether the second side may claim it: nothing, plain, of a memory event.
    #[test]
    fn a_claim_beside_the_other_processors_is_refused_where_one_of_both_is_exclusive() {
        let [none, plain, exclusive] =
            [(0, 0), (1, 0), (1, 1)].map(|(counters, exclusive)| InUse { counters, exclusive });
        for (first, second, allowed) in [
            (none, none, true),
            (none, plain, true),
            (none, exclusive, true),
            (plain, none, true),
            (plain, plain, true),
            (plain, exclusive, false),
            (exclusive, none, true),
            (exclusive, plain, false),
            (exclusive, exclusive, false),
        ] {
            for which in [false, true] {
                let core = CoreCounters::new();
                let thread = |second| CoreThread::new(&core, second, 0xD0..=0xD3);
                assert!(thread(which).claim(first));
                assert_eq!(thread(!which).claim(second), allowed, "{first:?}, {second:?}");
                let own = if allowed { second } else { none };
                assert_eq!([thread(which).own(), thread(!which).own()], [first, own]);
                assert_eq!(thread(which).others(), own);
                thread(which).keep(none);
                assert!(thread(!which).claim(second));
            }
        }
        assert_eq!(size_of::<CoreCounters>(), 8);
    }

    #[test]
    fn events_are_told_by_their_number_with_any_unit_mask() {
        let core = CoreCounters::new();
        let thread = CoreThread::new(&core, false, 0xD0..=0xD3);
        let corrupts = |select| thread.corrupts(EventSelect::from_bits(select));
        assert!([0xD0, 0x81D0, 0x20D1, 0x1_04D2, 0x01D3].into_iter().all(corrupts));
        assert!(![0xCF, 0xD4, 0xC0, 0xD0C0].into_iter().any(corrupts));
    }
}
