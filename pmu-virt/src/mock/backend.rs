//! The mock as a driver sees it: the registers and the platform of a processor.

use core::cell::Cell;

use pmu_core::Platform;
use pmu_core::access::{
    AccessErrorKind, AccessOperation, CounterIndex, RegisterAddress, RegisterBackend,
    RegisterUpdate,
};
use pmu_core::error::PlatformError;
use pmu_core::interval::Interval;

use crate::configuration::Vendor;
use crate::mock::deviation::Deviation;
use crate::mock::processor::{FROZEN, MASKED, MockMsr};
use crate::mock::trace::{Breach, Record};
use crate::pmu::msr::{Read, Write};
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::registers::table::{Family, to_global};

impl<const T: usize> RegisterBackend for MockMsr<'_, T> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.rdmsr(address.get())
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        self.wrmsr(address.get(), value)
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        let (index, mode) = (index.get(), self.mode.get());
        let dead = index == 1 && self.deviations.contains(Deviation::DeadCounter);
        let deviation = dead.then_some(Ok(0));
        self.finish_read(AccessOperation::ReadCounter, index, deviation, |pmu| {
            pmu.read_pmc_beside(&*self.beside.borrow(), index, mode)
        })
    }

    /// Makes two accesses, RDMSR and WRMSR. The mock counts and records each access. An interrupt may come before each
    /// access.
    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        let found = self.rdmsr(update.register())?;
        if let Some(value) = update.apply(found) {
            self.wrmsr(update.register(), value)?;
        }
        Ok(found)
    }
}

