//! Operations of a task on a processor's branch records, whoever owns them.
//!
//! The interrupt may come between any two accesses, and looks only at the memory's mode. So the mode is set before the
//! recording is started, and cleared before the recording is stopped.

use core::sync::atomic::Ordering::Relaxed;

use crate::access::address::RegisterAddress;
use crate::access::backend::{AccessFault, RegisterAccess, RegisterBackend};
use crate::branches::memory::{
    BranchMemory, CLEAR, FREEZING, LOST, RECORDING, STACK, STALE, UNFREEZABLE, UNKNOWN,
};
use crate::branches::record::RawBranch;
use crate::branches::unit::{BranchEnable, BranchOrder, BranchUnit};

/// A processor's branch records, with the memory of their owner.
#[derive(Clone, Copy)]
pub(crate) struct Recording<'r, M> {
    pub(crate) unit: &'r BranchUnit,
    pub(crate) msr: &'r M,
    pub(crate) memory: &'r BranchMemory,
}

/// Selection of the branches that the running events or a recorder ask for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// Value of the register of the filter.
    pub(crate) value: u64,
    pub(crate) is_call_stack: bool,
    /// The records are to freeze. A freeze close to a call or return instruction would corrupt a call stack.
    pub(crate) freezes: bool,
}

/// Memories of call stacks that change hands.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stacks<'s> {
    /// Is to keep the call stack that is recorded now.
    pub(crate) leaving: Option<&'s BranchMemory>,
    /// Keeps the call stack that is recorded next.
    pub(crate) coming: Option<&'s BranchMemory>,
}

