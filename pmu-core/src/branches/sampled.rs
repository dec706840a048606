//! Branch records as they were read.

use core::any::Any;
use core::ops::ControlFlow;
use core::sync::atomic::Ordering::Relaxed;

use crate::access::backend::{AccessFault, RegisterBackend};
use crate::branches::filter::BranchFilter;
use crate::branches::memory::{BranchMemory, BranchSlot, STALE};
use crate::branches::record::{Branch, RawBranch};
use crate::branches::unit::BranchUnit;
use crate::frame::{InterruptFrame, ProcessId, ProcessorNumber};

/// A processor's branch records, as a facility of the [source](crate::EventSource::Facility) of its events. Events may
/// then ask for [branches](crate::Event::with_branches), and their [samples](crate::Sample::branches) have them. The
/// session takes the records when the first such event starts, and ends the recording with the last one. If the
/// processor can freeze its records, they freeze at each interrupt. If it [delays](BranchUnit::holds_interrupt)
/// interrupts instead, the kernel calls [`before_idle`](Self::before_idle) and [`after_idle`](Self::after_idle).
///
/// ```
/// use pmu_core::{CounterSession, CounterUnit, Event, EventId, Events, GenericEvent, Hardware, service};
/// use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, BranchUnit, Branches};
/// use pmu_core::error::{EventsError, ServiceError};
/// use pmu_core::interrupt::Serviced;
/// use pmu_core::memory::{CounterMemory, EventTable};
/// static RECORDS: BranchMemory<[BranchSlot; 32]> = BranchMemory::new(); // one per processor
///
/// type Source<'a> = Events<'a, CounterUnit, Branches<'a>>;
///
/// /// The source of a processor: `records` is what `pmu_intel::branches` or `pmu_amd::branches` says of it.
/// fn source<'a>(unit: &'a CounterUnit, events: &'a EventTable, records: &'a BranchUnit) -> Source<'a> {
///     Events::new(unit, events).with(Branches::new(records, &RECORDS))
/// }
///
/// fn start<H: Hardware>(
///     counters: &mut CounterSession<'_, Source<'_>, H>,
///     this_processor: &CounterUnit,
/// ) -> Result<EventId, EventsError> {
///     let misses = Event::generic(GenericEvent::BranchMisses).every(10_007).with_branches(BranchFilter::USER);
///     counters.start(this_processor, &[misses], 0)
/// }
/// # fn push(_: u64, _: u64, _: u64) {}
/// fn interrupt<H: Hardware>(
///     source: &Source<'_>,
///     hardware: &H,
///     memory: &CounterMemory, // this processor's
/// ) -> Result<Serviced, ServiceError> {
///     service(source, hardware, memory, |sample| {
///         for branch in sample.branches() {
///             push(sample.tag, branch.from, branch.to); // the newest first
///         }
///     })
/// }
/// ```
///
/// A [`BranchRecorder`](crate::branch_recording::BranchRecorder) of the same memory lives with the session, too: its
/// branches are in the samples of the source's rows, and the session suspends and ends its recording with the counters.
/// While a recorder has the memory, events take no records of their own: their samples have the recorder's branches if
/// it records by the same filter. [`BranchRecorder::read`](crate::branch_recording::BranchRecorder::read) returns a
/// `Branches`.
///
/// # Context
/// Any context, including interrupt and NMI. Reading copies the records one by one into the
/// [`BranchMemory`](crate::branches::BranchMemory), not to the stack.
///
/// # Limitations
/// - Yonah, Pentium 4, and AMD's processors before Zen 3 have no branch records here; Zen 3 has branch sampling alone.
///   Call stacks of Atoms are not offered.
/// - Architectural records alone tell the kind of a branch. Elsewhere it takes the instruction's bytes, which are not
///   read. So records are not filtered after they were read: what a processor cannot select alone is recorded too, as
///   jumps beside calls on Nehalem.
/// - If the records do not freeze, a sample begins with branches of its handler, and says so. If the overflow status
///   could be neither read nor cleared, an interrupt freezes the records until `reprogram`, `restart`, `start` or a
///   switch. An interrupt within a service may add one branch of the handler to frozen records (AMD).
/// - Records are read one by one. XSAVES, which saves and restores Intel's at once, serves the switches of threads
///   alone, and is untried on hardware.
/// - Events between branches need bit 35 of an event's select, which no `Event` sets. Whether a filter is a thread's or
///   its core's, on early processors, is unknown.
/// - A deep sleep may lose a call stack, and a debug exception ends the recording of AMD's stack. At a switch of
///   threads, a call stack is kept for a thread's own events alone: one that an event of the processor asks for begins
///   anew.
/// - Two sessions of one processor do not share one memory. A guest that may write the registers of branches, and
///   leaves them recording, is the hypervisor's to clear while no event has asked for branches.
#[doc(alias = "lbr")]
#[derive(Clone, Copy, Debug)]
pub struct Branches<'a> {
    pub(crate) unit: &'a BranchUnit,
    pub(crate) memory: &'a BranchMemory,
    /// Value of the enabling register as the recording was stopped.
    pub(crate) found: u64,
    pub(crate) len: u8,
    pub(crate) is_frozen: bool,
    /// The handler stopped the recording, and starts the recording again at the end of the pass.
    pub(crate) stopped: bool,
}

impl<'a> Branches<'a> {
    /// Creates the facility of a processor's branch records, or the value with which an interrupt handler reads them.
    /// `memory` is this processor's, for its events and its
    /// [`BranchRecorder`](crate::branch_recording::BranchRecorder).
    ///
    /// The value has no branches in these cases, and a handler's service then accesses no register of the branch
    /// records:
    /// - Neither events nor a recorder use `memory`.
    /// - The recorder that uses `memory` does not record.
    /// - `memory` is used with another `unit`, for example with the unit of another core type.
    pub const fn new(unit: &'a BranchUnit, memory: &'a BranchMemory) -> Self {
        Self { unit, memory, found: 0, len: 0, is_frozen: false, stopped: false }
    }

