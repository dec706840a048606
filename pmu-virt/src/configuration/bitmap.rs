//! Bitmaps of eight counters.

/// Returns the lowest `count` bits of eight.
pub(crate) const fn first(count: u8) -> u8 {
    if count >= 8 { u8::MAX } else { (1 << count) - 1 }
}

pub(crate) const fn has_gaps(bitmap: u8) -> bool {
    bitmap & bitmap.wrapping_add(1) != 0
}
