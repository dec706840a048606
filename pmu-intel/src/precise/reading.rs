//! Records that are in the buffer: counted by tasks, and read out by the interrupt.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::CounterSet;
use pmu_core::access::{AccessFault, RegisterAccess, RegisterBackend};
use pmu_core::facility::{Recorded, RunningEvent};
use pmu_core::precise::{
    AccessType, DataAccess, DataSource, LineState, PreciseSample, Translation,
};
use pmu_core::registers::CounterId;
use pmu_core::thread::Waiting;

use crate::precise::groups::MemoryInfo;
use crate::precise::layout::PreciseFormat;
use crate::precise::memory::index_register;
use crate::precise::pebs::{LEAST_PART, Pebs};
use crate::precise::record::{PreciseRecord, PreciseRecords, Shown};
use crate::precise::registers::PebsIndex;
use crate::precise::source::{LoadSource, SourceEncoding};
use crate::precise::state::{Departed, SlotFlags, TAKEN};
use crate::precise::unit::PreciseUnit;

/// The records that an interrupt reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// The record whose counters are being reported, and its place in the buffer.
    record: Option<(PreciseRecord<'static>, u32)>,
    /// The privilege levels and the access that a sample may show of it.
    shown: Option<(Shown, AccessKind)>,
    /// The event of the record has left its counter since.
    pub(crate) left: bool,
    /// The generation of the buffer that is read.
    generation: u16,
}

impl Reading {
    /// Returns the record as a sample may show it.
    pub(crate) fn shown(&self) -> Option<(PreciseRecord<'static>, AccessKind)> {
        let ((record, _), (shown, access)) = self.record.zip(self.shown)?;
        Some((record.showing(shown), access))
    }
}

