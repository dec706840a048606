//! Reading records out: finding where they end, and reporting each to its events.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::{CounterSet, MsrAccess, MsrAddress, MsrBackend, MsrFault};

use crate::precise::decode::format::PreciseFormat;
use crate::precise::decode::record::PreciseRecord;
use crate::precise::decode::records::PreciseRecords;
use crate::precise::memory::{DroppedRecords, PreciseMemory};
use crate::precise::registers::{IA32_PEBS_INDEX, PebsIndex};
use crate::precise::report::PreciseReport;
use crate::precise::unit::PreciseUnit;

impl PreciseMemory {
    /// Empties the buffer, and reports its records. Returns whether an interrupted task does so: then nothing is done.
    ///
    /// The index is reset first: what `report` does, such as stopping an event, may empty the buffer again.
    pub(crate) fn drain<M: MsrBackend>(
        &self,
        unit: &PreciseUnit,
        msr: &M,
        report: &mut impl FnMut(&PreciseReport<'_>),
    ) -> Result<bool, MsrFault> {
        if !self.begin_drain() {
            return Ok(false);
        }
        let written = match unit.format() {
            PreciseFormat::Architectural => self.reset_register(msr),
            _ => Ok(self.reset_area(unit)),
        };
        let written = written.inspect_err(|_| self.end_drain())?;
        let dropped = self.dropped();
        let words = self.buffer().get(..written / 8).unwrap_or_default();
        let mut records = PreciseRecords::from_words(unit.format(), words);
        let mut overflowed = CounterSet::NONE;
        for record in records.by_ref() {
            overflowed = overflowed | self.report(unit, record, report);
        }
        self.count_malformed(records.malformed());
        // Of a record that was dropped, the counters are not known.
        let known = self.dropped() == DroppedRecords { hidden: self.dropped().hidden, ..dropped };
        let loaded = self.load(unit, msr, if known { overflowed } else { self.recording() });
        self.end_drain();
        loaded.map(|()| true)
    }

    /// Returns whether the buffer has reached its threshold, or has an index that cannot be right.
    pub(crate) fn interrupts<M: MsrBackend>(
        &self,
        unit: &PreciseUnit,
        msr: &M,
    ) -> Result<bool, MsrFault> {
        if unit.format() == PreciseFormat::Architectural {
            let found = PebsIndex::from_bits(msr.rdmsr_retrying(index_register())?);
            return Ok(found.full() || found.write() != 0 && found.write() >= found.threshold());
        }
        let (area, base) = (self.save_area(), self.buffer_address());
        let below = base..area.pebs_interrupt_threshold.load(Relaxed);
        Ok(self.names_buffer() && !below.contains(&area.pebs_index.load(Relaxed)))
    }

    /// Returns whether the area names the buffer: else the processor writes nothing.
    fn names_buffer(&self) -> bool {
        self.save_area().pebs_absolute_maximum.load(Relaxed) != 0
    }

    /// Loads the counters that the processor does not load again.
    fn load<M: MsrBackend>(
        &self,
        unit: &PreciseUnit,
        msr: &M,
        overflowed: CounterSet,
    ) -> Result<(), MsrFault> {
        let mut outcome = Ok(());
        for (counter, slot) in self.slots(overflowed) {
            if let Some(registers) = unit.counters.counter(counter)
                && slot.event().is_loaded_by_handler()
            {
                let value = registers.preload(slot.period.load(Relaxed));
                outcome = outcome.and(msr.wrmsr_retrying(registers.value_register(), value));
            }
        }
        outcome
    }

    /// Resets the area's index. Returns the number of bytes that were written: 0 if the index cannot be right.
    pub(crate) fn reset_area(&self, unit: &PreciseUnit) -> usize {
        let (area, base) = (self.save_area(), self.buffer_address());
        if !self.names_buffer() {
            return 0;
        }
        let index = area.pebs_index.swap(base, Relaxed);
        let written = index.checked_sub(base).map(|written| written as usize);
        let step = unit.format().record_size().unwrap_or(8);
        let right = |written: &usize| *written <= self.usable() && written.is_multiple_of(step);
        let written = written.filter(right);
        if written.is_none() {
            self.count_lost();
        }
        written.unwrap_or(0)
    }

    /// Resets the register's offset, and keeps its threshold. Returns the number of bytes that were written.
    pub(crate) fn reset_register<M: MsrBackend>(&self, msr: &M) -> Result<usize, MsrFault> {
        let register = index_register();
        let found = PebsIndex::from_bits(msr.rdmsr_retrying(register)?);
        if found.write() == 0 && !found.full() {
            return Ok(0);
        }
        msr.wrmsr_retrying(register, found.with_write(0).with_full(false).into_bits())?;
        let written = 16 * found.write() as usize;
        if found.full() || written > self.usable() {
            self.count_lost();
        }
        Ok(if written > self.usable() { 0 } else { written })
    }

    /// Reports a record to each of its events, and returns the events' counters.
    fn report(
        &self,
        unit: &PreciseUnit,
        record: PreciseRecord<'_>,
        report: &mut impl FnMut(&PreciseReport<'_>),
    ) -> CounterSet {
        let Some(counters) = self.counters_of(unit, &record) else {
            self.count_unattributed();
            return CounterSet::NONE;
        };
        let events = counters.without(self.abandoned());
        if events.is_empty() {
            self.count_unattributed();
        }
        for (counter, slot) in self.slots(events) {
            let event = slot.event();
            let limited = record.limited_to(event.counts_user(), event.counts_kernel());
            let Some(limited) = limited else {
                self.count_hidden();
                continue;
            };
            report(&PreciseReport {
                counter,
                tag: slot.tag.load(Relaxed),
                period: slot.period.load(Relaxed),
                access: event.access(),
                record: limited,
                unit,
            });
        }
        counters
    }

    /// Returns the counters of a record. In formats before 3 a record names the counters that had overflowed, or none:
    /// it belongs to one of them only if there is only one.
    fn counters_of(&self, unit: &PreciseUnit, record: &PreciseRecord<'_>) -> Option<CounterSet> {
        let recording = self.recording();
        let only = |set: CounterSet| (set.len() == 1).then_some(set);
        let named = record.counters().map(|named| named & recording);
        match (unit.format(), named) {
            (PreciseFormat::Nehalem | PreciseFormat::Haswell, Some(named)) if !named.is_empty() => {
                only(named)
            }
            (PreciseFormat::Nehalem | PreciseFormat::Haswell, _) | (_, None) => only(recording),
            (_, Some(named)) => (!named.is_empty()).then_some(named),
        }
    }
}

/// Returns the register of the next record's place.
pub(crate) fn index_register() -> MsrAddress {
    // SAFETY: an offset in the buffer at IA32_PEBS_BASE, of which the processor does not go beyond the end. Only
    // `PreciseRecorder` gives a base, with the promise of its `take`.
    unsafe { MsrAddress::new(IA32_PEBS_INDEX) }
}
