//! The register accesses that tasks and the interrupt make.

use crate::branches::memory::BranchMemory;
use crate::branches::record::RawBranch;
use crate::branches::unit::{BranchEnable, BranchOrder, BranchUnit};
use crate::msr::access::MsrAccess;
use crate::msr::address::MsrAddress;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

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
    pub(crate) fn stop(&self, msr: &impl MsrBackend) -> Result<u64, MsrFault> {
        match self.registers().enable {
            BranchEnable::Register(register) => msr.wrmsr_retrying(register, 0).map(|()| 0),
            BranchEnable::Bits { bits, off, .. } => msr.update_retrying(bits.set_to(off)),
        }
    }

    /// Stops a sampling whose records are yet to be read: the enabling register still tells how many are filled.
    pub(crate) fn suspend_sampling(&self, msr: &impl MsrBackend) -> Result<(), MsrFault> {
        let BranchEnable::Bits { bits, on, off } = self.registers().enable else { return Ok(()) };
        let mut update = bits.set_to(off);
        update.clear &= on;
        msr.update_retrying(update).map(|_| ())
    }

    /// Starts the recording, and returns the value that the enabling register had where it has other owners. `control`:
    /// the value of a register of its own.
    pub(crate) fn start(&self, msr: &impl MsrBackend, control: u64) -> Result<u64, MsrFault> {
        match self.registers().enable {
            BranchEnable::Register(register) => msr.wrmsr_retrying(register, control).map(|()| 0),
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
    pub(crate) fn filled(&self, msr: &impl MsrBackend, found: u64) -> Result<Filled, MsrFault> {
        let (newest, is_empty) = match self.registers().order {
            BranchOrder::NewestFirst => (0, false),
            BranchOrder::Ring(top) => (msr.rdmsr_retrying(top)?, false),
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
    fn register(&self, first: u32, index: u8) -> MsrAddress {
        let distance = self.registers().step.wrapping_mul(u32::from(index));
        // SAFETY: `new`'s caller promised it of the registers of all records; the index is below their number.
        unsafe { MsrAddress::new(first.wrapping_add(distance)) }
    }

    /// Reads the records into the memory, the newest first, up to the first empty one. Returns their number, and the
    /// fault that ended the reading, if one did.
    pub(crate) fn read_records(
        &self,
        msr: &impl MsrBackend,
        memory: &BranchMemory,
        found: u64,
    ) -> (u8, Result<(), MsrFault>) {
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
        msr: &impl MsrBackend,
        filled: Filled,
        mut store: impl FnMut(u8, RawBranch),
    ) -> (u8, Result<(), MsrFault>) {
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
    fn read_record(&self, msr: &impl MsrBackend, index: u8) -> Result<Option<RawBranch>, MsrFault> {
        let registers = self.registers();
        let read = |first: Option<u32>| match first {
            Some(first) => msr.rdmsr_retrying(self.register(first, index)),
            None => Ok(0),
        };
        let record =
            RawBranch { from: read(Some(registers.from))?, to: read(registers.to)?, info: 0 };
        if (self.format().is_end)(record) {
            return Ok(None);
        }
        Ok(Some(RawBranch { info: read(registers.info)?, ..record }))
    }

    /// Writes a record. Each register is written, also after a fault.
    fn write_record(
        &self,
        msr: &impl MsrBackend,
        index: u8,
        record: RawBranch,
    ) -> Result<(), MsrFault> {
        let registers = self.registers();
        let write = |first: Option<u32>, word| match first {
            Some(first) => msr.wrmsr_retrying(self.register(first, index), word),
            None => Ok(()),
        };
        let from = write(Some(registers.from), record.from);
        let to = write(registers.to, record.to);
        from.and(to).and(write(registers.info, record.info))
    }

    /// Clears all records while the recording is stopped; also while the processor records, if it has a register for
    /// the depth. Each record is tried, also after a fault.
    pub(crate) fn clear_records(&self, msr: &impl MsrBackend) -> Result<(), MsrFault> {
        if let Some(depth) = self.registers().depth {
            return msr.wrmsr_retrying(depth, self.depth().into());
        }
        let empty = RawBranch::default();
        let clear = |index| self.write_record(msr, index, empty);
        (0..self.depth()).map(clear).fold(Ok(()), Result::and)
    }

    /// Writes saved records back, the newest first, while the recording is stopped and all records are clear.
    pub(crate) fn write_records(
        &self,
        msr: &impl MsrBackend,
        newest: u8,
        records: impl Iterator<Item = RawBranch>,
    ) -> Result<(), MsrFault> {
        if let BranchOrder::Ring(top) = self.registers().order {
            msr.wrmsr_retrying(top, newest.into())?;
        }
        (0..self.depth()).zip(records).try_for_each(|(age, record)| {
            let record = (self.format().writable)(record);
            self.write_record(msr, self.index(newest, age), record)
        })
    }

    /// Proves that the processor has the last record: it gives back what is written to it. Leaves the record clear.
    pub(crate) fn answers(&self, msr: &impl MsrBackend) -> Result<bool, MsrFault> {
        const ADDRESS: u64 = 0x1000;
        let last = self.depth() - 1;
        let register = self.register(self.registers().to.unwrap_or(self.registers().from), last);
        msr.wrmsr_retrying(register, ADDRESS)?;
        let found = msr.rdmsr_retrying(register);
        msr.wrmsr_retrying(register, 0)?;
        Ok(found? == ADDRESS)
    }

    /// Proves that the enabling register keeps the bit that starts the recording, where it has other owners. Some
    /// hypervisors drop the bit. Leaves the recording stopped.
    pub(crate) fn starts(&self, msr: &impl MsrBackend) -> Result<bool, MsrFault> {
        if let BranchEnable::Register(_) = self.registers().enable {
            return Ok(true);
        }
        let started = self.start(msr, 0);
        let found = self.stop(msr)?;
        started.map(|_| self.is_on(found))
    }

    /// Releases records that an interrupt froze.
    #[inline(never)]
    pub(crate) fn release(&self, msr: &impl MsrBackend) -> Result<(), MsrFault> {
        match self.registers().freeze.and_then(|freeze| freeze.status) {
            Some((frozen, acknowledge)) => msr.wrmsr_retrying(acknowledge, frozen),
            None => Ok(()),
        }
    }
}
