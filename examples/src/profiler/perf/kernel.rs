//! Perf events of the running kernel.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;

use perf_event::events::{Raw, Software};
use perf_event::{Builder, Counter, SampleFlag, Sampler};
use perf_event_open_sys::bindings::perf_event_attr;

use super::record::Layout;
use super::setting::Setting;
use super::{Callers, Event, OpenError, PerfEvents, Record, Request, Scope, Target, What};
use crate::profiler::kallsyms::Kallsyms;
use crate::profiler::maps::{self, Mapping};

/// The size of a processor's ring buffer. Any user may lock twice as much per processor unless
/// `kernel.perf_event_mlock_kb` was lowered.
const RING_BYTES: usize = 256 << 10;

/// Its size where samples have stacks: as much as any user may lock, and for those that may lock more.
const RING_BYTES_OF_STACKS: usize = 512 << 10;
const LARGE_RING_BYTES: usize = 4 << 20;

/// The numbers of the general registers and of the instruction pointer, as bits: 0 to 8, and 16 to 23
/// (arch/x86/include/uapi/asm/perf_regs.h).
const ALL_REGISTERS: u64 = 0xFF_01FF;

/// The running kernel's perf events.
#[derive(Default)]
pub struct Kernel {
    target: Target,
    /// Set if the kernel's records are kept.
    keeps_raw: bool,
    processors: BTreeMap<u16, Opened>,
}

/// The events of a processor.
struct Opened {
    /// The event that samples, with the ring buffer of all records.
    sampler: Sampler,
    layout: Layout,
    attributes: perf_event_attr,
    /// The target's other events: where samples are system-wide, those that count and record; otherwise
    /// those of threads beyond the first.
    others: Vec<Counter>,
    /// Set if the samples are of all that the processor executes.
    is_system_wide: bool,
}

impl Kernel {
    /// Describes the perf events of a target.
    pub fn new(target: Target) -> Self {
        Self { target, ..Self::default() }
    }

    /// The same, whose records are kept for a recording.
    pub fn keeping_records(self) -> Self {
        Self { keeps_raw: true, ..self }
    }

    /// Describes the events of a target other than the whole machine: one per thread that is running.
    fn of_target(&self, request: &Request) -> Vec<Builder<'static>> {
        match &self.target {
            Target::Processes(processes) => {
                let threads = processes.iter().flat_map(|process| threads(*process));
                let of_thread = |thread| {
                    let mut builder = of_command(request);
                    builder.observe_pid(thread as i32).enabled(true).enable_on_exec(false);
                    builder
                };
                threads.map(of_thread).collect()
            }
            Target::Command => vec![of_command(request)],
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
        let ring_bytes: &[usize] = match request.callers {
            Callers::Stack(_) if self.setting().capable => {
                &[LARGE_RING_BYTES, RING_BYTES_OF_STACKS]
            }
            Callers::Stack(_) => &[RING_BYTES_OF_STACKS, RING_BYTES],
            _ => &[RING_BYTES],
        };
        // As large as can be had.
        let sampled = |builder: &Builder<'static>| {
            let sampler =
                |bytes: &usize| open(builder.clone())?.sampled(*bytes).map_err(OpenError::Ring);
            let (last, first) = ring_bytes.split_last().expect("there is a size");
            first.iter().find_map(|bytes| sampler(bytes).ok()).map_or_else(|| sampler(last), Ok)
        };
        // All have the same.
        let layout = Layout::of(of_processor(request).attrs());
        let mut of_target = self.of_target(request);
        let opened = match request.scope {
            Scope::PerThread => {
                // The whole machine is no set of threads.
                let forbidden = || OpenError::Event(io::Error::from_raw_os_error(libc::EACCES));
                let [first, rest @ ..] = &mut *of_target else { return Err(forbidden()) };
                let sampler = sampled(first.sample_period(request.period))?;
                let mut others = Vec::new();
                for builder in rest {
                    match open(builder.sample_period(request.period).clone()) {
                        Ok(counter) => others.push(counter),
                        Err(error) if has_ended(&error) => {}
                        Err(error) => return Err(error),
                    }
                }
                let attributes = *first.attrs();
                Opened { sampler, layout, attributes, others, is_system_wide: false }
            }
            Scope::SystemWide => {
                let mut builder = of_processor(request);
                if self.target == Target::All {
                    builder.mmap(true).mmap2(true).comm(true).comm_exec(true).task(true);
                }
                let sampler = sampled(&builder)?;
                let mut others = Vec::new();
                for builder in of_target {
                    match open(builder) {
                        Ok(counter) => others.push(counter),
                        Err(error) if has_ended(&error) => {}
                        Err(error) => return Err(error),
                    }
                }
                let attributes = *builder.attrs();
                Opened { sampler, layout, attributes, others, is_system_wide: true }
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
        for Opened { sampler, layout, .. } in self.processors.values_mut() {
            while let Some(raw) = sampler.next_record() {
                let body = raw.to_contiguous();
                let Some(mut record) = layout.parse(raw.ty(), raw.misc(), &body) else { continue };
                if self.keeps_raw {
                    record.raw = whole(raw.ty(), raw.misc(), &body);
                }
                records.push(record);
            }
        }
    }

    fn existing(&self) -> Vec<Record> {
        let processes = match &self.target {
            Target::Command => return Vec::new(),
            Target::Processes(processes) => processes.clone(),
            Target::All => numbers_in("/proc"),
        };
        processes.into_iter().flat_map(existing).map(|what| Record::new(0, what)).collect()
    }

    fn attributes(&self) -> Option<perf_event_attr> {
        Some(self.processors.values().next()?.attributes)
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
        Kallsyms::running().map(|kernel| kernel.texts().collect()).unwrap_or_default()
    }
}

/// A record with its header.
fn whole(kind: u32, flags: u16, body: &[u8]) -> Vec<u8> {
    let size = u16::try_from(8 + body.len()).unwrap_or(u16::MAX);
    [&kind.to_ne_bytes()[..], &flags.to_ne_bytes(), &size.to_ne_bytes(), body].concat()
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
    if request.callers != Callers::None {
        builder.sample(SampleFlag::CALLCHAIN).exclude_callchain_kernel(!request.kernel);
    }
    if let Callers::Stack(bytes) = request.callers {
        builder.sample(SampleFlag::REGS_USER | SampleFlag::STACK_USER).exclude_callchain_user(true);
        builder.sample_regs_user(ALL_REGISTERS).sample_stack_user(bytes);
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
        Request {
            event,
            period: 65_536,
            scope: Scope::PerThread,
            kernel: false,
            callers: Callers::None,
        }
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

    #[test]
    fn a_processor_list_is_read() {
        assert_eq!(parse_list("0\n").unwrap(), [0]);
        assert_eq!(parse_list("0-3,8,10-11\n").unwrap(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list(""), None);
        assert_eq!(parse_list("0-x"), None);
    }
}
