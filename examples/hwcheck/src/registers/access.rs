//! The registers of the processor: the one function that writes them, and the detection of other owners' writes.

use core::fmt;

use pmu_core::access::{AccessErrorKind, RegisterAddress, RegisterUpdate};
use pmu_virt::configuration::Configuration;
use pmu_virt::registers::{RegisterInfo, RegisterKind};

use crate::machine::interface::Machine;
use crate::registers::agreed::Agreed;
use crate::registers::journal::Journal;
use crate::registers::stop::Stop;

/// The registers of a processor that `pmu-virt` lists, with what may be written to them.
pub struct Registers<'m> {
    /// The machine.
    pub machine: &'m dyn Machine,
    /// Its PMU, by its CPUID.
    pub configuration: Configuration,
    /// Writes that the user agreed to.
    pub agreed: &'m Agreed,
    /// Values that were written.
    pub journal: &'m Journal,
    /// The registers of the configuration.
    listed: Vec<RegisterInfo>,
}

/// Failure of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// It is not on the agreed list, and was not made.
    NotAgreed {
        /// The register.
        register: u32,
        /// The value.
        value: u64,
    },
    /// The register was not reached, or faulted.
    Access(AccessErrorKind),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAgreed { register, value } => {
                write!(f, "writing {value:#x} to {register:#x} was not agreed to")
            }
            Self::Access(kind) => kind.fmt(f),
        }
    }
}

impl core::error::Error for WriteError {}

/// Reads a register that the configuration lists as a PMU's.
///
/// # Errors
/// It is not listed ([`Other`](AccessErrorKind::Other)), or the access failed.
pub fn read(
    machine: &dyn Machine,
    configuration: &Configuration,
    address: u32,
) -> Result<u64, AccessErrorKind> {
    read_listed(machine, configuration.registers(), address)
}

fn read_listed(
    machine: &dyn Machine,
    mut listed: impl Iterator<Item = RegisterInfo>,
    address: u32,
) -> Result<u64, AccessErrorKind> {
    match listed.any(|one| one.address == address && one.kind != RegisterKind::NotOffered) {
        true => machine.msr().update(RegisterUpdate::read(address)),
        false => Err(AccessErrorKind::Other),
    }
}

impl<'m> Registers<'m> {
    /// The registers of a machine with this PMU.
    pub fn new(
        machine: &'m dyn Machine,
        configuration: Configuration,
        agreed: &'m Agreed,
        journal: &'m Journal,
    ) -> Self {
        let listed = configuration.registers().collect();
        Self { machine, configuration, agreed, journal, listed }
    }

    /// Reads a register.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn read(&self, address: u32) -> Result<u64, AccessErrorKind> {
        read_listed(self.machine, self.listed.iter().copied(), address)
    }

    /// Writes a register: the only function of this tool that does.
    ///
    /// # Errors
    /// Of a value that is not [agreed](Agreed::allows) nothing is written.
    pub fn write(&self, address: u32, value: u64) -> Result<(), WriteError> {
        let Self { agreed, journal, .. } = self;
        if !agreed.allows(address, value) {
            return Err(WriteError::NotAgreed { register: address, value });
        }
        let cell = agreed.cell_at(address);
        if let Some(place) = cell {
            journal.begin(agreed, place, value);
        }
        // SAFETY: the list has event selects, counters, their controls and the status' acknowledgement, and no other
        // register; none of them holds a pointer, and without an interrupt bit or PEBS none writes to memory.
        let register = unsafe { RegisterAddress::new(address) };
        let written = self.machine.msr().write(register, value).map_err(WriteError::Access);
        let Some((place, cell)) = cell.and_then(|place| Some((place, agreed.cells().get(place)?)))
        else {
            return written;
        };
        if written.is_err() {
            journal.refused(place);
            return written;
        }
        let holds = self.read(cell.address).map_err(WriteError::Access)?;
        journal.done(agreed, place, holds);
        Ok(())
    }

    /// Checks that each register holds the value last written, or the value found. A counter that may have counted is
    /// not looked at.
    ///
    /// # Errors
    /// [`Disturbed`](Stop::Disturbed): another owner wrote a register. Or one cannot be read.
    pub fn check_others(&self) -> Result<(), Stop> {
        let mut changed = Vec::new();
        for (place, cell) in self.agreed.cells().iter().enumerate() {
            let register = cell.address;
            if !self.journal.is_known(place) {
                continue;
            }
            let now = self.read(register).map_err(|kind| Stop::Access { register, kind })?;
            if now != self.journal.holds(place) {
                changed.push(register);
            }
        }
        if changed.is_empty() { Ok(()) } else { Err(Stop::Disturbed(changed)) }
    }

    /// The counters, by their bits in the global registers, that may have counted since they were written.
    pub fn may_have_counted(&self) -> u64 {
        let cells = self.agreed.cells().iter().enumerate();
        let unknown =
            cells.filter(|(place, cell)| cell.is_counter() && !self.journal.is_known(*place));
        unknown.fold(0, |bits, (_, cell)| bits | cell.global_bit())
    }

    /// The address of the register of this kind, where it exists.
    pub fn address_of(&self, kind: RegisterKind) -> Option<u32> {
        let mut listed = self.listed.iter();
        listed.find(|one| one.exists && one.kind == kind).map(|one| one.address)
    }
}
