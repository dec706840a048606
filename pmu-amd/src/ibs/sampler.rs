//! The task side: one unit of one processor, taken, started and stopped.

use core::fmt;

use pmu_core::{MsrAccess, MsrAddress, MsrBackend, MsrFault};

use crate::ibs::memory::IbsMemory;
use crate::ibs::record::IbsRecord;
use crate::ibs::registers::{IBS_CTL, IbsCtl};
use crate::ibs::sampling::{IbsSampling, IbsSamplingError};
use crate::ibs::unit::IbsUnit;

/// One sampling unit of the processor that executes the calls.
///
/// The samples are reported by the interrupt path, [`Ibs`](crate::ibs::Ibs). The kernel lets the extended entry
/// [`lvt_entry`](Self::lvt_entry) of the local vector table deliver an NMI, or the vector of the counters' interrupt,
/// before it starts the unit.
///
/// # Context
/// Task context, on one processor. Interrupts may come at any time.
#[derive(Debug)]
pub struct IbsSampler<'a, M> {
    unit: IbsUnit,
    msr: M,
    memory: &'a IbsMemory,
    lvt_entry: u8,
    taken: bool,
}

/// Error of an [`IbsSampler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum IbsError {
    /// Another sampler has the memory, or the sampler was shut down.
    NotTaken,
    /// Firmware assigned no entry of the local vector table (`IBS_CTL` bit 8): the unit could not interrupt.
    NoInterrupt,
    /// The unit cannot do what is asked.
    Sampling(IbsSamplingError),
    /// A register access failed, also after one retry.
    Access(MsrFault),
}

impl fmt::Display for IbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTaken => f.write_str("the sampler does not have the unit"),
            Self::NoInterrupt => {
                f.write_str("firmware assigned no interrupt to instruction-based sampling")
            }
            Self::Sampling(error) => error.fmt(f),
            Self::Access(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for IbsError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Sampling(error) => Some(error),
            Self::Access(fault) => Some(fault),
            Self::NotTaken | Self::NoInterrupt => None,
        }
    }
}

impl From<IbsSamplingError> for IbsError {
    fn from(error: IbsSamplingError) -> Self {
        Self::Sampling(error)
    }
}

impl From<MsrFault> for IbsError {
    fn from(fault: MsrFault) -> Self {
        Self::Access(fault)
    }
}

impl<'a, M: MsrBackend> IbsSampler<'a, M> {
    /// Takes a unit. What a predecessor left enabled is stopped.
    ///
    /// # Errors
    /// - [`NotTaken`](IbsError::NotTaken): another sampler has the memory.
    /// - [`NoInterrupt`](IbsError::NoInterrupt): the unit could not interrupt.
    /// - [`Access`](IbsError::Access): a register did not answer. The memory is free again.
    pub fn take(unit: IbsUnit, msr: M, memory: &'a IbsMemory) -> Result<Self, IbsError> {
        if !memory.take() {
            return Err(IbsError::NotTaken);
        }
        let mut sampler = Self { unit, msr, memory, lvt_entry: 0, taken: true };
        sampler
            .find_entry()
            .and_then(|()| sampler.clear_left_over())
            .inspect_err(|_| memory.give_back())?;
        Ok(sampler)
    }

    fn find_entry(&mut self) -> Result<(), IbsError> {
        // SAFETY: the register names an entry of the local vector table, and is only read.
        let register = unsafe { MsrAddress::new(IBS_CTL) };
        let control = IbsCtl::from_bits(self.msr.rdmsr_retrying(register)?);
        if !control.lvt_offset_valid() {
            return Err(IbsError::NoInterrupt);
        }
        self.lvt_entry = control.lvt_offset();
        Ok(())
    }

    /// Stops a unit that was left enabled, or with a sample. The sample is nobody's, but its interrupt may still come.
    fn clear_left_over(&self) -> Result<(), IbsError> {
        let found = self.unit.disable(&self.msr)?;
        if self.unit.is_left_over(found) {
            self.memory.expect_late();
            self.unit.clear(&self.msr)?;
            let record = IbsRecord::read(&self.unit, &self.msr, None, false)?;
            self.memory.remember(record.identity());
        }
        Ok(())
    }

    /// Returns the unit.
    pub const fn unit(&self) -> &IbsUnit {
        &self.unit
    }

    /// Returns the number of the extended entry of the local vector table through which the unit interrupts. Other
    /// users of the same entry, such as the other unit, get the same interrupt.
    pub const fn lvt_entry(&self) -> u8 {
        self.lvt_entry
    }

    /// Starts the unit. A unit that runs is stopped first.
    ///
    /// # Errors
    /// [`NotTaken`](IbsError::NotTaken); [`Sampling`](IbsError::Sampling), with nothing changed;
    /// [`Access`](IbsError::Access): a register did not answer, and the unit is stopped as far as its registers answer.
    pub fn start(&mut self, sampling: &IbsSampling) -> Result<(), IbsError> {
        if !self.taken {
            return Err(IbsError::NotTaken);
        }
        let values = self.unit.control_values(sampling)?;
        if self.memory.is_sampling() {
            self.stop()?;
        }
        let found = if self.memory.is_late() { self.unit.read_control(&self.msr)? } else { 0 };
        self.memory.publish(sampling, values);
        if self.unit.is_valid(found) && self.memory.is_late() {
            // The interrupt of the sample is under way. It reports the sample, and starts the unit.
            return Ok(());
        }
        self.unit.enable(&self.msr, values, 0).map_err(|fault| {
            self.memory.withdraw();
            // The fault that is reported is the first one.
            let _ = self.unit.disable(&self.msr);
            IbsError::Access(fault)
        })
    }

    /// Stops the unit. The sample that was taken last may still interrupt: it is then reported, and the interrupt is
    /// claimed.
    ///
    /// # Errors
    /// [`NotTaken`](IbsError::NotTaken); [`Access`](IbsError::Access): a register did not answer. Interrupts then stop
    /// the unit at its next sample, and `stop` may be called again.
    pub fn stop(&mut self) -> Result<(), IbsError> {
        if !self.taken {
            return Err(IbsError::NotTaken);
        }
        self.memory.end();
        let found = self.unit.disable(&self.msr)?;
        if self.unit.is_valid(found) && !self.memory.is_late() {
            // An interrupt reported the sample after its valid bit was read.
            self.unit.clear(&self.msr)?;
        }
        Ok(())
    }

    /// Stops the unit, and gives its memory back.
    ///
    /// # Errors
    /// As [`stop`](Self::stop). The memory then stays taken, and `shut_down` may be called again.
    pub fn shut_down(&mut self) -> Result<(), IbsError> {
        self.stop()?;
        self.taken = false;
        self.memory.give_back();
        Ok(())
    }
}
