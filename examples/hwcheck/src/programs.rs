//! The model against the silicon: the same seeded programs of reads and writes on both.

use std::collections::BTreeMap;

use pmu_core::{MsrErrorKind, PmcIndex};
use pmu_virt::{
    Configuration, ConfigurationError, FedEvents, Mode, Read, RegisterInfo, RegisterKind,
    VirtualPmu, Write,
};

use crate::agreed::{ENABLE, PRIVILEGES};
use crate::random::Random;
use crate::registers::{Registers, WriteError};
use crate::report::{Access, Answer, Claim, Disagreement, Evidence, Hex, Outcome};
use crate::stop::Stop;

/// Accesses of a program.
const LENGTH: u64 = 24;
/// `IA32_PERF_CAPABILITIES`, its bit of full-width writes, and `IA32_MISC_ENABLE`'s that there is a PMU: what the model
/// has of registers that tell of other facilities as well.
const FULL_WIDTH_WRITES: u64 = 1 << 13;
const PERFMON_AVAILABLE: u64 = 1 << 7;
/// The events that selects hold, by event and unit mask. SDM vol. 3B, table "UMask and Event Select Encodings for
/// Pre-Defined Architectural Performance Events", in CPUID's order; on AMD those that have kept their code on every
/// family: cycles, instructions, branches, mispredicted, taken, and both.
const ARCHITECTURAL: [u64; 7] = [0x003C, 0x00C0, 0x013C, 0x4F2E, 0x412E, 0x00C4, 0x00C5];
const OF_EVERY_FAMILY: [u64; 6] = [0x76, 0xC0, 0xC2, 0xC3, 0xC4, 0xC5];
/// RDPMC's operands that no processor has.
const ABSENT_PMCS: [u32; 2] = [0x0100, 0x3FFF_FFFF];
/// The type of fixed counters in RDPMC's operand.
const FIXED_PMC: u32 = 1 << 30;
/// RDPMC in a program of Linux that may.
const USER: Mode = Mode { cpl: 3, pce: true, protected: true };

/// One access.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Read(RegisterInfo),
    Write(RegisterInfo, u64),
    ReadPmc(u32),
}

/// The model and the processor, side by side.
pub struct Comparison<'r, 'm> {
    registers: &'r Registers<'m>,
    listed: Vec<RegisterInfo>,
    model: VirtualPmu,
    rdpmc: bool,
    /// Overflow bits of counters that may have counted since they were acknowledged.
    unknown_overflows: u64,
    /// Registers that disagree where programs begin, by kind and counter: programs go on without them.
    left_out: Vec<(RegisterKind, u8)>,
    found: BTreeMap<&'static str, Evidence>,
}

