//! A kernel's perf subsystem with all facilities, as its adopter writes it: the bytes of `perf_event_attr` in; counts,
//! samples and pages out, as bytes. There is one handler, and nothing depends on the vendor, or on the architecture.
//! The cells stand for memory that a handler, maybe of an NMI, reads and writes without a lock.

use core::cell::RefCell;
use std::collections::BTreeMap;

use pmu::core::error::EventsError;
use pmu::core::thread::ThreadEvent;
use pmu::core::{Event, EventCount};
use pmu::perf::{AttrFlags, BranchSamples, PerfEventAttr, RecordFormat, SampleContext};
use pmu::{Kernel, Pmu, PmuError, PmuEvent, PmuSample};

/// Linux' number of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl<E: Into<PmuError>> From<E> for Errno {
    fn from(error: E) -> Self {
        Self(error.into().errno())
    }
}

pub(crate) type Result<T, E = Errno> = core::result::Result<T, E>;

const EBADF: Errno = Errno(9);

/// The most processors of a machine.
pub(crate) const PROCESSORS: usize = 2;

/// The most events of a group.
const MOST: usize = 16;

/// The subsystem of a machine.
pub(crate) struct Perf<K: Kernel> {
    pub(crate) pmu: Pmu<K, PROCESSORS, 16, 4>,
    /// The events of processors, and their numbers, which are also their tags.
    descriptors: RefCell<Vec<(PmuEvent, u64)>>,
    /// The formats of records by the numbers of their events, and that of what the kernel samples itself.
    formats: RefCell<BTreeMap<u64, RecordFormat>>,
    /// The ring that user mode maps; it never becomes full.
    pub(crate) ring: RefCell<Vec<u8>>,
}

/// PERF_SAMPLE_IP, _PERIOD and _IDENTIFIER.
pub(crate) const FIELDS: u64 = 1 << 0 | 1 << 8 | 1 << 16;
const BRANCH_STACK: u64 = PerfEventAttr::SAMPLE_BRANCH_STACK;

/// The number in the records of a profile, which is no descriptor's.
pub(crate) const PROFILE: u64 = u64::MAX;

/// A task's events.
pub(crate) type Task = Vec<ThreadEvent>;

