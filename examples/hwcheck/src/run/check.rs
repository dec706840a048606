//! A run, from the first look to the report.

use core::fmt;
use std::collections::BTreeMap;
use std::io;

use pmu_core::access::AccessErrorKind;
use pmu_virt::configuration::{Configuration, CpuidRegisters, HostError, IntelFeature, Vendor};
use pmu_virt::registers::RegisterKind;

use crate::counts::all::counts;
use crate::machine::identity;
use crate::machine::interface::Machine;
use crate::machine::rdpmc::UserRdpmc;
use crate::programs::comparison::Comparison;
use crate::registers::access::{Registers, read};
use crate::registers::agreed::Agreed;
use crate::registers::journal::Journal;
use crate::registers::restore::restore;
use crate::registers::stop::Stop;
use crate::report::bounds::SCHEMA;
use crate::report::claim::{Claim, Evidence, Outcome, Reason};
use crate::report::claims::{CLAIMS, Tried};
use crate::report::hex::Hex;
use crate::report::whole::{Register, Report, Restored};
use crate::run::refusal::{Refusal, check_counters, check_kernel};
use crate::run::run_lock::{Found, LockError, RunLock};
use crate::run::supervisor::{Supervised, supervise};
use crate::samples;

/// `IA32_PERF_CAPABILITIES`, of processors with CPUID leaf 1, ECX bit 15.
const CAPABILITIES: u32 = 0x345;
const PDCM: u32 = 1 << 15;
const FULL_WIDTH_WRITES: u64 = 1 << 13;

/// The extent of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed of the programs.
    pub seed: u64,
    /// Their number.
    pub programs: u32,
    /// Runs of each length of a workload.
    pub runs: u32,
    /// Nothing is written.
    pub read_only: bool,
}

/// Reason for which there is no report.
#[derive(Debug)]
pub enum CheckError {
    /// The state of the machine.
    Refused(Refusal),
    /// The system has no memory, process or pipe, or not the right to take the processor.
    System(io::Error),
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for CheckError {}

impl From<Refusal> for CheckError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<io::Error> for CheckError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<LockError> for CheckError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::AnotherRun => Refusal::AnotherRun.into(),
            LockError::System(error) => error.into(),
        }
    }
}

/// The PMU of a machine by its CPUID and `IA32_PERF_CAPABILITIES`.
///
/// # Errors
/// It has none that the model can be, or the register cannot be read.
pub fn configuration(machine: &dyn Machine) -> Result<Configuration, Refusal> {
    let of = |capabilities| declared(|leaf, subleaf| machine.cpuid(leaf, subleaf), capabilities);
    let known = of(0)?;
    if known.vendor() != Vendor::Intel || machine.cpuid(1, 0)[2] & PDCM == 0 {
        return Ok(known);
    }
    match read(machine, &known, CAPABILITIES) {
        Ok(capabilities) => of(capabilities),
        Err(AccessErrorKind::Fault) => Ok(known),
        Err(kind) => Err(Refusal::Unreadable { register: CAPABILITIES, kind }),
    }
}

/// Returns the PMU that CPUID declares, with everything that `IA32_PERF_CAPABILITIES` could add: for the text that the
/// user agrees to before registers can be read.
///
/// # Errors
/// CPUID tells of none that the model can be.
pub fn at_most(cpuid: impl Fn(u32, u32) -> CpuidRegisters) -> Result<Configuration, Refusal> {
    let has_capabilities = cpuid(1, 0)[2] & PDCM != 0;
    let capabilities = if has_capabilities { FULL_WIDTH_WRITES } else { 0 };
    declared(cpuid, capabilities)
}

/// Returns the PMU that CPUID declares, with AnyThread (leaf 0x0A, EDX bit 15), which a guest would not get.
fn declared(
    cpuid: impl Fn(u32, u32) -> CpuidRegisters,
    capabilities: u64,
) -> Result<Configuration, Refusal> {
    let deprecated = cpuid(0x0A, 0)[3] >> 15 & 1 != 0;
    let mut declared = Configuration::from_cpuid(cpuid, capabilities).map_err(Refusal::NoPmu)?;
    if let Configuration::Intel(intel) = &mut declared {
        intel.set(IntelFeature::AnyThread, intel.version >= 3 && !deprecated);
    }
    Ok(declared)
}

