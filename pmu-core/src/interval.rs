//! Intervals between profile interrupts: units, defaults and limits.

use core::fmt;

/// The unit of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum IntervalUnit {
    /// 100 ns, the unit of `ProfileTime`.
    HundredNanoseconds,
    /// One occurrence of the source's event.
    Events,
}

/// An interval between the interrupts of a profile source. The interval is within the source's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Interval(u32);

impl Interval {
    /// Returns the interval as a number of [units](IntervalLimits::unit).
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Restores an interval that was checked before it was stored.
    pub(crate) const fn stored(value: u32) -> Self {
        Self(value)
    }
}

/// The intervals that a profile source accepts.
///
/// The constants [`TIME`](Self::TIME) and [`EVENTS`](Self::EVENTS) are the limits that Windows 8 and later report for
/// every processor.
///
/// ```
/// use pmu_core::interval::IntervalLimits;
/// let limits = IntervalLimits::EVENTS;
/// assert_eq!(limits.check(100_000).map(|interval| interval.get()), Ok(100_000));
/// assert_eq!(limits.clamp(10).get(), 4_096);
/// let error = limits.check(10).unwrap_err();
/// assert_eq!(error.to_string(), "interval of 10 events is outside 4096 to 2147483647");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct IntervalLimits {
    /// Unit of `default`, `min` and `max`.
    pub unit: IntervalUnit,
    /// The interval of a source until another interval is set for the source.
    pub default: u32,
    /// Shortest interval.
    pub min: u32,
    /// Longest interval.
    pub max: u32,
}

impl IntervalLimits {
    /// Limits of `ProfileTime`: 122.1 µs to 100 ms, by default 1 ms.
    pub const TIME: Self = Self {
        unit: IntervalUnit::HundredNanoseconds,
        default: 10_000,
        min: 1_221,
        max: 1_000_000,
    };

    /// Limits of every counter source: 4,096 to 2³¹−1 events, by default 65,536.
    ///
    /// The driver loads a counter with the negative interval. For each interval within these limits, the loaded value
    /// has bit 31 set. Some counters sign-extend a written value from bit 31. A value with bit 31 clear would be wrong
    /// in such a counter (Intel SDM vol. 3B, "Full-Width Writes to Performance Counter Registers").
    pub const EVENTS: Self =
        Self { unit: IntervalUnit::Events, default: 0x1_0000, min: 0x1000, max: 0x7FFF_FFFF };

    /// Returns the limits of the sources whose intervals are in `unit`.
    pub const fn of(unit: IntervalUnit) -> Self {
        match unit {
            IntervalUnit::HundredNanoseconds => Self::TIME,
            IntervalUnit::Events => Self::EVENTS,
        }
    }

    /// Returns the default interval.
    pub const fn default_interval(self) -> Interval {
        Interval(self.default)
    }

    /// Returns an interval of `units` units if `units` is within the limits.
    ///
    /// ```
    /// # use pmu_core::interval::IntervalLimits;
    /// // Checks a user's interval. The error names the limits.
    /// let error = IntervalLimits::EVENTS.check(100).unwrap_err();
    /// assert_eq!((error.requested, error.limits().min), (100, 4096));
    /// ```
    ///
    /// # Errors
    /// [`IntervalError`]: `units` is outside the limits.
    pub const fn check(self, units: u64) -> Result<Interval, IntervalError> {
        if units < self.min as u64 || units > self.max as u64 {
            let requested = if units > u32::MAX as u64 { u32::MAX } else { units as u32 };
            Err(IntervalError { requested, unit: self.unit })
        } else {
            Ok(Interval(units as u32))
        }
    }

    /// Returns the interval within the limits that is nearest to `units`.
    ///
    /// ```
    /// # use pmu_core::interval::IntervalLimits;
    /// let shortest = IntervalLimits::EVENTS.clamp(1);
    /// assert_eq!(shortest.get(), IntervalLimits::EVENTS.min);
    /// ```
    pub const fn clamp(self, units: u64) -> Interval {
        if units < self.min as u64 {
            Interval(self.min)
        } else if units > self.max as u64 {
            Interval(self.max)
        } else {
            Interval(units as u32)
        }
    }
}

/// Error: an interval is outside the limits of the profile source. The failed call changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct IntervalError {
    /// Requested interval; `u32::MAX` if more was requested.
    pub requested: u32,
    /// Unit of the interval.
    pub unit: IntervalUnit,
}

impl IntervalError {
    /// Returns the limits of intervals in this unit, which those of the profile source are.
    ///
    /// ```
    /// # use pmu_core::interval::{IntervalError, IntervalLimits};
    /// /// Replaces an interval that was refused by the nearest one.
    /// fn nearest(refused: IntervalError) -> u32 {
    ///     refused.limits().clamp(refused.requested.into()).get()
    /// }
    /// assert_eq!(nearest(IntervalLimits::EVENTS.check(7).unwrap_err()), 4_096);
    /// ```
    pub const fn limits(&self) -> IntervalLimits {
        IntervalLimits::of(self.unit)
    }
}

impl fmt::Display for IntervalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            IntervalUnit::HundredNanoseconds => "units of 100 ns",
            IntervalUnit::Events => "events",
        };
        let more = if self.requested == u32::MAX { " or more" } else { "" };
        let IntervalLimits { min, max, .. } = self.limits();
        write!(f, "interval of {}{more} {unit} is outside {min} to {max}", self.requested)
    }
}

impl core::error::Error for IntervalError {}
