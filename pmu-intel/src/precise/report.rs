//! A record, together with the event to which the record belongs.

use pmu_core::{
    AccessType, CounterId, DataAccess, DataSource, LineState, PreciseSample, Translation,
};

use crate::precise::decode::memory::MemoryInfo;
use crate::precise::decode::record::PreciseRecord;
use crate::precise::model::SourceEncoding;
use crate::precise::unit::PreciseUnit;

/// The memory accesses that an event counts, if this crate knows them: loads or stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum AccessKind {
    /// The event counts loads. The event's records have each load's latency and data source.
    Loads,
    /// The event counts stores.
    Stores,
    /// The event is not known to count memory accesses.
    Unknown,
}

/// A precise record, together with the counter whose overflow caused the record.
#[derive(Clone, Copy, Debug)]
pub struct PreciseReport<'a> {
    /// The counter whose overflow caused the record.
    pub counter: CounterId,
    /// The [tag](pmu_core::Event::tagged) of the sampled event.
    pub tag: u64,
    /// The period of the sampled event.
    pub period: u64,
    /// The memory accesses that the sampled event counts.
    pub access: AccessKind,
    /// The record. Branches and data addresses of privilege levels that the sampled event does not count are left out.
    pub record: PreciseRecord<'a>,
    pub(crate) unit: &'a PreciseUnit,
}

impl PreciseReport<'_> {
    /// Converts the precise record to the form that is common to all vendors.
    ///
    /// In PEBS formats before 2 the sample's address is `None`, because a record has only the address of the
    /// [next](PreciseRecord::next_address) instruction. The sample describes a memory access only if the sampled event
    /// counts loads or stores.
    pub fn sample(&self) -> PreciseSample {
        let memory = self.record.memory().filter(|_| self.access != AccessKind::Unknown);
        let split = self.unit.has_two_latencies();
        PreciseSample {
            address: self.record.address(),
            branch: None,
            access: memory.map(|memory| self.access(&memory)),
            fetch: None,
            latency: memory.filter(|_| split).map(|memory| memory.latency as u16),
            retire_latency: if self.unit.records_retire_latency() {
                self.record.retire_latency()
            } else {
                None
            },
        }
    }

    fn access(&self, memory: &MemoryInfo) -> DataAccess {
        let address = memory.address;
        if self.access == AccessKind::Stores {
            // SDM vol. 3B, "Precise Store": bit 0, the first-level cache has the line; 4, the second-level TLB missed.
            let hit = memory.source & 1 != 0;
            return DataAccess {
                store: true,
                address,
                source: hit.then_some(DataSource::L1),
                locked: Some(memory.source >> 5 & 1 != 0),
                ..DataAccess::default()
            };
        }
        let latency =
            if self.unit.has_two_latencies() { memory.latency >> 32 } else { memory.latency };
        let decoded = LoadSource::of(self.unit.sources, memory.source);
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
}

/// The source of a load's data, decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LoadSource {
    source: Option<DataSource>,
    remote: Option<bool>,
    modified: bool,
    uncacheable: bool,
    page_walk: bool,
    locked: Option<bool>,
}

impl LoadSource {
    /// Decodes a source (SDM vol. 3B, "Data Source Encoding for Load Latency Record"; for later cores the tables of
    /// Linux perf).
    fn of(encoding: SourceEncoding, source: u64) -> Self {
        use DataSource::{FarCache, FillBuffer, Io, L1, L2, L3, Memory, PersistentMemory};
        let local = |source| (Some(source), Some(false), false);
        let remote = |source, modified| (Some(source), Some(true), modified);
        let none = (None, None, false);
        let number = source & 0xF;
        let (found, is_remote, modified) = match (encoding, number) {
            (SourceEncoding::Unknown, _) => none,
            (_, 1) => local(L1),
            (_, 2) => local(FillBuffer),
            (_, 3) => local(L2),
            (SourceEncoding::Nehalem, 4 | 5) => local(L3),
            (SourceEncoding::Nehalem, 6 | 7) | (_, 7) => (Some(L3), Some(false), true),
            (_, 4..=6) => local(L3),
            (SourceEncoding::Skylake, 8 | 9) => none,
            (SourceEncoding::SkylakeServer, 8) => local(PersistentMemory),
            (SourceEncoding::SkylakeServer, 9) => remote(PersistentMemory, false),
            (_, 8) => remote(FarCache, false),
            (_, 9) => remote(FarCache, true),
            (_, 0xA) => local(Memory),
            (_, 0xB) => remote(Memory, false),
            (SourceEncoding::Skylake | SourceEncoding::SkylakeServer, 0xC) => {
                remote(FarCache, false)
            }
            (SourceEncoding::Skylake | SourceEncoding::SkylakeServer, 0xD) => {
                remote(FarCache, true)
            }
            (_, 0xC) => local(Memory),
            (_, 0xD) => remote(Memory, false),
            (_, 0xE) => (Some(Io), None, false),
            _ => none,
        };
        let known = encoding != SourceEncoding::Unknown;
        let has_lock = known && encoding != SourceEncoding::Nehalem;
        Self {
            source: found,
            remote: is_remote,
            modified,
            uncacheable: known && number == 0xF,
            page_walk: known && source >> 4 & 1 != 0,
            locked: has_lock.then_some(source >> 5 & 1 != 0),
        }
    }
}
