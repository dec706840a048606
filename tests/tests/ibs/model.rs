//! The software model of the sampling: against the naive one, and as bytes.

use pmu_virt::configuration::{AmdConfiguration, Configuration};
use pmu_virt::ibs::{FedOp, IbsConfiguration, VirtualIbs};
use pmu_virt::mock::MockMsr;
use pmu_virt::{BytesError, FedEvents, GuestFacility, Read, VirtualPmu, Write, Writer};

use crate::naive::{Both, Random, processor};

#[test]
fn random_accesses_ops_and_fetches_agree_with_a_naive_model() {
    let mut samples = 0;
    // Each kind of processor, with and without an entry, and with the kept count of fetches.
    for seed in 0..24_u8 {
        let entry = if seed % 4 == 1 { 0xFF } else { seed };
        let mut both = Both::new(processor([seed, entry, seed / 6, 0]));
        let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ u64::from(seed));
        for number in 0..12_000 {
            let bits = random.next().to_le_bytes();
            let coins = u32::from_le_bytes([bits[2], bits[3], bits[4], bits[5]]);
            both.step((bits[0], bits[1], coins, random.next()));
            if number % 64 == 0 {
                both.save_and_restore();
            }
        }
        samples += both.samples;
        both.finish();
    }
    assert!(samples > 1_000, "{samples} samples");
}

/// A host restores each register that is state.
#[test]
fn a_saved_state_comes_back_register_by_register() {
    let mut saved = VirtualIbs::new(IbsConfiguration::ZEN_6);
    let _ = saved.write(Writer::Guest, 0xC001_1033, 1 << 19 | 1 << 17 | 9);
    (0..144).for_each(|number| assert_eq!(saved.execute(&FedOp::new(number)), number == 143));
    let mut restored = VirtualIbs::new(IbsConfiguration::ZEN_6);
    for register in saved.registers().filter(|register| register.is_state) {
        let Read::Value(value) = saved.read(register.address) else { panic!("{}", register.name) };
        assert_eq!(restored.write(Writer::Host, register.address, value).answer, Write::Done);
    }
    for register in saved.registers() {
        assert_eq!(restored.read(register.address), saved.read(register.address));
    }
}

/// The layout by hand, from the table in `pmu-virt/src/bytes/ibs.rs`.
#[test]
fn bytes_of_version_1_lie_where_the_table_says() {
    let kept = IbsConfiguration {
        lvt_entry: Some(1),
        fetch_count_kept: true,
        period_before_stop: true,
        ..IbsConfiguration::ZEN_6
    };
    let mut ibs = VirtualIbs::new(kept);
    assert_eq!((VirtualIbs::BYTES, VirtualIbs::BYTES_VERSION), (152, 1));
    let _ = ibs.write(Writer::Guest, 0xC001_1034, 0x1122_3344_5566_7788);
    let _ = ibs.write(Writer::Guest, 0xC001_103F, 0b10_0010);
    ibs.set_interrupt_pending(true);
    let mut bytes = [0; 152];
    bytes[..8].copy_from_slice(b"vIBS\x01\0\0\x01");
    bytes[8..16].copy_from_slice(&[0xFF, 0xFB, 0x09, 0, 0b11, 1, 0, 0]);
    bytes[16..20].copy_from_slice(&[0x91, 0xF4, 0x45, 0x25]);
    bytes[56..64].copy_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    bytes[104..106].copy_from_slice(&[1, 1]); // IBS_CTL
    bytes[144] = 0b10_0010;
    assert_eq!(ibs.to_bytes(), bytes);
    let without = IbsConfiguration { lvt_entry: None, ..IbsConfiguration::FAMILY_10H };
    let bytes = VirtualIbs::new(without).to_bytes();
    assert_eq!((&bytes[7..14], bytes[105]), (&[0xFF, 7, 0, 0, 0, 0b10, 0][..], 0));
}

#[test]
fn bytes_of_another_processor_or_an_impossible_state_are_refused() {
    let mut ibs = VirtualIbs::new(IbsConfiguration::ZEN_4);
    let before = ibs;
    let good = ibs.to_bytes();
    let mut forged = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        let error = ibs.restore(&bytes).unwrap_err();
        assert_eq!(ibs, before);
        error
    };
    assert_eq!(forged(0, 0), BytesError::Malformed { at: 0 });
    assert_eq!(forged(4, 2), BytesError::Version(2));
    // A reserved byte, another entry, other capabilities, a deviation.
    for (at, byte) in [(6, 1), (7, 1), (8, 0xFE), (9, 0xFB), (12, 1), (12, 2)] {
        assert_eq!(forged(at, byte), BytesError::Malformed { at: 6 }, "{at}");
    }
    // A flag of no meaning, a fifth bit of the count, and reserved bytes.
    for (at, byte) in [(13, 2), (14, 0x10), (15, 1), (20, 1), (23, 1)] {
        assert_eq!(forged(at, byte), BytesError::Malformed { at: 13 }, "{at}");
    }
    // A bit of IBS_FETCH_CTL, the latency filter of IBS_OP_CTL, IBS_CTL, and IBS_OP_CTL2, which Zen 4 has not.
    for (at, byte, register) in [(31, 0x80, 24), (55, 0x80, 48), (104, 3, 104), (136, 1, 136)] {
        assert_eq!(forged(at, byte), BytesError::Malformed { at: register }, "{at}");
    }
    let mut without_random = good;
    without_random[16..20].fill(0);
    assert_eq!(ibs.restore(&without_random), Err(BytesError::Malformed { at: 13 }));
    assert_eq!(ibs.restore(&good[..100]), Err(BytesError::Length(100)));
    assert_eq!(ibs.restore(&good), Ok(()));
}

/// With any bit changed, the state is refused, or is another one that is written as it was read.
#[test]
fn no_bit_of_the_bytes_is_without_meaning() {
    for ibs in [IbsConfiguration::FAMILY_10H, IbsConfiguration::ZEN_4, IbsConfiguration::ZEN_6] {
        let mut model = VirtualIbs::new(ibs);
        let before = model;
        let good = model.to_bytes();
        for at in 0..8 * good.len() {
            let mut bytes = good;
            bytes[at / 8] ^= 1 << (at % 8);
            if model.restore(&bytes).is_ok() {
                assert_ne!(model, before, "bit {at}");
                assert_eq!(model.to_bytes(), bytes, "bit {at}");
            } else {
                assert_eq!(model, before, "bit {at}");
            }
            model = before;
        }
    }
}

/// A driver knows by the family that the units have erratum 420, which the mock demands: so the mock is of that family.
#[test]
fn the_mock_of_family_10h_has_its_family() {
    for (ibs, family) in [(IbsConfiguration::FAMILY_10H, 0x10), (IbsConfiguration::ZEN_4, 0x19)] {
        let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
        let pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
        let mock = MockMsr::<8>::new(pmu).with_sampling(VirtualIbs::new(ibs));
        assert_eq!(mock.snapshot().family(), family);
    }
}
