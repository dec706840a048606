//! The claims of AMD's instruction-based sampling that Linux' own driver of it settles.

use pmu_amd::ibs::{IbsKind, IbsOpRecord, IbsUnit, IbsUnits};
use pmu_core::access::{AccessErrorKind, RegisterUpdate};
use pmu_core::x86::Snapshot;
use pmu_virt::ibs::{IbsConfiguration, VirtualIbs};
use pmu_virt::{GuestFacility, Read};

use crate::machine::counted_ops::{BRANCH, LOAD, OPS, counted_ops, is_instruction, offset};
use crate::machine::interface::{Cpuid, Machine};
use crate::machine::workload::{Memory, Workload};
use crate::machine::{identity, interrupts};
use crate::report::claim::{Claim, Evidence, Outcome, Reason};

/// The sizes of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Periods in the counted loop, and its period in ops.
    periods: u64,
    period: u32,
    /// Loads of the pointer chase, and the period in ops.
    loads: u64,
    chase_period: u32,
}

/// Periods within 20 bits, with fewer samples per second than Linux' limit.
const SIZES: Sizes =
    Sizes { periods: 400, period: 0xF_0000, loads: 20_000_000, chase_period: 0x4_0000 };

/// Seven random bits shorten a period.
const RANDOM: u64 = 0x7F;

/// Fewest samples that settle a claim.
const FEWEST: usize = 16;

/// The claims of sampled ops, each handed to `tell` as it is made. Nothing is told where the processor cannot sample
/// ops, or the kernel does not.
pub fn samples(machine: &dyn Machine, tell: &mut dyn FnMut(Claim)) {
    samples_of(machine, SIZES, tell);
}

fn samples_of(machine: &dyn Machine, sizes: Sizes, tell: &mut dyn FnMut(Claim)) {
    let units = IbsUnits::of(&Snapshot::capture(Cpuid(machine)));
    let Some(unit) = units.as_ref().and_then(|units| units.get(IbsKind::Op)) else { return };
    if !unit.capabilities().counts_ops() {
        return;
    }
    let times = sizes.periods * u64::from(sizes.period) / OPS;
    if let Some(ops) = machine.sample_ops(sizes.period, &mut || counted_ops(times)) {
        let of_loop = in_loop(unit, &ops);
        tell(period(of_loop.len(), times * OPS, sizes.period));
        tell(address(unit, &of_loop));
    }
    let memory = Memory::new(interrupts::available_memory(machine), identity::last_cache(machine));
    let mut chase = || Workload::Chase.execute(&memory, sizes.loads);
    if let Some(ops) = machine.sample_ops(sizes.chase_period, &mut chase) {
        tell(latency(unit, &ops));
    }
}

/// The claim that the registers of instruction-based sampling are those that CPUID declares. They are only read.
pub fn registers(machine: &dyn Machine) -> Option<Claim> {
    IbsUnits::of(&Snapshot::capture(Cpuid(machine)))?.get(IbsKind::Op)?;
    let capabilities = machine.cpuid(0x8000_001B, 0)[0];
    let model = VirtualIbs::new(IbsConfiguration { capabilities, ..IbsConfiguration::ZEN_4 });
    let answers = (0xC001_1030..=0xC001_103F).map(|register| {
        let declared = model.read(register) != Read::Unhandled;
        match machine.msr().update(RegisterUpdate::read(register)) {
            Ok(_) => declared,
            Err(AccessErrorKind::Fault) => !declared,
            Err(_) => false,
        }
    });
    Some(agreement("ibs.registers", answers, 1))
}

/// Returns a claim that agrees if each of these answers does. Fewer answers than `fewest` do not tell.
fn agreement(id: &str, answers: impl Iterator<Item = bool>, fewest: usize) -> Claim {
    let (mut compared, mut wrong) = (0, 0);
    for agrees in answers {
        compared += 1;
        wrong += u32::from(!agrees);
    }
    let (outcome, reason) = match wrong {
        0 if compared < fewest as u64 => (Outcome::NotTried, Some(Reason::FewSamples)),
        0 => (Outcome::Agrees, None),
        _ => (Outcome::Disagrees, None),
    };
    let evidence =
        Evidence { compared: Some(compared), unlisted: wrong, reason, ..Evidence::default() };
    Claim { id: id.to_owned(), outcome, evidence }
}