impl<M: RegisterBackend> Recording<'_, M> {
    /// Ends what a predecessor left. Returns whether the processor has the records.
    pub(crate) fn end_left_over(&self) -> Result<bool, AccessFault> {
        self.unit.stop(self.msr)?;
        if let Err(fault) = self.set_freeze(false) {
            if self.memory.mode() & FREEZING != 0 {
                // The register is there: the events of before set the bit.
                return Err(fault);
            }
            // Records that cannot freeze are records nevertheless: a hypervisor may lack the registers of the freeze.
            self.memory.set_mode(UNFREEZABLE);
        }
        let starts = self.unit.starts(self.msr).inspect_err(|_| {
            if self.unit.stop(self.msr).is_err() {
                // The processor may record.
                self.memory.set_mode(STALE);
            }
        })?;
        self.unit.clear_records(self.msr)?;
        self.memory.clear_mode(STALE);
        Ok(self.unit.answers(self.msr)? && starts)
    }

    /// Sets or clears the freeze bit. The interrupt acknowledges the frozen records while the bit can be set.
    #[inline(never)] // 128 bytes of the Hermit-like glue, at `opt-level` 3.
    pub(crate) fn set_freeze(&self, freezes: bool) -> Result<(), AccessFault> {
        let Some(freeze) = &self.unit.registers().freeze else { return Ok(()) };
        if self.memory.mode() & UNFREEZABLE != 0 {
            return Ok(());
        }
        if freezes {
            self.memory.set_mode(FREEZING);
            return self.msr.update_retrying(freeze.bit.set_to(u64::MAX)).map(|_| ());
        }
        self.msr.update_retrying(freeze.bit.set_to(0))?;
        self.memory.clear_mode(FREEZING);
        // An interrupt that came before may have frozen them, and its service acknowledges them no more.
        self.unit.unfreeze(self.msr)
    }

    /// Writes the register of the filter, where it is not in the enabling register.
    pub(crate) fn write_filter(&self) -> Result<(), AccessFault> {
        let Some(register) = self.unit.registers().filter else { return Ok(()) };
        self.msr.write_retrying(register, self.memory.control.load(Relaxed))
    }

    /// Stops the recording. Returns the value that the enabling register had. If that fails, the recording goes on.
    pub(crate) fn pause(&self) -> Result<u64, AccessFault> {
        let recorded = self.memory.mode() & RECORDING;
        self.memory.clear_mode(RECORDING);
        let stopped = self.unit.stop(self.msr);
        match stopped {
            Ok(_) => self.memory.clear_mode(LOST),
            Err(_) => self.memory.set_mode(recorded),
        }
        stopped
    }

    /// Starts the recording, with what is in the memory and in the filter. If that fails, the recording is stopped.
    pub(crate) fn resume(&self) -> Result<(), AccessFault> {
        let before = self.memory.mode();
        self.memory.clear_mode(LOST | CLEAR);
        self.memory.set_mode(RECORDING);
        // An interrupt of another owner may have frozen the records.
        let released = if before & FREEZING != 0 { self.unit.unfreeze(self.msr) } else { Ok(()) };
        let start = || self.unit.start(self.msr, self.memory.control.load(Relaxed));
        released.and_then(|()| start()).map(|_| ()).inspect_err(|_| {
            // A recording that was stopped is not started by a write that fails.
            if self.pause().is_err() {
                self.memory.clear_mode(!before & RECORDING);
            }
        })
    }

    /// Stops the recording for another thread or owner. If that fails, the records are read no more until they are
    /// cleared.
    // Linked once: several operations end a recording.
    #[inline(never)] // 288 bytes of counters with branches, at `opt-level` 3.
    pub(crate) fn pause_for_another(&self) -> Result<u64, AccessFault> {
        self.pause().inspect_err(|_| self.memory.set_mode(STALE))
    }

    /// Stops the recording for another thread or owner, as [`pause_for_another`](Self::pause_for_another) does. A call
    /// stack goes to the memory that is to keep it. If a record cannot be read, the call stack begins anew.
    pub(crate) fn pause_and_keep(&self, keeper: Option<&BranchMemory>) -> Result<(), AccessFault> {
        let mode = self.memory.mode();
        let found = self.pause_for_another()?;
        let is_whole = mode & (RECORDING | LOST | STALE | STACK) == RECORDING | STACK;
        let depth = usize::from(self.unit.depth());
        if let Some(keeper) = keeper.filter(|keeper| is_whole && keeper.capacity() >= depth)
            && let Ok(filled) = self.unit.filled(self.msr, found)
            && let (kept, Ok(())) = self.unit.read_records(self.msr, keeper, found)
        {
            keeper.keep(self.unit, self.memory.control.load(Relaxed), (kept, filled.newest));
        }
        Ok(())
    }

    /// Stops the recording for another thread or owner, and clears the records.
    pub(crate) fn pause_and_clear(&self, keeper: Option<&BranchMemory>) -> Result<(), AccessFault> {
        self.pause_and_keep(keeper)?;
        self.clear_stopped()
    }

    /// Clears the records, and notes that they are another owner's where that fails.
    // Linked once: several operations end a recording.
    #[inline(never)] // 160 bytes of the Hermit-like glue.
    pub(crate) fn clear_stopped(&self) -> Result<(), AccessFault> {
        self.memory.clear_mode(CLEAR);
        let cleared = self.unit.clear_records(self.msr);
        match cleared {
            Err(_) => self.memory.set_mode(STALE),
            Ok(()) => {
                self.memory.clear_mode(STALE);
                if self.memory.mode() & RECORDING == 0 {
                    self.memory.set_mode(CLEAR);
                }
            }
        }
        cleared
    }

    /// Leaves no records of the thread that left, which may have been stopped or lost without being switched out.
    pub(crate) fn leave_no_records(&self) -> Result<(), AccessFault> {
        if self.memory.mode() & CLEAR == 0 { self.pause_and_clear(None) } else { Ok(()) }
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.memory.mode() & STALE != 0
    }

    /// Returns whether the processor records this already, and the records may be read.
    pub(crate) fn goes_on(&self, wanted: Wanted) -> bool {
        let is_same = self.memory.control.load(Relaxed) == wanted.value;
        self.memory.mode() & (RECORDING | LOST | STALE | UNKNOWN | CLEAR) == RECORDING && is_same
    }

    /// Starts to record, with empty records, or with the call stack that a memory keeps.
    pub(crate) fn record_anew(
        &self,
        wanted: Wanted,
        Stacks { leaving, coming }: Stacks<'_>,
    ) -> Result<(), AccessFault> {
        let kept = coming.map(|coming| (coming, coming.take_kept(self.unit, wanted.value)));
        self.memory.kept.store(0, Relaxed);
        if self.memory.mode() & (UNKNOWN | RECORDING | CLEAR) != CLEAR {
            self.pause_and_clear(leaving)?;
        }
        self.program(wanted)?;
        if let Some((keeper, kept @ 1..)) = kept {
            let slots = keeper.slots().iter().take(kept.into());
            let newest = keeper.newest.load(Relaxed);
            self.memory.clear_mode(CLEAR);
            let written = self.unit.write_records(self.msr, newest, slots.map(|slot| slot.load()));
            // A part of the call stack may be in the registers.
            written.inspect_err(|_| self.memory.set_mode(STALE))?;
        }
        self.resume()
    }

    /// Writes the filter and the freeze bit of a stopped recording, unless the registers have them.
    pub(crate) fn program(&self, wanted: Wanted) -> Result<(), AccessFault> {
        let is_same = self.memory.control.load(Relaxed) == wanted.value;
        if is_same && self.memory.mode() & UNKNOWN == 0 {
            return Ok(());
        }
        self.memory.set_mode(UNKNOWN);
        self.memory.control.store(wanted.value, Relaxed);
        self.write_filter()?;
        self.set_freeze(wanted.freezes)?;
        self.memory.clear_mode(UNKNOWN | STACK);
        if wanted.is_call_stack {
            self.memory.set_mode(STACK);
        }
        Ok(())
    }

    /// Leaves nothing that another owner may see, and no freeze. Keeps a call stack if it is to return.
    pub(crate) fn leave_nothing(&self, keeps: bool) -> Result<(), AccessFault> {
        if self.memory.mode() & (RECORDING | STALE | FREEZING | CLEAR) == CLEAR {
            return Ok(());
        }
        self.pause_and_keep(keeps.then_some(self.memory))?;
        // Until they are cleared.
        self.memory.set_mode(STALE);
        self.set_freeze(false)?;
        self.clear_stopped()
    }
}