impl<K: Kernel> Perf<K> {
    pub(crate) fn new() -> Result<&'static Self> {
        let (sample_type, branch_sample_type) = (FIELDS | BRANCH_STACK, BranchSamples::ANY);
        let own = PerfEventAttr { sample_type, branch_sample_type, ..PerfEventAttr::default() };
        let formats = RefCell::new(BTreeMap::from([(PROFILE, own.records()?)]));
        let (descriptors, ring) = Default::default();
        Ok(Box::leak(Box::new(Self { pmu: Pmu::new(), descriptors, formats, ring })))
    }

    /// Returns the event that a system call asks for. Its samples may come as soon as it is opened, so its format is
    /// known before.
    fn event(&'static self, attr: &PerfEventAttr, id: u64) -> Result<Event> {
        let event = self.pmu.perf_event(attr, &())?.tagged(id);
        self.formats.borrow_mut().insert(id, attr.records()?);
        Ok(event)
    }

    /// `perf_event_open` for the processor. An event counts at once, unless it is disabled or in a group.
    pub(crate) fn open(
        &'static self,
        attr: &[u8],
        id: u64,
        group: Option<PmuEvent>,
    ) -> Result<PmuEvent> {
        let attr = PerfEventAttr::from_bytes(attr)?;
        let event = self.event(&attr, id)?;
        let opened = match group {
            Some(leader) => self.pmu.open_member(leader, &event)?,
            None if attr.flags.contains(AttrFlags::DISABLED) => self.pmu.open(&event)?,
            None => self.pmu.start(&event)?,
        };
        self.descriptors.borrow_mut().push((opened, id));
        Ok(opened)
    }

    /// `perf_event_open` for a task, which reads its own events in user mode.
    pub(crate) fn open_of(&'static self, task: &mut Task, attr: &[u8], id: u64) -> Result<()> {
        let event = self.event(&PerfEventAttr::from_bytes(attr)?, id)?;
        task.push(self.pmu.thread_event(&event.with_user_reads())?);
        Ok(())
    }

    /// Switches the processor from a task's events to another's. If one fails, the others are switched.
    pub(crate) fn switch(&'static self, from: &mut Task, to: &mut Task) -> Result<()> {
        Ok(self.pmu.switch(from, to)?)
    }

    /// `PERF_EVENT_IOC_ENABLE` and `_DISABLE` of an event of the running task.
    pub(crate) fn set_enabled(&'static self, task: &mut Task, at: usize, on: bool) -> Result<()> {
        let change = if on { ThreadEvent::enable } else { ThreadEvent::disable };
        self.change(task, |task| change(task, at))
    }

    /// The running task forks: its child inherits every event, with its descriptor.
    pub(crate) fn fork(&'static self, task: &mut Task) -> Result<Task> {
        let mut child = vec![ThreadEvent::Unused; task.len()];
        self.change(task, |task| ThreadEvent::inherit(task, &mut child, |tag| tag))?;
        Ok(child)
    }

    /// A task that does not run ends, and its parent runs: the counts are the parent's.
    pub(crate) fn exit(&'static self, child: Task, parent: &mut Task) -> Result<()> {
        let add = |parent: &mut [ThreadEvent]| ThreadEvent::add_counts(parent, &child);
        Ok(self.pmu.with_thread(parent, add)?)
    }

    fn change(
        &'static self,
        task: &mut Task,
        change: impl FnOnce(&mut [ThreadEvent]) -> Result<(), EventsError>,
    ) -> Result<()> {
        Ok(self.pmu.with_thread(task, change)??)
    }

    /// `PERF_EVENT_IOC_ENABLE`.
    pub(crate) fn enable(&'static self, event: PmuEvent) -> Result<()> {
        Ok(self.pmu.enable(event)?)
    }

    /// `PERF_EVENT_IOC_PERIOD`.
    pub(crate) fn set_period(&'static self, event: PmuEvent, period: u64) -> Result<()> {
        Ok(self.pmu.set_period(event, period)?)
    }

    /// `read`: what the event's format says, of the event or of its group. Returns the bytes that it wrote.
    pub(crate) fn read(&'static self, event: PmuEvent, bytes: &mut [u8]) -> Result<usize> {
        let (_, id) =
            *self.descriptors.borrow().iter().find(|(of, _)| *of == event).ok_or(EBADF)?;
        let format = self.format(id).ok_or(EBADF)?;
        let (mut counts, mut read) = ([(id, EventCount::default()); MOST], 1);
        match format.reads_group() {
            true => read = self.pmu.read_group(event, &mut counts)?,
            false => counts[0].1 = self.pmu.read(event)?,
        }
        Ok(format.read(&counts[..read], bytes)?)
    }

    /// The last descriptor of an event is closed.
    pub(crate) fn close(&'static self, event: PmuEvent) -> Result<()> {
        self.pmu.close_member(event)?;
        self.descriptors.borrow_mut().retain(|(of, _)| *of != event);
        Ok(())
    }

    pub(crate) fn tick(&'static self) -> Result<()> {
        Ok(self.pmu.tick()?)
    }

    /// Runs a guest, which finds nothing of the host's.
    pub(crate) fn run_guest(&'static self, guest: impl FnOnce()) -> Result<()> {
        Ok(self.pmu.lend(|_| guest())?)
    }

    fn format(&self, id: u64) -> Option<RecordFormat> {
        self.formats.borrow().get(&id).copied()
    }

    // ANCHOR: sample
    /// Writes a sample to the ring; the kernel's `sampled` calls it. A profile's sample has no descriptor, and its tag
    /// may be that of an event, too: the kernel chooses the number and the fields of its record.
    pub(crate) fn push(&'static self, sample: &PmuSample<'_, K>) {
        let id = if sample.source().is_some() { PROFILE } else { sample.tag };
        let Some(format) = self.format(id) else { return };
        let mut counts = [(0, EventCount::default()); MOST];
        let wanted = if format.samples_counts() { MOST } else { 0 };
        let read = self.pmu.sample_read(sample.event, &mut counts[..wanted]).unwrap_or(0);
        let context = SampleContext {
            ip: sample.address().unwrap_or(0),
            in_user: sample.frame().map(|frame| frame.in_user()),
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
}
