//! Recordings as perf's files, perf.data.
//!
//! Source: Linux, tools/perf/Documentation/perf.data-file-format.txt.

mod build_ids;
mod check;
pub mod reader;
mod records;
mod source;
mod synthesized;
pub mod writer;

/// The first bytes of a file of this byte order.
const MAGIC: [u8; 8] = *b"PERFILE2";

/// The bytes of the header, and of a section's place in it.
const HEADER_BYTES: u64 = 104;
const SECTION_BYTES: u64 = 16;

/// The kind of the record that ends a round: what comes later is not older than what the round before had
/// (`PERF_RECORD_FINISHED_ROUND`).
const FINISHED_ROUND: u32 = 68;

/// The features that are written, by their bits in the header, and read.
const BUILD_IDS: u32 = 2;
const OS_RELEASE: u32 = 4;
const ARCHITECTURE: u32 = 6;
const PROCESSOR: u32 = 8;
const COMMAND_LINE: u32 = 11;
const EVENT_DESCRIPTIONS: u32 = 12;
