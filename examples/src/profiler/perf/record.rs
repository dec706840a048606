//! The kernel's records as the profiler's.
//!
//! Source: perf_event_open(2), "MMAP layout".

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use perf_event::data::endian::Native;
use perf_event::data::parse::{ParseConfig, Parser};
use perf_event::data::{
    Comm, Exit, Fork, Lost, LostSamples, Mmap2, RecordMetadata, Throttle, Visitor,
};
use perf_event_open_sys::bindings::perf_event_attr;

use super::sample::{self, SampleLayout};
use super::{Record, What};
use crate::profiler::maps::Mapping;

/// `struct perf_event_header`.
const HEADER_BYTES: usize = 8;

/// The flag of a `COMM` record that execve(2) caused, and that of a `MMAP2` record of data.
const COMM_EXEC: u16 = 1 << 13;
const MMAP_DATA: u16 = 1 << 13;

/// The kind of a sample: `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;

/// The layout of an event's records.
#[derive(Clone)]
pub struct Layout {
    others: ParseConfig<Native>,
    sample: SampleLayout,
}

impl Layout {
    /// The layout that an event's attributes ask for.
    pub fn of(attributes: &perf_event_attr) -> Self {
        Self { others: ParseConfig::from(*attributes), sample: SampleLayout::of(attributes) }
    }

    /// The record with this header and body; `None` if the profiler does not need it.
    pub fn parse(&self, kind: u32, flags: u16, body: &[u8]) -> Option<Record> {
        if kind == SAMPLE {
            let (time, sample) = sample::parse(flags, body, &self.sample)?;
            return Some(Record::new(time, What::Sample(sample)));
        }
        // The crate's own parsing of a whole record drops the header's flags, and the time of what is no sample.
        let size = u16::try_from(HEADER_BYTES + body.len()).ok()?;
        let mut bytes = Vec::with_capacity(size.into());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&size.to_ne_bytes());
        bytes.extend_from_slice(body);
        Parser::new(&*bytes, self.others.clone()).parse_record(IntoRecord).ok().flatten()
    }
}

/// Makes a [`Record`] of the kernel's; `None` of those that the profiler does not need.
struct IntoRecord;

fn record(metadata: &RecordMetadata, what: What) -> Option<Record> {
    Some(Record::new(metadata.sample_id().time().unwrap_or(0), what))
}

impl<'a> Visitor<'a> for IntoRecord {
    type Output = Option<Record>;

    fn visit_unimplemented(self, _: RecordMetadata) -> Option<Record> {
        None
    }

    fn visit_mmap2(self, map: Mmap2<'a>, metadata: RecordMetadata) -> Option<Record> {
        if metadata.misc() & MMAP_DATA != 0 {
            return None;
        }
        let path = map.filename.split(|byte| *byte == 0).next().unwrap_or_default();
        let mapping = Mapping {
            start: map.addr,
            size: map.len,
            file_offset: map.pgoff,
            path: OsStr::from_bytes(path).into(),
        };
        record(&metadata, What::Map { process: map.pid, mapping })
    }

    fn visit_comm(self, comm: Comm<'a>, metadata: RecordMetadata) -> Option<Record> {
        let (process, thread) = (comm.pid, comm.tid);
        let name = comm.comm.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        let what = if metadata.misc() & COMM_EXEC != 0 {
            What::Exec { process, name }
        } else {
            What::Name { process, thread, name }
        };
        record(&metadata, what)
    }

    fn visit_fork(self, fork: Fork, metadata: RecordMetadata) -> Option<Record> {
        record(&metadata, What::Fork { process: fork.pid, parent: fork.ppid })
    }

    fn visit_exit(self, exit: Exit, metadata: RecordMetadata) -> Option<Record> {
        record(&metadata, What::Exit { process: exit.pid })
    }

    fn visit_lost(self, lost: Lost, metadata: RecordMetadata) -> Option<Record> {
        record(&metadata, What::Lost(lost.lost))
    }

    fn visit_lost_samples(self, lost: LostSamples, metadata: RecordMetadata) -> Option<Record> {
        record(&metadata, What::Lost(lost.lost))
    }

    fn visit_throttle(self, _: Throttle, metadata: RecordMetadata) -> Option<Record> {
        record(&metadata, What::Throttled)
    }
}

#[cfg(test)]
mod tests {
    use perf_event::events::Software;
    use perf_event::{Builder, SampleFlag};

    use super::*;
    use crate::profiler::perf::Sample;

    fn layout() -> Layout {
        let mut builder = Builder::new(Software::TASK_CLOCK);
        let fields = SampleFlag::IP | SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU;
        Layout::of(builder.sample(fields).sample_id_all(true).attrs())
    }

    /// The body of a record: its words, and the identification that follows in all but samples.
    fn body(words: &[u64], tail: &[u8], identified: bool) -> Vec<u8> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend_from_slice(tail);
        if identified {
            // pid and tid, time, cpu.
            bytes.extend([7 | 7 << 32, 1234, 3].iter().flat_map(|word: &u64| word.to_ne_bytes()));
        }
        bytes
    }

    fn parsed(kind: u32, flags: u16, body: &[u8]) -> Option<Record> {
        layout().parse(kind, flags, body)
    }

    /// Laid out by hand after perf_event_open(2), "MMAP layout".
    #[test]
    fn records_are_read_as_the_manual_lays_them_out() {
        let at = |what| Some(Record::new(1234, what));
        let thread = 7 | 8 << 32;

        let sample = body(&[0x40_1000, thread, 1234, 3], &[], false);
        let expected = |kernel| Sample {
            process: 7,
            thread: 8,
            processor: 3,
            pc: 0x40_1000,
            kernel,
            callers: Vec::new(),
            user: None,
        };
        assert_eq!(parsed(9, 2, &sample), at(What::Sample(expected(false))));
        assert_eq!(parsed(9, 1, &sample), at(What::Sample(expected(true))));

        // Address, length, offset; device and inode; protection and flags; the path.
        let words = [thread, 0x40_0000, 0x2000, 0x1000, 0, 0, 0, 5 | 2 << 32];
        let map = body(&words, b"/bin/ls\0", true);
        let mapping =
            Mapping { start: 0x40_0000, size: 0x2000, file_offset: 0x1000, path: "/bin/ls".into() };
        assert_eq!(parsed(10, 2, &map), at(What::Map { process: 7, mapping }));
        assert_eq!(parsed(10, MMAP_DATA | 2, &map), None);

        let comm = body(&[thread], b"ls\0\0\0\0\0\0", true);
        assert_eq!(parsed(3, COMM_EXEC, &comm), at(What::Exec { process: 7, name: "ls".into() }));
        let renamed = What::Name { process: 7, thread: 8, name: "ls".into() };
        assert_eq!(parsed(3, 0, &comm), at(renamed));

        let task = body(&[9 | 7 << 32, 9 | 7 << 32, 1234], &[], true);
        assert_eq!(parsed(7, 0, &task), at(What::Fork { process: 9, parent: 7 }));
        assert_eq!(parsed(4, 0, &task), at(What::Exit { process: 9 }));

        assert_eq!(parsed(2, 0, &body(&[1, 42], &[], true)), at(What::Lost(42)));
        assert_eq!(parsed(13, 0, &body(&[43], &[], true)), at(What::Lost(43)));
        assert_eq!(parsed(5, 0, &body(&[1234, 1, 1], &[], true)), at(What::Throttled));
        assert_eq!(parsed(0x7FFF, 0, &body(&[0; 8], &[], true)), None);
        assert_eq!(parsed(9, 2, &sample[..8]), None);
    }
}
