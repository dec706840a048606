//! Perf events of the running kernel.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use perf_event::data::parse::Parser;
use perf_event::data::{
    Comm, Exit, Fork, Lost, LostSamples, Mmap2, RecordMetadata, Sample as SampleRecord, Throttle,
    Visitor,
};
use perf_event::events::{Raw, Software};
use perf_event::{Builder, SampleFlag, Sampler};

use super::{Event, PerfEvents, Record, Request, Sample, What};
use crate::profiler::maps::Mapping;

/// The size of a processor's ring buffer. Any user may lock twice as much per processor unless
/// `kernel.perf_event_mlock_kb` was lowered.
const RING_BYTES: usize = 256 << 10;

/// The running kernel's perf events.
#[derive(Default)]
pub struct Kernel {
    samplers: BTreeMap<u16, Sampler>,
}

impl PerfEvents for Kernel {
    fn processors(&self) -> io::Result<Vec<u16>> {
        let list = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
        parse_list(&list).ok_or_else(|| io::Error::other(format!("not a processor list: {list}")))
    }

    fn open(&mut self, processor: u16, request: &Request) -> io::Result<()> {
        let mut builder = match request.event {
            Event::Clock => Builder::new(Software::TASK_CLOCK),
            Event::Raw(config) => Builder::new(Raw::new(config)),
        };
        let counter = builder
            .observe_self()
            .one_cpu(processor.into())
            // This thread is never sampled: its children are, from when they execute a program.
            .inherit(true)
            .enabled(false)
            .enable_on_exec(true)
            .sample_period(request.period)
            .exclude_kernel(!request.kernel)
            .sample(SampleFlag::IP | SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU)
            .sample_id_all(true)
            .mmap(true)
            .mmap2(true)
            .comm(true)
            .comm_exec(true)
            .task(true)
            .build()?;
        self.samplers.insert(processor, counter.sampled(RING_BYTES)?);
        Ok(())
    }

    fn close(&mut self, processor: u16) {
        self.samplers.remove(&processor);
    }

    fn read(&mut self, records: &mut Vec<Record>) {
        for sampler in self.samplers.values_mut() {
            let config = sampler.as_counter().config().clone();
            while let Some(raw) = sampler.next_record() {
                // The crate's own parsing drops the header's flags and the time of what is no sample.
                let (kind, flags, body) = (raw.ty(), raw.misc(), raw.to_contiguous());
                let size = (HEADER_BYTES + body.len()) as u16;
                let mut bytes = Vec::with_capacity(size.into());
                bytes.extend_from_slice(&kind.to_ne_bytes());
                bytes.extend_from_slice(&flags.to_ne_bytes());
                bytes.extend_from_slice(&size.to_ne_bytes());
                bytes.extend_from_slice(&body);
                let parsed = Parser::new(&*bytes, config.clone()).parse_record(IntoRecord);
                records.extend(parsed.ok().flatten());
            }
        }
    }

    fn paranoid(&self) -> Option<i32> {
        let text = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?;
        text.trim().parse().ok()
    }
}

/// `struct perf_event_header`.
const HEADER_BYTES: usize = 8;

/// The bits of a header's flags that tell the processor's mode, and the value for the kernel's.
const MODE_MASK: u16 = 7;
const MODE_KERNEL: u16 = 1;

/// The flag of a `COMM` record that execve(2) caused, and that of a `MMAP2` record of data.
const COMM_EXEC: u16 = 1 << 13;
const MMAP_DATA: u16 = 1 << 13;

/// Makes a [`Record`] of the kernel's; `None` of those that the profiler does not need.
struct IntoRecord;

fn record(metadata: &RecordMetadata, what: What) -> Option<Record> {
    Some(Record { time: metadata.sample_id().time().unwrap_or(0), what })
}

impl<'a> Visitor<'a> for IntoRecord {
    type Output = Option<Record>;

    fn visit_unimplemented(self, _: RecordMetadata) -> Option<Record> {
        None
    }

    fn visit_sample(self, sample: SampleRecord<'a>, metadata: RecordMetadata) -> Option<Record> {
        let what = What::Sample(Sample {
            process: sample.pid()?,
            thread: sample.tid()?,
            processor: sample.cpu()?.try_into().ok()?,
            pc: sample.ip()?,
            kernel: metadata.misc() & MODE_MASK == MODE_KERNEL,
        });
        Some(Record { time: sample.time()?, what })
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
        let exec = metadata.misc() & COMM_EXEC != 0;
        exec.then(|| record(&metadata, What::Exec { process: comm.pid }))?
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

/// The numbers in a list such as `0-3,8,10-11`.
fn parse_list(list: &str) -> Option<Vec<u16>> {
    let mut numbers = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_list_is_read() {
        assert_eq!(parse_list("0\n").unwrap(), [0]);
        assert_eq!(parse_list("0-3,8,10-11\n").unwrap(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list(""), None);
        assert_eq!(parse_list("0-x"), None);
    }
}
