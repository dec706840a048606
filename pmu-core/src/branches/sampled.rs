//! Branch records as they were read.

use core::sync::atomic::Ordering::Relaxed;

use crate::branches::filter::BranchFilter;
use crate::branches::memory::{BranchMemory, BranchSlot, STALE};
use crate::branches::record::{Branch, RawBranch};
use crate::branches::unit::BranchUnit;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

/// A processor's branch records, for the handler of the performance interrupt. Pass this value to
/// [`service_with`](crate::service_with). At each overflow, `service_with` calls your closure with a reference to this
/// value. In a task, [`BranchRecorder::read`](crate::BranchRecorder::read) returns a `Branches`.
///
/// ```
/// use pmu_core::{
///     BranchMemory, BranchUnit, Branches, CounterMemory, EventSource, MsrBackend, Platform, ServiceError, Serviced,
///     service_with,
/// };
/// # fn push(_: u64, _: u64, _: u64) {}
/// fn interrupt<S: EventSource, M: MsrBackend, P: Platform>(
///     (source, msr, platform): (&S, &M, &P),
///     (memory, unit, records): (&CounterMemory, &BranchUnit, &BranchMemory), // this processor's
/// ) -> Result<Serviced, ServiceError> {
///     let branches = Branches::new(unit, records);
///     service_with(source, msr, platform, memory, branches, |overflow, branches| {
///         for branch in branches.iter() {
///             push(overflow.tag, branch.from, branch.to); // the newest first
///         }
///     })
/// }
/// ```
///
/// # Context
/// Any context, including interrupt and NMI. Reading copies the records one by one into the
/// [`BranchMemory`](crate::BranchMemory), not to the stack.
#[derive(Clone, Copy, Debug)]
pub struct Branches<'a> {
    pub(crate) unit: &'a BranchUnit,
    pub(crate) memory: &'a BranchMemory,
    /// Value of the enabling register as the recording was stopped.
    pub(crate) found: u64,
    pub(crate) len: u8,
    pub(crate) is_frozen: bool,
    /// The recording is to be started at the end.
    pub(crate) stopped: bool,
}

impl<'a> Branches<'a> {
    /// Creates the value with which an interrupt handler reads a processor's branch records. `memory` is the memory of
    /// this processor's [`BranchRecorder`](crate::BranchRecorder).
    ///
    /// The value has no branches in these cases, and [`service_with`](crate::service_with) then accesses no register of
    /// the branch records:
    /// - No recorder uses `memory`.
    /// - The recorder that uses `memory` does not record.
    /// - The recorder was created with another `unit`, for example with the unit of another core type.
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
    /// [`BranchRecorder::read`](crate::BranchRecorder::read) returned, the result is always `false`.
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
    pub(crate) fn read<M: MsrBackend>(&mut self, msr: &M, found: u64) -> Result<(), MsrFault> {
        if self.memory.mode() & STALE != 0 {
            return Ok(());
        }
        let (len, read) = self.unit.read_records(msr, self.memory, found);
        self.len = len;
        read
    }
}
