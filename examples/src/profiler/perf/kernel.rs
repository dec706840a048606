//! Perf events of the running kernel.

use core::ops::Range;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

use perf_event::data::endian::Native;
use perf_event::data::parse::{ParseConfig, Parser};
use perf_event::data::{
    Comm, Exit, Fork, Lost, LostSamples, Mmap2, RecordMetadata, Sample as SampleRecord, Throttle,
    Visitor,
};
use perf_event::events::{Raw, Software};
use perf_event::{Builder, Counter, SampleFlag, Sampler};

use super::setting::Setting;
use super::{Event, OpenError, PerfEvents, Record, Request, Sample, Scope, What};
use crate::profiler::kallsyms::Kallsyms;
use crate::profiler::maps::Mapping;

/// The size of a processor's ring buffer. Any user may lock twice as much per processor unless
/// `kernel.perf_event_mlock_kb` was lowered.
const RING_BYTES: usize = 256 << 10;

/// The running kernel's perf events.
#[derive(Default)]
pub struct Kernel {
    processors: BTreeMap<u16, Opened>,
}

/// The events of a processor.
struct Opened {
    /// The event that samples, with the ring buffer of all records.
    sampler: Sampler,
    /// The command's event, which counts and records what happens, where the samples are system-wide.
    command: Option<Counter>,
}

impl PerfEvents for Kernel {
    fn processors(&self) -> io::Result<Vec<u16>> {
        let list = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
        parse_list(&list).ok_or_else(|| io::Error::other(format!("not a processor list: {list}")))
    }

    fn open(&mut self, processor: u16, request: &Request) -> Result<(), OpenError> {
        let open = |mut builder: Builder<'_>| {
            builder.one_cpu(processor.into()).build().map_err(OpenError::Event)
        };
        let opened = match request.scope {
            Scope::PerThread => {
                let mut builder = of_command(request);
                let counter = open(builder.sample_period(request.period).clone())?;
                let sampler = counter.sampled(RING_BYTES).map_err(OpenError::Ring)?;
                Opened { sampler, command: None }
            }
            Scope::SystemWide => {
                let counter = open(of_processor(request))?;
                let command = open(of_command(request))?;
                let sampler = counter.sampled(RING_BYTES).map_err(OpenError::Ring)?;
                redirect(&command, &sampler).map_err(OpenError::Ring)?;
                Opened { sampler, command: Some(command) }
            }
        };
        self.processors.insert(processor, opened);
        Ok(())
    }

    fn close(&mut self, processor: u16) {
        self.processors.remove(&processor);
    }

    fn read(&mut self, records: &mut Vec<Record>) {
        for Opened { sampler, .. } in self.processors.values_mut() {
            let config = sampler.as_counter().config().clone();
            while let Some(raw) = sampler.next_record() {
                let record = parse(raw.ty(), raw.misc(), &raw.to_contiguous(), config.clone());
                records.extend(record);
            }
        }
    }

    fn consumed(&mut self) -> Option<u64> {
        let consumed = |opened: &mut Opened| {
            opened.command.as_mut().unwrap_or(opened.sampler.as_counter_mut()).read().ok()
        };
        self.processors.values_mut().map(consumed).sum()
    }

    fn setting(&self) -> Setting {
        Setting::read()
    }

    fn kernel_text(&self) -> Option<Range<u64>> {
        Kallsyms::read().map(|kernel| kernel.text())
    }
}

/// Describes the event that samples whatever a processor executes.
fn of_processor(request: &Request) -> Builder<'static> {
    let mut builder = builder(request, Software::CPU_CLOCK);
    builder.any_pid().enabled(true).exclude_idle(true).sample_period(request.period);
    builder
}

/// Describes the event that counts what the command consumes, and records what happens to its processes.
fn of_command(request: &Request) -> Builder<'static> {
    let mut builder = builder(request, Software::TASK_CLOCK);
    builder
        .observe_self()
        // This thread is never counted: its children are, from when they execute a program.
        .inherit(true)
        .enabled(false)
        .enable_on_exec(true)
        .mmap(true)
        .mmap2(true)
        .comm(true)
        .comm_exec(true)
        .task(true);
    builder
}

/// Describes what both events have in common, such as the layout of their records.
fn builder(request: &Request, clock: Software) -> Builder<'static> {
    let mut builder = match request.event {
        Event::Clock => Builder::new(clock),
        Event::Raw(config) => Builder::new(Raw::new(config)),
    };
    builder
        .exclude_kernel(!request.kernel)
        .sample(SampleFlag::IP | SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU)
        .sample_id_all(true);
    builder
}