    /// Creates the value for records that a task has read.
    pub(crate) fn of(unit: &'a BranchUnit, memory: &'a BranchMemory, len: u8) -> Self {
        Self { len, ..Self::new(unit, memory) }
    }

    /// Returns the branches, the newest first. Empty and erroneous records are skipped.
    ///
    /// Each record is decoded when the iterator reaches it.
    pub fn iter(&self) -> impl Iterator<Item = Branch> + use<'a> {
        let unit = self.unit;
        let aborted = |record| {
            let transaction = unit.decode(record).and_then(|branch| branch.transaction);
            transaction.is_some_and(|transaction| transaction.aborted)
        };
        let mut slots = self.filled().iter();
        core::iter::from_fn(move || {
            loop {
                let record = slots.next()?.load();
                let older = slots.as_slice().first();
                // The processor recorded the abort twice: first with the bit that says so.
                let is_double = unit.format().doubles_aborts
                    && older.is_some_and(|older| aborted(older.load()));
                if !is_double && let Some(branch) = unit.decode(record) {
                    return Some(branch);
                }
            }
        })
    }

    /// Returns the records undecoded, as read from the processor's registers, the newest first. [`BranchUnit::decode`]
    /// decodes a record.
    pub fn raw(&self) -> impl Iterator<Item = RawBranch> + use<'a> {
        self.filled().iter().map(BranchSlot::load)
    }

    /// Returns the slots that have records.
    fn filled(&self) -> &'a [BranchSlot] {
        self.memory.slots().get(..self.len.into()).unwrap_or_default()
    }

    /// Returns whether the processor froze the records when it raised the interrupt. Frozen records contain no branches
    /// of the interrupt handler.
    ///
    /// If the result is `false`, the newest records may be branches that the interrupt handler itself took. This
    /// happens only if the filter selects branches of the kernel. For a value that
    /// [`BranchRecorder::read`](crate::branch_recording::BranchRecorder::read) returned, the result is always `false`.
    pub const fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Returns whether the processor records by this filter.
    pub(crate) fn are_of(&self, filter: BranchFilter) -> bool {
        let control = self.memory.control.load(Relaxed);
        self.unit.selection(filter).is_some_and(|(value, _)| value == control)
    }

    /// Returns whether a recorder has the records.
    pub(crate) fn are_of_recorder(&self) -> bool {
        self.memory.is_of_recorder()
    }

    /// Reads the records of a recording that was stopped, when the enabling register had the value `found`.
    pub(crate) fn read<M: RegisterBackend>(
        &mut self,
        msr: &M,
        found: u64,
    ) -> Result<(), AccessFault> {
        if self.memory.mode() & STALE != 0 {
            return Ok(());
        }
        let (len, read) = self.unit.read_records(msr, self.memory, found);
        self.len = len;
        read
    }
}

/// An [`InterruptFrame`] that takes its [call chain](InterruptFrame::call_chain) from the processor's branch records.
/// The interrupted code needs no frame pointers.
///
/// Use this frame while a [`BranchRecorder`](crate::branch_recording::BranchRecorder) records a [call
/// stack](crate::branches::BranchFilter::call_stack). The chain has the addresses of the call instructions, not the
/// return addresses. The chain has at most as many addresses as the processor has records.
///
/// ```
/// use pmu_core::branches::{Branches, CallStackFrame};
/// use pmu_core::frame::InterruptFrame;
/// # struct StackRing;
/// # impl StackRing { fn push_call_chain(&self, _: &dyn InterruptFrame) -> bool { true } }
/// /// In the closure given to `service`, with the sample's `branch_records`.
/// /// For `pmu_kprofile::trace::StackRing`, the record 0x1820.
/// fn sample(ring: &StackRing, frame: &dyn InterruptFrame, branches: &Branches<'_>) {
///     ring.push_call_chain(&CallStackFrame::new(frame, branches));
/// }
/// ```
#[derive(Clone, Copy)]
pub struct CallStackFrame<'a> {
    frame: &'a dyn InterruptFrame,
    branches: &'a Branches<'a>,
}

impl<'a> CallStackFrame<'a> {
    /// Creates a frame with the registers of `frame`. The call stack in `branches` replaces the call chain of `frame`.
    pub const fn new(frame: &'a dyn InterruptFrame, branches: &'a Branches<'a>) -> Self {
        Self { frame, branches }
    }
}

impl InterruptFrame for CallStackFrame<'_> {
    fn pc(&self) -> u64 {
        self.frame.pc()
    }
    fn cs(&self) -> u16 {
        self.frame.cs()
    }
    fn flags(&self) -> u64 {
        self.frame.flags()
    }
    fn processor(&self) -> ProcessorNumber {
        self.frame.processor()
    }
    fn process(&self) -> Option<ProcessId> {
        self.frame.process()
    }
    fn thread(&self) -> u32 {
        self.frame.thread()
    }
    fn timestamp(&self) -> u64 {
        self.frame.timestamp()
    }
    fn pebs_index(&self) -> Option<u64> {
        self.frame.pebs_index()
    }
    fn embedder(&self) -> Option<&dyn Any> {
        self.frame.embedder()
    }
    /// Visits the addresses of the call instructions in the call stack, the innermost call first.
    fn call_chain(&self, visit: &mut dyn FnMut(u64) -> ControlFlow<()>) {
        // A break means that the visitor wants no more, which is no error.
        let _ = self.branches.iter().try_for_each(|branch| visit(branch.from));
    }
}
