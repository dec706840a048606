//! Counting, one event after the other.

use super::registers::{COUNTERS, Naive, bits};
use pmu_virt::{EventKey, Privilege};

/// The events that happen: fixed counter 0 counts the second one, too.
pub(super) const EVENTS: [EventKey; 2] = [EventKey::general(0xC4, 0), EventKey::general(0xC0, 0)];

/// Counters that wrapped, those of them that write records, and whether one interrupts.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Counted {
    pub(super) overflowed: u64,
    pub(super) records: u64,
    pub(super) pmi: bool,
    /// Events that are left.
    pub(super) left: u64,
}

impl Naive {
    /// Counts as many of both events, up to an overflow that interrupts or is recorded.
    pub(super) fn count(&mut self, privilege: Privilege, count: u64) -> Counted {
        let mut counted = Counted { left: count, ..Counted::default() };
        while counted.left > 0 && counted.records == 0 && !counted.pmi {
            counted.left -= 1;
            let running = bits(COUNTERS).filter(|bit| self.counts(*bit, privilege));
            let mut wrapped = 0;
            for bit in running.collect::<Vec<_>>() {
                let value = self.counter(bit);
                self.load(bit, value + 1);
                wrapped |= u64::from(value == (1 << 48) - 1) << bit;
            }
            // An overflow that is recorded sets no bit of the status, and does not interrupt.
            let records = wrapped & self.enabled();
            let plain = wrapped & !records;
            counted.overflowed |= wrapped;
            counted.records = records;
            self.due |= records;
            self.set_status(plain);
            counted.pmi = bits(plain).any(|bit| self.interrupts(bit));
            if counted.pmi {
                self.interrupt(plain);
                let frozen = bits(records).filter(|bit| !self.runs(*bit));
                self.frozen = frozen.map(|bit| 1 << bit).sum();
            }
        }
        counted
    }

    /// Returns whether a counter counts one of the events.
    fn counts(&self, bit: u32, privilege: Privilege) -> bool {
        if !self.runs(bit) {
            return false;
        }
        if bit == 32 {
            let kernel = self.get(0x38D) & 1 == 1;
            let user = self.get(0x38D) >> 1 & 1 == 1;
            return if privilege == Privilege::Kernel { kernel } else { user };
        }
        // Of the other fixed counters' events none happens.
        let select = if bit < 32 { self.get(0x186 + bit) } else { 0 };
        let (user, kernel) = (select >> 16 & 1 == 1, select >> 17 & 1 == 1);
        // Event, unit mask, edge, counter mask; the inversion only with a counter mask.
        let refined = if select >> 24 & 0xFF == 0 { 0x0004_FFFF } else { 0xFF84_FFFF };
        let of_events = [0xC4, 0xC0].contains(&(select & refined));
        of_events && if privilege == Privilege::Kernel { kernel } else { user }
    }

    fn interrupts(&self, bit: u32) -> bool {
        match bit {
            ..32 => self.get(0x186 + bit) >> 20 & 1 == 1,
            _ => self.get(0x38D) >> (4 * (bit - 32) + 3) & 1 == 1,
        }
    }
}
