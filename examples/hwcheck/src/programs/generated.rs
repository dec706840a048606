//! Programs: sweeps of a register's bits, and random accesses.

use pmu_virt::configuration::Configuration;
use pmu_virt::registers::{RegisterInfo, RegisterKind};

use crate::programs::comparison::{Comparison, Operation};
use crate::random::Random;
use crate::registers::agreed::{ENABLE, PRIVILEGES};

/// Accesses of a program.
const LENGTH: u64 = 24;
/// The events that selects hold, by event and unit mask. SDM vol. 3B, table "UMask and Event Select Encodings for
/// Pre-Defined Architectural Performance Events", in CPUID's order; on AMD those that have kept their code on every
/// family: cycles, instructions, branches, mispredicted, taken, and both.
const ARCHITECTURAL: [u64; 7] = [0x003C, 0x00C0, 0x013C, 0x4F2E, 0x412E, 0x00C4, 0x00C5];
const OF_EVERY_FAMILY: [u64; 6] = [0x76, 0xC0, 0xC2, 0xC3, 0xC4, 0xC5];

impl Comparison<'_, '_> {
    /// Returns a program for each register that may be written: each bit alone, except the bits of a select's event.
    pub(crate) fn sweeps(&self) -> Vec<Vec<Operation>> {
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

    /// Returns a program: accesses in random order, then a read of every register.
    pub(crate) fn program(&self, random: &mut Random) -> Vec<Operation> {
        let writable = self.writable();
        let mut program = Vec::new();
        for _ in 0..LENGTH {
            match random.below(8) {
                0 => program.extend(
                    self.pmcs().get(random.below(20) as usize).copied().map(Operation::ReadCounter),
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
        program.extend(self.pmcs().into_iter().map(Operation::ReadCounter));
        program
    }
}

/// Returns a value for a register: mostly a legal one, sometimes with an illegal bit.
fn value(configuration: &Configuration, register: &RegisterInfo, random: &mut Random) -> u64 {
    let legal = match register.kind {
        RegisterKind::EventSelect => select(configuration, register.legal, random),
        RegisterKind::GeneralCounter | RegisterKind::FixedCounter => return counter(random),
        _ => random.next() & random.next() & register.legal,
    };
    let illegal = 1 << random.below(64) & !register.legal;
    if random.one_in(6) { legal | illegal } else { legal }
}

/// Returns an event select. If the counter could run, the event is a known one.
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

/// Returns a counter's value: at the ends of ranges, of 32 bits with and without a sign, or any.
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
