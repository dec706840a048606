//! Programs for both models: any words are one.

use super::*;

/// Returns a valid processor from any words.
pub(crate) fn processor(words: [u8; 4]) -> (Configuration, BranchConfiguration, Kind) {
    let [kind, version, depth, flags] = words;
    let intel = |version| {
        let intel = IntelConfiguration::new(version, 4, if version == 1 { 0 } else { 3 });
        Configuration::Intel(
            intel.with(|intel| intel.set(IntelFeature::Transactional, flags & 0x80 != 0)),
        )
    };
    match kind % 3 {
        0 => {
            let (filters, features) = (flags & 1 != 0, flags & 2 != 0);
            let call_stack = filters && flags & 4 != 0;
            let depths = if depth & 0xF == 0 { 0b1000 } else { depth & 0xF };
            let branches = BranchConfiguration::ARCHITECTURAL.with_architectural(|branches| {
                branches.depths = depths;
                (branches.privilege_filter, branches.kind_filter) = (filters, filters);
                branches.call_stack = call_stack;
                (branches.mispredictions, branches.cycles) = (features, features);
                branches.kinds = features;
                branches.counters = if features { 0b1111 } else { 0 };
            });
            let kind = Kind::Architectural { depths, filters, features, call_stack };
            (intel(4 + version % 3), branches, kind)
        }
        1 => {
            let format = 3 + depth % 5;
            (intel(1 + version % 5), BranchConfiguration::Legacy { format }, Kind::Legacy(format))
        }
        _ => {
            let (depth, freeze) = (1 + depth % 16, flags & 1 != 0);
            let amd = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
            (amd, BranchConfiguration::amd(depth, freeze), Kind::Amd { depth, freeze })
        }
    }
}

/// Returns the address of a register of branch records, or one that they share.
fn address(choice: u32) -> u32 {
    let (first, registers, _) = REGISTERS[choice as usize % REGISTERS.len()];
    first + (choice >> 8) % registers
}

fn value(address: u32, shape: u8, word: u64) -> u64 {
    match shape % 8 {
        0 => word,
        1 => 1 << (word & 63),
        2 if address == 0x14CF => 8 * (word % 6),
        2 => FREEZE_LBRS | word & 1,
        3 => LBR_FROZEN | word & 0xF,
        // The kinds, the privileges, the call stack and the enable bit.
        4 => word & 0x7F_000F | 1,
        5 => word & 0x3FF,
        // An address of either half, in 48 bits.
        6 => ((word << 16) as i64 >> 16) as u64,
        _ if address & !3 == 0x184 || address & !3 == 0x188 => {
            word & 0xFF_FFFF | (word >> 63) << 35
        }
        _ => 1 << 6,
    }
}

fn branch(shape: u8, choice: u32, word: u64) -> FedBranch {
    let kinds = [
        FedBranchKind::Conditional,
        FedBranchKind::RelativeJump,
        FedBranchKind::IndirectJump,
        FedBranchKind::RelativeCall,
        FedBranchKind::IndirectCall,
        FedBranchKind::Return,
        FedBranchKind::Far,
    ];
    let privilege = if shape & 1 == 0 { Privilege::User } else { Privilege::Kernel };
    let kind = kinds[choice as usize % kinds.len()];
    let (from, to) = (((word << 16) as i64 >> 16) as u64, ((word << 9) as i64 >> 16) as u64);
    FedBranch {
        mispredicted: shape & 2 != 0,
        cycles: (shape & 4 != 0).then_some((choice >> 16) as u16),
        path: [FedPath::Retired, FedPath::Retired, FedPath::Speculative, FedPath::Wrong]
            [usize::from(shape >> 3 & 3)],
        transaction: [FedTransaction::Outside, FedTransaction::Inside, FedTransaction::Abort]
            [usize::from(shape >> 5) % 3],
        counts: (choice ^ word as u32).to_le_bytes().map(|count| count % 6),
        ..FedBranch::new(from, to, kind, privilege)
    }
}

/// Runs a program on both models, and compares all registers at its end. With `restored`, also after each step, and the
/// records are saved and restored before each step, as bytes and register by register in turn. Returns how many writes
/// and how many reads were compared.
pub(crate) fn run(words: [u8; 4], program: &[Step], restored: bool) -> [u64; 2] {
    let [mut writes, mut reads] = [0; 2];
    let (configuration, branches, kind) = processor(words);
    let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
    let reset = VirtualBranches::new(&configuration, branches).unwrap();
    let mut records = reset;
    let mut naive = Naive::new(kind, configuration);
    for (number, &(operation, shape, choice, word)) in program.iter().enumerate() {
        if restored {
            records = restore(&mut pmu, &records, reset, number % 2 == 0);
        }
        let address = address(choice);
        match operation % 8 {
            0..=2 if naive.is_known(address) => {
                let value = value(address, shape, word);
                let check = records.check_write(pmu_virt::Writer::Guest, address, value);
                let written = pmu.write_beside(&mut records, address, value);
                writes += 1;
                let expected = naive.write(address, value);
                // A refused write of a register that both have tells the bits of the one that refused.
                let refused = written.answer == Write::GeneralProtection;
                assert_eq!(written.answer, expected.0, "{kind:?} {address:#X} {value:#X}");
                if !(refused
                    && matches!(check.answer, Write::Shared { .. } | Write::GeneralProtection))
                {
                    assert_eq!(written.illegal, expected.1, "{kind:?} {address:#X} {value:#X}");
                }
            }
            3 => {
                records.pmi_raised();
                naive.interrupt();
            }
            _ => {
                let branch = branch(shape, choice, word);
                records.record(&branch);
                naive.branch(&branch);
            }
        }
        if !restored && number + 1 < program.len() {
            continue;
        }
        for address in REGISTERS.into_iter().flat_map(|(first, count, _)| first..first + count) {
            if naive.is_known(address) {
                let answer = pmu.read_beside(&records, address);
                assert_eq!(answer, naive.read(address), "{kind:?} {address:#X}");
                reads += 1;
            }
        }
    }
    [writes, reads]
}

/// Returns the records after they were saved and restored.
fn restore(
    pmu: &mut VirtualPmu,
    records: &VirtualBranches,
    mut new: VirtualBranches,
    as_bytes: bool,
) -> VirtualBranches {
    if as_bytes {
        new.restore(&records.to_bytes()).unwrap();
    } else {
        let configuration = pmu.configuration();
        let of_both = configuration.registers().chain(records.registers());
        let mut other = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
        for register in of_both.filter(|register| register.is_state) {
            let (Read::Value(value) | Read::Shared { value, .. }) =
                pmu.read_beside(records, register.address)
            else {
                panic!("{:#X} is state, and faults", register.address);
            };
            let written = other.host_write_beside(&mut new, register.address, value);
            assert!(
                matches!(written.answer, Write::Done | Write::Shared { .. }),
                "{:#X} {value:#X}",
                register.address
            );
        }
        *pmu = other;
    }
    assert_eq!(new, *records);
    new
}