/// Records that the processor filled, by their places in the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    /// Index of the newest record.
    pub(crate) newest: u8,
    /// Greatest number of records.
    count: u8,
}

impl BranchUnit {
    /// Stops the recording, and returns the value that the enabling register had where it has other owners.
    pub(crate) fn stop(&self, msr: &impl RegisterBackend) -> Result<u64, AccessFault> {
        match self.registers().enable {
            BranchEnable::Register(register) => msr.write_retrying(register, 0).map(|()| 0),
            BranchEnable::Bits { bits, off, .. } => msr.update_retrying(bits.set_to(off)),
        }
    }

    /// Stops branch sampling before its records are read: the enabling register keeps the number of filled records.
    #[inline(never)] // 64 bytes of the Hermit-like glue.
    pub(crate) fn suspend_sampling(&self, msr: &impl RegisterBackend) -> Result<(), AccessFault> {
        let BranchEnable::Bits { bits, on, off } = self.registers().enable else { return Ok(()) };
        let mut update = bits.set_to(off);
        update.clear &= on;
        msr.update_retrying(update).map(|_| ())
    }

    /// Starts the recording, and returns the value that the enabling register had where it has other owners. `control`:
    /// the value of a register of its own.
    pub(crate) fn start(
        &self,
        msr: &impl RegisterBackend,
        control: u64,
    ) -> Result<u64, AccessFault> {
        match self.registers().enable {
            BranchEnable::Register(register) => msr.write_retrying(register, control).map(|()| 0),
            BranchEnable::Bits { bits, on, .. } => msr.update_retrying(bits.set_to(on)),
        }
    }

    /// Returns whether a value of the enabling register says that the processor records.
    pub(crate) fn is_on(&self, found: u64) -> bool {
        match self.registers().enable {
            BranchEnable::Register(_) => found != 0,
            BranchEnable::Bits { on, off, .. } => found & (on & !off) != 0,
        }
    }

    /// Finds the newest record. `found`: the value of the enabling register as the recording was stopped.
    pub(crate) fn filled(
        &self,
        msr: &impl RegisterBackend,
        found: u64,
    ) -> Result<Filled, AccessFault> {
        let (newest, is_empty) = match self.registers().order {
            BranchOrder::NewestFirst => (0, false),
            BranchOrder::Ring(top) => (msr.read_retrying(top)?, false),
            BranchOrder::Filled { next, valid, .. } => {
                ((found >> (next % 64)).wrapping_sub(1), found & valid == 0)
            }
        };
        let newest = newest as u8 & (self.depth() - 1);
        let count = match self.registers().order {
            _ if is_empty => 0,
            BranchOrder::Filled { .. } => newest + 1,
            BranchOrder::NewestFirst | BranchOrder::Ring(_) => self.depth(),
        };
        Ok(Filled { newest, count })
    }

    /// Returns the index in the registers of the record that is `age` records older than the newest.
    fn index(&self, newest: u8, age: u8) -> u8 {
        match self.registers().order {
            BranchOrder::NewestFirst => age,
            // The depth is a power of two.
            BranchOrder::Ring(_) | BranchOrder::Filled { .. } => {
                newest.wrapping_sub(age) & (self.depth() - 1)
            }
        }
    }

    /// Returns the register of a record.
    #[inline]
    fn register(&self, first: u32, index: u8) -> RegisterAddress {
        let distance = self.registers().step.wrapping_mul(u32::from(index));
        // SAFETY: `new`'s caller promised it of the registers of all records; the index is below their number.
        unsafe { RegisterAddress::new(first.wrapping_add(distance)) }
    }

    /// Reads the records into the memory, the newest first, up to the first empty one. Returns their number, and the
    /// fault that ended the reading, if one did.
    pub(crate) fn read_records(
        &self,
        msr: &impl RegisterBackend,
        memory: &BranchMemory,
        found: u64,
    ) -> (u8, Result<(), AccessFault>) {
        match self.filled(msr, found) {
            Ok(filled) => self.read_from(msr, filled, |age, record| {
                if let Some(slot) = memory.slots().get(usize::from(age)) {
                    slot.store(record);
                }
            }),
            Err(fault) => (0, Err(fault)),
        }
    }

