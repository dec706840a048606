//! Writing of due records.

use crate::model::state::Model;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;
use crate::precise::adaptive::Adaptive;
use crate::precise::architectural::Architectural;
use crate::precise::area::{Buffer, RECORDS, RESETS};
use crate::precise::configuration::{ArchitecturalRecords, DebugStoreRecords, PreciseRecords};
use crate::precise::fed::FedRecord;
use crate::precise::fixed::store_fixed;
use crate::precise::memory::{GuestFault, GuestMemory};
use crate::precise::registers::{BASE_ADDRESS, BASE_SIZE, INDEX_FULL, INDEX_WRITE};
use crate::precise::store::{Place, Store, read_words};
use crate::precise::virtual_precise::*;
use crate::registers::counters::{MAX_PER_KIND, from_global, places, to_global};
use crate::registers::family::Family;

/// Result of [`VirtualPrecise::record`](crate::precise::VirtualPrecise::record) and
/// [`VirtualPrecise::branch`](crate::precise::VirtualPrecise::branch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use]
pub struct Recorded {
    /// Number of written records.
    pub written: u32,
    /// Number of lost records. A record is lost if the buffer is full, or if the buffer's index is outside the buffer.
    pub lost: u32,
    /// The record buffer has reached its threshold and raised an interrupt. The interrupt is pending until
    /// [`deliver_pmi`](crate::VirtualPmu::deliver_pmi) is called. If this field is `true`, call
    /// [`pmi_raised`](crate::GuestFacility::pmi_raised) of each other facility of the guest.
    pub pmi: bool,
    /// Failed access to the guest's memory. The guest does not see the unfinished record. The records of the remaining
    /// counters stay [due](crate::precise::VirtualPrecise::due).
    pub fault: Option<GuestFault>,
}

impl VirtualPrecise {
    /// Writes the [due](Self::due) record of each counter in `counters`. The record describes the instruction `fed`,
    /// which causes the counter's event. The call then loads the counter with its reset value. If the guest's record
    /// buffer reaches the threshold, the call sets the buffer's bit in the global status, and raises an interrupt.
    ///
    /// `counters` is a bitmap with the bits of the global status. The record of a stopped counter stays due.
    ///
    /// [`VirtualPrecise`] has an example.
    pub fn record<P: EventPolicy>(
        &mut self,
        pmu: &mut VirtualPmu<P>,
        counters: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
    ) -> Recorded {
        let mut recorded = Recorded::default();
        for place in places(from_global(self.ready(&pmu.model, counters))) {
            self.write(&mut pmu.model, to_global(1 << place), fed, memory, &mut recorded);
            if recorded.fault.is_some() {
                break;
            }
        }
        recorded
    }

    /// Writes a single record for all `counters` that have a [due](Self::due) record. A real processor can write such a
    /// record if several counters overflow at the same time. In formats 1 and 2, the record does not tell which
    /// counters overflowed.
    pub fn record_collided<P: EventPolicy>(
        &mut self,
        pmu: &mut VirtualPmu<P>,
        counters: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
    ) -> Recorded {
        let mut recorded = Recorded::default();
        let ready = self.ready(&pmu.model, counters);
        if ready != 0 {
            self.write(&mut pmu.model, ready, fed, memory, &mut recorded);
        }
        recorded
    }

    /// Returns those of the counters whose records are due, and that run.
    fn ready(&self, model: &Model, counters: u64) -> u64 {
        self.words[DUE] & counters & self.enabled() & to_global(model.running())
    }

    /// Writes one record of these counters, and loads them.
    fn write(
        &mut self,
        model: &mut Model,
        counters: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
        recorded: &mut Recorded,
    ) {
        self.words[DUE] &= !counters;
        let (interrupts, bit) = match self.configuration.records {
            PreciseRecords::None => (Ok(false), BUFFER),
            PreciseRecords::DebugStore(records) => {
                (self.write_debug_store(&records, model, counters, fed, memory, recorded), BUFFER)
            }
            PreciseRecords::Architectural(records) => (
                self.write_architectural(&records, model, counters, fed, memory, recorded),
                THRESHOLD,
            ),
        };
        self.finish(interrupts, bit, model, recorded);
    }

    /// Raises the interrupt of a buffer that reached its threshold, or notes the fault.
    pub(crate) fn finish(
        &mut self,
        interrupts: Result<bool, GuestFault>,
        bit: u64,
        model: &mut Model,
        recorded: &mut Recorded,
    ) {
        match interrupts {
            Ok(false) => {}
            Ok(true) => {
                self.words[STATUS] |= bit;
                model.interrupt();
                recorded.pmi = true;
            }
            Err(fault) => recorded.fault = Some(fault),
        }
    }

