//! Trace records: `PERFINFO_TRACE_HEADER` and what follows it.

use core::fmt;

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::PointerWidth;

/// The longest record: header, PEBS index, and a 64-bit payload.
pub(super) const MAX_RECORD: usize = 0x10 + 8 + 0x10;

/// The high bytes of the marker: `TRACE_HEADER_FLAG | TRACE_HEADER_EVENT_TRACE`, and the header's
/// type by width.
const MARKER_32: u32 = 0xC010_0000;
const MARKER_64: u32 = 0xC011_0000;
const VERSION: u32 = 2;
/// A PEBS index follows the header.
const FLAG_PEBS_INDEX: u32 = 0x8000;
/// How many PMC values follow.
const PMC_COUNT: u32 = 0x0700;

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Hook {
    /// `PERFINFO_LOG_TYPE_SAMPLED_PROFILE`.
    SampledProfile,
    /// `PERFINFO_LOG_TYPE_PMC_INTERRUPT`.
    PmcInterrupt,
}

impl Hook {
    /// The hook id.
    pub const fn id(self) -> u16 {
        match self {
            Self::SampledProfile => 0x0F2E,
            Self::PmcInterrupt => 0x0F2F,
        }
    }
}

/// A trace record of a profile interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TraceRecord {
    /// The width of the traced kernel's pointers.
    pub width: PointerWidth,
    /// When, in the trace's units.
    pub timestamp: u64,
    /// The processor's PEBS index, where there was one.
    pub pebs_index: Option<u64>,
    /// Where the interrupt returns to. A 32-bit kernel's has 32 bits.
    pub pc: u64,
    /// The interrupted thread.
    pub thread: u32,
    /// What the event adds.
    pub detail: Detail,
}

/// What one event's record has and the other's has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Detail {
    /// [`Hook::SampledProfile`].
    SampledProfile {
        /// How many interrupts the record stands for.
        count: u16,
        /// Bit 0: executing a DPC; bit 1: executing an interrupt routine; bits 7:3: priority.
        flags: u8,
        /// The rank.
        rank: u8,
    },
    /// [`Hook::PmcInterrupt`].
    PmcInterrupt {
        /// The profile source.
        source: u16,
    },
}

impl Detail {
    /// The event's hook.
    pub const fn hook(self) -> Hook {
        match self {
            Self::SampledProfile { .. } => Hook::SampledProfile,
            Self::PmcInterrupt { .. } => Hook::PmcInterrupt,
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    marker: U32,
    size: U16,
    hook: U16,
    timestamp: U64,
}

/// What follows the instruction pointer in either payload.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Payload {
    thread: U32,
    /// Sampled profile: count. PMC interrupt: source.
    count_or_source: U16,
    flags: u8,
    rank: u8,
}

/// A record as bytes.
#[derive(Clone, Copy, Debug)]
pub struct RecordBytes {
    bytes: [u8; MAX_RECORD],
    length: usize,
}

impl RecordBytes {
    /// The record.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&[])
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        let free = self.bytes.get_mut(self.length..).unwrap_or(&mut []);
        free.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        self.length += bytes.len();
    }
}

/// Why bytes are no record of a profile interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum RecordError {
    /// Fewer bytes than the record says or needs.
    TooShort,
    /// The marker is none of a performance record's.
    Marker(u32),
    /// Another event's hook.
    Hook(u16),
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => f.write_str("the record is cut off"),
            Self::Marker(marker) => write!(f, "marker {marker:#010X} is no performance record's"),
            Self::Hook(hook) => write!(f, "hook {hook:#06X} is no profile interrupt's"),
        }
    }
}

impl core::error::Error for RecordError {}

impl TraceRecord {
    /// Writes the record. Any context.
    #[inline]
    pub fn encode(&self) -> RecordBytes {
        let ip = self.pc.to_le_bytes();
        let ip = ip.get(..self.width.bytes()).unwrap_or(&[]);
        let (count_or_source, flags, rank) = match self.detail {
            Detail::SampledProfile { count, flags, rank } => (count, flags, rank),
            Detail::PmcInterrupt { source } => (source, 0, 0),
        };
        let marker = match self.width {
            PointerWidth::Bits32 => MARKER_32,
            PointerWidth::Bits64 => MARKER_64,
        };
        let pebs = if self.pebs_index.is_some() { 8 } else { 0 };
        let size = size_of::<Header>() + pebs + ip.len() + size_of::<Payload>();
        let flag = if pebs != 0 { FLAG_PEBS_INDEX } else { 0 };
        let header = Header {
            marker: U32::new(marker | VERSION | flag),
            size: U16::new(size as u16),
            hook: U16::new(self.detail.hook().id()),
            timestamp: U64::new(self.timestamp),
        };
        let payload = Payload {
            thread: U32::new(self.thread),
            count_or_source: U16::new(count_or_source),
            flags,
            rank,
        };
        let mut record = RecordBytes { bytes: [0; MAX_RECORD], length: 0 };
        record.push(header.as_bytes());
        if let Some(index) = self.pebs_index {
            record.push(&index.to_le_bytes());
        }
        record.push(ip);
        record.push(payload.as_bytes());
        record
    }

    /// Reads the record at the beginning of `bytes`, and says how long it is. PMC values, which other
    /// writers may attach, are skipped.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), RecordError> {
        let (header, _) = Header::ref_from_prefix(bytes).map_err(|_| RecordError::TooShort)?;
        let marker = header.marker.get();
        let width = match marker & 0xFFFF_0000 {
            MARKER_32 => PointerWidth::Bits32,
            MARKER_64 => PointerWidth::Bits64,
            _ => return Err(RecordError::Marker(marker)),
        };
        let size = usize::from(header.size.get());
        let body = bytes.get(size_of::<Header>()..size).ok_or(RecordError::TooShort)?;
        let (pebs_index, body) = if marker & FLAG_PEBS_INDEX != 0 {
            let (index, rest) = U64::ref_from_prefix(body).map_err(|_| RecordError::TooShort)?;
            (Some(index.get()), rest)
        } else {
            (None, body)
        };
        let values = 8 * ((marker & PMC_COUNT) >> 8) as usize;
        let body = body.get(values..).ok_or(RecordError::TooShort)?;
        let (ip, payload) = body.split_at_checked(width.bytes()).ok_or(RecordError::TooShort)?;
        let (payload, _) = Payload::ref_from_prefix(payload).map_err(|_| RecordError::TooShort)?;
        let detail = match header.hook.get() {
            hook if hook == Hook::SampledProfile.id() => Detail::SampledProfile {
                count: payload.count_or_source.get(),
                flags: payload.flags,
                rank: payload.rank,
            },
            hook if hook == Hook::PmcInterrupt.id() => {
                Detail::PmcInterrupt { source: payload.count_or_source.get() }
            }
            hook => return Err(RecordError::Hook(hook)),
        };
        let pc = ip.iter().rev().fold(0, |pc, byte| pc << 8 | u64::from(*byte));
        let timestamp = header.timestamp.get();
        let thread = payload.thread.get();
        Ok((Self { width, timestamp, pebs_index, pc, thread, detail }, size))
    }
}
