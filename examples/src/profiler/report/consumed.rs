//! The consumption of a run, and the part of it that was sampled.

use core::fmt;

use serde::Serialize;

/// The unit of a consumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Processor time, in nanoseconds.
    Nanoseconds,
    /// Events of a counter.
    Events,
}

/// The consumption of a run as the kernel counted it, and as the interrupts sampled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// The unit of both.
    pub unit: Unit,
    /// The kernel's count.
    pub total: u64,
    /// The number of interrupts times the interval; by chance, this may be more than the total.
    pub sampled: u64,
}

impl Consumed {
    /// Returns how much was consumed and not sampled.
    pub fn not_sampled(&self) -> u64 {
        self.total.saturating_sub(self.sampled)
    }
}

impl fmt::Display for Consumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, sampled, not) = (self.total, self.sampled, self.not_sampled());
        let percent = not as f64 * 100.0 / total.max(1) as f64;
        let amount = |number: u64| match (self.unit, total) {
            (Unit::Events, _) => number.to_string(),
            (Unit::Nanoseconds, ..1_000_000_000) => format!("{:.1} ms", number as f64 / 1e6),
            (Unit::Nanoseconds, _) => format!("{:.2} s", number as f64 / 1e9),
        };
        let (total, sampled, not) = (amount(total), amount(sampled), amount(not));
        let what = match self.unit {
            Unit::Nanoseconds => "of processor time",
            Unit::Events => "events",
        };
        write!(f, "{total} {what}: {sampled} sampled, {not} not ({percent:.1}%)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_sampled_is_told_in_readable_units() {
        for (unit, total, sampled, told) in [
            (
                Unit::Nanoseconds,
                4_980_000_000,
                3_735_000_000,
                "4.98 s of processor time: 3.73 s sampled, 1.25 s not (25.0%)",
            ),
            (
                Unit::Nanoseconds,
                3_200_000,
                3_000_000,
                "3.2 ms of processor time: 3.0 ms sampled, 0.2 ms not (6.2%)",
            ),
            (Unit::Events, 70_000, 65_536, "70000 events: 65536 sampled, 4464 not (6.4%)"),
            // By chance, more than all.
            (Unit::Events, 60_000, 65_536, "60000 events: 65536 sampled, 0 not (0.0%)"),
            (Unit::Events, 0, 0, "0 events: 0 sampled, 0 not (0.0%)"),
        ] {
            assert_eq!(Consumed { unit, total, sampled }.to_string(), told);
        }
    }
}
