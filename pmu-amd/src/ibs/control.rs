//! Starting and stopping one unit, by its control registers.

use pmu_core::msr::{MsrAccess, MsrAddress, MsrBackend, MsrFault};

use crate::ibs::erratum::IbsErratum;
use crate::ibs::sampling::{ControlValues, Programmed};
use crate::ibs::unit::{IbsKind, IbsUnit};

impl IbsUnit {
    /// Reads the unit's control register.
    pub(crate) fn read_control<M: MsrBackend>(&self, msr: &M) -> Result<u64, MsrFault> {
        msr.rdmsr_retrying(self.control())
    }

    /// Returns whether the unit was left enabled, or with a sample.
    pub(crate) fn is_left_over(&self, control: u64) -> bool {
        control & (self.registers().enable | self.registers().valid) != 0
    }

    /// Returns whether the other registers hold a sample.
    pub(crate) fn is_valid(&self, control: u64) -> bool {
        control & self.registers().valid != 0
    }

    /// Returns whether the control register is as the unit was started for a period of `target`.
    pub(crate) fn holds(&self, control: u64, target: u32) -> bool {
        let period = self.period_bits(Programmed { target, count: 0 });
        let registers = self.registers();
        control & registers.enable != 0 && control & registers.period == period
    }

    /// Returns whether the control register is as a stop with a sample left it, after a period of `target`.
    pub(crate) fn holds_stopped(&self, control: u64, target: u32) -> bool {
        let registers = self.registers();
        let is_as_left = match self.capabilities().control2() {
            true => self.holds(control, target),
            false => control & (registers.enable | registers.period) == 0,
        };
        is_as_left && self.is_valid(control)
    }

    /// Enables the unit for its next sample.
    ///
    /// On a fault the unit is left as it was, or stopped.
    pub(crate) fn enable<M: MsrBackend>(
        &self,
        msr: &M,
        values: ControlValues,
        programmed: Programmed,
    ) -> Result<(), MsrFault> {
        let registers = self.registers();
        let control = values.control | self.period_bits(programmed);
        if self.capabilities().control2() {
            msr.wrmsr_retrying(self.control2(), u64::from(values.control2) | registers.disable)?;
        } else if self.has(IbsErratum::FetchCountKept) && self.kind() == IbsKind::Fetch {
            msr.wrmsr_retrying(self.control(), control & !registers.enable)?;
        }
        msr.wrmsr_retrying(self.control(), control)?;
        if self.capabilities().control2() {
            msr.wrmsr_retrying(self.control2(), u64::from(values.control2))?;
        }
        Ok(())
    }

    /// Stops the unit. Returns the control register's value before. A sample that is already in the unit's registers
    /// stays there, with its valid bit.
    ///
    /// Without a second control register, the enable bit shares its register with the valid bit: a sample that comes
    /// between the read and the write keeps its registers, but loses its valid bit.
    pub(crate) fn disable<M: MsrBackend>(&self, msr: &M) -> Result<u64, MsrFault> {
        if self.capabilities().control2() {
            msr.wrmsr_retrying(self.control2(), self.registers().disable)?;
            return self.read_control(msr);
        }
        let found = self.read_control(msr)?;
        self.write_stopped(msr, found, found & !self.registers().enable)?;
        Ok(found)
    }

    /// Lets the unit go on after a [`disable`](Self::disable) whose read failed: the write before it may have stopped
    /// the unit, which the first control register does not tell.
    pub(crate) fn undo_disable<M: MsrBackend>(
        &self,
        msr: &M,
        values: ControlValues,
    ) -> Result<(), MsrFault> {
        match self.capabilities().control2() {
            true => msr.wrmsr_retrying(self.control2(), u64::from(values.control2)),
            false => Ok(()),
        }
    }

    /// Leaves the unit stopped and without a sample. `found` is the control register's value before.
    pub(crate) fn clear<M: MsrBackend>(&self, msr: &M, found: u64) -> Result<(), MsrFault> {
        self.write_stopped(msr, found & !self.registers().valid, 0)
    }

    /// Writes a value of the control register that disables the unit, in place of `found`.
    fn write_stopped<M: MsrBackend>(
        &self,
        msr: &M,
        found: u64,
        value: u64,
    ) -> Result<(), MsrFault> {
        let enabled = found & self.registers().enable != 0;
        if self.has(IbsErratum::PeriodBeforeStop) && enabled {
            msr.wrmsr_retrying(self.control(), found & !self.registers().period)?;
        }
        msr.wrmsr_retrying(self.control(), value & !self.registers().period)
    }

    /// Returns whether the unit may still run, by the control register's value. A second control register stops the
    /// unit without a trace in the first, and without a change of the valid bit.
    pub(crate) fn may_run(&self, control: u64) -> bool {
        let registers = self.registers();
        control & registers.enable != 0 && control & registers.period != 0
    }

    pub(crate) fn control(&self) -> MsrAddress {
        // SAFETY: the register says what is sampled, and how often; no value of it makes the processor write to memory.
        unsafe { MsrAddress::new(self.registers().control) }
    }

    fn control2(&self) -> MsrAddress {
        // SAFETY: the register says which samples are left out; no value of it makes the processor write to memory.
        unsafe { MsrAddress::new(self.registers().control2) }
    }
}