impl Pebs<'_> {
    /// Returns the number of bytes that are in the buffer.
    #[inline(never)] // 304 bytes of the Hermit-like glue.
    pub(crate) fn filled<M: RegisterBackend>(&self, msr: &M) -> Result<u32, AccessFault> {
        let filled = if self.unit.needs_physical_address() {
            let found = PebsIndex::from_bits(msr.read_retrying(index_register())?);
            16 * found.write()
        } else {
            let (area, base) = (self.memory.save_area(), self.memory.buffer_address());
            area.pebs_index.load(Relaxed).saturating_sub(base) as u32
        };
        // An index outside of the buffer is not this driver's: the registers or the area were lost.
        Ok(if filled as usize <= self.memory.capacity() { filled } else { 0 })
    }

    /// Returns the records between two places of the buffer.
    #[inline(never)] // 144 bytes of the Hermit-like glue.
    fn records(&self, from: u32, to: u32) -> PreciseRecords<'static> {
        let words = self.memory.buffer().get(from as usize / 8..to as usize / 8);
        PreciseRecords::from_words(self.unit.format(), words.unwrap_or_default())
    }

    /// Counts the records of a counter between two places of the buffer.
    #[inline(never)] // 208 bytes of the Hermit-like glue, at `opt-level` 3.
    fn count(&self, counter: CounterId, (from, to): (u32, u32), generation: u16) -> u32 {
        if from >= to {
            return 0;
        }
        let (mut records, mut count) = (self.records(from, to), 0);
        loop {
            let Some(record) = records.next() else { return count };
            // Records are told apart by their place: a record up to where an event left its counter is that event's.
            let place = to - records.remaining() as u32 - record.size() as u32;
            count += u32::from(self.counters_of(&record, place, generation).contains(counter));
        }
    }

    /// Returns the records that wait of the event on a counter: those that the interrupt is yet to report, and those
    /// that it is yet to read out.
    pub(crate) fn count_waiting<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
    ) -> Result<Waiting, AccessFault> {
        let state = &self.memory.state;
        loop {
            if !state.recording().contains(counter) {
                return Ok(Waiting::NONE);
            }
            let (generation, (from, to)) = (state.generation(), state.batch());
            let before = generation.wrapping_sub(1);
            let place = from.max(state.departed.end(counter, before));
            let pending = state.pending.load(Relaxed) & counter.only().bits() != 0;
            let batch = self.count(counter, (place, to), before) + u32::from(pending);
            let place = state.departed.end(counter, generation);
            let buffer = self.count(counter, (place, self.filled(msr)?), generation);
            if state.generation() != generation {
                // The interrupt has read the buffer out, and has reported the records.
                continue;
            }
            return match batch + buffer {
                0 => Ok(Waiting::NONE),
                records => Ok(Waiting { records, reloaded: self.reload_of(counter) }),
            };
        }
    }

    /// Notes that an event leaves its counter, and returns the records that wait of it.
    pub(crate) fn leave_waiting<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
        event: &RunningEvent<'_>,
    ) -> Result<Waiting, AccessFault> {
        let state = &self.memory.state;
        loop {
            let (generation, accounted) = (state.generation(), event.accounted());
            let (waiting, until) = (self.count_waiting(msr, counter)?, self.filled(msr)?);
            if waiting == Waiting::NONE {
                break;
            }
            let flags = state.slot(counter).map_or(0, |slot| slot.flags().0);
            let (event_id, period) = (Some(event.id()), event.period_under_way());
            // Parts of a period are no samples.
            let reloaded = if period == 0 { 0 } else { waiting.reloaded };
            let departed = Departed { counter, event: event_id, period, reloaded, flags, until };
            if !state.departed.add(departed, generation) {
                // Without this the records would be taken for those of the counter's next event.
                self.reset(msr)?;
                self.memory.count_lost();
                continue;
            }
            if state.generation() == generation || event.accounted() == accounted {
                // The interrupt finds, or has found, that they are records of an event that left.
                state.set_recording(state.recording().without(counter.only()));
                return Ok(waiting);
            }
            // The interrupt has reported them before.
        }
        state.set_recording(state.recording().without(counter.only()));
        Ok(Waiting::NONE)
    }

    /// Notes that an event left its counter without notice. Records that wait of it are reported nevertheless, unless
    /// the counter was `stuck`: then some may be from later.
    pub(crate) fn abandon<M: RegisterBackend>(&self, msr: &M, counter: CounterId, stuck: bool) {
        let state = &self.memory.state;
        let Some(slot) = state.slot(counter) else { return };
        // Without an answer, all records of the counter are of no event until the buffer is next read out.
        let (generation, filled) = (state.generation(), self.filled(msr));
        let until = filled.unwrap_or(u32::MAX);
        let event = (!stuck && filled.is_ok()).then(|| slot.event());
        let (period, flags) = (slot.reload.load(Relaxed), slot.flags().0);
        // Parts of a period are no samples.
        let period = if period >= LEAST_PART { 0 } else { period };
        let departed = Departed { counter, event, period, reloaded: period, flags, until };
        let is_none = self.count_waiting(msr, counter) == Ok(Waiting::NONE);
        if until != 0
            && (stuck || !is_none)
            && !state.departed.add(departed, generation)
            && self.reset(msr).is_ok()
        {
            self.memory.count_lost();
        }
    }

    /// Returns the counters of a record. In formats before 3 a record names the counters that had overflowed, or none:
    /// it belongs to one of them only if there is only one.
    fn counters_of(&self, record: &PreciseRecord<'_>, place: u32, generation: u16) -> CounterSet {
        let state = &self.memory.state;
        let has_left = |departed: &Departed| departed.until > place;
        let left = state.departed.of(generation).filter(has_left);
        let left = left.fold(CounterSet::NONE, |all, departed| all | departed.counter.only());
        let known = state.recording() | left;
        // Counters that registers did not stop may write records, too.
        let recording = known | state.enabled();
        let only = |set: CounterSet| if set.len() == 1 { set } else { CounterSet::NONE };
        let named = record.counters().map(|named| named & recording);
        let counters = match (self.unit.format(), named) {
            (PreciseFormat::Nehalem | PreciseFormat::Haswell, Some(named)) if !named.is_empty() => {
                only(named)
            }
            (PreciseFormat::Nehalem | PreciseFormat::Haswell, _) | (_, None) => only(recording),
            (_, Some(named)) => named,
        };
        counters & known
    }

    /// Empties the buffer. Returns the number of bytes that were written.
    fn reset<M: RegisterBackend>(&self, msr: &M) -> Result<u32, AccessFault> {
        let written = match self.unit.format() {
            PreciseFormat::Architectural => self.memory.reset_register(msr)?,
            _ => self.memory.reset_area(self.unit),
        };
        // Now that the buffer is empty: a task that counts its records meanwhile sees another generation, and counts
        // again.
        self.memory.state.next_generation();
        Ok(written as u32)
    }

    /// Begins to read the buffer out. It is empty from here on: the counters are stopped.
    pub(crate) fn begin_reading<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        let state = &self.memory.state;
        let generation = state.generation();
        let written = self.reset(msr)?;
        state.set_batch((0, written));
        self.reading = Some(Reading { record: None, shown: None, left: false, generation });
        Ok(())
    }

    /// Returns whether records follow the one that is reported.
    pub(crate) fn has_more(&self) -> bool {
        let (from, to) = self.memory.state.batch();
        from < to
    }

    /// Returns the next counter of a record.
    pub(crate) fn next_recorded(&mut self) -> Option<Recorded> {
        // The rest of the facility is references, and the record is not moved for each counter.
        let this = Self { reading: None, ..*self };
        let (state, reading) = (&this.memory.state, self.reading.as_mut()?);
        loop {
            let pending = CounterSet::from_bits(state.pending.load(Relaxed));
            if let (Some(counter), Some((record, place))) = (pending.iter().next(), &reading.record)
            {
                state.pending.store(pending.without(counter.only()).bits(), Relaxed);
                let recorded = this.recorded(counter, record, *place, reading.generation);
                reading.shown = recorded.as_ref().and_then(|(_, shown)| *shown);
                reading.left = recorded.as_ref().is_some_and(|(of, _)| of.left.is_some());
                match recorded {
                    Some((recorded, _)) => return Some(recorded),
                    None => continue,
                }
            }
            let (from, to) = state.batch();
            let mut records = this.records(from, to);
            let record = records.next();
            this.memory.count_malformed(records.malformed());
            let Some(record) = record else {
                state.set_batch((0, 0));
                state.departed.clear();
                self.reading = None;
                return None;
            };
            let end = to - records.remaining() as u32;
            let place = end - record.size() as u32;
            state.set_batch((end, to));
            let counters = this.counters_of(&record, place, reading.generation);
            if counters.is_empty() {
                this.memory.count_unattributed();
            }
            state.pending.store(counters.bits(), Relaxed);
            reading.record = Some((record, place));
        }
    }

    /// Returns one counter's overflow, and what a sample may show of its record. `None` if its event is not known.
    fn recorded(
        &self,
        counter: CounterId,
        record: &PreciseRecord<'static>,
        place: u32,
        generation: u16,
    ) -> Option<(Recorded, Option<(Shown, AccessKind)>)> {
        let state = &self.memory.state;
        let slot = state.slot(counter)?;
        let departed = state.departed.take_at(counter, place, generation);
        let left = match departed {
            None => None,
            Some(Departed { event: Some(event), period, .. }) => Some((event, period)),
            Some(Departed { event: None, .. }) => {
                self.memory.count_unattributed();
                return None;
            }
        };
        let flags = departed.map_or(slot.flags(), |departed| SlotFlags(departed.flags));
        let shown = record.levels(flags.counts_user(), flags.counts_kernel());
        if shown.is_none() {
            self.memory.count_hidden();
        }
        let reloaded = slot.reload.load(Relaxed);
        let (event, left) = match left {
            Some((event, period)) => (event, Some(period)),
            None => (slot.event(), None),
        };
        let recorded = Recorded { counter, event, reloaded, left, hidden: shown.is_none() };
        Some((recorded, shown.map(|shown| (shown, flags.access()))))
    }

    /// Returns the counters whose overflows are records.
    pub(crate) fn recording(&self) -> CounterSet {
        match self.memory.state.is(TAKEN) {
            true => self.memory.state.recording(),
            false => CounterSet::NONE,
        }
    }
}

