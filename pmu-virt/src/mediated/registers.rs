//! The addresses of the host's registers, and accesses to these registers.
#![allow(unsafe_code, reason = "names the counters' registers")]

use pmu_core::access::{
    AccessError, AccessFault, AccessOperation, CounterIndex, RegisterAddress, RegisterBackend,
};

use crate::mediated::host_counters::MediationError;
use crate::registers::table::MAX_PER_KIND;

/// Addresses of a vendor's registers: of the first counter's, and the distance to the next counter's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers {
    pub(super) select: u32,
    pub(super) general: u32,
    pub(super) stride: u32,
    pub(super) fixed: u32,
    pub(super) fixed_control: u32,
    pub(super) status: u32,
    pub(super) control: u32,
    pub(super) status_clear: u32,
    pub(super) status_set: u32,
}

/// SDM vol. 4, table "IA-32 Architectural MSRs".
pub(super) const INTEL: Registers = Registers {
    select: 0x186,
    // In full width: at 0xC1, a value of 32 bits would be sign-extended.
    general: 0x4C1,
    stride: 1,
    fixed: 0x309,
    fixed_control: 0x38D,
    status: 0x38E,
    control: 0x38F,
    status_clear: 0x390,
    status_set: 0x391,
};

/// APM vol. 2, appendix "MSR Cross-Reference".
pub(super) const AMD: Registers = Registers {
    select: 0xC001_0200,
    general: 0xC001_0201,
    stride: 2,
    fixed: 0,
    fixed_control: 0,
    status: 0xC000_0300,
    control: 0xC000_0301,
    status_clear: 0xC000_0302,
    status_set: 0xC000_0303,
};

impl Registers {
    /// Returns the event select of a general counter.
    pub(super) const fn select(&self, counter: usize) -> u32 {
        self.select + self.stride * counter as u32
    }

    /// Returns the counter with this place, 0–15.
    pub(super) const fn counter(&self, counter: usize) -> u32 {
        match counter {
            0..MAX_PER_KIND => self.general + self.stride * counter as u32,
            _ => self.fixed + (counter - MAX_PER_KIND) as u32,
        }
    }
}

/// Returns RDPMC's operand, of both vendors.
pub(super) const fn pmc_index(counter: usize) -> CounterIndex {
    match counter {
        0..MAX_PER_KIND => CounterIndex::new(counter as u32),
        _ => CounterIndex::new(1 << 30 | (counter - MAX_PER_KIND) as u32),
    }
}

/// The backend, whose faults name their register here.
pub(super) struct Access<'m, M>(pub(super) &'m M);

impl<M: RegisterBackend> Access<'_, M> {
    pub(super) fn read(&self, register: u32) -> Result<u64, MediationError> {
        self.0
            .read(address(register))
            .map_err(|error| fault(AccessOperation::Read, register, &error))
    }

    pub(super) fn write(&self, register: u32, value: u64) -> Result<(), MediationError> {
        let written = self.0.write(address(register), value);
        written.map_err(|error| fault(AccessOperation::Write, register, &error))
    }

    /// Writes a register; retries once.
    pub(super) fn write_retrying(&self, register: u32, value: u64) -> Result<(), MediationError> {
        self.write(register, value).or_else(|_| self.write(register, value))
    }

    pub(super) fn read_counter(&self, index: CounterIndex) -> Result<u64, MediationError> {
        let read = self.0.read_counter(index);
        read.map_err(|error| fault(AccessOperation::ReadCounter, index.get(), &error))
    }
}

fn address(register: u32) -> RegisterAddress {
    // SAFETY: every address of these modules is that of an event select, a counter, or their global control or status
    // ([`INTEL`], [`AMD`]), of which no value makes the processor write to memory.
    unsafe { RegisterAddress::new(register) }
}

fn fault(operation: AccessOperation, register: u32, error: &impl AccessError) -> MediationError {
    MediationError::Access(AccessFault { operation, register, kind: error.kind() })
}
