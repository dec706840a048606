//! A kernel's perf subsystem with all facilities, as its adopter writes it: one type for what events may ask for, one
//! handler, and nothing that depends on the vendor.

use core::cell::RefCell;

use pmu::core::frame::InterruptFrame;
use pmu::core::thread::ThreadEvent;
use pmu::core::{CounterUnit, Event, EventCount, EventsError, GroupId};
use pmu::perf::PerfEventAttr;
use pmu::{
    BranchRecords, CounterReloads, Interrupted, Kernel, Pmu, PmuError, PmuEvent, PmuSample,
    PmuSession, PreciseRecords, TopDownParts,
};

/// Linux' error numbers.
pub(crate) const EOPNOTSUPP: i32 = 95;

/// The hardware beside the counters of one processor, of any vendor.
pub(crate) type Everything =
    ((PreciseRecords<2048>, BranchRecords), (CounterReloads, TopDownParts));

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
    fn event(&self, attr: &[u8], tag: u64) -> Result<Event, i32> {
        let attr = PerfEventAttr::from_bytes(attr).map_err(|error| error.errno())?;
        let event = attr.event(|_| None).map_err(|error| error.errno())?;
        Ok(event.tagged(tag))
    }

    /// Opens an event of the processor.
    pub(crate) fn open(&'static self, attr: &[u8], tag: u64) -> Result<PmuEvent, i32> {
        self.open_event(&self.event(attr, tag)?)
    }

    /// Opens an event of the processor that the kernel made itself.
    pub(crate) fn open_event(&'static self, event: &Event) -> Result<PmuEvent, i32> {
        let event = self.pmu.open(event).map_err(|error| error.errno())?;
        let enabled = self.pmu.enable(event).or_else(|error| self.pmu.close(event).and(Err(error)));
        enabled.map(|()| event).map_err(|error| error.errno())
    }

    /// Opens the slots of the processor and the parts in which they go, as a group.
    pub(crate) fn open_slots(&'static self) -> Result<GroupId, i32> {
        let parts = self.pmu.top_down(K::this_processor()).map_err(|error| error.errno())?;
        self.with(|session, unit| {
            let counters = session.counters_mut();
            let events = parts.events(counters.counters().usable).each(Event::rotating);
            let group = counters.open_group(unit, &events)?;
            let started = counters.start_group(group, K::now());
            if started.is_err() {
                counters.close_group(group, K::now())?;
            }
            started.map(|()| group)
        })
    }

    /// Returns the number of slots, and the number of each part.
    pub(crate) fn read_slots(&'static self, group: GroupId) -> Result<Vec<u64>, i32> {
        self.with(|session, _| {
            let mut counts = [EventCount::default(); 9];
            let read = session.counters_mut().read_group(group, K::now(), &mut counts)?;
            Ok(counts[..read].iter().map(|count| count.value).collect())
        })
    }

    pub(crate) fn close_slots(&'static self, group: GroupId) -> Result<(), i32> {
        self.with(|session, _| session.counters_mut().close_group(group, K::now()))
    }

    fn with<R>(
        &'static self,
        act: impl FnOnce(&mut PmuSession<K>, &CounterUnit) -> Result<R, EventsError>,
    ) -> Result<R, i32> {
        let done = self.pmu.with(act).and_then(|done| done.map_err(PmuError::from));
        done.map_err(|error| error.errno())
    }

    /// Opens an event of a task.
    pub(crate) fn open_of(
        &'static self,
        task: &mut Task,
        attr: &[u8],
        tag: u64,
    ) -> Result<(), i32> {
        let event = self.event(attr, tag)?;
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

    pub(crate) fn close(&'static self, event: PmuEvent) -> Result<(), i32> {
        self.pmu.close(event).map_err(|error| error.errno())
    }

    pub(crate) fn tick(&'static self) -> Result<(), i32> {
        self.pmu.tick().map_err(|error| error.errno())
    }

    /// Runs a guest, which finds nothing of the host's.
    pub(crate) fn run_guest(&'static self, guest: impl FnOnce()) -> Result<(), i32> {
        self.pmu.lend(|sample| self.push(&sample, 0), |_| guest()).map_err(|error| error.errno())
    }

    /// Handles the performance interrupt.
    pub(crate) fn interrupt(&'static self, frame: &impl InterruptFrame) -> Interrupted {
        self.pmu.interrupt_with(frame, |sample| self.push(&sample, frame.pc()))
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