impl<const T: usize> Platform for MockMsr<'_, T> {
    /// Unmasks the LVT entry for performance counters, and sets the delivery mode to NMI.
    fn unmask_performance_interrupt(&self) {
        self.announce();
        let masked = self.entry.replace(0x400) & MASKED != 0;
        if masked && self.deviations.contains(Deviation::RaisesOnUnmask) {
            let mut pmu = self.pmu.borrow_mut();
            let status = pmu.model.registers.of(Family::GlobalStatus);
            let raises = pmu.vendor() == Vendor::Intel && status & !FROZEN != 0;
            pmu.model.pmi_pending |= raises;
            // The handler that runs now accesses the same processor.
            drop(pmu);
            if raises {
                self.interrupt();
            }
        }
    }

    fn mask_performance_interrupt(&self) {
        self.announce();
        self.entry.set(MASKED | 0x400);
    }

    /// Unmasks the extended LVT entry with this number, and sets the delivery mode to NMI. The call changes nothing if
    /// the entry is in use, that is, unmasked with another value.
    fn unmask_facility_interrupt(&self, entry: u8) -> Result<(), PlatformError> {
        match self.extended_entries.get(usize::from(entry)).map(Cell::get) {
            None => Err(PlatformError::NoFacilityInterrupt),
            Some(found) if found & MASKED == 0 && found != 0x400 => {
                Err(PlatformError::FacilityInterruptInUse(found))
            }
            Some(_) => {
                self.set_extended_entry(entry, 0x400);
                Ok(())
            }
        }
    }

    fn start_profile_timer(&self, interval: Interval) -> Result<(), PlatformError> {
        self.timer.set(Some(interval));
        Ok(())
    }

    fn stop_profile_timer(&self) {
        self.timer.set(None);
    }
}

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Raises and delivers the interrupts that are due before an access, counts the access, and returns its fault, if
    /// one is due.
    fn before(&self, operation: AccessOperation, register: u32) -> Option<Fault> {
        self.announce();
        let due = |cell: &Cell<u32>| {
            let left = cell.get();
            cell.set(left.saturating_sub(1));
            left == 1
        };
        if due(&self.plan.interrupt_in) {
            let mut pmu = self.pmu.borrow_mut();
            let before = pmu.model.registers.of(Family::GlobalStatus);
            self.slots_overflow(&pmu);
            let advanced = pmu.model.overflow_all();
            let new = pmu.model.registers.of(Family::GlobalStatus) & !before & !FROZEN;
            self.overflowed.set(self.overflowed.get() | new);
            drop(pmu);
            let raised = advanced.pmi | self.write_records(advanced.records);
            if raised {
                self.raised();
            }
            // A record below the threshold does not interrupt; without any overflow, the interrupt is spurious.
            if raised || advanced.overflowed == 0 {
                self.pmu.borrow_mut().model.pmi_pending = true;
                self.interrupt();
            }
        }
        if due(&self.plan.deliver_in) {
            self.deliver();
        }
        if due(&self.plan.deliver_sample_in) {
            self.deliver_sample();
        }
        self.accesses.set(self.accesses.get().and(operation));
        self.plan.fault(operation, register)
    }

    fn record(
        &self,
        operation: AccessOperation,
        register: u32,
        outcome: Result<u64, AccessErrorKind>,
    ) {
        self.trace.borrow_mut().push(Record { operation, register, outcome });
    }

    fn answer_breach(&self, breach: Breach) {
        assert!(!self.strict.get(), "{breach}");
        if self.breach.get().is_none() {
            self.breach.set(Some(breach));
        }
    }

    /// Makes and records an access by RDMSR or RDPMC. Without a fault or a deviation, `answer` gives the result.
    pub(super) fn finish_read(
        &self,
        operation: AccessOperation,
        register: u32,
        deviation: Option<Result<u64, AccessErrorKind>>,
        answer: impl FnOnce(&VirtualPmu) -> Read,
    ) -> Result<u64, AccessErrorKind> {
        let fault = self.before(operation, register);
        let outcome = match (fault, deviation) {
            (Some(Fault::Ignored(_)), _) => Ok(0),
            (Some(_), _) => Err(AccessErrorKind::Fault),
            (None, Some(answer)) => answer,
            (None, None) => match answer(&self.pmu.borrow()) {
                Read::Value(value) => Ok(value),
                Read::Shared { value, mask } => Ok(self.other_bits(register) & !mask | value),
                Read::GeneralProtection | Read::Unhandled => {
                    self.answer_breach(Breach { operation, register, value: 0, illegal: 0 });
                    Err(AccessErrorKind::Fault)
                }
            },
        };
        self.record(operation, register, outcome);
        outcome
    }

    pub(super) fn rdmsr(&self, register: u32) -> Result<u64, AccessErrorKind> {
        let deviation = self.deviate(register, None);
        self.finish_read(AccessOperation::Read, register, deviation, |pmu| {
            pmu.read_beside(&*self.beside.borrow(), register)
        })
    }

    pub(super) fn wrmsr(&self, register: u32, value: u64) -> Result<(), AccessErrorKind> {
        let operation = AccessOperation::Write;
        let outcome = match self.before(operation, register) {
            Some(Fault::Ignored(_)) => Ok(value),
            Some(_) => Err(AccessErrorKind::Fault),
            None => self.deviate(register, Some(value)).unwrap_or_else(|| {
                let mut pmu = self.pmu.borrow_mut();
                let mut beside = self.beside.borrow_mut();
                let written = pmu.write_beside(&mut *beside, register, value);
                let both = to_global(pmu.model.both());
                drop((pmu, beside));
                // Processors take such a write, but a counter that writes records must not interrupt: its buffer does.
                if both != 0 {
                    self.answer_breach(Breach { operation, register, value, illegal: both });
                }
                let done = matches!(written.answer, Write::Done | Write::Shared { .. });
                if written.illegal != 0 || !done {
                    let illegal = written.illegal;
                    self.answer_breach(Breach { operation, register, value, illegal });
                }
                if let Write::Shared { mask } = written.answer {
                    self.set_other_bits(register, value & !mask);
                }
                if done { Ok(value) } else { Err(AccessErrorKind::Fault) }
            }),
        };
        self.record(operation, register, outcome);
        self.stopped_sampling();
        outcome.map(|_| ())
    }
}

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
    pub(super) fn fault(&self, operation: AccessOperation, register: u32) -> Option<Fault> {
        let number = self.made.get().saturating_add(1);
        self.made.set(number);
        let fault = self.fault.get();
        // RDPMC's operand is a counter's number, and no address.
        let of_register = operation != AccessOperation::ReadCounter;
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

/// Mock of a machine with `N` processors. The test runs on one processor at a time, and RDMSR and WRMSR access that
/// processor. So a test can move the driver to another processor, and detect accesses to the wrong processor.
///
/// The [`Platform`](pmu_core::Platform) of a processor is the processor's [`MockMsr`](super::MockMsr).
///
/// ```
/// # use pmu_core::access::{RegisterAddress, RegisterBackend};
/// use pmu_virt::{FedEvents, VirtualPmu};
/// use pmu_virt::configuration::{Configuration, IntelConfiguration};
/// use pmu_virt::mock::{MockMachine, MockMsr};
/// let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
/// let processor = || VirtualPmu::new(configuration, FedEvents::NONE).map(MockMsr::<8>::new);
/// let machine = MockMachine::new([processor()?, processor()?]);
/// # // SAFETY: an event select.
/// # let select = unsafe { RegisterAddress::new(0x186) };
/// machine.write(select, 0x53_003C).unwrap();
/// machine.run_on(1); // the scheduler moves the task
/// assert_eq!(machine.read(select), Ok(0));
/// assert_eq!(machine.processor(0).unwrap().read(select), Ok(0x53_003C));
/// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
/// ```
pub struct MockMachine<'h, const N: usize, const T: usize = 64> {
    processors: [MockMsr<'h, T>; N],
    current: Cell<usize>,
}

impl<'h, const N: usize, const T: usize> MockMachine<'h, N, T> {
    /// Creates a machine with these processors. The test starts on the first processor.
    pub const fn new(processors: [MockMsr<'h, T>; N]) -> Self {
        Self { processors, current: Cell::new(0) }
    }

    /// Continues the test on the processor with this number, counted from 0. If the machine has no such processor,
    /// every later access fails with [`Unreachable`](AccessErrorKind::Unreachable).
    pub fn run_on(&self, processor: usize) {
        self.current.set(processor);
    }

    /// Returns the processor with this number, counted from 0. The test need not run on that processor.
    pub fn processor(&self, number: usize) -> Option<&MockMsr<'h, T>> {
        self.processors.get(number)
    }

    fn current(&self) -> Result<&MockMsr<'h, T>, AccessErrorKind> {
        self.processor(self.current.get()).ok_or(AccessErrorKind::Unreachable)
    }
}

impl<const N: usize, const T: usize> RegisterBackend for MockMachine<'_, N, T> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.current()?.read(address)
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        self.current()?.write(address, value)
    }

    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        self.current()?.read_counter(index)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        self.current()?.update(update)
    }
}
