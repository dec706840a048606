//! A record read from a ring.

use core::fmt;

use crate::trace::error::TraceError;
use crate::trace::event::sample::SAMPLE_WORDS;
use crate::trace::record::Record;

/// The bytes of a record that was read from a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RecordBytes<const W: usize = SAMPLE_WORDS>(pub(super) [[u8; 8]; W]);

impl<const W: usize> RecordBytes<W> {
    /// Returns the bytes of the record, as they are written to a trace file.
    pub fn as_slice(&self) -> &[u8] {
        let bytes = self.0.as_flattened();
        let size = match bytes {
            [_, _, _, _, low, high, ..] => u16::from_le_bytes([*low, *high]),
            _ => 0,
        };
        bytes.get(..size.into()).unwrap_or(bytes)
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// See [`Record::decode`]. If a method of [`TraceRing`](crate::trace::TraceRing) pushed the record, decoding cannot
    /// fail.
    pub fn decode(&self) -> Result<Record<'_>, TraceError> {
        Record::decode(self.as_slice()).map(|(record, _)| record)
    }
}

impl<const W: usize> fmt::Debug for RecordBytes<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordBytes({:02x?})", self.as_slice())
    }
}

#[cfg(feature = "defmt")]
impl<const W: usize> defmt::Format for RecordBytes<W> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "RecordBytes({=[u8]:02x})", self.as_slice());
    }
}
