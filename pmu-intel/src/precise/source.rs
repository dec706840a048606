//! The source of a load's data in a record.

use pmu_core::precise::DataSource;

/// Encoding of the source of a load's data (SDM vol. 3B, "Load Latency Performance Monitoring Facility" and the tables
/// of the models' data sources; the grouping is that of Linux perf).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) enum SourceEncoding {
    /// Nehalem, Westmere.
    Nehalem,
    /// Sandy Bridge to Broadwell.
    SandyBridge,
    /// From Skylake to Redwood Cove, clients' cores: value 8 is the fourth-level cache.
    Skylake,
    /// From Skylake to Redwood Cove, servers' cores: values 8 and 9 are persistent memory.
    SkylakeServer,
    /// Lion Cove, Cougar Cove.
    LionCove,
    /// Panther Cove, Coyote Cove (Intel's Architecture Instruction Set Extensions reference, "PEBS Load Latency and
    /// Store Latency Facility").
    PantherCove,
    /// Gracemont.
    Gracemont,
    /// Crestmont, Skymont, Darkmont.
    Crestmont,
    /// Arctic Wolf: as Panther Cove, with other values of the core's own caches.
    ArcticWolf,
    /// The encoding is not known here.
    Unknown,
}

impl SourceEncoding {
    /// Returns the bit of a miss of the second-level TLB, and the bit of a locked access; `None` if the encoding is not
    /// known.
    const fn places(self) -> Option<[u32; 2]> {
        Some(match self {
            Self::Unknown => return None,
            Self::Nehalem | Self::SandyBridge | Self::Skylake | Self::SkylakeServer => [4, 5],
            Self::LionCove => [10, 11],
            Self::PantherCove | Self::ArcticWolf => [11, 12],
            // The other order than on P-cores.
            Self::Gracemont => [5, 4],
            Self::Crestmont => [6, 5],
        })
    }
}

/// The source of a load's data, decoded. A value that is reserved, or whose meaning is not known here, is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoadSource {
    pub(crate) source: Option<DataSource>,
    pub(crate) remote: Option<bool>,
    pub(crate) modified: bool,
    pub(crate) uncacheable: bool,
    pub(crate) page_walk: bool,
    pub(crate) locked: Option<bool>,
}

/// The meaning of a value: source, whether it is another socket's, and whether another cache had the line modified.
type Found = (Option<DataSource>, Option<bool>, bool);

const NONE: Found = (None, None, false);

const fn local(source: DataSource) -> Found {
    (Some(source), Some(false), false)
}

const fn local_modified(source: DataSource) -> Found {
    (Some(source), Some(false), true)
}

const fn remote(source: DataSource) -> Found {
    (Some(source), Some(true), false)
}

const fn remote_modified(source: DataSource) -> Found {
    (Some(source), Some(true), true)
}

const IO: Found = (Some(DataSource::Io), None, false);

impl LoadSource {
    /// Decodes the word of a load's source.
    pub(crate) fn of(encoding: SourceEncoding, word: u64) -> Self {
        use SourceEncoding::{ArcticWolf, LionCove, Nehalem, PantherCove};
        let Some([tlb_miss, locked]) = encoding.places() else { return Self::default() };
        let has = |bit: u32| word >> bit & 1 != 0;
        let missed_l2 = matches!(encoding, PantherCove | ArcticWolf) && has(8);
        let value = if missed_l2 || encoding == LionCove { word as u8 } else { word as u8 & 0xF };
        let (source, remote, modified) = match encoding {
            _ if missed_l2 => beyond_l2(value),
            LionCove => lion_cove(value),
            PantherCove => panther_cove(value),
            ArcticWolf => arctic_wolf(value),
            _ => four_bits(encoding, value),
        };
        let uncacheable = match encoding {
            _ if missed_l2 => false,
            LionCove => false,
            ArcticWolf => value == 6,
            _ => value == 0xF,
        };
        Self {
            source,
            remote,
            modified,
            uncacheable,
            page_walk: has(tlb_miss),
            locked: (encoding != Nehalem).then(|| has(locked)),
        }
    }
}

/// The table that Nehalem began, with what later cores changed.
fn four_bits(encoding: SourceEncoding, value: u8) -> Found {
    use DataSource::{FarCache, FillBuffer, L1, L2, L3, Memory, PersistentMemory};
    use SourceEncoding::{Crestmont, Gracemont, Nehalem, Skylake, SkylakeServer};
    match (encoding, value) {
        (_, 1) => local(L1),
        (_, 2) => local(FillBuffer),
        (_, 3) => local(L2),
        (Nehalem | Gracemont, 6) | (Crestmont, 8) => local_modified(L3),
        (Crestmont, 7) | (Gracemont, 8) => local(L3),
        (_, 4..=6) => local(L3),
        (_, 7) => local_modified(L3),
        (Skylake, 8 | 9) => NONE,
        (SkylakeServer, 8) => local(PersistentMemory),
        (SkylakeServer, 9) => remote(PersistentMemory),
        (_, 8) => remote(FarCache),
        (_, 9) => remote_modified(FarCache),
        (_, 0xA) => local(Memory),
        (_, 0xB) => remote(Memory),
        (Skylake | SkylakeServer, 0xC) => remote(FarCache),
        (Skylake | SkylakeServer, 0xD) => remote_modified(FarCache),
        (Crestmont, 0xC) => remote(Memory),
        (Crestmont, 0xD) => remote_modified(Memory),
        (_, 0xC) => local(Memory),
        (_, 0xD) => remote(Memory),
        (_, 0xE) => IO,
        _ => NONE,
    }
}

fn lion_cove(value: u8) -> Found {
    use DataSource::{FillBuffer, L1, L2, L2FillBuffer, L3, Memory, MemorySideCache, OtherCache};
    match value {
        1 | 2 => local(L1),
        3 => local(FillBuffer),
        5 => local(L2),
        6 => local(L2FillBuffer),
        8 | 0xC => local(L3),
        0xD => local_modified(L3),
        0xF => (Some(OtherCache), None, true),
        0x10 => local(MemorySideCache),
        0x11 => local(Memory),
        _ => NONE,
    }
}

/// The caches of Panther Cove's core. Value 1 is the level below the first, L0.
fn panther_cove(value: u8) -> Found {
    use DataSource::{FillBuffer, L1, L2};
    match value {
        1 | 2 => local(L1),
        3 => local(FillBuffer),
        4 | 7 | 9 | 0xA => local(L2),
        8 => local_modified(L2),
        _ => NONE,
    }
}

/// The caches of Arctic Wolf's core.
fn arctic_wolf(value: u8) -> Found {
    use DataSource::{FillBuffer, L1, L2};
    match value {
        1 => local(L1),
        2 => local(FillBuffer),
        3 | 4 => local(L2),
        5 => local_modified(L2),
        _ => NONE,
    }
}

/// An off-module response (OMR): bits 3:0 are the agent or the region of memory, bit 4 says that it is another
/// socket's, and bit 5 that a cache had the line modified.
fn beyond_l2(value: u8) -> Found {
    use DataSource::{FarCache, L3, Memory, NearCache};
    let (is_remote, modified) = (value >> 4 & 1 != 0, value >> 5 & 1 != 0);
    let of_cache =
        |here| (Some(if is_remote { FarCache } else { here }), Some(is_remote), modified);
    match value & 0xF {
        2 | 3 => of_cache(L3),
        5 | 6 => of_cache(NearCache),
        7 => IO,
        8..=0xF => (Some(Memory), Some(is_remote), false),
        _ => NONE,
    }
}
