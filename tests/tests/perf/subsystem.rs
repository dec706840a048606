//! A kernel's perf subsystem with all facilities, as its adopter writes it: the bytes of `perf_event_attr` in; counts,
//! samples and pages out, as bytes. One type says what events may ask for, there is one handler, and nothing depends on
//! the vendor. The cells stand for memory that a handler, maybe of an NMI, reads and writes without a lock.

use core::cell::RefCell;
use std::collections::BTreeMap;

use pmu::core::error::EventsError;
use pmu::core::frame::InterruptFrame;
use pmu::core::thread::ThreadEvent;
use pmu::core::{Event, EventCount};
use pmu::facilities::{
    BranchRecords, CounterReloads, PreciseRecords, SoftwareEvents, TopDownParts,
};
use pmu::perf::{AttrFlags, BranchSamples, PerfEventAttr, RecordFormat, SampleContext};
use pmu::{Interrupted, Kernel, Pmu, PmuEvent, PmuSample, SoftwareEvent};

/// Linux' error numbers.
pub(crate) const EBADF: i32 = 9;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const EOPNOTSUPP: i32 = 95;

/// The hardware beside the counters of one processor, of any vendor.
pub(crate) type Everything =
    ((PreciseRecords<2048>, BranchRecords), ((CounterReloads, TopDownParts), SoftwareEvents));

/// The most events of a group.
const MOST: usize = 16;

/// An event's descriptor. The number `id` is also the event's tag.
#[derive(Clone, Copy)]
struct Descriptor {
    event: PmuEvent,
    leader: PmuEvent,
    id: u64,
}

/// The subsystem of one processor.
pub(crate) struct Perf<K: Kernel> {
    pub(crate) pmu: Pmu<K, 1, 16, 4>,
    descriptors: RefCell<Vec<Descriptor>>,
    formats: RefCell<BTreeMap<u64, RecordFormat>>,
    /// The ring that user mode maps; it never becomes full.
    ring: RefCell<Vec<u8>>,
}

/// PERF_SAMPLE_IP, _PERIOD and _IDENTIFIER.
pub(crate) const FIELDS: u64 = 1 << 0 | 1 << 8 | 1 << 16;
/// PERF_FORMAT_TOTAL_TIME_ENABLED and _RUNNING.
pub(crate) const TIMES: u64 = 0b11;

/// The number in the records of a profile, which is no descriptor's.
pub(crate) const PROFILE: u64 = u64::MAX;

/// The records of what the kernel samples itself.
fn own_format() -> Option<RecordFormat> {
    let sample_type = FIELDS | PerfEventAttr::SAMPLE_BRANCH_STACK;
    let (branch_sample_type, read_format) = (BranchSamples::ANY, TIMES);
    let attr =
        PerfEventAttr { sample_type, branch_sample_type, read_format, ..PerfEventAttr::default() };
    attr.records().ok()
}

/// A task's events.
pub(crate) type Task = Vec<ThreadEvent>;

