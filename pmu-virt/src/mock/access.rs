//! Accesses of the driver under test: injected interrupts and faults, answers and records.

use core::cell::Cell;

use pmu_core::msr::{MsrErrorKind, MsrOperation};

use crate::mock::plan::Fault;
use crate::mock::processor::{FROZEN, MockMsr};
use crate::mock::trace::{Breach, Record};
use crate::pmu::access::{Read, Write};
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::registers::counters::to_global;
use crate::registers::family::Family;

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Raises and delivers the interrupts that are due before an access, counts the access, and returns its fault, if
    /// one is due.
    fn before(&self, operation: MsrOperation, register: u32) -> Option<Fault> {
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

    fn record(&self, operation: MsrOperation, register: u32, outcome: Result<u64, MsrErrorKind>) {
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
        operation: MsrOperation,
        register: u32,
        deviation: Option<Result<u64, MsrErrorKind>>,
        answer: impl FnOnce(&VirtualPmu) -> Read,
    ) -> Result<u64, MsrErrorKind> {
        let fault = self.before(operation, register);
        let outcome = match (fault, deviation) {
            (Some(Fault::Ignored(_)), _) => Ok(0),
            (Some(_), _) => Err(MsrErrorKind::GeneralProtection),
            (None, Some(answer)) => answer,
            (None, None) => match answer(&self.pmu.borrow()) {
                Read::Value(value) => Ok(value),
                Read::Shared { value, mask } => Ok(self.other_bits(register) & !mask | value),
                Read::GeneralProtection | Read::Unhandled => {
                    self.answer_breach(Breach { operation, register, value: 0, illegal: 0 });
                    Err(MsrErrorKind::GeneralProtection)
                }
            },
        };
        self.record(operation, register, outcome);
        outcome
    }

    pub(super) fn rdmsr(&self, register: u32) -> Result<u64, MsrErrorKind> {
        let deviation = self.deviate(register, None);
        self.finish_read(MsrOperation::Read, register, deviation, |pmu| {
            pmu.read_beside(&*self.beside.borrow(), register)
        })
    }

    pub(super) fn wrmsr(&self, register: u32, value: u64) -> Result<(), MsrErrorKind> {
        let operation = MsrOperation::Write;
        let outcome = match self.before(operation, register) {
            Some(Fault::Ignored(_)) => Ok(value),
            Some(_) => Err(MsrErrorKind::GeneralProtection),
            None => self.deviate(register, Some(value)).unwrap_or_else(|| {
                let mut pmu = self.pmu.borrow_mut();
                let mut beside = self.beside.borrow_mut();
                let written = pmu.write_beside(&mut *beside, register, value);
                let both = to_global(pmu.model.both());
                drop((pmu, beside));
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
                if done { Ok(value) } else { Err(MsrErrorKind::GeneralProtection) }
            }),
        };
        self.record(operation, register, outcome);
        self.stopped_sampling();
        outcome.map(|_| ())
    }
}
