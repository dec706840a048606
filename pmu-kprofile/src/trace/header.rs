//! `PERFINFO_TRACE_HEADER`, with which each record begins.

use pmu_core::windows::PointerWidth;

/// Size of a header in bytes.
pub(super) const HEADER: usize = 0x10;

/// `PERFINFO_TRACE_MARKER32` and `PERFINFO_TRACE_MARKER64`, the high halves of a marker by the width of pointers.
pub(super) const MARKER_32: u16 = 0xC010;

pub(super) const MARKER_64: u16 = 0xC011;

/// Version in the header of the records that this crate writes.
pub const RECORD_VERSION: u16 = 2;

/// Flag in a record's header that is set if a PEBS index follows the header.
pub const PEBS_INDEX_FLAG: u16 = 0x8000;

/// Bits of a record's header that hold the number of PMC values after the header.
pub const PMC_COUNT_MASK: u16 = 0x0700;

/// Returns the high half of a marker.
pub(super) const fn marker(width: PointerWidth) -> u16 {
    match width {
        PointerWidth::Bits32 => MARKER_32,
        PointerWidth::Bits64 => MARKER_64,
    }
}

/// Returns the first word of a record without extended data.
#[inline]
pub(super) const fn header_word(width: PointerWidth, size: usize, hook: u16) -> u64 {
    let marker = marker(width) as u64;
    RECORD_VERSION as u64 | marker << 16 | (size as u64) << 32 | (hook as u64) << 48
}
