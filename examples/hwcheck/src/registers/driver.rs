//! The project's own drivers, as the tool lets them write: by its one writing function, and without interrupts.

use pmu_core::access::{
    AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterUnit, Platform};
use pmu_virt::configuration::Vendor;
use pmu_virt::registers::RegisterKind;

use crate::machine::interface::Cpuid;
use crate::registers::access::{Registers, WriteError};

/// The registers as a driver's backend.
///
/// A counted event requests an interrupt only when its counter wraps, which none does here: the backend drops the
/// interrupt bits, and acknowledgments of other owners' overflows. Precise sampling, which a driver disables, must be
/// off.
#[derive(Clone, Copy)]
pub struct DriverMsr<'r, 'm> {
    /// The registers.
    pub registers: &'r Registers<'m>,
    /// User mode may execute RDPMC; otherwise the counter's register is read.
    pub rdpmc: bool,
}

/// `IA32_PEBS_ENABLE`, which is read.
const PEBS_ENABLE: u32 = 0x3F1;
/// The type of fixed counters in RDPMC's operand.
const FIXED_PMC: u32 = 1 << 30;

impl RegisterBackend for DriverMsr<'_, '_> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.registers.read(address.get())
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        let (agreed, address) = (self.registers.agreed, address.get());
        let nearest = agreed.nearest(address, value).ok_or(AccessErrorKind::Unreachable)?;
        let is_acknowledgement = agreed.cell_at(address).is_none();
        if is_acknowledgement && nearest == 0 {
            return Ok(());
        }
        self.registers.write(address, nearest).map_err(|error| match error {
            WriteError::Access(kind) => kind,
            WriteError::NotAgreed { .. } => AccessErrorKind::Unreachable,
        })
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        let Registers { machine, agreed, .. } = self.registers;
        if self.rdpmc {
            return machine.msr().read_counter(index);
        }
        let kind = match index.get() & FIXED_PMC {
            0 => RegisterKind::GeneralCounter,
            _ => RegisterKind::FixedCounter,
        };
        let place = agreed.place(kind, index.get() as u8);
        let cell = place.and_then(|place| agreed.cells().get(place));
        self.registers.read(cell.ok_or(AccessErrorKind::Fault)?.address)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        let read = RegisterUpdate::read(update.register());
        let found = match update.register() {
            PEBS_ENABLE => self.registers.machine.msr().update(read)?,
            address => self.registers.read(address)?,
        };
        if update.apply(found).is_none() { Ok(found) } else { Err(AccessErrorKind::Unreachable) }
    }
}

/// A platform without interrupts.
#[derive(Clone, Copy, Debug)]
pub struct NoInterrupts;

impl Platform for NoInterrupts {
    fn unmask_performance_interrupt(&self) {}
    fn mask_performance_interrupt(&self) {}
}

/// The counters that the vendor's driver detects.
pub fn unit(registers: &Registers<'_>) -> Option<CounterUnit> {
    let snapshot = Snapshot::capture(Cpuid(registers.machine));
    let unit = match registers.configuration.vendor() {
        Vendor::Intel => pmu_intel::counters(&snapshot),
        Vendor::Amd => pmu_amd::counters(&snapshot),
    };
    unit.why_absent().is_none().then_some(unit)
}
