//! Time from the TSC, which user mode and the kernel compute in the same way.

/// Clock that derives a kernel's time, in nanoseconds, from the TSC: the time is `zero` + ((TSC · `mult`) >> `shift`).
/// `perf_event_mmap_page` describes a clock in the same way.
///
/// The kernel must pass times of this clock to all operations on events. User mode can then compute an event's present
/// times from the [page](crate::user::UserPage) and the TSC.
///
/// The TSC must tick at a constant rate (CPUID leaf 80000007H, EDX bit 8). The TSC must also have the same value on all
/// processors on which a thread reads the page. Sources: SDM vol. 3B, "Invariant TSC"; APM vol. 3, appendix E.
///
/// ```
/// use pmu::user::UserClock;
/// // A TSC of 2.5 GHz, which read 5,000,000,000 when the kernel's clock was at 7 seconds.
/// let clock = UserClock::new(2_500_000_000, 5_000_000_000, 7_000_000_000).unwrap();
/// let second_later = clock.time(7_500_000_000);
/// assert!(second_later.abs_diff(8_000_000_000) <= 4, "{second_later}");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UserClock {
    /// `time_mult`: nanoseconds per 2^`shift` ticks of the TSC.
    pub mult: u32,
    /// `time_shift`: at most 31.
    pub shift: u16,
    /// `time_zero`: time at which the TSC was 0, modulo 2⁶⁴.
    pub zero: u64,
}

impl UserClock {
    /// Creates a clock from the TSC's frequency and one pair of readings. `tsc_hertz` is the frequency. When the TSC
    /// read `tsc`, the kernel's time was `now` nanoseconds. The clock is exact to 1 part in 2²⁹ for a TSC of 250 MHz to
    /// 4 GHz. Returns `None` if the frequency is 0 or above 2·10¹⁸ Hz.
    ///
    /// ```
    /// use pmu::user::UserClock;
    /// assert_eq!(UserClock::new(1_000_000_000, 0, 0).map(|clock| clock.time(123)), Some(123));
    /// assert_eq!(UserClock::new(0, 0, 0), None);
    /// ```
    pub const fn new(tsc_hertz: u64, tsc: u64, now: u64) -> Option<Self> {
        let mut shift = 31;
        loop {
            let mult = match (1_000_000_000_u64 << shift).checked_div(tsc_hertz) {
                None | Some(0) => return None,
                Some(mult) => mult,
            };
            if mult <= u32::MAX as u64 || shift == 0 {
                let clock = Self { mult: mult as u32, shift, zero: 0 };
                return Some(Self { zero: now.wrapping_sub(clock.time(tsc)), ..clock });
            }
            shift -= 1;
        }
    }

    /// Returns the time at which the TSC reads `tsc`.
    #[inline]
    pub const fn time(&self, tsc: u64) -> u64 {
        scaled(tsc, self.mult, self.shift).wrapping_add(self.zero)
    }
}

/// Returns `tsc * mult >> shift` modulo 2⁶⁴, in the steps that `linux/perf_event.h` gives for the page's fields.
#[inline]
pub(crate) const fn scaled(tsc: u64, mult: u32, shift: u16) -> u64 {
    let (shift, mult) = (shift as u32 & 63, mult as u64);
    let (quotient, rest) = (tsc >> shift, tsc & ((1 << shift) - 1));
    quotient.wrapping_mul(mult).wrapping_add(rest.wrapping_mul(mult) >> shift)
}