    /// Returns whether the index has reached the threshold.
    fn write_debug_store(
        &self,
        records: &DebugStoreRecords,
        model: &mut Model,
        counters: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
        recorded: &mut Recorded,
    ) -> Result<bool, GuestFault> {
        let mut buffer = Buffer::read(memory, self.words[AREA], RECORDS)?;
        let written = self.write_at_index(records, model, counters, fed, memory, &mut buffer);
        match written {
            Ok(true) => recorded.written += 1,
            Ok(false) => recorded.lost += 1,
            Err(_) => {}
        }
        let mut interrupts = written.map(|_| buffer.interrupts());
        // The counter goes on where its record failed, too.
        for place in places(from_global(counters)) {
            let slot = match (place, records.format) {
                (..MAX_PER_KIND, _) => place,
                (_, ..=4) => place,
                _ => 32 + place - MAX_PER_KIND,
            };
            match read_words(memory, self.words[AREA].wrapping_add(RESETS + 8 * slot as u64)) {
                Ok([reset]) => model.load(place, reset),
                Err(fault) => interrupts = interrupts.and(Err(fault)),
            }
        }
        interrupts
    }

    /// Writes the record, and the index behind it. Returns `false` if there is no room.
    fn write_at_index(
        &self,
        records: &DebugStoreRecords,
        model: &Model,
        counters: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
        buffer: &mut Buffer,
    ) -> Result<bool, GuestFault> {
        let status = model.registers.of(Family::GlobalStatus) | self.words[STATUS] | counters;
        let groups = if self.words[ADAPTIVE] & counters != 0 { self.words[DATA] } else { 0 };
        let adaptive = Adaptive { groups, counters, timing: records.timing, fed, model };
        let store_all = |size: u64, store: &mut Store<'_>| match records.format {
            format @ ..4 => store_fixed(format, status, counters, fed, store),
            _ => adaptive.store(size, store),
        };
        let mut counting = Store::counting();
        store_all(0, &mut counting)?;
        let size = counting.length;
        if !buffer.has_room(size) {
            return Ok(false);
        }
        store_all(size, &mut Store::at(memory, Place::Linear(buffer.index)))?;
        buffer.set_index(memory, buffer.index + size)?;
        Ok(true)
    }

    /// Returns whether the offset has reached the threshold, or the buffer is full.
    fn write_architectural(
        &mut self,
        records: &ArchitecturalRecords,
        model: &mut Model,
        counters: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
        recorded: &mut Recorded,
    ) -> Result<bool, GuestFault> {
        let controls = places(from_global(counters)).map(|place| self.controls[place % 16]);
        let record = Architectural {
            groups: controls.fold(0, |groups, control| groups | control),
            fragments: records.fragments,
            counters,
            readable: self.readable(),
            fed,
            model,
        };
        let mut counting = Store::counting();
        record.store(&mut counting)?;
        let length = 4096 << (self.words[BASE] & BASE_SIZE);
        let offset = self.words[INDEX] & INDEX_WRITE;
        let end = offset + counting.length;
        let has_room = self.words[INDEX] & INDEX_FULL == 0 && end <= length && end <= INDEX_WRITE;
        let written = if has_room {
            let first = (self.words[BASE] & BASE_ADDRESS).wrapping_add(offset);
            record.store(&mut Store::at(memory, Place::Physical(first)))
        } else {
            Ok(())
        };
        for place in places(from_global(counters)) {
            let reload = self.controls[place % 16] as u32;
            if reload != 0 {
                model.load(place, u64::from(reload) | 0xFFFF_FFFF << 32);
            }
        }
        written?;
        if has_room {
            self.words[INDEX] = self.words[INDEX] & !INDEX_WRITE | end;
            recorded.written += 1;
        } else {
            self.words[INDEX] |= INDEX_FULL;
            recorded.lost += 1;
        }
        let threshold = (self.words[INDEX] >> 36 & 0x7F_FFFF) << 4;
        Ok(!has_room || end >= threshold)
    }

    /// Returns the counters whose values the guest allows in records, general and fixed.
    fn readable(&self) -> [u8; 2] {
        let mut readable = 0;
        for (place, control) in self.controls.iter().enumerate() {
            readable |= ((control >> 35 & 1) as u16) << place;
        }
        readable.to_le_bytes()
    }
}
