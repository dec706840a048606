//! A kernel's perf subsystem with all facilities, as its adopter writes it: one type for what events may ask for, one
//! handler, and nothing that depends on the vendor.

use core::cell::RefCell;

use pmu::core::frame::InterruptFrame;
use pmu::core::thread::{SavedEvent, ThreadEvent};
use pmu::core::{CounterError, Event, EventCount, EventId, EventSource, GroupId};
use pmu::perf::{PerfEventAttr, errno};
use pmu::{
    BranchRecords, CounterReloads, Interrupted, Kernel, Pmu, PmuError, PmuSample, PreciseRecords,
    TopDownParts,
};

/// Linux' error numbers.
pub(crate) const EOPNOTSUPP: i32 = 95;
const EBUSY: i32 = 16;

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
    pub(crate) fn open(&'static self, attr: &[u8], tag: u64) -> Result<EventId, i32> {
        self.open_event(&self.event(attr, tag)?)
    }

    /// Opens an event of the processor that the kernel made itself.
    pub(crate) fn open_event(&'static self, event: &Event) -> Result<EventId, i32> {
        number(self.pmu.with(|session, unit| {
            let counters = session.counters_mut();
            let id = counters.open_event(unit, event)?;
            let started = counters.start_event(id, K::now());
            if started.is_err() {
                counters.close_event(id, K::now())?;
            }
            started.map(|()| id)
        }))
    }

    /// Opens the slots of the processor and the parts in which they go, as a group.
    pub(crate) fn open_slots(&'static self) -> Result<GroupId, i32> {
        let parts = self.pmu.top_down(K::this_processor()).map_err(|_| EOPNOTSUPP)?;
        number(self.pmu.with(|session, unit| {
            let counters = session.counters_mut();
            let events = parts.events(counters.counters().usable).each(Event::rotating);
            let group = counters.open_group(unit, &events).map_err(|error| error.reason)?;
            let started = counters.start_group(group, K::now());
            if started.is_err() {
                counters.close_group(group, K::now()).map_err(|error| error.reason)?;
            }
            started.map(|()| group).map_err(|error| error.reason)
        }))
    }

    /// Returns the number of slots, and the number of each part.
    pub(crate) fn read_slots(&'static self, group: GroupId) -> Result<Vec<u64>, i32> {
        number(self.pmu.with(|session, _| {
            let mut counts = [EventCount::default(); 9];
            let read = session.counters_mut().read_group(group, K::now(), &mut counts);
            let read = read.map_err(|error| error.reason)?;
            Ok(counts[..read].iter().map(|count| count.value).collect())
        }))
    }

    pub(crate) fn close_slots(&'static self, group: GroupId) -> Result<(), i32> {
        number(self.pmu.with(|session, _| {
            let closed = session.counters_mut().close_group(group, K::now());
            closed.map_err(|error| error.reason)
        }))
    }

    /// Opens an event of a task.
    pub(crate) fn open_of(
        &'static self,
        task: &mut Task,
        attr: &[u8],
        tag: u64,
    ) -> Result<(), i32> {
        let event = self.event(attr, tag)?;
        let saved = number(self.pmu.with(|_, unit| SavedEvent::new(unit, &event)))?;
        task.push(ThreadEvent::SwitchedOut(saved.to_be_started(true)));
        Ok(())
    }

    /// Switches the processor from a task's events to another's.
    pub(crate) fn switch(&'static self, from: &mut Task, to: &mut Task) -> Result<(), i32> {
        self.leave(from)?;
        self.enter(to)
    }

    /// Switches a task's events out. If one fails, the others are out.
    pub(crate) fn leave(&'static self, task: &mut Task) -> Result<(), i32> {
        number(self.pmu.with(|session, _| {
            let report = |sample: PmuSample<'_, K>| self.push(&sample, 0);
            let out = session.counters_mut().switch_out(task, K::now(), report);
            out.map_err(|error| error.reason)
        }))
    }

    /// Switches a task's events in. If one fails, the others run.
    pub(crate) fn enter(&'static self, task: &mut Task) -> Result<(), i32> {
        number(self.pmu.with(|session, unit| {
            let switched = session.counters_mut().switch_in(unit, task, K::now());
            switched.map_err(|error| error.reason)
        }))
    }

    pub(crate) fn read(&'static self, event: EventId) -> Result<EventCount, i32> {
        number(self.pmu.with(|session, _| session.counters_mut().read_event(event, K::now())))
    }

    pub(crate) fn set_period(&'static self, event: EventId, period: u64) -> Result<(), i32> {
        number(
            self.pmu.with(|session, _| {
                EventSource::opened(session.interface()).set_period(event, period)
            }),
        )
    }

    pub(crate) fn close(&'static self, event: EventId) -> Result<EventCount, i32> {
        number(self.pmu.with(|session, _| session.counters_mut().close_event(event, K::now())))
    }

    pub(crate) fn rotate(&'static self) -> Result<(), i32> {
        number(self.pmu.with(|session, _| session.counters_mut().rotate(K::now())))
    }

    /// Runs a guest, which finds nothing of the host's.
    pub(crate) fn run_guest(&'static self, guest: impl FnOnce()) -> Result<(), i32> {
        number(self.pmu.with(|session, _| {
            let report = |sample: PmuSample<'_, K>| self.push(&sample, 0);
            let window = session.counters_mut().lend(K::now(), report)?;
            guest();
            window.end(K::now()).map_err(CounterError::from)
        }))
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

/// Returns Linux' error number of an operation.
fn number<T>(done: Result<Result<T, CounterError>, PmuError>) -> Result<T, i32> {
    done.map_err(|_| EBUSY)?.map_err(errno)
}