    /// Reads the records, the newest first, and gives each with its place to `store`.
    #[inline]
    pub(crate) fn read_from(
        &self,
        msr: &impl RegisterBackend,
        filled: Filled,
        mut store: impl FnMut(u8, RawBranch),
    ) -> (u8, Result<(), AccessFault>) {
        for age in 0..filled.count {
            match self.read_record(msr, self.index(filled.newest, age)) {
                Ok(Some(record)) => store(age, record),
                Ok(None) => return (age, Ok(())),
                Err(fault) => return (age, Err(fault)),
            }
        }
        (filled.count, Ok(()))
    }

    /// Reads a record; `None` if the records end here.
    fn read_record(
        &self,
        msr: &impl RegisterBackend,
        index: u8,
    ) -> Result<Option<RawBranch>, AccessFault> {
        let registers = self.registers();
        let read = |first: Option<u32>| match first {
            Some(first) => msr.read_retrying(self.register(first, index)),
            None => Ok(0),
        };
        let record =
            RawBranch { from: read(Some(registers.from))?, to: read(registers.to)?, info: 0 };
        // Behind an empty record nothing was recorded, so the rest need not be read.
        if (self.format().is_end)(record) {
            return Ok(None);
        }
        Ok(Some(RawBranch { info: read(registers.info)?, ..record }))
    }

    /// Writes a record. Each register is written, also after a fault.
    fn write_record(
        &self,
        msr: &impl RegisterBackend,
        index: u8,
        record: RawBranch,
    ) -> Result<(), AccessFault> {
        let registers = self.registers();
        let write = |first: Option<u32>, word| match first {
            Some(first) => msr.write_retrying(self.register(first, index), word),
            None => Ok(()),
        };
        let from = write(Some(registers.from), record.from);
        let to = write(registers.to, record.to);
        from.and(to).and(write(registers.info, record.info))
    }

    /// Clears all records while the recording is stopped; also while the processor records, if it has a register for
    /// the depth. Each record is tried, also after a fault.
    #[inline(never)] // 400 bytes of the Hermit-like glue, at `opt-level` 3.
    pub(crate) fn clear_records(&self, msr: &impl RegisterBackend) -> Result<(), AccessFault> {
        if let Some(depth) = self.registers().depth {
            // On architectural LBRs, a write of the depth clears all records.
            return msr.write_retrying(depth, self.depth().into());
        }
        let empty = RawBranch::default();
        let clear = |index| self.write_record(msr, index, empty);
        (0..self.depth()).map(clear).fold(Ok(()), Result::and)
    }

    /// Writes saved records back, the newest first, while the recording is stopped and all records are clear.
    pub(crate) fn write_records(
        &self,
        msr: &impl RegisterBackend,
        newest: u8,
        records: impl Iterator<Item = RawBranch>,
    ) -> Result<(), AccessFault> {
        if let BranchOrder::Ring(top) = self.registers().order {
            msr.write_retrying(top, newest.into())?;
        }
        (0..self.depth()).zip(records).try_for_each(|(age, record)| {
            let record = (self.format().writable)(record);
            self.write_record(msr, self.index(newest, age), record)
        })
    }

    /// Proves that the processor has the last record: it gives back what is written to it. Leaves the record clear.
    pub(crate) fn answers(&self, msr: &impl RegisterBackend) -> Result<bool, AccessFault> {
        const ADDRESS: u64 = 0x1000;
        let last = self.depth() - 1;
        let register = self.register(self.registers().to.unwrap_or(self.registers().from), last);
        msr.write_retrying(register, ADDRESS)?;
        let found = msr.read_retrying(register);
        // Before the outcome of the read is looked at: the probe must not stay there as a branch.
        msr.write_retrying(register, 0)?;
        Ok(found? == ADDRESS)
    }

    /// Proves that the enabling register keeps the bit that starts the recording, where it has other owners. Some
    /// hypervisors drop the bit. Leaves the recording stopped.
    pub(crate) fn starts(&self, msr: &impl RegisterBackend) -> Result<bool, AccessFault> {
        if let BranchEnable::Register(_) = self.registers().enable {
            return Ok(true);
        }
        let started = self.start(msr, 0);
        // The value that the stop finds tells whether the enable bit stayed set.
        let found = self.stop(msr)?;
        started.map(|_| self.is_on(found))
    }

    /// Releases records that an interrupt froze.
    #[inline(never)] // 16 bytes of counters with branches.
    pub(crate) fn unfreeze(&self, msr: &impl RegisterBackend) -> Result<(), AccessFault> {
        match self.registers().freeze.and_then(|freeze| freeze.status) {
            Some((frozen, acknowledge)) => msr.write_retrying(acknowledge, frozen),
            None => Ok(()),
        }
    }
}