/// Returns the samples of the counted loop, with their offsets in it.
fn in_loop<'o>(unit: &IbsUnit, ops: &'o [IbsOpRecord]) -> Vec<(u64, &'o IbsOpRecord)> {
    let place = |op: &'o IbsOpRecord| Some((offset(op.address(unit)?)?, op));
    ops.iter().filter_map(place).collect()
}

/// The number of samples is that of the periods: one sixteenth more or less, for what the kernel does meanwhile.
fn period(samples: usize, ops: u64, period: u32) -> Claim {
    let (least, greatest) = (ops / u64::from(period), ops / (u64::from(period) - RANDOM));
    let known = least - least / 16..=greatest + greatest / 16;
    let outcome = match known.contains(&(samples as u64)) {
        true => Outcome::Exact,
        false => Outcome::Inexact,
    };
    let evidence = Evidence { compared: Some(samples as u64), ..Evidence::default() };
    Claim { id: "ibs.period".to_owned(), outcome, evidence }
}

/// Each sample is at an instruction, and the samples that loaded, or branched, are at the one instruction that does.
fn address(unit: &IbsUnit, of_loop: &[(u64, &IbsOpRecord)]) -> Claim {
    let agrees = |(offset, op): &(u64, &IbsOpRecord)| {
        let sample = op.sample(unit);
        is_instruction(*offset)
            && sample.access.is_some() == (*offset == LOAD)
            && sample.branch.is_some() == (*offset == BRANCH)
    };
    agreement("ibs.address", of_loop.iter().map(agrees), FEWEST)
}