/// The memory accesses that an event counts, if this crate knows them: loads or stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessKind {
    /// The event counts loads. The event's records have each load's latency and data source.
    Loads,
    /// The event counts stores.
    Stores,
    /// The event is not known to count memory accesses.
    Unknown,
}

impl PreciseUnit {
    /// Returns what a record tells of its instruction. In PEBS formats before 2 the address is `None`, because a record
    /// has only that of the next instruction. The sample has a memory access only if the event counts loads or stores.
    pub(crate) fn sample(&self, record: &PreciseRecord<'_>, kind: AccessKind) -> PreciseSample {
        let memory = record.memory().filter(|_| kind != AccessKind::Unknown);
        let split = self.has_two_latencies();
        PreciseSample {
            address: record.address(),
            branch: None,
            access: memory.map(|memory| self.access(&memory, kind)),
            fetch: None,
            latency: memory.filter(|_| split).map(|memory| memory.latency as u16),
            retire_latency: if self.records_retire_latency() {
                record.retire_latency()
            } else {
                None
            },
        }
    }

    fn access(&self, memory: &MemoryInfo, kind: AccessKind) -> DataAccess {
        let address = memory.address;
        if kind == AccessKind::Stores {
            let (hit, locked) = self.store(memory.source);
            let source = hit.then_some(DataSource::L1);
            return DataAccess { store: true, address, source, locked, ..DataAccess::default() };
        }
        let latency = if self.has_two_latencies() { memory.latency >> 32 } else { memory.latency };
        let decoded = LoadSource::of(self.sources, memory.source);
        DataAccess {
            load: true,
            address,
            latency: Some(u16::try_from(latency & 0xFFFF_FFFF).unwrap_or(u16::MAX)),
            source: decoded.source,
            remote: decoded.remote,
            line: decoded.modified.then_some(LineState::Modified),
            translation: decoded.page_walk.then_some(Translation::PageWalk),
            locked: decoded.locked,
            memory_type: decoded.uncacheable.then_some(AccessType::Uncacheable),
            ..DataAccess::default()
        }
    }

    /// Returns whether the first-level cache had a store's line, and whether the store is locked, if known.
    fn store(&self, source: u64) -> (bool, Option<bool>) {
        let bit = |bit: u32| source >> bit & 1 != 0;
        match self.sources {
            SourceEncoding::LionCove => (source & 0xFF == 1, None),
            // From Golden Cove on, MEM_TRANS_RETIRED.STORE_SAMPLE has a load's encoding: only value 1 is this cache.
            SourceEncoding::Skylake | SourceEncoding::SkylakeServer if self.has_two_latencies() => {
                (source & 0xF == 1, Some(bit(5)))
            }
            // SDM vol. 3B, "Precise Store": bit 0, the first-level cache has the line; 5, locked.
            SourceEncoding::Nehalem
            | SourceEncoding::SandyBridge
            | SourceEncoding::Skylake
            | SourceEncoding::SkylakeServer => (bit(0), Some(bit(5))),
            _ => (false, None),
        }
    }
}
