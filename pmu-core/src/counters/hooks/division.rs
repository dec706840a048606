//! Hardware that divides the occurrences of one counter's event into parts.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::access::address::{CounterIndex, RegisterAddress};
use crate::access::backend::{
    AccessErrorKind, AccessFault, AccessOperation, RegisterAccess, RegisterBackend,
};
use crate::counters::names::{CounterId, EventId};
use crate::counters::registers::counter::{Counter, EventSelect};
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::table::EventTable;

/// Hardware that divides the occurrences of one counter's event into parts. Intel's P-cores divide issue slots so:
/// fixed counter 3 counts them, and each byte of another register is the share of one part.
///
/// The shares are of the occurrences since both registers were 0. So the session sets both to 0 as the event starts,
/// and each time that it has added the shares to the counts of the [parts](crate::Event::part). The counter is written
/// first.
///
/// The value is made per call. Its state is in the memory that the embedder lends.
#[derive(Clone, Copy, Debug)]
pub struct Division<'a> {
    /// The counter of the occurrences.
    pub counter: CounterId,
    /// The register of the shares. Byte n is the share of [part](crate::Event::part) n, in units of 1/255.
    pub shares: RegisterAddress,
    /// The index by which the same register is read, as by RDPMC.
    pub index: CounterIndex,
    /// Number of parts, at most 8.
    pub parts: u8,
    /// Bits of the global control register and of the overflow status that belong to the shares.
    pub bits: u64,
    /// The memory that the embedder lends.
    pub memory: &'a DivisionMemory,
}

/// Memory of the [division](Division) of one processor: 1 byte. The embedder lends it, commonly as one static per
/// processor, to tasks and to the interrupt handler.
///
/// ```
/// use pmu_core::facility::DivisionMemory;
/// static DIVISION: [DivisionMemory; 4] = [const { DivisionMemory::new() }; 4];
/// ```
#[derive(Debug)]
pub struct DivisionMemory(AtomicU8);

/// The registers are a task's: an interrupt leaves them alone.
const BUSY: u8 = 1 << 0;

/// The counter wrapped, and that is yet to be counted.
const WRAPPED: u8 = 1 << 1;

/// The shares do not begin with the counter, because a write of them failed.
const STALE: u8 = 1 << 2;

/// The register of the shares is known to hold what is written to it.
const VERIFIED: u8 = 1 << 3;

/// The register of the shares may hold something.
const USED: u8 = 1 << 4;

/// Shares of level 1 that add up to 255.
const PATTERN: u64 = 0x40_3F_40_40;

/// A wrap of the counter is served before the counter has counted this many occurrences more.
const SERVED_WITHIN: u64 = 1 << 31;

impl DivisionMemory {
    /// Creates the memory.
    pub const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Returns whether the registers have not been used.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.0.load(Relaxed) == 0
    }

    /// Notes that the registers hold unknown values.
    pub fn lose(&self) {
        if !self.is_idle() {
            self.set(USED);
            self.take(VERIFIED);
        }
    }

    /// Sets the register of the shares to 0 if it may hold something. The counter is stopped.
    ///
    /// # Errors
    /// The write failed.
    pub fn clear<M: RegisterBackend>(
        &self,
        msr: &M,
        shares: RegisterAddress,
    ) -> Result<(), AccessFault> {
        if self.has(USED) && self.has(VERIFIED) {
            msr.write_retrying(shares, 0)?;
            self.take(USED);
        }
        Ok(())
    }

    fn has(&self, bit: u8) -> bool {
        self.0.load(Acquire) & bit != 0
    }

    fn set(&self, bits: u8) {
        self.0.fetch_or(bits, AcqRel);
    }

    fn take(&self, bit: u8) -> bool {
        self.0.fetch_and(!bit, AcqRel) & bit != 0
    }

    /// Keeps interrupts from the registers. Returns `false` if a task does already.
    pub(crate) fn begin(&self) -> bool {
        self.0.fetch_or(BUSY, Acquire) & BUSY == 0
    }

    pub(crate) fn end(&self) {
        self.0.fetch_and(!BUSY, Release);
    }

    pub(crate) fn note_wrap(&self) {
        self.set(WRAPPED);
    }

    /// Notes that the counter runs, and so the shares change.
    pub(crate) fn note_use(&self) {
        self.set(USED);
    }

    /// Returns whether both registers hold what was counted since the last harvest.
    pub(crate) fn is_readable(&self) -> bool {
        self.0.load(Acquire) & (BUSY | STALE | WRAPPED) == 0
    }
}

impl Default for DivisionMemory {
    fn default() -> Self {
        Self::new()
    }
}

/// Failure of a harvest.
pub(crate) enum NotHarvested {
    /// Nothing was changed.
    Unchanged(AccessFault),
    /// Everything was added to the counts, but the register of the shares could not be set to 0.
    Stale(AccessFault),
}

impl NotHarvested {
    pub(crate) const fn fault(self) -> AccessFault {
        match self {
            Self::Unchanged(fault) | Self::Stale(fault) => fault,
        }
    }
}

