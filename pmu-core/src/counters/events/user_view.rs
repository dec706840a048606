//! An opened event as user mode sees it: the counter that RDPMC reads, and the number to add to its value.

use crate::access::address::CounterIndex;
use crate::counters::events::count::EventCount;
use crate::counters::registers::counter::Counter;

/// Data with which user mode computes an event's count from a value that RDPMC read. The kernel shares this plain data
/// with user mode, commonly in a [page with Linux' layout](https://docs.rs/pmu/latest/pmu/user/struct.UserPage.html).
///
/// While the event is on a counter, its count is a sum: `offset`, plus the sign-extended low `width` bits of the
/// counter's value. While the event is on no counter, its count is `offset`.
///
/// ```
/// use pmu_core::access::CounterIndex;
/// use pmu_core::reading::UserView;
/// let view = UserView {
///     index: Some(CounterIndex::new(1)),
///     readable: true,
///     width: 48,
///     offset: 116,
///     is_enabled: true,
///     enabled: 9_000,
///     running: 9_000,
///     now: 10_000,
/// };
/// // The event had occurred 100 times when the counter was 16 events before its wrap.
/// assert_eq!(view.total(0xFFFF_FFFF_FFF0), 100);
/// assert_eq!(view.total(0x0000_0000_0010), 132);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UserView {
    /// The counter's index, which RDPMC takes in ECX. On other architectures, it is that of the backend's
    /// [`user_index`](crate::access::RegisterBackend::user_index). `None` if the event is on no counter, or if user
    /// mode cannot read the counter.
    pub index: Option<CounterIndex>,
    /// Set if user mode can compute the count. Clear if user mode is not permitted to read the counter, or if RDPMC
    /// cannot read the counter. User mode then asks the kernel for the count.
    pub readable: bool,
    /// Number of low bits of the counter's value that user mode sign-extends. The number is the counter's width or one
    /// more, and at most 64. If the event is on no counter, `width` is 0.
    pub width: u32,
    /// Number that user mode adds to the sign-extended counter value, modulo 2⁶⁴.
    pub offset: u64,
    /// Set if the event is enabled. The event's [`enabled`](Self::enabled) time then advances. While the event is on a
    /// counter, its [`running`](Self::running) time advances too.
    pub is_enabled: bool,
    /// Time for which the event was enabled before [`now`](Self::now), in the units of the caller's clock.
    pub enabled: u64,
    /// Time for which the event was on a counter before [`now`](Self::now), in the units of the caller's clock.
    pub running: u64,
    /// Time at which this view was made, by the caller's clock.
    pub now: u64,
}

impl UserView {
    /// Returns the event's count for a `value` that RDPMC read from the event's counter. If the event is on no counter,
    /// `value` is ignored.
    #[inline]
    pub const fn total(&self, value: u64) -> u64 {
        self.offset.wrapping_add(sign_extended(value, self.width))
    }

    /// Creates the view of an event on a counter that stood at `value` when the event's count was `count`. `index`:
    /// what user mode reads the counter by, if it may.
    ///
    /// The sum is right until the counter has passed half of its range, however close its value is to a wrap: a counter
    /// in the upper half of its range is read as a negative number, which continues past the wrap. A counter in the
    /// lower half is read with a bit more, which is 0, as a positive number.
    pub(crate) fn on_counter(
        registers: &Counter,
        index: Option<CounterIndex>,
        value: u64,
        count: EventCount,
        now: u64,
    ) -> Self {
        let is_lower = registers.has_overflowed(value);
        // From the lower half, the counter may pass the middle of its range before user mode reads it. With one bit
        // more, the value is then not taken for a negative one.
        let width = (registers.width() + u32::from(is_lower)).min(u64::BITS);
        Self {
            index,
            readable: index.is_some(),
            width,
            offset: count.value.wrapping_sub(sign_extended(value, width)),
            ..Self::off_counter(index.is_some(), true, count, now)
        }
    }

    /// Creates the view of an event on no counter.
    pub(crate) fn off_counter(
        permitted: bool,
        is_enabled: bool,
        count: EventCount,
        now: u64,
    ) -> Self {
        let EventCount { value, enabled, running } = count;
        let (index, width) = (None, 0);
        Self { index, readable: permitted, width, offset: value, is_enabled, enabled, running, now }
    }
}

/// Returns the low `width` bits as a signed number; 0 of no bits.
#[inline]
const fn sign_extended(value: u64, width: u32) -> u64 {
    match width {
        1..=64 => ((value << (64 - width)) as i64 >> (64 - width)) as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::address::RegisterAddress;
    use crate::counters::registers::counter::CounterControl;

    /// From any value on, over the wrap, for half of the counter's range.
    #[test]
    fn a_count_is_exact_for_half_of_the_counters_range() {
        // SAFETY: nothing accesses it.
        let register = unsafe { RegisterAddress::new(0) };
        for width in [32, 40, 48, 64] {
            let mask = u64::MAX >> (64 - width);
            let counter = Counter {
                control: CounterControl::Select(register),
                value: register,
                full: None,
                sign_extended: true,
                index: Some(CounterIndex::new(3)),
                mask,
            };
            let half = mask / 2;
            for value in [0, 1, half - 1, half, half + 1, half + 2, mask - 1, mask] {
                let count = EventCount { value: 1000, enabled: 7, running: 5 };
                let view = UserView::on_counter(&counter, counter.index, value, count, 9);
                assert_eq!((view.index, view.readable), (Some(CounterIndex::new(3)), true));
                assert_eq!((view.enabled, view.running, view.now), (7, 5, 9));
                for more in [0, 1, 2, half / 2, half - 1, half] {
                    let later = value.wrapping_add(more) & mask;
                    assert_eq!(view.total(later), 1000 + more, "{width}: {value:#X} + {more:#X}");
                }
            }
        }
    }

    #[test]
    fn a_width_that_no_counter_has_leaves_the_counter_out() {
        let count = EventCount { value: 7, ..EventCount::default() };
        let view = UserView::off_counter(true, false, count, 0);
        assert_eq!([view.total(9), UserView { width: 65, ..view }.total(9)], [7, 7]);
    }
}
