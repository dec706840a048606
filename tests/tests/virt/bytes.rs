//! States and configurations as bytes: later releases read the bytes of earlier ones.

use pmu_tests::data;
use pmu_virt::configuration::{
    AmdConfiguration, Configuration, HiddenConfiguration, HiddenRdpmc, HiddenRegisters,
    IntelConfiguration, IntelFeature, Vendor,
};
use pmu_virt::{BytesError, PmuState, StateError};

type Registers = &'static [(u32, u64)];

/// The states of the data file: the configuration, whether an interrupt is pending, and the registers that are not as
/// after reset.
fn states() -> Vec<(&'static str, Configuration, bool, Registers)> {
    let version_1 = IntelConfiguration::new(1, 2, 0).with(|intel| {
        intel.general_width = 40;
        intel.set(IntelFeature::FullWidthWrites, false);
    });
    let version_6 = IntelConfiguration::new(6, 8, 8).with(|intel| {
        intel.general = 0b101;
        intel.general_width = 64;
        intel.fixed = 0b1010;
        intel.fixed_width = 40;
        intel.events = 0xFF;
        intel.set(IntelFeature::AnyThread, true);
        intel.set(IntelFeature::Transactional, true);
        intel.set(IntelFeature::UnitMask2, true);
        intel.set(IntelFeature::Equal, true);
        intel.set(IntelFeature::RdpmcUserDisable, true);
    });
    let guest_host = AmdConfiguration::perf_mon_v2(6).with(|amd| amd.guest_host = true);
    let mut as_kvm = HiddenConfiguration::new(Vendor::Intel);
    as_kvm.registers = HiddenRegisters::Kvm;
    as_kvm.rdpmc = HiddenRdpmc::Zero;
    vec![
        (
            "intel_version_2_pending",
            Configuration::Intel(IntelConfiguration::new(2, 4, 3)),
            true,
            &[
                (0xC1, 0xFFFF_FFFF_FF9C),
                (0xC2, 2),
                (0x186, 0x53_00C0),
                (0x187, 0x43_003C),
                (0x1D9, 0x1000),
                (0x309, 5),
                (0x30A, 6),
                (0x38D, 0xBB),
                (0x38E, 1),
                (0x38F, 0x7_0000_000F),
            ],
        ),
        (
            "intel_version_6",
            Configuration::Intel(version_6),
            false,
            &[
                (0xC1, u64::MAX),
                (0xC3, 3),
                (0x186, 0x8031_0073_00C0),
                (0x30A, 0xFF_FFFF_FFFF),
                (0x30C, 1),
                (0x38D, 0x2020_0000_F0F0),
                (0x38E, 0x0800_0000_0000_0005),
                (0x38F, 0xA_0000_0005),
            ],
        ),
        (
            "intel_version_1",
            Configuration::Intel(version_1),
            false,
            &[(0xC1, 1), (0x187, 0x51_00C4)],
        ),
        (
            "amd_legacy",
            Configuration::Amd(AmdConfiguration::LEGACY),
            false,
            &[(0xC001_0000, 0x53_0076), (0xC001_0004, 9), (0xC001_0007, 1)],
        ),
        (
            "amd_perf_mon_v2",
            Configuration::Amd(guest_host),
            true,
            &[
                (0xC000_0300, 0x21),
                (0xC001_0200, 0x30F_0053_41D0),
                (0xC001_0201, 0xFFFF_FFFF_FFFF),
                (0xC001_020A, 0x43_0076),
                (0xC001_020B, 7),
            ],
        ),
        ("hidden_intel", Configuration::Hidden(as_kvm), false, &[]),
        ("hidden_amd", Configuration::hidden(Vendor::Amd), false, &[]),
    ]
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).unwrap()).collect()
}

fn state(configuration: Configuration, pending: bool, registers: Registers) -> PmuState {
    let mut state = PmuState::new(configuration).unwrap();
    for (address, value) in registers {
        state.set_register(*address, *value).unwrap();
    }
    state.set_pmi_pending(pending).unwrap();
    state
}

#[test]
fn the_states_of_version_1_are_read_and_written_as_they_were() {
    let stored = data!("virt_state_1.csv");
    assert_eq!(stored.len(), states().len());
    for (row, (case, configuration, pending, registers)) in stored.iter().zip(states()) {
        assert_eq!(row.text("case"), case);
        let bytes = bytes_of(row.text("bytes"));
        let expected = state(configuration, pending, registers);
        assert_eq!(PmuState::from_bytes(&bytes), Ok(expected), "{case}");
        let written = expected.to_bytes();
        let (used, padding) = written.split_at(bytes.len());
        assert_eq!(used, bytes, "{case}");
        assert!(padding.iter().all(|byte| *byte == 0));
        assert_eq!(Configuration::from_bytes(&bytes[8..32]), Ok(configuration), "{case}");
        assert_eq!(configuration.to_bytes(), bytes[8..32], "{case}");
    }
}