impl Division<'_> {
    /// Returns the number of the [part](crate::Event::part) that a select stands for.
    pub fn part_of(select: EventSelect) -> Option<u8> {
        let (code, number) = (select.select_bits() as u16, (select.select_bits() >> 8 & 7) as u8);
        (code & !0x0700 == EventSelect::PART).then_some(number)
    }

    /// Returns a part of `occurrences`, rounded. `shares` is the value of the register of the shares.
    ///
    /// ```
    /// use pmu_core::facility::Division;
    /// assert_eq!(Division::share(0, 510, 102), 204);
    /// assert_eq!(Division::share(1, 1_000, 51 << 8), 200);
    /// ```
    pub const fn share(part: u8, occurrences: u64, shares: u64) -> u64 {
        let share = shares >> (8 * (part & 7)) & 0xFF;
        // Truncated shares would all be too small, and the error would grow with each harvest.
        ((occurrences as u128 * share as u128 + 127) / 255) as u64
    }

    /// Returns the open parts of the group of an event, with their numbers.
    pub(crate) fn parts_of(
        table: &EventTable,
        event: EventId,
    ) -> impl Iterator<Item = (u8, &EventEntry)> {
        let group = table.entry(event).and_then(EventEntry::group);
        let its = move |entry: &EventEntry| group.is_some() && entry.group() == group;
        let parts = table.opened().filter(move |(_, entry)| entry.is_part() && its(entry));
        parts.filter_map(|(_, entry)| Some((Self::part_of(entry.select())?, entry)))
    }

    /// Returns whether an event's occurrences are divided: only this counter counts the event, which has no period, and
    /// parts of its group are open.
    pub(crate) fn divides(&self, table: &EventTable, event: EventId) -> bool {
        let its =
            |entry: &EventEntry| entry.counters() == self.counter.only() && !entry.period.reports();
        table.entry(event).is_some_and(its) && Self::parts_of(table, event).next().is_some()
    }

    /// Begins the shares, after the stopped counter was set to 0. The first time, checks that the register of the
    /// shares holds what is written to it: a hypervisor may declare the register and drop it.
    pub(crate) fn begin<M: RegisterBackend>(
        &self,
        msr: &M,
        registers: &Counter,
    ) -> Result<(), AccessFault> {
        // An emulator may drop writes of the shares: tried once, and again after the registers were lost.
        if !self.memory.has(VERIFIED) {
            self.verify(msr, registers)?;
            self.memory.set(VERIFIED);
        }
        msr.write_retrying(self.shares, 0)?;
        self.memory.take(WRAPPED);
        self.memory.take(STALE);
        Ok(())
    }

    fn verify<M: RegisterBackend>(&self, msr: &M, registers: &Counter) -> Result<(), AccessFault> {
        // The shares are written after what they are shares of.
        msr.write_retrying(registers.value_register(), 0x0135_7AC0)?;
        let found = msr
            .write_retrying(self.shares, PATTERN)
            .and_then(|()| msr.read_counter_retrying(self.index).map(|found| found & 0xFFFF_FFFF));
        // Before the outcome is looked at: the pattern must not be counted.
        msr.write_retrying(registers.value_register(), 0)?;
        match found? {
            PATTERN => Ok(()),
            _ => {
                let (operation, register) = (AccessOperation::Write, self.shares.get());
                Err(AccessFault { operation, register, kind: AccessErrorKind::Other })
            }
        }
    }

    /// Returns the division's overflow status bits. Reads the status only if the counter's value is so low that an
    /// overflow may be pending; otherwise returns 0.
    pub(crate) fn pending<M: RegisterBackend>(
        &self,
        msr: &M,
        status: RegisterAddress,
        value: u64,
    ) -> Result<u64, AccessFault> {
        // A wrap restarts the counter at 0, so a great value has none pending.
        if value >= SERVED_WITHIN {
            return Ok(0);
        }
        Ok(msr.read_retrying(status)? & (self.bits | self.counter.only().bits()))
    }

    /// Adds what both registers hold to the counts of an event and of its parts, and sets both to 0. The counter is
    /// stopped, and was read as `value`. The caller has [begun](DivisionMemory::begin).
    pub(crate) fn harvest<M: RegisterBackend>(
        &self,
        msr: &M,
        registers: &Counter,
        (table, event): (&EventTable, EventId),
        value: u64,
    ) -> Result<(), NotHarvested> {
        let shares = msr.read_counter_retrying(self.index).map_err(NotHarvested::Unchanged)?;
        let cleared = msr.write_retrying(registers.value_register(), 0);
        cleared.map_err(NotHarvested::Unchanged)?;
        let range = if self.memory.take(WRAPPED) { registers.mask.wrapping_add(1) } else { 0 };
        if !self.memory.has(STALE)
            && let Some(entry) = table.entry(event)
        {
            let occurrences = value.wrapping_add(range);
            entry.add(occurrences);
            for (part, its) in Self::parts_of(table, event).filter(|(part, _)| *part < self.parts) {
                its.add(Self::share(part, occurrences, shares));
            }
        }
        // Until the shares are 0, too, they are of no use.
        self.memory.set(STALE);
        msr.write_retrying(self.shares, 0).map_err(NotHarvested::Stale)?;
        self.memory.0.fetch_and(!(STALE | USED), AcqRel);
        Ok(())
    }
}

const _: () = assert!(size_of::<DivisionMemory>() == 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_right_to_half_an_occurrence_for_every_share() {
        for occurrences in [0, 1, 254, 255, 1 << 32, (1 << 48) - 1, (1 << 49) + 17] {
            for share in 0..=255u64 {
                let part = u128::from(Division::share(1, occurrences, share << 8 | 0xAA));
                let exact = u128::from(occurrences) * u128::from(share);
                assert!((part * 255).abs_diff(exact) <= 127, "{occurrences} {share}");
            }
        }
    }
}
