//! Perf events of the running kernel.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
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
use super::{Event, OpenError, PerfEvents, Record, Request, Sample, Scope, Target, What};
use crate::profiler::kallsyms::Kallsyms;
use crate::profiler::maps::{self, Mapping};

/// The size of a processor's ring buffer. Any user may lock twice as much per processor unless
/// `kernel.perf_event_mlock_kb` was lowered.
const RING_BYTES: usize = 256 << 10;

/// The running kernel's perf events.
#[derive(Default)]
pub struct Kernel {
    target: Target,
    /// Set if samples have the return addresses of their callers.
    call_chains: bool,
    processors: BTreeMap<u16, Opened>,
}

/// The events of a processor.
struct Opened {
    /// The event that samples, with the ring buffer of all records.
    sampler: Sampler,
    /// The target's other events: where samples are system-wide, those that count and record; otherwise
    /// those of threads beyond the first.
    others: Vec<Counter>,
    /// Set if the samples are of all that the processor executes.
    is_system_wide: bool,
}

impl Kernel {
    /// Describes the perf events of a target.
    pub fn new(target: Target, call_chains: bool) -> Self {
        Self { target, call_chains, processors: BTreeMap::new() }
    }

    /// Describes the events of a target other than the whole machine: one per thread that is running.
    fn of_target(&self, request: &Request) -> Vec<Builder<'static>> {
        match &self.target {
            Target::Processes(processes) => {
                let threads = processes.iter().flat_map(|process| threads(*process));
                let of_thread = |thread| {
                    let mut builder = of_command(request, self.call_chains);
                    builder.observe_pid(thread as i32).enabled(true).enable_on_exec(false);
                    builder
                };
                threads.map(of_thread).collect()
            }
            Target::Command => vec![of_command(request, self.call_chains)],
            Target::All => Vec::new(),
        }
    }
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
        let mut of_target = self.of_target(request);
        let opened = match request.scope {
            Scope::PerThread => {
                // The whole machine is no set of threads.
                let forbidden = || OpenError::Event(io::Error::from_raw_os_error(libc::EACCES));
                let [first, rest @ ..] = &mut *of_target else { return Err(forbidden()) };
                let counter = open(first.sample_period(request.period).clone())?;
                let sampler = counter.sampled(RING_BYTES).map_err(OpenError::Ring)?;
                let mut others = Vec::new();
                for builder in rest {
                    match open(builder.sample_period(request.period).clone()) {
                        Ok(counter) => others.push(counter),
                        Err(error) if has_ended(&error) => {}
                        Err(error) => return Err(error),
                    }
                }
                Opened { sampler, others, is_system_wide: false }
            }
            Scope::SystemWide => {
                let mut builder = of_processor(request, self.call_chains);
                if self.target == Target::All {
                    builder.mmap(true).mmap2(true).comm(true).comm_exec(true).task(true);
                }
                let counter = open(builder)?;
                let mut others = Vec::new();
                for builder in of_target {
                    match open(builder) {
                        Ok(counter) => others.push(counter),
                        Err(error) if has_ended(&error) => {}
                        Err(error) => return Err(error),
                    }
                }
                let sampler = counter.sampled(RING_BYTES).map_err(OpenError::Ring)?;
                Opened { sampler, others, is_system_wide: true }
            }
        };
        for other in &opened.others {
            redirect(other, &opened.sampler).map_err(OpenError::Ring)?;
        }
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

    fn existing(&self) -> Vec<Record> {
        let processes = match &self.target {
            Target::Command => return Vec::new(),
            Target::Processes(processes) => processes.clone(),
            Target::All => numbers_in("/proc"),
        };
        processes.into_iter().flat_map(existing).map(|what| Record { time: 0, what }).collect()
    }

    fn consumed(&mut self) -> Option<u64> {
        // The count of a whole processor's event is not the target's.
        if self.target == Target::All {
            return None;
        }
        let consumed = |opened: &mut Opened| {
            let own = (!opened.is_system_wide).then_some(opened.sampler.as_counter_mut());
            own.into_iter()
                .chain(&mut opened.others)
                .map(|counter| counter.read().ok())
                .sum::<Option<u64>>()
        };
        self.processors.values_mut().map(consumed).sum()
    }

    fn setting(&self) -> Setting {
        Setting::read()
    }

    fn kernel_texts(&self) -> Vec<Mapping> {
        Kallsyms::read().map(|kernel| kernel.texts().collect()).unwrap_or_default()
    }
}

