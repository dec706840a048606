//! Leaves, and the state of branch records as bytes.

use super::*;

/// Branch records that a processor may have.
fn offered(configuration: &Configuration) -> Vec<VirtualBranches> {
    let kinds = match configuration {
        Configuration::Amd(_) => vec![BranchConfiguration::AMD],
        _ => vec![BranchConfiguration::ARCHITECTURAL, BranchConfiguration::Legacy { format: 5 }],
    };
    kinds.into_iter().map(|kind| VirtualBranches::new(configuration, kind).unwrap()).collect()
}

/// Each register takes some value that is not its own after a reset; then all are as in new records.
#[test]
fn a_reset_sets_every_register_to_its_first_value() {
    for configuration in [intel(5), amd()] {
        for new in offered(&configuration) {
            for register in new.registers().filter(|register| register.is_state) {
                let mut records = new;
                let written = (0..64).find(|bit| {
                    let _ = records.write(pmu_virt::Writer::Host, register.address, 1 << bit);
                    records != new
                });
                assert!(written.is_some(), "{:#X} holds nothing", register.address);
                records.reset();
                assert_eq!(records, new, "{:#X}", register.address);
            }
        }
    }
}

/// Without records: the leaves that would declare them are 0 whatever the host has, and the registers fault, except
/// that `IA32_DEBUGCTL` drops the bit that enables a legacy stack: a Linux that goes by CPUID prints no warning.
#[test]
fn hidden_records_have_no_leaf_and_no_register() {
    for configuration in [intel(5), amd()] {
        let hidden: Option<VirtualBranches> = None;
        let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
        let leaf = |leaf, subleaf| {
            let own = configuration.cpuid_leaf(leaf, subleaf).unwrap();
            hidden.cpuid(own).apply([u32::MAX; 4])
        };
        assert_eq!(leaf(7, 0)[3] >> 19 & 1, 0);
        assert_eq!((leaf(0x1C, 0), leaf(0x0D, 15)), ([0; 4], [0; 4]));
        let [eax, ebx, ..] = leaf(0x8000_0022, 0);
        assert_eq!((eax >> 1 & 3, ebx >> 4 & 0x3F), (0, 0));
        assert_eq!(hidden.registers().count(), 0);
        let some: &[u32] = match configuration {
            Configuration::Amd(_) => &[0xC000_010E, 0xC000_010F, 0xC001_0300, 0xC001_031F],
            _ => &[0x1C8, 0x1C9, 0x680, 0x6DF, 0xDC0, 0x1200, 0x14CE, 0x14CF, 0x1500, 0x161F],
        };
        let is_shared = |address: &u32| {
            *address == 0x1D9 || configuration.registers().any(|of| of.address == *address)
        };
        let listed = offered(&configuration).into_iter();
        let listed = listed.flat_map(|of| of.registers().map(|of| of.address).collect::<Vec<_>>());
        for address in listed.filter(|address| !is_shared(address)).chain(some.iter().copied()) {
            let answer = pmu.read_beside(&hidden, address);
            assert_eq!(answer, Read::GeneralProtection, "{address:#X}");
            let written = pmu.write_beside(&mut { hidden }, address, 0);
            assert_eq!(written.answer, Write::GeneralProtection, "{address:#X}");
        }
        let shared = pmu.read_beside(&hidden, 0x1D9);
        match configuration {
            Configuration::Amd(_) => assert_eq!(shared, Read::Unhandled),
            _ => {
                assert_eq!(shared, Read::Shared { value: 0, mask: 0x7FC1 });
                let written = pmu.write_beside(&mut { hidden }, 0x1D9, 1);
                assert_eq!(written.answer, Write::Shared { mask: 0x7FC1 });
                assert_eq!(pmu.read_beside(&hidden, 0x1D9), shared);
                assert_eq!(pmu.read_beside(&hidden, 0x345), Read::Value(1 << 13));
            }
        }
    }
}

/// SDM vol. 2A, CPUID, leaves 7 and 0x1C; APM vol. 3, leaf 0x80000022. The values are counted by hand.
#[test]
fn records_are_declared_in_the_leaves() {
    let mock = |configuration, branches| {
        MockMsr::<8>::new(VirtualPmu::new(configuration, FedEvents::NONE).unwrap())
            .with_branches(VirtualBranches::new(&configuration, branches).unwrap())
            .snapshot()
    };
    let leaf = |snapshot: &pmu_core::x86::Snapshot, leaf| {
        let found = snapshot.leaf(leaf, 0);
        [found.eax, found.ebx, found.ecx, found.edx]
    };
    let all = mock(intel(5), BranchConfiguration::ARCHITECTURAL);
    assert_eq!(leaf(&all, 0x1C), [0x8000_000F, 0b111, 0x000F_0007, 0]);
    assert_eq!(leaf(&all, 7)[3], 1 << 19);
    let few = BranchConfiguration::ARCHITECTURAL.with_architectural(|branches| {
        branches.depths = 0b0010;
        branches.resets_in_deep_sleep = true;
        (branches.call_stack, branches.cycles, branches.counters) = (false, false, 0b0001);
    });
    assert_eq!(leaf(&mock(intel(5), few), 0x1C), [0xC000_0002, 0b011, 0x0001_0005, 0]);
    let zen = mock(amd(), BranchConfiguration::AMD);
    assert_eq!(leaf(&zen, 0x8000_0022), [0b111, 6 | 16 << 4, 0, 0]);
    let zen = mock(amd(), BranchConfiguration::amd(16, false));
    assert_eq!(leaf(&zen, 0x8000_0022), [0b011, 6 | 16 << 4, 0, 0]);
    // A legacy stack has no leaf; its model and its format tell.
    let skylake = mock(intel(4), BranchConfiguration::Legacy { format: 5 });
    assert_eq!((leaf(&skylake, 0x1C), leaf(&skylake, 1)[0]), ([0; 4], 0x0005_06E3));
}

