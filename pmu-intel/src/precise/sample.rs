//! The sample that a record is, in the form that is common to all vendors.

use pmu_core::precise::{
    AccessType, DataAccess, DataSource, LineState, PreciseSample, Translation,
};

use crate::precise::decode::memory::MemoryInfo;
use crate::precise::decode::record::PreciseRecord;
use crate::precise::source::{LoadSource, SourceEncoding};
use crate::precise::unit::PreciseUnit;

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