/// Returns true if an event was refused because its thread has ended.
fn has_ended(error: &OpenError) -> bool {
    matches!(error, OpenError::Event(error) if error.raw_os_error() == Some(libc::ESRCH))
}

/// Returns the numbers among the names in a folder.
fn numbers_in(folder: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the threads of a process.
pub fn threads(process: u32) -> Vec<u32> {
    numbers_in(&format!("/proc/{process}/task"))
}

/// Returns what a process does already; nothing of one that has ended.
fn existing(process: u32) -> Vec<What> {
    let name = |thread| {
        let name = fs::read_to_string(format!("/proc/{process}/task/{thread}/comm"));
        name.map(|name| name.trim_end().to_string()).unwrap_or_default()
    };
    let threads = threads(process);
    if threads.is_empty() {
        return Vec::new();
    }
    let mut all = vec![What::Exec { process, name: name(process) }];
    for thread in threads.into_iter().filter(|thread| *thread != process) {
        all.push(What::Fork { process, parent: process });
        all.push(What::Name { process, thread, name: name(thread) });
    }
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let mappings = maps::executable(&maps).into_iter();
    all.extend(mappings.map(|mapping| What::Map { process, mapping }));
    all
}

/// Describes the event that samples whatever a processor executes.
fn of_processor(request: &Request, call_chains: bool) -> Builder<'static> {
    let mut builder = builder(request, Software::CPU_CLOCK, call_chains);
    builder.any_pid().enabled(true).exclude_idle(true).sample_period(request.period);
    builder
}

/// Describes the event that counts what the command consumes, and records what happens to its processes.
fn of_command(request: &Request, call_chains: bool) -> Builder<'static> {
    let mut builder = builder(request, Software::TASK_CLOCK, call_chains);
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
fn builder(request: &Request, clock: Software, call_chains: bool) -> Builder<'static> {
    let mut builder = match request.event {
        Event::Clock => Builder::new(clock),
        Event::Raw(config) => Builder::new(Raw::new(config)),
    };
    if call_chains {
        builder.sample(SampleFlag::CALLCHAIN).exclude_callchain_kernel(!request.kernel);
    }
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
    // The library takes a call chain without addresses, at a record's very end, for a truncated one.
    let behind = if kind == SAMPLE { 8 } else { 0 };
    let size = u16::try_from(HEADER_BYTES + body.len() + behind).ok()?;
    let mut bytes = Vec::with_capacity(size.into());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&size.to_ne_bytes());
    bytes.extend_from_slice(body);
    bytes.resize(size.into(), 0);
    Parser::new(&*bytes, config).parse_record(IntoRecord).ok().flatten()
}

/// The kind of a sample: `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;

/// The first of the values in a call chain that are no addresses, but tell which mode the next were found
/// in (`PERF_CONTEXT_MAX`).
const FIRST_CONTEXT: u64 = -4095_i64 as u64;