/// An answer that differs, with the claim that it belongs to.
type Differs = Option<(&'static str, Disagreement)>;

/// Returns the claim that an access to a register belongs to; `None` if the model does not cover the register, or
/// covers it only as part of a facility that it does not offer.
const fn claim_of(register: &RegisterInfo) -> Option<&'static str> {
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

    /// Reads what needs no write: registers that are absent, and those of capabilities.
    ///
    /// # Errors
    /// A register cannot be reached.
    pub fn read_only(&mut self) -> Result<(), Stop> {
        let claims = ["model.absent", "model.read-only"];
        for register in self.listed.clone() {
            let is_told = claims.iter().any(|claim| claim_of(&register) == Some(claim));
            // The registers in use are known only if the selects are.
            if is_told && register.kind != RegisterKind::GlobalInUse {
                let disagreement = self.execute(Operation::Read(register))?;
                self.keep(disagreement);
            }
            // One of the others is told only if it is not there at all, and programs go on without it.
            if !is_told && let Some(differs) = self.read_bits(&register, 0)? {
                self.left_out.push((register.kind, register.counter));
                self.keep(Some(differs));
            }
        }
        // A register that was only looked for was not compared.
        self.found
            .retain(|claim, evidence| claims.contains(claim) || !evidence.disagreements.is_empty());
        Ok(())
    }

    /// Runs so many programs of this seed on both.
    ///
    /// # Errors
    /// A register cannot be reached, or another owner wrote one.
    pub fn programs(
        &mut self,
        seed: u64,
        programs: u32,
        alone: &dyn Fn() -> bool,
    ) -> Result<(), Stop> {
        let mut random = Random::new(seed);
        let mut sweeps = self.sweeps().into_iter();
        for _ in 0..programs as usize + sweeps.len() {
            if alone() {
                return Err(Stop::Alone);
            }
            self.registers.check_others()?;
            while let Some((claim, differs)) = self.twice(Self::clean)? {
                let is_it = |one: &&RegisterInfo| u64::from(one.address) == differs.register.0;
                let Some(register) = self.listed.iter().find(is_it) else { break };
                self.left_out.push((register.kind, register.counter));
                self.keep(Some((claim, differs)));
            }
            let program = sweeps.next().unwrap_or_else(|| self.program(&mut random));
            let differs = self.twice(|both| both.run(&program))?;
            self.keep(differs);
        }
        self.registers.check_others()
    }

    /// Does it again where the answers differ: what comes of the processor comes twice.
    fn twice(
        &mut self,
        work: impl Fn(&mut Self) -> Result<Differs, Stop>,
    ) -> Result<Differs, Stop> {
        let Some(first) = work(self)? else { return Ok(None) };
        // A value that another owner wrote must not be overwritten.
        self.registers.check_others()?;
        // Both in the same state again.
        self.clean()?;
        let again = work(self)?;
        self.registers.check_others()?;
        if again.as_ref() != Some(&first) {
            self.found.entry(first.0).or_default().unrepeated += 1;
            return Ok(None);
        }
        Ok(again)
    }

    /// Returns the claims with their outcomes.
    pub fn claims(&self) -> Vec<Claim> {
        let outcome = |evidence: &Evidence| match evidence.disagreements.is_empty() {
            true => Outcome::Agrees,
            false => Outcome::Disagrees,
        };
        let claim = |(id, evidence): (&&str, &Evidence)| Claim {
            id: (*id).to_owned(),
            outcome: outcome(evidence),
            evidence: evidence.clone(),
        };
        self.found.iter().map(claim).collect()
    }

    fn keep(&mut self, differs: Differs) {
        let Some((claim, disagreement)) = differs else { return };
        self.found.entry(claim).or_default().list(disagreement);
    }

    /// A program for each register that may be written: its bits one by one, but those of a select's event.
    fn sweeps(&self) -> Vec<Vec<Operation>> {
        let agreed = self.registers.agreed;
        let writable = self.writable().into_iter().map(|register| {
            let first = if register.kind == RegisterKind::EventSelect { 16 } else { 0 };
            let bits = (first..64).map(|bit| 1u64 << bit);
            let may = |bit: &u64| {
                agreed.nearest(register.address, *bit).is_some_and(|value| value & bit != 0)
            };
            let values = bits.filter(may).filter_map(|bit| agreed.nearest(register.address, bit));
            values
                .flat_map(|value| [Operation::Write(register, value), Operation::Read(register)])
                .collect()
        });
        writable.collect()
    }

    fn writable(&self) -> Vec<RegisterInfo> {
        let addresses: Vec<u32> = self.registers.agreed.addresses().collect();
        self.listed.iter().filter(|one| addresses.contains(&one.address)).copied().collect()
    }

    /// A program: accesses in random order, then a read of everything.
    fn program(&self, random: &mut Random) -> Vec<Operation> {
        let writable = self.writable();
        let mut program = Vec::new();
        for _ in 0..LENGTH {
            match random.below(8) {
                0 => program.extend(
                    self.pmcs().get(random.below(20) as usize).copied().map(Operation::ReadPmc),
                ),
                1 | 2 => program.extend(random.of(&self.listed).copied().map(Operation::Read)),
                _ => {
                    let Some(register) = random.of(&writable) else { continue };
                    let value = value(&self.registers.configuration, register, random);
                    let value = self.registers.agreed.nearest(register.address, value);
                    program.extend(value.map(|value| Operation::Write(*register, value)));
                }
            }
        }
        program.extend(self.listed.iter().copied().map(Operation::Read));
        program.extend(self.pmcs().into_iter().map(Operation::ReadPmc));
        program
    }

    /// The bits of the global control that stay as they were found: which, and their value.
    fn rest(&self, register: &RegisterInfo) -> (u64, u64) {
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
    fn pmcs(&self) -> Vec<u32> {
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

    /// Runs a program from a clean state, and returns its first disagreement.
    fn run(&mut self, program: &[Operation]) -> Result<Differs, Stop> {
        for operation in program {
            let differs = self.execute(*operation)?;
            if differs.is_some() {
                return Ok(differs);
            }
        }
        Ok(None)
    }

    /// Stops everything, on both, makes it 0, and reads it back.
    fn clean(&mut self) -> Result<Differs, Stop> {
        let agreed = self.registers.agreed;
        let mut first = None;
        let mut order: Vec<_> = agreed.cells().iter().collect();
        order.sort_by_key(|cell| match cell.kind {
            RegisterKind::GlobalControl => 0,
            _ if cell.is_counter() => 2,
            _ => 1,
        });
        let find = |listed: &[RegisterInfo], address| {
            listed.iter().find(|one| one.address == address).copied()
        };
        for cell in order {
            let Some(register) = find(&self.listed, cell.address) else { continue };
            let (_, value) = self.rest(&register);
            let disagreement = self.execute(Operation::Write(register, value))?;
            first = first.or(disagreement);
        }
        let clear = self.registers.address_of(RegisterKind::GlobalStatusClear);
        let status = self.registers.address_of(RegisterKind::GlobalStatus);
        if let Some(register) = clear.and_then(|clear| find(&self.listed, clear)) {
            let bits = agreed.taken() & !agreed.status_found();
            let disagreement = self.execute(Operation::Write(register, bits))?;
            first = first.or(disagreement);
        }
        for address in agreed.cells().iter().map(|cell| cell.address).chain(status) {
            let Some(register) = find(&self.listed, address) else { continue };
            let disagreement = self.execute(Operation::Read(register))?;
            first = first.or(disagreement);
        }
        Ok(first)
    }

    /// Makes an access on both, and compares the answers.
    fn execute(&mut self, operation: Operation) -> Result<Differs, Stop> {
        match operation {
            Operation::Read(register) if self.is_compared(&register) => self.read(&register),
            Operation::Write(register, value) if self.is_compared(&register) => {
                self.write(&register, value)
            }
            Operation::Read(_) | Operation::Write(..) => Ok(None),
            Operation::ReadPmc(operand) => self.read_pmc(operand),
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

    fn read_bits(&mut self, register: &RegisterInfo, mask: u64) -> Result<Differs, Stop> {
        let model = match self.model.read(register.address) {
            Read::Value(value) | Read::Shared { value, .. } => Answer::Value(value & mask),
            Read::GeneralProtection | Read::Unhandled => Answer::GeneralProtection,
        };
        let processor = match self.registers.read(register.address) {
            Ok(value) => Answer::Value(value & mask),
            Err(MsrErrorKind::GeneralProtection) => Answer::GeneralProtection,
            Err(kind) => return Err(Stop::Access { register: register.address, kind }),
        };
        Ok(self.compare(register, Access::Rdmsr, None, model, processor))
    }

    /// The bits of a register of which the model knows what they are now; `None` where it knows nothing.
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
            Err(WriteError::Access(MsrErrorKind::GeneralProtection)) => Answer::GeneralProtection,
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

    fn read_pmc(&mut self, operand: u32) -> Result<Differs, Stop> {
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
        let model = match self.model.read_pmc(operand, USER) {
            Read::Value(value) | Read::Shared { value, .. } => Answer::Value(value),
            Read::GeneralProtection | Read::Unhandled => Answer::GeneralProtection,
        };
        let processor = match self.registers.machine.msr().read_pmc(PmcIndex::new(operand)) {
            Ok(value) => Answer::Value(value),
            Err(MsrErrorKind::GeneralProtection) => Answer::GeneralProtection,
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
}

/// A value for a register: mostly a legal one, sometimes with one illegal bit.
fn value(configuration: &Configuration, register: &RegisterInfo, random: &mut Random) -> u64 {
    let legal = match register.kind {
        RegisterKind::EventSelect => select(configuration, register.legal, random),
        RegisterKind::GeneralCounter | RegisterKind::FixedCounter => return counter(random),
        _ => random.next() & random.next() & register.legal,
    };
    let illegal = 1 << random.below(64) & !register.legal;
    if random.one_in(6) { legal | illegal } else { legal }
}

/// An event select. Its event is a known one, wherever it can run.
fn select(configuration: &Configuration, legal: u64, random: &mut Random) -> u64 {
    let events: Vec<u64> = match configuration {
        Configuration::Intel(intel) => {
            let has = |place: &usize| intel.events >> place & 1 != 0;
            (0..ARCHITECTURAL.len()).filter(has).map(|place| ARCHITECTURAL[place]).collect()
        }
        _ => OF_EVERY_FAMILY.to_vec(),
    };
    let event = random.of(&events).copied().unwrap_or(0);
    // Edge, invert and counter mask: the comparisons of figure "Layout of IA32_PERFEVTSELx MSRs".
    let comparison = random.next() & (1 << 18 | 1 << 23 | 0xFF << 24);
    let plain = event | random.next() & PRIVILEGES;
    match random.below(4) {
        0 => plain | comparison & legal,
        // Further bits make another event: it does not run.
        1 => plain | random.next() & legal & !(0xFFFF | ENABLE),
        2 => plain | ENABLE | comparison & legal,
        _ => plain | ENABLE,
    }
}

/// A counter's value: at the ends of ranges, of 32 bits with and without a sign, or any.
fn counter(random: &mut Random) -> u64 {
    let any = random.next();
    match random.below(6) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << random.below(64),
        3 => any & 0xFFFF_FFFF,
        4 => i64::from(any as u32 as i32) as u64,
        _ => any >> random.below(32),
    }
}