/// Checks a machine, whose lock is held. Where anything is to be written, the user has agreed.
///
/// # Errors
/// The machine's state forbids it, or the system has not what it takes. Nothing was written.
pub fn check(
    machine: &dyn Machine,
    lock: &RunLock,
    options: Options,
) -> Result<Report, CheckError> {
    let configuration = configuration(machine)?;
    if !options.read_only {
        check_kernel(machine.root())?;
        machine.occupy()?;
        check_counters(machine, &configuration)?;
    }
    let found = registers_of(machine, &configuration)?;
    let holds = |address: u32| found.get(&address).copied();
    let agreed = match options.read_only {
        true => Agreed::new(&configuration, |_| None),
        false => Agreed::new(&configuration, holds),
    };
    let journal = Journal::new(&agreed)?;
    let registers = Registers::new(machine, configuration, &agreed, &journal);
    let supervised = if options.read_only {
        let mut comparison = comparison(&registers)?;
        comparison.read_only().map_err(|stop| match stop {
            Stop::Access { register, kind } => {
                CheckError::from(Refusal::Unreadable { register, kind })
            }
            Stop::Disturbed(_) | Stop::Alone => io::Error::other("the reading was stopped").into(),
        })?;
        let mut claims = comparison.claims();
        claims.extend(samples::registers(machine));
        Supervised { claims, ..Supervised::default() }
    } else {
        write_and_restore(&registers, lock, options)?
    };
    let listed = found.iter().map(|(address, value)| Register {
        register: Hex(u64::from(*address)),
        found: Hex(*value),
    });
    Ok(Report {
        schema: SCHEMA,
        machine: identity::machine_kind(machine),
        processor: identity::processor(machine),
        kernel: identity::kernel(machine),
        hypervisor: identity::hypervisor(machine),
        seed: Hex(options.seed),
        registers: listed.collect(),
        claims: with_untried(&supervised, options),
        restored: Restored {
            worker_ended_well: options.read_only || supervised.restored.worker_ended_well,
            ..supervised.restored
        },
    })
}

fn comparison<'r, 'm>(registers: &'r Registers<'m>) -> Result<Comparison<'r, 'm>, CheckError> {
    let comparison = Comparison::new(registers);
    comparison.map_err(|error| Refusal::NoPmu(HostError::Configuration(error)).into())
}

fn write_and_restore(
    registers: &Registers<'_>,
    lock: &RunLock,
    options: Options,
) -> Result<Supervised, CheckError> {
    let before = lock.left_behind().map_or(&[][..], |left| &left.rdpmc);
    let rdpmc = &UserRdpmc::of(registers.machine, before);
    let cells = registers.agreed.cells().iter();
    lock.begin(&Found {
        processor: registers.machine.processor(),
        registers: cells.map(|cell| (cell.address, cell.found)).collect(),
        rdpmc: rdpmc.found().to_vec(),
    })?;
    let mut comparison = comparison(registers)?;
    let supervised = supervise(
        Box::new(move |tell, alone| {
            let is_allowed = rdpmc.allow();
            if is_allowed {
                comparison.allow_rdpmc();
            }
            let compared = comparison
                .read_only()
                .and_then(|()| comparison.programs(options.seed, options.programs, alone));
            comparison.claims().into_iter().for_each(&mut *tell);
            samples::registers(registers.machine).into_iter().for_each(&mut *tell);
            samples::samples(registers.machine, tell);
            compared.and_then(|()| counts(registers, is_allowed, options.runs, alone, tell))
        }),
        &|| {
            let rdpmc_failed = rdpmc.restore();
            let restored = Restored { rdpmc_failed, ..restore(registers) };
            if !rdpmc_failed && restored.failed.is_empty() {
                lock.end();
            }
            restored
        },
    );
    Ok(supervised?)
}

/// The registers that hold state, and the status: what they hold. One that faults is not among them.
fn registers_of(
    machine: &dyn Machine,
    configuration: &Configuration,
) -> Result<BTreeMap<u32, u64>, Refusal> {
    let mut found = BTreeMap::new();
    for register in configuration.registers().filter(|one| one.exists && one.is_state) {
        if matches!(register.kind, RegisterKind::DebugControl | RegisterKind::MiscEnable) {
            continue;
        }
        match read(machine, configuration, register.address) {
            Ok(value) => found.insert(register.address, value),
            Err(AccessErrorKind::Fault) => continue,
            Err(kind) => return Err(Refusal::Unreadable { register: register.address, kind }),
        };
    }
    Ok(found)
}

/// The claims that were made, and for each other one the reason why not.
fn with_untried(supervised: &Supervised, options: Options) -> Vec<Claim> {
    let mut claims = supervised.claims.clone();
    for known in CLAIMS.iter().filter(|known| matches!(known.tried, Tried::Reading | Tried::Linux))
    {
        let is_list = known.id.ends_with('.');
        if is_list || claims.iter().any(|claim| claim.id == known.id) {
            continue;
        }
        let is_disturbed = !supervised.restored.disturbed.is_empty();
        let (outcome, reason) = match known.id {
            _ if options.read_only => (Outcome::NotTried, Reason::ReadOnly),
            _ if is_disturbed => (Outcome::Disturbed, Reason::DisturbedBefore),
            _ if supervised.is_unreachable => (Outcome::NotTried, Reason::Unreachable),
            _ if !supervised.restored.worker_ended_well => (Outcome::NotTried, Reason::WorkerEnded),
            "rdpmc.counters" | "rdpmc.absent" => (Outcome::NotTried, Reason::RdpmcNotAllowed),
            _ => (Outcome::NotTried, Reason::Absent),
        };
        let evidence = Evidence { reason: Some(reason), ..Evidence::default() };
        claims.push(Claim { id: known.id.to_owned(), outcome, evidence });
    }
    claims
}