impl<K: Kernel> Perf<K> {
    pub(crate) fn new() -> &'static Self {
        Box::leak(Box::new(Self {
            pmu: Pmu::new(),
            descriptors: RefCell::default(),
            formats: RefCell::default(),
            ring: RefCell::default(),
        }))
    }

    /// Returns the event that a system call asks for, and the format of its records.
    fn event(&'static self, attr: &PerfEventAttr, id: u64) -> Result<(Event, RecordFormat), i32> {
        let event = self.pmu.perf_event(attr, |_| None).map_err(|error| error.errno())?;
        let format = attr.records().map_err(|error| error.errno())?;
        Ok((event.tagged(id), format))
    }

    /// `perf_event_open` for the processor. An event counts at once, unless it is disabled or in a group.
    pub(crate) fn open(
        &'static self,
        attr: &[u8],
        id: u64,
        group: Option<PmuEvent>,
    ) -> Result<PmuEvent, i32> {
        let attr = PerfEventAttr::from_bytes(attr).map_err(|error| error.errno())?;
        let (event, format) = self.event(&attr, id)?;
        let opened = self.open_disabled(&event, group)?;
        self.formats.borrow_mut().insert(id, format);
        let waits = group.is_some() || attr.flags.contains(AttrFlags::DISABLED);
        if waits { Ok(opened) } else { self.enabled(opened) }
    }

    /// Opens an event that the kernel may have made itself, and lets it count.
    pub(crate) fn open_event(&'static self, event: &Event) -> Result<PmuEvent, i32> {
        self.enabled(self.open_disabled(event, None)?)
    }

    fn enabled(&'static self, opened: PmuEvent) -> Result<PmuEvent, i32> {
        let enabled = self.enable(opened);
        enabled.or_else(|errno| self.close(opened).and(Err(errno))).map(|()| opened)
    }

    fn open_disabled(
        &'static self,
        event: &Event,
        group: Option<PmuEvent>,
    ) -> Result<PmuEvent, i32> {
        let opened = match group {
            Some(leader) => self.pmu.open_member(leader, event),
            None => self.pmu.open(event),
        };
        let opened = opened.map_err(|error| error.errno())?;
        let leader = group.unwrap_or(opened);
        self.descriptors.borrow_mut().push(Descriptor { event: opened, leader, id: event.tag() });
        Ok(opened)
    }

    /// `perf_event_open` for a task, which reads its own events in user mode.
    pub(crate) fn open_of(&'static self, task: &mut Task, attr: &[u8], id: u64) -> Result<(), i32> {
        let attr = PerfEventAttr::from_bytes(attr).map_err(|error| error.errno())?;
        let (event, format) = self.event(&attr, id)?;
        let event = self.pmu.thread_event(&event.with_user_reads());
        task.push(event.map_err(|error| error.errno())?);
        self.formats.borrow_mut().insert(id, format);
        Ok(())
    }

    /// Switches the processor from a task's events to another's. If one fails, the others are switched.
    pub(crate) fn switch(&'static self, from: &mut Task, to: &mut Task) -> Result<(), i32> {
        self.pmu.switch(from, to, |sample| self.push(&sample, None)).map_err(|error| error.errno())
    }

    /// `PERF_EVENT_IOC_ENABLE` and `_DISABLE` of an event of the running task.
    pub(crate) fn set_enabled(
        &'static self,
        task: &mut Task,
        index: usize,
        enabled: bool,
    ) -> Result<(), i32> {
        let change = if enabled { ThreadEvent::enable } else { ThreadEvent::disable };
        self.change(task, |task| change(task, index))
    }

    /// The running task forks: its child inherits every event, with its descriptor.
    pub(crate) fn fork(&'static self, task: &mut Task) -> Result<Task, i32> {
        let mut child = vec![ThreadEvent::Unused; task.len()];
        self.change(task, |task| ThreadEvent::inherit(task, &mut child, |tag| tag))?;
        Ok(child)
    }

    /// A task that does not run ends, and its parent runs: the counts are the parent's.
    pub(crate) fn exit(&'static self, child: Task, parent: &mut Task) -> Result<(), i32> {
        self.change(parent, |parent| {
            ThreadEvent::add_counts(parent, &child);
            Ok(())
        })
    }

    fn change(
        &'static self,
        task: &mut Task,
        change: impl FnOnce(&mut [ThreadEvent]) -> Result<(), EventsError>,
    ) -> Result<(), i32> {
        let changed = self.pmu.with_thread(task, |sample| self.push(&sample, None), change);
        changed.and_then(|changed| Ok(changed?)).map_err(|error| error.errno())
    }

    /// `PERF_EVENT_IOC_ENABLE`.
    pub(crate) fn enable(&'static self, event: PmuEvent) -> Result<(), i32> {
        self.pmu.enable(event).map_err(|error| error.errno())
    }

    /// `PERF_EVENT_IOC_PERIOD`.
    pub(crate) fn set_period(&'static self, event: PmuEvent, period: u64) -> Result<(), i32> {
        self.pmu.set_period(event, period, |_| ()).map_err(|error| error.errno())
    }

    /// `read`: what the event's format says, of the event or of its group. Returns the bytes that it wrote.
    pub(crate) fn read(&'static self, event: PmuEvent, bytes: &mut [u8]) -> Result<usize, i32> {
        let descriptors = self.descriptors.borrow();
        let of = descriptors.iter().find(|of| of.event == event).ok_or(EBADF)?;
        let format = self.format(of.id).ok_or(EBADF)?;
        let mut counts = [EventCount::default(); MOST];
        let read = match format.reads_group() {
            true => self.pmu.read_group(event, &mut counts),
            false => self.pmu.read(event).map(|count| {
                counts[0] = count;
                1
            }),
        };
        let read = read.map_err(|error| error.errno())?;
        let is_read = |other: &&Descriptor| match format.reads_group() {
            true => other.leader == of.leader,
            false => other.event == event,
        };
        let ids = descriptors.iter().filter(is_read).map(|of| of.id);
        let counts: Vec<_> = ids.zip(counts).take(read).collect();
        format.read(&counts, bytes).map_err(|error| error.errno())
    }

    /// The last descriptor of an event is closed.
    pub(crate) fn close(&'static self, event: PmuEvent) -> Result<(), i32> {
        self.pmu.close_member(event).map_err(|error| error.errno())?;
        self.descriptors.borrow_mut().retain(|of| of.event != event);
        Ok(())
    }

    pub(crate) fn tick(&'static self) -> Result<(), i32> {
        self.pmu.tick(|_| ()).map_err(|error| error.errno())
    }

    /// Runs a guest, which finds nothing of the host's.
    pub(crate) fn run_guest(&'static self, guest: impl FnOnce()) -> Result<(), i32> {
        let lent = self.pmu.lend(|sample| self.push(&sample, None), |_| guest());
        lent.map_err(|error| error.errno())
    }

    /// Handles the performance interrupt, also that of a profile.
    pub(crate) fn interrupt(&'static self, frame: &impl InterruptFrame) -> Interrupted {
        self.pmu.interrupt(frame, |sample| self.push(&sample, Some(frame)))
    }

    /// The kernel counts something itself.
    pub(crate) fn happened(&'static self, what: SoftwareEvent, frame: &impl InterruptFrame) {
        self.pmu.happened(what, frame, |sample| self.push(&sample, Some(frame)));
    }

    /// Handles the clock timer's interrupt.
    pub(crate) fn clock_interrupt(&'static self, frame: &impl InterruptFrame) {
        self.pmu.clock_interrupt(frame, |sample| self.push(&sample, Some(frame)));
    }

    fn format(&self, id: u64) -> Option<RecordFormat> {
        self.formats.borrow().get(&id).copied().or_else(own_format)
    }

    // ANCHOR: sample
    /// Writes a sample to the ring. A profile's sample has no descriptor, and its tag is 0, which an event may have,
    /// too: the kernel chooses the number and the fields of its record.
    fn push(&'static self, sample: &PmuSample<'_, K>, frame: Option<&dyn InterruptFrame>) {
        let id = if self.pmu.source_of(sample).is_some() { PROFILE } else { sample.tag };
        let Some(format) = self.format(id) else { return };
        let mut counts = [(0, EventCount::default()); MOST];
        let read = match format.samples_counts() {
            true => self.pmu.sample_read(sample.event, &mut counts).unwrap_or(0),
            false => 0,
        };
        let context = SampleContext {
            ip: frame.map_or(0, |frame| frame.pc()),
            in_user: frame.is_some_and(|frame| frame.in_user()),
            id,
            stream_id: id,
            time: K::now(),
            cpu: K::this_processor() as u32,
            ..SampleContext::default()
        };
        let mut record = [0; 2048];
        if let Ok(length) = format.sample(sample, &context, &counts[..read], &mut record) {
            self.ring.borrow_mut().extend(&record[..length]);
        }
    }
    // ANCHOR_END: sample

    /// Takes the records that user mode has not read.
    pub(crate) fn drain(&self) -> Vec<u8> {
        self.ring.take()
    }
}
