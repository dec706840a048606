//! Faults that a test injects.

use core::cell::Cell;

use pmu_core::msr::MsrOperation;

/// Fault that a test [injects](super::MockMsr::inject) into a driver's accesses. An access that faults raises #GP, and
/// has no other effect. Access 1 is the first access after the injection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Fault {
    /// No access faults.
    #[default]
    None,
    /// A transient fault: for `At(n)`, only the n-th access after [`inject`](super::MockMsr::inject) faults.
    At(u32),
    /// A fault that outlives one retry: for `Twice(n)`, the n-th access and the next one fault.
    Twice(u32),
    /// A permanent fault: for `From(n)`, every access faults from the n-th access after
    /// [`inject`](super::MockMsr::inject) on.
    From(u32),
    /// RDMSR and WRMSR of this register fault, as if the register were missing.
    Register(u32),
    /// RDMSR of this register reads 0, and WRMSR of this register does nothing. Some hypervisors treat unknown
    /// registers in this way.
    Ignored(u32),
}

/// Fault that a test [injects](super::MockMsr::inject_pmi) into the delivery of interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PmiFault {
    /// Each interrupt is delivered at once.
    #[default]
    None,
    /// Each interrupt is lost. The status bit of the counter that overflowed stays set.
    Lost,
    /// Each interrupt is delivered after this many further accesses.
    Late(u32),
}

pub(super) struct Plan {
    fault: Cell<Fault>,
    /// Accesses since the injection.
    made: Cell<u32>,
    pub(super) pmi: Cell<PmiFault>,
    /// Accesses until an interrupt is raised, or delivered: 1 is the next one, 0 is never.
    pub(super) interrupt_in: Cell<u32>,
    pub(super) deliver_in: Cell<u32>,
    pub(super) deliver_sample_in: Cell<u32>,
}

impl Plan {
    pub(super) const fn new() -> Self {
        Self {
            fault: Cell::new(Fault::None),
            made: Cell::new(0),
            pmi: Cell::new(PmiFault::None),
            interrupt_in: Cell::new(0),
            deliver_in: Cell::new(0),
            deliver_sample_in: Cell::new(0),
        }
    }

    pub(super) fn inject(&self, fault: Fault) {
        self.fault.set(fault);
        self.made.set(0);
    }

    /// Returns the fault of the next access, if it has one.
    pub(super) fn fault(&self, operation: MsrOperation, register: u32) -> Option<Fault> {
        let number = self.made.get().saturating_add(1);
        self.made.set(number);
        let fault = self.fault.get();
        let of_register = operation != MsrOperation::ReadPmc;
        let strikes = match fault {
            Fault::None => false,
            Fault::At(access) => access == number,
            Fault::Twice(access) => (access..=access.saturating_add(1)).contains(&number),
            Fault::From(access) => access <= number,
            Fault::Register(missing) | Fault::Ignored(missing) => {
                of_register && missing == register
            }
        };
        strikes.then_some(fault)
    }
}
