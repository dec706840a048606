//! The real-time clock: the host's time, in UTC.
//!
//! Read first: Motorola MC146818A, "Address Map" and "Time, Calendar, and Alarm Locations"; the century's register is a
//! convention, which ACPI's FADT confirms.

use core::sync::atomic::{AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Registers: the time, the status, and the century.
const SECONDS: u8 = 0x00;
const MINUTES: u8 = 0x02;
const HOURS: u8 = 0x04;
const WEEKDAY: u8 = 0x06;
const DAY: u8 = 0x07;
const MONTH: u8 = 0x08;
const YEAR: u8 = 0x09;
const STATUS_A: u8 = 0x0A;
const STATUS_B: u8 = 0x0B;
const STATUS_D: u8 = 0x0D;
const CENTURY: u8 = 0x32;

/// Status A: the usual divider and rate, and no update in progress. B: 24 hours; the numbers are binary-coded decimals.
/// D: the time is valid.
const DIVIDER: u8 = 0x26;
const HOURS_24: u8 = 1 << 1;
const VALID: u8 = 1 << 7;
/// The index port's highest bit masks NMIs, on hardware.
const INDEX: u8 = 0x7F;

/// The clock. Writes of its registers change nothing.
#[derive(Debug, Default)]
pub(crate) struct Rtc {
    index: AtomicU8,
}

impl Rtc {
    /// Selects the register that reads return.
    pub(crate) fn select(&self, index: u8) {
        self.index.store(index & INDEX, Ordering::Relaxed);
    }

    /// Returns the selected register.
    pub(crate) fn read(&self) -> u8 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        register(self.index.load(Ordering::Relaxed), since.as_secs())
    }
}

/// Returns a register, so many seconds after the beginning of 1970.
fn register(index: u8, seconds: u64) -> u8 {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let number = match index {
        SECONDS => second % 60,
        MINUTES => second / 60 % 60,
        HOURS => second / 3600,
        // 1 January 1970 was a Thursday; Sunday is 1.
        WEEKDAY => (days + 4) % 7 + 1,
        DAY => day,
        MONTH => month,
        YEAR => year % 100,
        CENTURY => year / 100,
        STATUS_A => return DIVIDER,
        STATUS_B => return HOURS_24,
        STATUS_D => return VALID,
        _ => return 0,
    };
    (number / 10 % 10) as u8 * 16 + (number % 10) as u8
}

/// Returns year, month and day of the month, so many days after the beginning of 1970.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        (days, year) = (days - length, year + 1);
    }
    let february = if is_leap(year) { 29 } else { 28 };
    for (month, length) in (1..).zip([31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30]) {
        if days < length {
            return (year, month, days + 1);
        }
        days -= length;
    }
    (year, 12, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds by `date -u -d … +%s`.
    #[test]
    fn the_clock_has_the_date_in_decimals() {
        let at = |seconds| {
            [CENTURY, YEAR, MONTH, DAY, HOURS, MINUTES, SECONDS, WEEKDAY]
                .map(|index| register(index, seconds))
        };
        // Friday, 14 February 2025, 23:59:58; Tuesday, 29 February 2000; Thursday, 31 December 2026.
        assert_eq!(at(1_739_577_598), [0x20, 0x25, 0x02, 0x14, 0x23, 0x59, 0x58, 6]);
        assert_eq!(at(951_782_400), [0x20, 0x00, 0x02, 0x29, 0, 0, 0, 3]);
        assert_eq!(at(1_798_761_599), [0x20, 0x26, 0x12, 0x31, 0x23, 0x59, 0x59, 5]);
        assert_eq!([STATUS_A, STATUS_B, STATUS_D].map(|index| register(index, 0)), [0x26, 2, 0x80]);
    }
}
