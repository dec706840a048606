//! A kernel's perf subsystem with all facilities, as its adopter writes it: one type for what events may ask for, one
//! handler, and nothing that depends on the vendor.

use core::cell::RefCell;

use pmu::core::frame::InterruptFrame;
use pmu::core::thread::ThreadEvent;
use pmu::core::{Event, EventCount};
use pmu::perf::PerfEventAttr;
use pmu::{
    BranchRecords, CounterReloads, Interrupted, Kernel, Pmu, PmuEvent, PmuSample, PreciseRecords,
    SoftwareEvent, SoftwareEvents, TopDownParts,
};

/// Linux' error numbers.
pub(crate) const EOPNOTSUPP: i32 = 95;

/// The hardware beside the counters of one processor, of any vendor.
pub(crate) type Everything =
    ((PreciseRecords<2048>, BranchRecords), ((CounterReloads, TopDownParts), SoftwareEvents));

/// A record of the ring that user mode reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) tag: u64,
    pub(crate) period: u64,
    pub(crate) address: u64,
    /// The data's address, if the instruction accesses memory.
    pub(crate) data: Option<u64>,
    /// Sources of the branches before, the newest first.
    pub(crate) branches: Vec<u64>,
}

/// The subsystem of one processor.
pub(crate) struct Perf<K: Kernel> {
    pub(crate) pmu: Pmu<K, 1, 16, 4>,
    ring: RefCell<Vec<Record>>,
}

/// A task's events.
pub(crate) type Task = Vec<ThreadEvent>;

impl<K: Kernel> Perf<K> {
    pub(crate) fn new() -> &'static Self {
        Box::leak(Box::new(Self { pmu: Pmu::new(), ring: RefCell::default() }))
    }

    /// Returns the event that a system call asks for.
    fn event(&'static self, attr: &[u8], tag: u64) -> Result<Event, i32> {
        let attr = PerfEventAttr::from_bytes(attr).map_err(|error| error.errno())?;
        let event = self.pmu.perf_event(&attr, |_| None).map_err(|error| error.errno())?;
        Ok(event.tagged(tag))
    }

    /// Opens an event of the processor, and lets it count.
    pub(crate) fn open(&'static self, attr: &[u8], tag: u64) -> Result<PmuEvent, i32> {
        self.open_event(&self.event(attr, tag)?)
    }

    /// Opens an event of the processor that the kernel made itself.
    pub(crate) fn open_event(&'static self, event: &Event) -> Result<PmuEvent, i32> {
        let event = self.pmu.open(event).map_err(|error| error.errno())?;
        let enabled = self.enable(event);
        enabled.or_else(|errno| self.close(event).and(Err(errno))).map(|()| event)
    }

    /// Opens an event that does not count yet, beside others in a group.
    pub(crate) fn open_disabled(
        &'static self,
        attr: &[u8],
        group: Option<PmuEvent>,
    ) -> Result<PmuEvent, i32> {
        let event = self.event(attr, 0)?;
        let opened = match group {
            Some(leader) => self.pmu.open_member(leader, &event),
            None => self.pmu.open(&event),
        };
        opened.map_err(|error| error.errno())
    }

    pub(crate) fn enable(&'static self, event: PmuEvent) -> Result<(), i32> {
        self.pmu.enable(event).map_err(|error| error.errno())
    }

    /// Returns the counts of an event's group.
    pub(crate) fn read_group(&'static self, event: PmuEvent) -> Result<Vec<u64>, i32> {
        let mut counts = [EventCount::default(); 16];
        let read = self.pmu.read_group(event, &mut counts).map_err(|error| error.errno())?;
        Ok(counts[..read].iter().map(|count| count.value).collect())
    }

    /// Opens an event of a task.
    pub(crate) fn open_of(
        &'static self,
        task: &mut Task,
        attr: &[u8],
        tag: u64,
    ) -> Result<(), i32> {
        // A task reads its own events in user mode.
        let event = self.event(attr, tag)?.with_user_rdpmc();
        task.push(self.pmu.thread_event(&event).map_err(|error| error.errno())?);
        Ok(())
    }

    /// Switches the processor from a task's events to another's. If one fails, the others are switched.
    pub(crate) fn switch(&'static self, from: &mut Task, to: &mut Task) -> Result<(), i32> {
        self.pmu.switch(from, to, |sample| self.push(&sample, 0)).map_err(|error| error.errno())
    }

    pub(crate) fn read(&'static self, event: PmuEvent) -> Result<EventCount, i32> {
        self.pmu.read(event).map_err(|error| error.errno())
    }

    pub(crate) fn set_period(&'static self, event: PmuEvent, period: u64) -> Result<(), i32> {
        self.pmu.set_period(event, period, |_| ()).map_err(|error| error.errno())
    }

    /// The last descriptor of an event is closed.
    pub(crate) fn close(&'static self, event: PmuEvent) -> Result<(), i32> {
        self.pmu.close_member(event).map_err(|error| error.errno())
    }

    pub(crate) fn tick(&'static self) -> Result<(), i32> {
        self.pmu.tick(|_| ()).map_err(|error| error.errno())
    }

    /// Runs a guest, which finds nothing of the host's.
    pub(crate) fn run_guest(&'static self, guest: impl FnOnce()) -> Result<(), i32> {
        self.pmu.lend(|sample| self.push(&sample, 0), |_| guest()).map_err(|error| error.errno())
    }

    /// Handles the performance interrupt, also that of a profile.
    pub(crate) fn interrupt(&'static self, frame: &impl InterruptFrame) -> Interrupted {
        self.pmu.interrupt(frame, |sample| self.push(&sample, frame.pc()))
    }

    /// The kernel counts something itself.
    pub(crate) fn happened(&'static self, what: SoftwareEvent, frame: &impl InterruptFrame) {
        self.pmu.happened(what, frame, |sample| self.push(&sample, frame.pc()));
    }

    /// Handles the clock timer's interrupt.
    pub(crate) fn clock_interrupt(&'static self, frame: &impl InterruptFrame) {
        self.pmu.clock_interrupt(frame, |sample| self.push(&sample, frame.pc()));
    }

    fn push(&self, sample: &PmuSample<'_, K>, interrupted: u64) {
        let access = sample.instruction().and_then(|instruction| instruction.access);
        self.ring.borrow_mut().push(Record {
            tag: sample.tag,
            period: sample.period,
            address: sample.address(interrupted),
            data: access.and_then(|access| access.address),
            branches: sample.branches().map(|branch| branch.from).collect(),
        });
    }

    /// Takes the records that user mode has not read.
    pub(crate) fn drain(&self) -> Vec<Record> {
        self.ring.take()
    }
}