/// The bytes of version 1 of the layout, written by hand from the table in `pmu-virt/src/bytes/branches.rs`.
#[test]
fn saved_records_have_the_bytes_of_their_layout() {
    let mut records = VirtualBranches::new(&amd(), BranchConfiguration::AMD).unwrap();
    let mut write = |address, value| {
        let written = records.write(pmu_virt::Writer::Guest, address, value);
        assert!(matches!(written.answer, Write::Done | Write::Shared { .. }));
    };
    write(0x1D9, 1 << 11);
    write(0xC000_010E, 0x102);
    write(0xC000_010F, 1 << 6);
    write(0xC001_0302, 0x1122_3344);
    write(0xC001_0303, 0x80_0000_5566);
    records.pmi_raised();
    let mut bytes = [0; 832];
    bytes[..12].copy_from_slice(b"vLBR\x01\0\x03\x10\x10\x01\0\0");
    // DEBUGCTL, status, filter, DBG_EXTN_CFG; FROM and TO of the second record.
    for (at, byte) in [(17, 0x08), (31, 0x04), (40, 0x02), (41, 0x01), (48, 0x40)] {
        bytes[at] = byte;
    }
    bytes[88..92].copy_from_slice(&[0x44, 0x33, 0x22, 0x11]);
    bytes[96..101].copy_from_slice(&[0x66, 0x55, 0, 0, 0x80]);
    assert_eq!(records.to_bytes(), bytes);
    // A legacy stack's top and architectural flags.
    let legacy = BranchConfiguration::Legacy { format: 5 };
    let mut legacy = VirtualBranches::new(&intel(4), legacy).unwrap();
    let _ = legacy.write(pmu_virt::Writer::Guest, 0x1C9, 31);
    let bytes = legacy.to_bytes();
    assert_eq!((&bytes[6..11], bytes[56]), (&[2, 32, 5, 0, 0][..], 31));
    let timed = BranchConfiguration::ARCHITECTURAL.with_architectural(|branches| {
        (branches.depths, branches.counters, branches.call_stack) = (0b0110, 0b0011, false);
        branches.resets_in_deep_sleep = true;
    });
    let mut timed = VirtualBranches::new(&intel(5), timed).unwrap();
    let _ = timed.write(pmu_virt::Writer::Guest, 0x14CF, 16);
    let _ = timed.write(pmu_virt::Writer::Guest, 0x186, 1 << 35);
    let bytes = timed.to_bytes();
    assert_eq!((&bytes[6..11], bytes[32]), (&[1, 16, 0b0110, 0b0011, 0b111_0111][..], 1));
}

#[test]
fn bytes_of_another_processor_or_an_impossible_state_are_refused() {
    let mut records = VirtualBranches::new(&intel(5), BranchConfiguration::ARCHITECTURAL).unwrap();
    let before = records;
    let good = records.to_bytes();
    let mut forged = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        let error = records.restore(&bytes).unwrap_err();
        assert_eq!(records, before);
        error
    };
    assert_eq!(forged(0, 0), BytesError::Malformed { at: 0 });
    assert_eq!(forged(4, 2), BytesError::Version(2));
    assert_eq!(forged(6, 3), BytesError::Malformed { at: 6 });
    // A depth of 12, DEBUGCTL.BTS, a bit of the status, a fifth counter, a bit of the control, AMD's enable bit.
    assert_eq!(forged(7, 12), BytesError::Malformed { at: 6 });
    for at in [(16, 0x80), (24, 1), (32, 0x10), (40, 0x10), (48, 0x40), (56, 1)] {
        assert_eq!(forged(at.0, at.1), BytesError::Malformed { at: 16 }, "{at:?}");
    }
    // INFO of the first record, a reserved bit.
    assert_eq!(forged(64 + 16 + 3, 1), BytesError::Malformed { at: 16 });
    assert_eq!(records.restore(&good[..100]), Err(BytesError::Length(100)));
    assert_eq!(records.restore(&good), Ok(()));
}
