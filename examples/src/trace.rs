//! Reading a trace: a file of records, one after the other, as the kernel example writes it.

pub mod sum;
pub mod text;

use core::fmt;

use pmu_kprofile::trace::{Record, TraceError};

/// The records of a file, in its order. At the first thing that is no record the damage is the last item.
#[derive(Clone, Debug)]
pub struct Records<'b> {
    bytes: &'b [u8],
    offset: usize,
}

/// Something in a file that is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Its place.
    pub offset: usize,
    /// Its kind.
    pub error: TraceError,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at offset {:#x}: {}", self.offset, self.error)
    }
}

impl core::error::Error for Damage {}

impl<'b> Records<'b> {
    /// Begins with the first record of a file.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, offset: 0 }
    }
}

impl<'b> Iterator for Records<'b> {
    type Item = Result<Record<'b>, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let offset = self.offset;
        Some(match Record::decode(self.bytes) {
            Ok((record, size)) => {
                self.bytes = self.bytes.get(size..).unwrap_or(&[]);
                self.offset += size;
                Ok(record)
            }
            Err(error) => {
                self.bytes = &[];
                Err(Damage { offset, error })
            }
        })
    }
}