/// With any byte changed, the state is refused, or is another one that is written as it was read.
#[test]
fn no_byte_of_a_state_is_without_meaning() {
    for row in data!("virt_state_1.csv") {
        let good = bytes_of(row.text("bytes"));
        let state = PmuState::from_bytes(&good).unwrap();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bytes = good.clone();
                bytes[at] ^= 1 << bit;
                if let Ok(other) = PmuState::from_bytes(&bytes) {
                    assert_ne!(other, state, "bit {bit} of byte {at}");
                    assert_eq!(other.to_bytes()[..bytes.len()], bytes);
                }
            }
        }
        for length in 0..good.len() {
            assert!(PmuState::from_bytes(&good[..length]).is_err(), "{length} bytes");
        }
    }
}

#[test]
fn bytes_that_are_no_state_are_refused_with_the_reason() {
    let (_, configuration, pending, registers) = states()[0];
    let good = state(configuration, pending, registers).to_bytes();
    let refused = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        PmuState::from_bytes(&bytes)
    };
    assert_eq!(refused(0, b'V'), Err(BytesError::Malformed { at: 0 }));
    assert_eq!(refused(4, 2), Err(BytesError::Version(2)));
    assert_eq!(refused(6, 2), Err(BytesError::Malformed { at: 6 }));
    assert_eq!(refused(8, 2), Err(BytesError::Version(2)));
    assert_eq!(refused(10, 4), Err(BytesError::Malformed { at: 2 }));
    // Version 7 of architectural performance monitoring.
    assert!(matches!(refused(11, 7), Err(BytesError::Configuration(_))));
    assert_eq!(refused(21, 0x80), Err(BytesError::Malformed { at: 12 }));
    // The first register: another address, and a bit above the width.
    let first = 32;
    assert_eq!(refused(first, 0xC2), Err(BytesError::State(StateError::NoRegister(0xC2))));
    assert_eq!(
        refused(first + 4 + 6, 1),
        Err(BytesError::State(StateError::Impossible { address: 0xC1, bits: 1 << 48 }))
    );
    // One register fewer leaves its bytes over; one more is not there.
    let registers = good[7];
    assert!(matches!(refused(7, registers - 1), Err(BytesError::Malformed { .. })));
    assert_eq!(refused(7, registers + 1), Err(BytesError::State(StateError::NoRegister(0))));
    let mut fewer = good;
    fewer[7] -= 1;
    let end = 32 + 12 * usize::from(fewer[7]);
    fewer[end..].fill(0);
    assert_eq!(PmuState::from_bytes(&fewer), Err(BytesError::Missing(0x38F)));
    assert_eq!(
        refused(511, 1),
        Err(BytesError::Malformed { at: 32 + 12 * usize::from(registers) })
    );
    assert_eq!(PmuState::from_bytes(&[]), Err(BytesError::Length(0)));
    assert_eq!(Configuration::from_bytes(&good[8..31]), Err(BytesError::Length(23)));
    // An interrupt without a counter.
    let mut hidden = PmuState::new(Configuration::hidden(Vendor::Amd)).unwrap().to_bytes();
    hidden[6] = 1;
    assert_eq!(PmuState::from_bytes(&hidden), Err(BytesError::State(StateError::NoInterrupt)));
}

/// By JSON, whose bytes are a list of numbers, and by a format that has bytes.
#[test]
fn serde_keeps_the_same_bytes() {
    for (case, configuration, pending, registers) in states() {
        let state = state(configuration, pending, registers);
        let json = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<PmuState>(&json).unwrap(), state, "{case}");
        let listed: Vec<u8> = serde_json::from_str(&json).unwrap();
        assert_eq!(PmuState::from_bytes(&listed), Ok(state), "{case}");
        let binary = postcard::to_allocvec(&(configuration, state)).unwrap();
        assert_eq!(postcard::from_bytes(&binary), Ok((configuration, state)), "{case}");
        assert!(serde_json::from_str::<PmuState>("[1,2]").is_err());
        assert!(serde_json::from_str::<Configuration>(&json).is_err(), "a state is none");
    }
}

/// A configuration has 24 bytes, and a state 512.
#[test]
fn serde_refuses_more_bytes_and_other_types_with_what_it_expected() {
    let list = |length| serde_json::to_string(&vec![0; length]).unwrap();
    let of_configuration = |json: &str| serde_json::from_str::<Configuration>(json).unwrap_err();
    let of_state = |json: &str| serde_json::from_str::<PmuState>(json).unwrap_err();
    for (error, expected) in [
        (of_configuration(&list(25)), "invalid length 25, expected at most 24 bytes"),
        (of_state(&list(513)), "invalid length 513, expected at most 512 bytes"),
        (of_state("true"), "invalid type: boolean `true`, expected at most 512 bytes"),
    ] {
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}

/// A state is printed by address.
#[test]
fn a_state_is_printed_with_its_registers_by_address() {
    let (_, configuration, pending, registers) = states()[3];
    let text = format!("{:?}", state(configuration, pending, registers));
    for part in ["0xC0010000: 0x530076", "0xC0010004: 0x9", "pmi_pending: false", "Legacy"] {
        assert!(text.contains(part), "{text}");
    }
}
