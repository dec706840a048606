//! One access on both, the model and the processor, and the comparison of the answers.

use std::collections::BTreeMap;

use pmu_core::access::{AccessErrorKind, CounterIndex};
use pmu_virt::configuration::ConfigurationError;
use pmu_virt::registers::{RegisterInfo, RegisterKind};
use pmu_virt::{FedEvents, Mode, Read, VirtualPmu, Write};

use crate::registers::access::{Registers, WriteError};
use crate::registers::stop::Stop;
use crate::report::claim::Evidence;
use crate::report::disagreement::{Access, Answer, Disagreement};
use crate::report::hex::Hex;

/// `IA32_PERF_CAPABILITIES`, its bit of full-width writes, and `IA32_MISC_ENABLE`'s that there is a PMU: what the model
/// has of registers that tell of other facilities as well.
const FULL_WIDTH_WRITES: u64 = 1 << 13;
const PERFMON_AVAILABLE: u64 = 1 << 7;
/// RDPMC's operands that no processor has.
const ABSENT_PMCS: [u32; 2] = [0x0100, 0x3FFF_FFFF];
/// The type of fixed counters in RDPMC's operand.
const FIXED_PMC: u32 = 1 << 30;
/// RDPMC in a program of Linux that may.
const USER: Mode = Mode { cpl: 3, pce: true, protected: true };

/// The model and the processor, side by side.
pub struct Comparison<'r, 'm> {
    pub(crate) registers: &'r Registers<'m>,
    pub(crate) listed: Vec<RegisterInfo>,
    model: VirtualPmu,
    rdpmc: bool,
    /// Overflow bits of counters that may have counted since they were acknowledged.
    unknown_overflows: u64,
    /// Registers that disagree where programs begin, by kind and counter: programs go on without them.
    pub(crate) left_out: Vec<(RegisterKind, u8)>,
    pub(crate) found: BTreeMap<&'static str, Evidence>,
}

/// One access.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Read(RegisterInfo),
    Write(RegisterInfo, u64),
    ReadCounter(u32),
}

/// An answer that differs, with the claim that it belongs to.
pub(crate) type Differs = Option<(&'static str, Disagreement)>;

/// Returns the claim that an access to a register belongs to; `None` if the model does not cover the register, or
/// covers it only as part of a facility that it does not offer.
pub(crate) const fn claim_of(register: &RegisterInfo) -> Option<&'static str> {
    use RegisterKind as K;
    Some(match register.kind {
        K::NotOffered | K::DebugControl => return None,
        K::MiscEnable => "model.read-only",
        _ if !register.exists => "model.absent",
        K::EventSelect => "model.event-select",
        K::GeneralCounter => "model.general-counter",
        K::FixedCounter => "model.fixed-counter",
        K::FixedControl => "model.fixed-control",
        K::GlobalControl => "model.global-control",
        K::GlobalStatus | K::GlobalStatusClear | K::GlobalStatusSet => "model.global-status",
        K::GlobalInUse | K::Capabilities => "model.read-only",
        _ => return None,
    })
}

impl<'r, 'm> Comparison<'r, 'm> {
    /// The model of this processor, in the state in which its registers were found.
    ///
    /// # Errors
    /// There is no such model.
    pub fn new(registers: &'r Registers<'m>) -> Result<Self, ConfigurationError> {
        let configuration = registers.configuration;
        let mut model = VirtualPmu::new(configuration, FedEvents::NONE)?;
        for cell in registers.agreed.cells() {
            let illegal = model.check_write(cell.address, cell.found).illegal;
            let _ = model.host_write(cell.address, cell.found & !illegal);
        }
        let listed = configuration.registers().filter(|one| claim_of(one).is_some()).collect();
        Ok(Self {
            registers,
            listed,
            model,
            rdpmc: false,
            unknown_overflows: 0,
            left_out: Vec::new(),
            found: BTreeMap::new(),
        })
    }

    /// Programs execute RDPMC too, which user mode may.
    pub fn allow_rdpmc(&mut self) {
        self.rdpmc = true;
    }

    /// Makes an access on both, and compares the answers.
    pub(crate) fn execute(&mut self, operation: Operation) -> Result<Differs, Stop> {
        match operation {
            Operation::Read(register) if self.is_compared(&register) => self.read(&register),
            Operation::Write(register, value) if self.is_compared(&register) => {
                self.write(&register, value)
            }
            Operation::Read(_) | Operation::Write(..) => Ok(None),
            Operation::ReadCounter(operand) => self.read_counter(operand),
        }
    }

    fn is_compared(&self, register: &RegisterInfo) -> bool {
        !self.left_out.contains(&(register.kind, register.counter))
    }

    fn read(&mut self, register: &RegisterInfo) -> Result<Differs, Stop> {
        match self.compared_bits(register) {
            Some(mask) => self.read_bits(register, mask),
            None => Ok(None),
        }
    }

    pub(crate) fn read_bits(
        &mut self,
        register: &RegisterInfo,
        mask: u64,
    ) -> Result<Differs, Stop> {
        let model = match self.model.read(register.address) {
            Read::Value(value) | Read::Shared { value, .. } => Answer::Value(value & mask),
            Read::GeneralProtection | Read::Unhandled => Answer::GeneralProtection,
        };
        let processor = match self.registers.read(register.address) {
            Ok(value) => Answer::Value(value & mask),
            Err(AccessErrorKind::Fault) => Answer::GeneralProtection,
            Err(kind) => return Err(Stop::Access { register: register.address, kind }),
        };
        Ok(self.compare(register, Access::Rdmsr, None, model, processor))
    }

