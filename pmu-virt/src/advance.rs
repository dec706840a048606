//! What happens in the guest, and the overflows that come of it.

use crate::feed::FeedSlot;
use crate::layout::{Counters, to_global};
use crate::model::{MAX_COUNTERS, MAX_PER_KIND, Model};
use crate::{EventPolicy, Feed, VirtualPmu, intel};

/// What came of an [`advance`](VirtualPmu::advance).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Advanced {
    /// The counters that wrapped, in the layout of the global status: general from bit 0, fixed from
    /// bit 32.
    pub overflowed: u64,
    /// An interrupt was raised: [deliver](VirtualPmu::deliver_pmi) it.
    pub pmi: bool,
    wraps: [u32; MAX_COUNTERS],
}

impl Advanced {
    const NOTHING: Self = Self { overflowed: 0, pmi: false, wraps: [0; MAX_COUNTERS] };

    /// How often a counter wrapped, by its bit in [`overflowed`](Self::overflowed).
    pub fn wraps(&self, bit: u8) -> u32 {
        let place = match bit {
            0..8 => bit,
            32..40 => bit - 24,
            _ => return 0,
        };
        self.wraps.get(usize::from(place)).copied().unwrap_or(0)
    }

    fn and(mut self, later: Self) -> Self {
        self.overflowed |= later.overflowed;
        self.pmi |= later.pmi;
        for (wraps, later) in self.wraps.iter_mut().zip(later.wraps) {
            *wraps = wraps.saturating_add(later);
        }
        self
    }
}

impl<P: EventPolicy> VirtualPmu<P> {
    /// Counts what happened, up to the first overflow that interrupts. The feed holds the rest
    /// afterwards: what happened after the overflow, which the guest's handler may want to count
    /// differently.
    ///
    /// All events of a feed happened evenly over the same span of time. At the overflow as much of
    /// each has passed, rounded down, as of the one that overflowed; of that one, exactly what was
    /// missing. A counter that does not interrupt wraps on the way, as often as it comes to.
    ///
    /// Bounded by the number of counters. Each call that leaves a rest has brought a counter to an
    /// overflow, so `while !feed.is_empty()` ends: no counter wraps again before 2³² events.
    #[inline]
    pub fn advance(&mut self, feed: &mut Feed) -> Advanced {
        let model = &mut self.model;
        let running = model.running();
        if model.layout.masks[0].max(model.layout.masks[1]) == u64::MAX {
            // Below, a counter and a feed must fit in 64 bits together.
            return model.overflow(feed, running, 0);
        }
        let mut general = u32::from(running & 0xFF);
        while general != 0 {
            if model.overflows_in(feed, 0, general.trailing_zeros() as usize % MAX_PER_KIND) {
                // Those before this one were counted to the end of the span: back.
                return model.overflow(feed, running, (running & 0xFF) - general as Counters);
            }
            general &= general - 1;
        }
        let mut fixed = u32::from(running >> MAX_PER_KIND);
        while fixed != 0 {
            if model.overflows_in(feed, 1, fixed.trailing_zeros() as usize % MAX_PER_KIND) {
                return model.overflow(
                    feed,
                    running,
                    running - (fixed << MAX_PER_KIND) as Counters,
                );
            }
            fixed &= fixed - 1;
        }
        feed.clear();
        Advanced::NOTHING
    }

    /// Counts all that happened, without a stop at the first overflow: the span is over, and the
    /// guest could not be interrupted within it. It gets one interrupt, and a counter that wrapped
    /// several times tells [how often](Advanced::wraps). Where the overflow froze the counters, what
    /// came after counts nothing.
    pub fn advance_through(&mut self, feed: &mut Feed) -> Advanced {
        let first = self.advance(feed);
        if feed.is_empty() {
            return first;
        }
        let rest = core::mem::take(feed);
        let running = self.model.running();
        first.and(self.model.count(&rest, running))
    }
}

impl Model {
    /// Counts the whole span on one counter of less than 64 bits, unless it overflows.
    #[inline]
    fn overflows_in(&mut self, feed: &Feed, kind: usize, place: usize) -> bool {
        let value = &mut self.values[kind][place];
        let sum = value.wrapping_add(feed.at(self.cells[kind][place]));
        let overflows = sum > self.layout.masks[kind];
        if !overflows {
            *value = sum;
        }
        overflows
    }

    /// A counter may overflow within the feed. `counted` are those that have had all of it already.
    #[cold]
    #[inline(never)]
    fn overflow(&mut self, feed: &mut Feed, running: Counters, counted: Counters) -> Advanced {
        // The earliest overflow that interrupts: missing/count is its time within the span.
        let mut first: Option<(u64, u64, FeedSlot)> = None;
        for counter in (0..MAX_COUNTERS).filter(|counter| running >> counter & 1 != 0) {
            let (kind, place) = (counter / MAX_PER_KIND, counter % MAX_PER_KIND);
            let cell = self.cells[kind][place];
            let count = feed.at(cell);
            if counted >> counter & 1 != 0 {
                self.values[kind][place] = self.values[kind][place].wrapping_sub(count);
            }
            let room = self.layout.masks[kind] - self.values[kind][place];
            if self.interrupting >> counter & 1 == 0 || count <= room {
                continue;
            }
            let missing = room.saturating_add(1);
            let sooner = first.is_none_or(|(part, whole, _)| {
                u128::from(missing) * u128::from(whole) < u128::from(part) * u128::from(count)
            });
            if sooner {
                first = Some((missing, count, cell));
            }
        }
        let passed = match first {
            Some((part, whole, cell)) => feed.take(part, whole, cell),
            None => core::mem::take(feed),
        };
        self.count(&passed, running)
    }

    /// Counts all of a feed, raises what is to be raised, and says how often each counter wrapped.
    fn count(&mut self, feed: &Feed, running: Counters) -> Advanced {
        let mut advanced = Advanced::NOTHING;
        let mut overflowed = 0;
        for counter in (0..MAX_COUNTERS).filter(|counter| running >> counter & 1 != 0) {
            let (kind, place) = (counter / MAX_PER_KIND, counter % MAX_PER_KIND);
            let mask = self.layout.masks[kind];
            let value = &mut self.values[kind][place];
            let sum = u128::from(*value) + u128::from(feed.at(self.cells[kind][place]));
            *value = sum as u64 & mask;
            // A feed is below 2⁶³ and a counter has 32 bits or more.
            let wraps = (sum >> mask.count_ones()) as u32;
            if wraps != 0 {
                advanced.wraps[counter] = wraps;
                overflowed |= 1 << counter;
            }
        }
        advanced.overflowed = to_global(overflowed);
        advanced.pmi = self.raise(overflowed);
        advanced
    }

    /// These counters overflowed: the status says so until it is cleared, and an interrupt is raised
    /// if one of them asks for it.
    fn raise(&mut self, overflowed: Counters) -> bool {
        if self.layout.global != 0 {
            self.global_status |= to_global(overflowed);
        }
        let pmi = overflowed & self.interrupting != 0;
        if pmi {
            self.pmi_pending = true;
            intel::freeze(self);
        }
        pmi
    }

    /// Every running counter that interrupts overflows now, for the mock.
    pub(crate) fn overflow_all(&mut self) {
        let overflowing = self.running() & self.interrupting;
        for counter in (0..MAX_COUNTERS).filter(|counter| overflowing >> counter & 1 != 0) {
            self.values[counter / MAX_PER_KIND][counter % MAX_PER_KIND] = 0;
        }
        self.raise(overflowing);
    }
}
