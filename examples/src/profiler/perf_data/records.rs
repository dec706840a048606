//! The records of a recording, each checked before the library sees its header.
//!
//! Source: Linux, tools/perf/Documentation/perf.data-file-format.txt.

use std::io::{self, Read};

use super::FINISHED_ROUND;
use super::check::wrong;

/// The kinds of records that are refused: `PERF_RECORD_AUXTRACE`, `_COMPRESSED` and `_COMPRESSED2`.
const AUXTRACE: u32 = 71;
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;

/// Memory that a record takes beside its bytes until it is sorted, in bytes at most, and the most that the records of
/// two rounds, which are held at a time, may take.
const MEMORY_OF_RECORD: u64 = 120;
const MOST_UNSORTED: u64 = 1 << 30;

/// The bytes of a record's header.
const HEADER: usize = 8;

/// Records under way. Those whose bodies the library would take for lengths of what follows are an error, as are those
/// that it cannot read.
pub(super) struct Records<R> {
    file: R,
    /// The bytes of the records that were not begun.
    left: u64,
    /// The header of the record that was begun, how much of it was given, and the bytes of its body that were not.
    header: [u8; HEADER],
    given: usize,
    body: u64,
    /// Memory for the records of the round before, and for those of this one.
    round_before: u64,
    round: u64,
}

impl<R: Read> Records<R> {
    /// Records of so many bytes.
    pub(super) fn new(file: R, left: u64) -> Self {
        let header = [0; HEADER];
        Self { file, left, header, given: HEADER, body: 0, round_before: 0, round: 0 }
    }

    /// Reads the next record's header.
    fn begin(&mut self) -> io::Result<()> {
        self.file.read_exact(&mut self.header)?;
        let [a, b, c, d, _, _, low, high] = self.header;
        let size = u64::from(u16::from_le_bytes([low, high]));
        if size < HEADER as u64 || size > self.left {
            return wrong("a damaged recording: a record is longer than what is left");
        }
        match u32::from_le_bytes([a, b, c, d]) {
            AUXTRACE => {
                return wrong("a recording of a processor's trace (AUX area), which is not read");
            }
            COMPRESSED | COMPRESSED2 => {
                return wrong("a compressed recording; record it without -z");
            }
            FINISHED_ROUND => (self.round_before, self.round) = (self.round, 0),
            _ => self.round += size + MEMORY_OF_RECORD,
        }
        if self.round_before + self.round > MOST_UNSORTED {
            return wrong(
                "a recording whose records cannot be sorted: too many between two rounds",
            );
        }
        (self.given, self.body) = (0, size - HEADER as u64);
        self.left -= size;
        Ok(())
    }
}

impl<R: Read> Read for Records<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.given == HEADER && self.body == 0 && self.left > 0 {
            self.begin()?;
        }
        if self.given < HEADER {
            let read = (&self.header[self.given..]).read(bytes)?;
            self.given += read;
            return Ok(read);
        }
        let read = (&mut self.file).take(self.body).read(bytes)?;
        self.body -= read as u64;
        Ok(read)
    }
}
