//! Records of what processes did before the recording began, as the kernel would have written them.
//!
//! Source: perf_event_open(2), "MMAP layout", with the fields that the profiler's events add: pid and tid, time, cpu.

use std::os::unix::ffi::OsStrExt;

use crate::profiler::maps::Mapping;
use crate::profiler::perf::What;

/// Kinds and flags of records.
const MMAP: u32 = 1;
const COMM: u32 = 3;
const FORK: u32 = 7;
const MMAP2: u32 = 10;
const KERNEL_MODE: u16 = 1;
const USER_MODE: u16 = 2;
const COMM_EXEC: u16 = 1 << 13;

/// `PROT_READ | PROT_EXEC`, and `MAP_PRIVATE`.
const PROTECTION: u64 = 5 | 2 << 32;

/// Returns the records that tell of an occurrence; none of those that the kernel tells itself.
pub(super) fn records(what: &What) -> Vec<u8> {
    match what {
        What::Exec { process, name } => comm(COMM_EXEC, *process, *process, name),
        What::Name { process, thread, name } => {
            let both = both(*process, *process);
            let began = [both, u64::from(*thread) | u64::from(*process) << 32, 0];
            let mut records = record(FORK, 0, (*process, *thread), &began, &[]);
            records.extend(comm(0, *process, *thread, name));
            records
        }
        What::Map { process, mapping } => {
            let words = [
                both(*process, *process),
                mapping.start,
                mapping.size,
                mapping.file_offset,
                0,
                0,
                0,
                PROTECTION,
            ];
            let path = mapping.path.as_os_str().as_bytes();
            record(MMAP2, USER_MODE, (*process, *process), &words, path)
        }
        _ => Vec::new(),
    }
}

/// Returns the record of the kernel's text, by which its addresses are known.
pub(super) fn kernel(text: &Mapping) -> Vec<u8> {
    let words = [u64::from(u32::MAX), text.start, text.size, text.start];
    record(MMAP, KERNEL_MODE, (u32::MAX, 0), &words, b"[kernel.kallsyms]_text")
}

fn both(process: u32, thread: u32) -> u64 {
    u64::from(process) | u64::from(thread) << 32
}

fn comm(flags: u16, process: u32, thread: u32, name: &str) -> Vec<u8> {
    record(COMM, flags, (process, thread), &[both(process, thread)], name.as_bytes())
}

/// A record of words, and of a text if there is any, as of a thread at time 0.
fn record(
    kind: u32,
    flags: u16,
    (process, thread): (u32, u32),
    words: &[u64],
    text: &[u8],
) -> Vec<u8> {
    let room = if text.is_empty() { 0 } else { (text.len() + 1).next_multiple_of(8) };
    let size = 8 + 8 * words.len() + room + 24;
    let Ok(size) = u16::try_from(size) else { return Vec::new() };
    let mut bytes = Vec::with_capacity(size.into());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(size.to_ne_bytes());
    words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes.extend(text);
    bytes.resize(usize::from(size) - 24, 0);
    [both(process, thread), 0, 0].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes
}