/// Sends a counter's records into a sampler's ring buffer.
fn redirect(counter: &Counter, sampler: &Sampler) -> io::Result<()> {
    // `PERF_EVENT_IOC_SET_OUTPUT`, _IO('$', 5).
    const SET_OUTPUT: libc::Ioctl = 0x2405;
    // SAFETY: the request takes a file descriptor and no pointer, and both are open.
    let result = unsafe { libc::ioctl(counter.as_raw_fd(), SET_OUTPUT, sampler.as_raw_fd()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `struct perf_event_header`.
const HEADER_BYTES: usize = 8;

/// The bits of a header's flags that tell the processor's mode, and the value for the kernel's.
const MODE_MASK: u16 = 7;
const MODE_KERNEL: u16 = 1;

/// The flag of a `COMM` record that execve(2) caused, and that of a `MMAP2` record of data.
const COMM_EXEC: u16 = 1 << 13;
const MMAP_DATA: u16 = 1 << 13;

/// The record with this header and body; `None` if the profiler does not need it.
///
/// (The crate's own parsing of a whole record drops the header's flags, and the time of what is no
/// sample.)
pub fn parse(kind: u32, flags: u16, body: &[u8], config: ParseConfig<Native>) -> Option<Record> {
    let size = (HEADER_BYTES + body.len()) as u16;
    let mut bytes = Vec::with_capacity(size.into());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&size.to_ne_bytes());
    bytes.extend_from_slice(body);
    Parser::new(&*bytes, config).parse_record(IntoRecord).ok().flatten()
}

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

    fn request(event: Event) -> Request {
        Request { event, period: 65_536, scope: Scope::PerThread, kernel: false }
    }

    #[test]
    fn a_request_becomes_the_attributes_of_the_manual() {
        let mut builder = of_command(&request(Event::Raw(0x412E)));
        let attributes = *builder.sample_period(65_536).attrs();
        assert_eq!((attributes.type_, attributes.config), (4, 0x412E)); // PERF_TYPE_RAW
        // SAFETY: the union's other member has the same type and meaning "frequency".
        assert_eq!(unsafe { attributes.__bindgen_anon_1.sample_period }, 65_536);
        assert_eq!((attributes.freq(), attributes.exclude_kernel()), (0, 1));
        assert_eq!((attributes.disabled(), attributes.inherit()), (1, 1));
        assert_eq!((attributes.enable_on_exec(), attributes.sample_id_all()), (1, 1));
        assert_eq!((attributes.mmap2(), attributes.comm_exec(), attributes.task()), (1, 1, 1));
        let clock = Request { kernel: true, ..request(Event::Clock) };
        let attributes = *of_processor(&clock).attrs();
        assert_eq!((attributes.type_, attributes.config), (1, 0)); // PERF_COUNT_SW_CPU_CLOCK
        assert_eq!((attributes.exclude_kernel(), attributes.exclude_idle()), (0, 1));
        assert_eq!((attributes.disabled(), attributes.inherit()), (0, 0));
        assert_eq!((attributes.mmap2(), attributes.comm(), attributes.task()), (0, 0, 0));
        // SAFETY: the other member is a number too.
        assert_eq!(unsafe { attributes.__bindgen_anon_1.sample_period }, 65_536);
        // Records of both go into one ring buffer: they must be laid out alike.
        let of_command = *of_command(&clock).attrs();
        assert_eq!((of_command.type_, of_command.config), (1, 1)); // PERF_COUNT_SW_TASK_CLOCK
        assert_eq!(attributes.sample_type, of_command.sample_type);
        assert_eq!((attributes.sample_id_all(), of_command.sample_id_all()), (1, 1));
        // SAFETY: the other member is a number too.
        assert_eq!(unsafe { of_command.__bindgen_anon_1.sample_period }, 0);
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
        parse(kind, flags, body, ParseConfig::from(*of_command(&request(Event::Clock)).attrs()))
    }

    /// Laid out by hand after perf_event_open(2), "MMAP layout".
    #[test]
    fn records_are_read_as_the_manual_lays_them_out() {
        let at = |what| Some(Record { time: 1234, what });
        let thread = 7 | 8 << 32;

        let sample = body(&[0x40_1000, thread, 1234, 3], &[], false);
        let expected =
            |kernel| Sample { process: 7, thread: 8, processor: 3, pc: 0x40_1000, kernel };
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
        assert_eq!(parsed(3, COMM_EXEC, &comm), at(What::Exec { process: 7 }));
        assert_eq!(parsed(3, 0, &comm), None);

        let task = body(&[9 | 7 << 32, 9 | 7 << 32, 1234], &[], true);
        assert_eq!(parsed(7, 0, &task), at(What::Fork { process: 9, parent: 7 }));
        assert_eq!(parsed(4, 0, &task), at(What::Exit { process: 9 }));

        assert_eq!(parsed(2, 0, &body(&[1, 42], &[], true)), at(What::Lost(42)));
        assert_eq!(parsed(13, 0, &body(&[43], &[], true)), at(What::Lost(43)));
        assert_eq!(parsed(5, 0, &body(&[1234, 1, 1], &[], true)), at(What::Throttled));
        assert_eq!(parsed(0x7FFF, 0, &body(&[0; 8], &[], true)), None);
        assert_eq!(parsed(9, 2, &sample[..8]), None);
    }

    #[test]
    fn a_processor_list_is_read() {
        assert_eq!(parse_list("0\n").unwrap(), [0]);
        assert_eq!(parse_list("0-3,8,10-11\n").unwrap(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list(""), None);
        assert_eq!(parse_list("0-x"), None);
    }
}