    /// Returns the bits of a register whose present value the model knows; `None` if the model knows no bit.
    fn compared_bits(&self, register: &RegisterInfo) -> Option<u64> {
        let agreed = self.registers.agreed;
        let place = agreed.place(register.kind, register.counter);
        if !register.exists {
            return Some(u64::MAX);
        }
        match register.kind {
            RegisterKind::Capabilities => Some(FULL_WIDTH_WRITES),
            RegisterKind::MiscEnable => Some(PERFMON_AVAILABLE),
            RegisterKind::GlobalStatus => {
                Some(agreed.taken() & !agreed.status_found() & !self.unknown_overflows)
            }
            RegisterKind::GlobalStatusClear | RegisterKind::GlobalStatusSet => Some(u64::MAX),
            RegisterKind::GlobalInUse => Some(agreed.taken()),
            RegisterKind::GlobalControl => place.map(|_| !self.rest(register).0),
            RegisterKind::GeneralCounter | RegisterKind::FixedCounter => {
                place.filter(|place| self.registers.journal.is_known(*place)).map(|_| u64::MAX)
            }
            _ => place.map(|_| u64::MAX),
        }
    }

    fn write(&mut self, register: &RegisterInfo, value: u64) -> Result<Differs, Stop> {
        let model = match self.model.check_write(register.address, value).answer {
            Write::Done | Write::Shared { .. } => Answer::Done,
            Write::GeneralProtection | Write::Unhandled => Answer::GeneralProtection,
        };
        let processor = match self.registers.write(register.address, value) {
            Ok(()) => Answer::Done,
            Err(WriteError::Access(AccessErrorKind::Fault)) => Answer::GeneralProtection,
            Err(WriteError::Access(kind)) => {
                return Err(Stop::Access { register: register.address, kind });
            }
            Err(WriteError::NotAgreed { .. }) => return Ok(None),
        };
        let _ = self.model.write(register.address, value);
        let running = self.model.running().fold(0, |bits, one| bits | 1u64 << (one.counter % 64));
        if register.kind == RegisterKind::GlobalStatusClear && processor == Answer::Done {
            self.unknown_overflows &= !value;
        }
        self.unknown_overflows |= running;
        if !self.left_out.is_empty() {
            // A control that is left out may let counters run that the model holds back.
            self.unknown_overflows |= self.registers.may_have_counted();
        }
        Ok(self.compare(register, Access::Wrmsr, Some(value), model, processor))
    }

    fn read_counter(&mut self, operand: u32) -> Result<Differs, Stop> {
        let (kind, counter) = match operand & FIXED_PMC {
            0 => (RegisterKind::GeneralCounter, operand as u8),
            _ => (RegisterKind::FixedCounter, operand as u8),
        };
        let is_absent = ABSENT_PMCS.contains(&operand);
        let place = self.registers.agreed.place(kind, counter);
        let is_known = place.is_some_and(|place| self.registers.journal.is_known(place));
        if !is_absent && (!is_known || self.left_out.contains(&(kind, counter))) {
            return Ok(None);
        }
        let model = match self.model.read_counter(operand, USER) {
            Read::Value(value) | Read::Shared { value, .. } => Answer::Value(value),
            Read::GeneralProtection | Read::Unhandled => Answer::GeneralProtection,
        };
        let processor = match self.registers.machine.msr().read_counter(CounterIndex::new(operand))
        {
            Ok(value) => Answer::Value(value),
            Err(AccessErrorKind::Fault) => Answer::GeneralProtection,
            Err(kind) => return Err(Stop::Access { register: operand, kind }),
        };
        let claim = if is_absent { "rdpmc.absent" } else { "rdpmc.counters" };
        let named = ("RDPMC", "SDM vol. 2B, RDPMC; APM vol. 3, RDPMC");
        Ok(self.tell(claim, named, operand, (Access::Rdpmc, None), model, processor))
    }

    fn compare(
        &mut self,
        register: &RegisterInfo,
        access: Access,
        value: Option<u64>,
        model: Answer,
        processor: Answer,
    ) -> Differs {
        let named = (register.name, register.manual);
        let claim = claim_of(register)?;
        self.tell(claim, named, register.address, (access, value), model, processor)
    }

    fn tell(
        &mut self,
        claim: &'static str,
        (name, manual): (&str, &str),
        register: u32,
        (access, value): (Access, Option<u64>),
        model: Answer,
        processor: Answer,
    ) -> Differs {
        *self.found.entry(claim).or_default().compared.get_or_insert(0) += 1;
        let disagreement = || Disagreement {
            register: Hex(u64::from(register)),
            name: name.to_owned(),
            access,
            value: value.map(Hex),
            model,
            processor,
            manual: manual.to_owned(),
        };
        (model != processor).then(|| (claim, disagreement()))
    }

    /// Returns a mask of the global control's bits that stay as they were found, and their value.
    pub(crate) fn rest(&self, register: &RegisterInfo) -> (u64, u64) {
        let agreed = self.registers.agreed;
        let cell = agreed.cell_at(register.address).and_then(|place| agreed.cells().get(place));
        match (register.kind, cell) {
            (RegisterKind::GlobalControl, Some(cell)) => {
                let others = cell.found & !agreed.taken();
                (others, others)
            }
            _ => (0, 0),
        }
    }

    /// RDPMC's operands, where it may be executed.
    pub(crate) fn pmcs(&self) -> Vec<u32> {
        if !self.rdpmc {
            return Vec::new();
        }
        let mut operands = ABSENT_PMCS.to_vec();
        for cell in self.registers.agreed.cells() {
            match cell.kind {
                RegisterKind::GeneralCounter => operands.push(u32::from(cell.counter)),
                RegisterKind::FixedCounter => operands.push(FIXED_PMC | u32::from(cell.counter)),
                _ => {}
            }
        }
        operands
    }
}