/// The latencies of the loads that missed are above zero.
fn latency(unit: &IbsUnit, ops: &[IbsOpRecord]) -> Claim {
    let latencies = ops.iter().filter_map(|op| op.sample(unit).access?.latency);
    agreement("ibs.latency", latencies.map(|cycles| cycles > 0), FEWEST)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pmu_core::access::{CounterIndex, RegisterAddress, RegisterBackend};
    use pmu_virt::Writer;
    use pmu_virt::configuration::CpuidRegisters;
    use pmu_virt::ibs::FedOp;

    use super::*;
    use crate::machine::counted_ops::{LENGTH, start};
    use crate::machine::interface::Msr;

    /// A Zen 4 in software, whose kernel samples; and what is wrong with it.
    #[derive(Clone, Copy, Default)]
    struct Zen {
        /// The address is that of the next op.
        skids: bool,
        /// A load that misses takes no time.
        no_latency: bool,
        /// Every second sample is lost.
        loses: bool,
        /// There is a register that CPUID does not declare.
        undeclared: bool,
        no_driver: bool,
    }

    impl RegisterBackend for Zen {
        type Error = AccessErrorKind;
        fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
            self.update(RegisterUpdate::read(address.get()))
        }
        fn write(&self, _: RegisterAddress, _: u64) -> Result<(), AccessErrorKind> {
            panic!("nothing is written")
        }
        fn read_counter(&self, _: CounterIndex) -> Result<u64, AccessErrorKind> {
            Err(AccessErrorKind::Other)
        }
        fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
            assert_eq!(update.apply(5), None, "only read");
            // All registers but the two of the successor of Zen 5.
            let last = if self.undeclared { 0xC001_103E } else { 0xC001_103C };
            let exists = (0xC001_1030..=last).contains(&update.register());
            if exists { Ok(5) } else { Err(AccessErrorKind::Fault) }
        }
    }

    impl Machine for Zen {
        fn msr(&self) -> &Msr {
            self
        }
        fn cpuid(&self, leaf: u32, _: u32) -> CpuidRegisters {
            match leaf {
                0 => [1, 0x6874_7541, 0x444D_4163, 0x6974_6E65],
                1 => [0xA6_0F12, 0, 0, 0],
                0x8000_0000 => [0x8000_001B, 0, 0, 0],
                0x8000_0001 => [0, 0, 1 << 10, 1 << 29],
                0x8000_001B => [0xBFF & !(1 << 10), 0, 0, 0],
                _ => [0; 4],
            }
        }
        fn run(&self, _: Workload, _: &Memory, _: u64) {}
        fn processor(&self) -> u32 {
            0
        }
        fn root(&self) -> &Path {
            Path::new("/nonexistent")
        }
        fn is_software(&self) -> bool {
            true
        }
        fn occupy(&self) -> std::io::Result<()> {
            Ok(())
        }

        /// Samples the counted loop, among whose loads are some that miss, and now and then an op of the kernel.
        fn sample_ops(&self, period: u32, _: &mut dyn FnMut()) -> Option<Vec<IbsOpRecord>> {
            use pmu_amd::ibs::registers::{IbsOpData, IbsOpData3};
            if self.no_driver {
                return None;
            }
            let mut model = VirtualIbs::new(IbsConfiguration::ZEN_4);
            let enable = 1 << 19 | 1 << 17 | u64::from(period >> 4);
            let _ = model.write(Writer::Guest, 0xC001_1033, enable);
            let start = start();
            let instructions: Vec<u64> = (0..LENGTH).filter(|at| is_instruction(*at)).collect();
            let mut found = vec![];
            for number in 0..SMALL.periods * u64::from(SMALL.period) {
                let at = instructions[(number % OPS) as usize];
                let latency = if self.no_latency { 0 } else { 200 };
                let data3 = if at == LOAD { latency << 32 | 1 << 17 | 1 << 7 | 1 } else { 0 };
                let data = if at == BRANCH { 1 << 37 | 1 << 35 } else { 0 };
                let op = FedOp { data, data3, ..FedOp::new(start + at) };
                if !model.execute(&op) {
                    continue;
                }
                let next = instructions[((number + 1) % OPS) as usize];
                found.push(IbsOpRecord {
                    rip: start + if self.skids { next } else { at },
                    data: IbsOpData::from_bits(data),
                    data3: IbsOpData3::from_bits(data3),
                    ..IbsOpRecord::default()
                });
                // Linux keeps the random bits.
                let Read::Value(control) = model.read(0xC001_1033) else { panic!() };
                let _ = model.write(Writer::Guest, 0xC001_1033, enable | control & 0x7F << 32);
            }
            if self.loses {
                found = found.into_iter().step_by(2).collect();
            }
            found.push(IbsOpRecord { rip: u64::MAX << 40, ..IbsOpRecord::default() });
            Some(found)
        }
    }

    const SMALL: Sizes = Sizes { periods: 800, period: 0x1000, loads: 1, chase_period: 0x1000 };

    fn outcomes(zen: Zen) -> Vec<(String, Outcome)> {
        let mut claims = vec![];
        samples_of(&zen, SMALL, &mut |claim| claims.push((claim.id, claim.outcome)));
        claims.extend(registers(&zen).map(|claim| (claim.id, claim.outcome)));
        claims
    }

    #[test]
    fn each_claim_is_true_of_a_processor_as_the_manual_has_it_and_false_of_its_deviation() {
        use Outcome::{Agrees, Disagrees, Exact, Inexact};
        let ids = ["ibs.period", "ibs.address", "ibs.latency", "ibs.registers"];
        let good = [Exact, Agrees, Agrees, Agrees];
        let with = |place: usize, outcome| {
            let mut outcomes = good;
            outcomes[place] = outcome;
            outcomes
        };
        for (zen, expected) in [
            (Zen::default(), good),
            (Zen { loses: true, ..Zen::default() }, with(0, Inexact)),
            (Zen { skids: true, ..Zen::default() }, with(1, Disagrees)),
            (Zen { no_latency: true, ..Zen::default() }, with(2, Disagrees)),
            (Zen { undeclared: true, ..Zen::default() }, with(3, Disagrees)),
        ] {
            let expected: Vec<_> = ids.map(str::to_owned).into_iter().zip(expected).collect();
            assert_eq!(outcomes(zen), expected);
        }
        let reading_only = [("ibs.registers".to_owned(), Agrees)];
        assert_eq!(outcomes(Zen { no_driver: true, ..Zen::default() }), reading_only);
    }

    #[test]
    fn few_samples_do_not_settle_a_claim() {
        let claim = agreement("ibs.latency", core::iter::repeat_n(true, FEWEST - 1), FEWEST);
        let tried = (claim.outcome, claim.evidence.reason);
        assert_eq!(tried, (Outcome::NotTried, Some(Reason::FewSamples)));
    }
}
