//! Branch records in the counters' interrupt.

use core::sync::atomic::Ordering::Relaxed;

use crate::branches::memory::{BranchMemory, FREEZING, LOST, RECORDING, STALE};
use crate::branches::record::{Branch, RawBranch};
use crate::branches::unit::{BranchFreeze, BranchUnit};
use crate::counters::hooks::facility::{Facility, Interrupted};
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
    unit: &'a BranchUnit,
    memory: &'a BranchMemory,
    /// Value of the enabling register as the recording was stopped.
    found: u64,
    len: u8,
    is_frozen: bool,
    /// The recording is to be started at the end.
    stopped: bool,
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
        let (unit, len) = (self.unit, self.len);
        let aborted = |record| {
            let transaction = unit.decode(record).and_then(|branch| branch.transaction);
            transaction.is_some_and(|transaction| transaction.aborted)
        };
        let mut records = self.raw().take(len.into()).peekable();
        core::iter::from_fn(move || {
            loop {
                let record = records.next()?;
                // The processor recorded the abort twice: first with the bit that says so.
                let is_double = unit.format().doubles_aborts
                    && records.peek().is_some_and(|older| aborted(*older));
                if !is_double && let Some(branch) = unit.decode(record) {
                    return Some(branch);
                }
            }
        })
    }

    /// Returns the records undecoded, as read from the processor's registers, the newest first. [`BranchUnit::decode`]
    /// decodes a record.
    pub fn raw(&self) -> impl Iterator<Item = RawBranch> + use<'a> {
        self.memory.slots().iter().take(self.len.into()).map(|slot| slot.load())
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

    /// Reads the records of a recording that was stopped, when the enabling register had the value `found`.
    pub(crate) fn read<M: MsrBackend>(&mut self, msr: &M, found: u64) -> Result<(), MsrFault> {
        if self.memory.mode() & STALE != 0 {
            return Ok(());
        }
        let (len, read) = self.unit.read_records(msr, self.memory, found);
        self.len = len;
        read
    }

    /// Starts the recording again, or notes that that failed.
    #[inline(never)]
    fn restart<M: MsrBackend>(&self, msr: &M) -> Result<u64, MsrFault> {
        let started = self.unit.start(msr, self.memory.control.load(Relaxed));
        match started {
            Err(_) => self.memory.set_mode(LOST),
            Ok(_) if self.memory.mode() & LOST != 0 => self.memory.clear_mode(LOST),
            Ok(_) => {}
        }
        started
    }
}

impl Facility for Branches<'_> {
    /// Returns the bit of the overflow status that reports frozen records. A recorder that records without freezing
    /// also returns this bit, because another owner may have enabled freezing.
    #[inline]
    fn status_bits(&self) -> u64 {
        if self.memory.mode_of(self.unit) & (FREEZING | RECORDING) == 0 {
            return 0;
        }
        let status = self.unit.registers().freeze.and_then(|freeze| freeze.status);
        status.map_or(0, |(frozen, _)| frozen)
    }

    /// Stops the recording if the interrupt does not freeze the records.
    fn begin<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        *self = Self::new(self.unit, self.memory);
        if self.memory.mode_of(self.unit) & (RECORDING | FREEZING) == RECORDING {
            self.found = self.unit.stop(msr)?;
            self.stopped = true;
        }
        Ok(())
    }

    /// Reads the records if a counter overflowed. If the processor freezes the records by stopping the recording, this
    /// method also restarts the recording.
    fn collect<M: MsrBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        let mode = self.memory.mode_of(self.unit);
        let freeze = self.unit.registers().freeze.filter(|_| mode & FREEZING != 0);
        let overflowed = !interrupted.overflowed.is_empty();
        match freeze.map(|freeze| freeze.status) {
            _ if mode & RECORDING == 0 => {}
            None if overflowed && self.stopped => self.read(msr, self.found)?,
            None => {}
            Some(Some((frozen, _))) if overflowed => {
                self.is_frozen = interrupted.status & frozen != 0;
                if !self.is_frozen {
                    // The processor did not freeze them after all.
                    self.found = self.unit.stop(msr)?;
                    self.stopped = true;
                }
                self.read(msr, self.found)?;
            }
            Some(Some(_)) => {}
            // To freeze them the processor stopped the recording, whichever owner's interrupt it is.
            Some(None) if !overflowed => _ = self.restart(msr)?,
            Some(None) => {
                // It is stopped here if the processor did not: while it records, the registers of one record may hold
                // parts of two branches.
                self.stopped = true;
                self.found = self.unit.stop(msr)?;
                self.is_frozen = !self.unit.is_on(self.found);
                self.read(msr, self.found)?;
            }
        }
        Ok(0)
    }

    /// Restarts the recording if [`begin`](Facility::begin) or [`collect`](Facility::collect) stopped it.
    fn end<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        if core::mem::take(&mut self.stopped) { self.restart(msr).map(|_| ()) } else { Ok(()) }
    }

    /// Ends the freeze that the interrupt began.
    #[cold]
    #[inline(never)]
    fn without_counters<M: MsrBackend>(&mut self, msr: &M) -> Result<(), MsrFault> {
        const FROZEN: u8 = FREEZING | RECORDING;
        let freeze = self.unit.registers().freeze;
        match freeze.filter(|_| self.memory.mode_of(self.unit) & FROZEN == FROZEN) {
            None => Ok(()),
            Some(BranchFreeze { status: Some(_), .. }) => self.unit.release(msr),
            Some(BranchFreeze { status: None, .. }) => self.restart(msr).map(|_| ()),
        }
    }
}