/// Returns the callers in a call chain, which begins with the sampled instruction itself.
fn callers(pc: u64, chain: &[u64]) -> Vec<u64> {
    let mut addresses = chain.iter().copied().filter(|address| *address < FIRST_CONTEXT).peekable();
    addresses.next_if_eq(&pc);
    addresses.collect()
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
        let pc = sample.ip()?;
        let what = What::Sample(Sample {
            process: sample.pid()?,
            thread: sample.tid()?,
            processor: sample.cpu()?.try_into().ok()?,
            pc,
            kernel: metadata.misc() & MODE_MASK == MODE_KERNEL,
            callers: callers(pc, sample.callchain().unwrap_or_default()),
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
        let mut builder = of_command(&request(Event::Raw(0x412E)), false);
        let attributes = *builder.sample_period(65_536).attrs();
        assert_eq!((attributes.type_, attributes.config), (4, 0x412E)); // PERF_TYPE_RAW
        // SAFETY: the union's other member has the same type and meaning "frequency".
        assert_eq!(unsafe { attributes.__bindgen_anon_1.sample_period }, 65_536);
        assert_eq!((attributes.freq(), attributes.exclude_kernel()), (0, 1));
        assert_eq!((attributes.disabled(), attributes.inherit()), (1, 1));
        assert_eq!((attributes.enable_on_exec(), attributes.sample_id_all()), (1, 1));
        assert_eq!((attributes.mmap2(), attributes.comm_exec(), attributes.task()), (1, 1, 1));
        let clock = Request { kernel: true, ..request(Event::Clock) };
        let attributes = *of_processor(&clock, true).attrs();
        assert_eq!((attributes.type_, attributes.config), (1, 0)); // PERF_COUNT_SW_CPU_CLOCK
        assert_eq!((attributes.exclude_kernel(), attributes.exclude_idle()), (0, 1));
        assert_eq!((attributes.disabled(), attributes.inherit()), (0, 0));
        assert_eq!((attributes.mmap2(), attributes.comm(), attributes.task()), (0, 0, 0));
        // SAFETY: the other member is a number too.
        assert_eq!(unsafe { attributes.__bindgen_anon_1.sample_period }, 65_536);
        // Records of both go into one ring buffer: they must be laid out alike.
        let of_command = *of_command(&clock, true).attrs();
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
        parse(
            kind,
            flags,
            body,
            ParseConfig::from(*of_command(&request(Event::Clock), false).attrs()),
        )
    }

    /// Laid out by hand after perf_event_open(2), "MMAP layout".
    #[test]
    fn records_are_read_as_the_manual_lays_them_out() {
        let at = |what| Some(Record { time: 1234, what });
        let thread = 7 | 8 << 32;

        let sample = body(&[0x40_1000, thread, 1234, 3], &[], false);
        let expected = |kernel| Sample {
            process: 7,
            thread: 8,
            processor: 3,
            pc: 0x40_1000,
            kernel,
            callers: Vec::new(),
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

    /// `PERF_CONTEXT_KERNEL` is -128, and `PERF_CONTEXT_USER` -512.
    #[test]
    fn a_call_chain_is_its_addresses_but_for_the_sampled_one_and_the_marks() {
        let (kernel, user) = (-128_i64 as u64, -512_i64 as u64);
        let words = [0x40_1000, 7 | 8 << 32, 1234, 3, 5, kernel, 0x40_1000, 0x40_2000, user, 0x50];
        let attributes = *of_command(&request(Event::Clock), true).attrs();
        assert_eq!(attributes.sample_type & 1 << 5, 1 << 5); // PERF_SAMPLE_CALLCHAIN
        let config = ParseConfig::from(attributes);
        let Some(Record { what: What::Sample(sample), .. }) =
            parse(9, 1, &body(&words, &[], false), config)
        else {
            panic!("no sample");
        };
        assert_eq!(sample.callers, [0x40_2000, 0x50]);
    }

    #[test]
    fn a_sample_without_a_call_chain_is_not_lost() {
        let config = ParseConfig::from(*of_command(&request(Event::Clock), true).attrs());
        let record = parse(9, 1, &body(&[0x40_1000, 7 | 8 << 32, 1234, 3, 0], &[], false), config);
        assert!(matches!(
            record,
            Some(Record { what: What::Sample(Sample { pc: 0x40_1000, .. }), .. })
        ));
    }

    #[test]
    fn a_processor_list_is_read() {
        assert_eq!(parse_list("0\n").unwrap(), [0]);
        assert_eq!(parse_list("0-3,8,10-11\n").unwrap(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list(""), None);
        assert_eq!(parse_list("0-x"), None);
    }
}
