//! Trace records: `PERFINFO_TRACE_HEADER` and what follows it.

use core::fmt;

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::PointerWidth;

/// The longest record: header, PEBS index, and a 64-bit payload.
pub(super) const MAX_RECORD: usize = 0x10 + 8 + 0x10;

/// The high bytes of the marker: `TRACE_HEADER_FLAG | TRACE_HEADER_EVENT_TRACE`, and the header's
/// type by width.
pub(super) const MARKER_32: u32 = 0xC010_0000;
pub(super) const MARKER_64: u32 = 0xC011_0000;
pub(super) const VERSION: u32 = 2;
/// A PEBS index follows the header.
pub(super) const FLAG_PEBS_INDEX: u32 = 0x8000;
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

/// Words of the longest record.
pub(super) const WORDS: usize = MAX_RECORD / 8;

/// A record as bytes.
#[derive(Clone, Copy, Debug)]
pub struct RecordBytes {
    words: [U64; WORDS],
    length: usize,
}

impl RecordBytes {
    /// The record.
    pub fn as_slice(&self) -> &[u8] {
        self.words.as_bytes().get(..self.length).unwrap_or(&[])
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for RecordBytes {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "RecordBytes({=[u8]:02x})", self.as_slice());
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
    /// A value that is no source's.
    Source(u32),
    /// More than a record of this kind has.
    TooLong,
    /// Another event's hook.
    Hook(u16),
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => f.write_str("the record is cut off"),
            Self::Source(value) => write!(f, "{value:#X} is no source"),
            Self::TooLong => f.write_str("the record has more than one of its kind can have"),
            Self::Marker(marker) => write!(f, "marker {marker:#010X} is no performance record's"),
            Self::Hook(hook) => write!(f, "hook {hook:#06X} is no profile interrupt's"),
        }
    }
}

impl core::error::Error for RecordError {}

impl TraceRecord {
    /// Writes the record. Any context.
    pub fn encode(&self) -> RecordBytes {
        let mut record = RecordBytes { words: [U64::ZERO; WORDS], length: 0 };
        let mut words = record.words.iter_mut();
        record.length = self.put_words(|word| {
            if let Some(to) = words.next() {
                to.set(word);
            }
        });
        record
    }

    /// Puts the record, one little-endian word after the other; its length in bytes. Its parts are put
    /// together by shifts, since an interrupt pays for each step, and nowhere kept, since an interrupt's
    /// stack is small.
    #[inline]
    pub(super) fn put_words(&self, mut put: impl FnMut(u64)) -> usize {
        let marker = match self.width {
            PointerWidth::Bits32 => MARKER_32,
            PointerWidth::Bits64 => MARKER_64,
        };
        let (flag, pebs) = if self.pebs_index.is_some() { (FLAG_PEBS_INDEX, 8) } else { (0, 0) };
        let length = size_of::<Header>() + pebs + self.width.bytes() + size_of::<Payload>();
        let header = u64::from(marker | VERSION | flag)
            | (length as u64) << 32
            | u64::from(self.detail.hook().id()) << 48;
        let detail = match self.detail {
            Detail::SampledProfile { count, flags, rank } => {
                u32::from(count) | u32::from(flags) << 16 | u32::from(rank) << 24
            }
            Detail::PmcInterrupt { source } => source.into(),
        };
        let payload = u64::from(self.thread) | u64::from(detail) << 32;
        let (ip, payload) = match self.width {
            PointerWidth::Bits32 => (self.pc & 0xFFFF_FFFF | payload << 32, payload >> 32),
            PointerWidth::Bits64 => (self.pc, payload),
        };
        put(header);
        put(self.timestamp);
        if let Some(index) = self.pebs_index {
            put(index);
        }
        put(ip);
        put(payload);
        length
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
