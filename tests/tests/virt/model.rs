//! The model against a naive one, on random programs.

use super::naive::{Step, configuration, run};
use super::random::{self, Random};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::{FedEvents, PmuState, VirtualPmu, Write};
use proptest::prelude::*;

/// Short programs on every kind of configuration: `PMU_TEST_PROGRAMS` of them, by default a thousandth of the million
/// that `.ci/run nmi` runs in a release build.
#[test]
fn the_models_agree_on_many_programs() {
    let programs = random::programs(1_000);
    let mut random = Random::default();
    let mut kinds = std::collections::HashMap::new();
    let mut program = Vec::new();
    for number in 0..programs {
        let words = random.next().to_le_bytes();
        // Each kind of PMU, and of Intel's each version, in turn.
        let kind = (number % 8) as u8 | words[0] & 0xC0;
        let version = (number / 8 % 6) as u8 | words[1] & 0xE0;
        let configuration = configuration([kind, version, words[2], words[3]]);
        *kinds.entry(kind_of(configuration)).or_insert(0u32) += 1;
        program.clear();
        program.extend(random.steps(4 + number % 9));
        run(configuration, &program, false);
    }
    // Two vendors that hide, three kinds of AMD's, six versions of Intel's.
    assert_eq!(kinds.len(), 11, "{kinds:?}");
    assert!(kinds.values().all(|times| times * 100 > programs), "{kinds:?}");
}

fn kind_of(configuration: Configuration) -> String {
    match configuration {
        Configuration::Intel(intel) => format!("version {}", intel.version),
        Configuration::Amd(amd) => format!("{:?}", amd.counters).split(' ').next().unwrap().into(),
        hidden => format!("hidden {:?}", hidden.vendor()),
    }
}

fn program() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any::<Step>(), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_model_and_the_naive_one_agree(words: [u8; 4], program in program()) {
        run(configuration(words), &program, false);
    }

    /// Each feature is in half of the programs.
    #[test]
    fn they_agree_in_version_6(
        (kind, features, counters, flags) in (4..8u8, 0..8u8, any::<u8>(), any::<u8>()),
        gaps: bool,
        program in program(),
    ) {
        let version = (0..32).map(|word| features << 5 | word).find(|word| word % 6 == 5).unwrap();
        let configuration = configuration([kind | u8::from(gaps) << 7, version, counters, flags]);
        prop_assert!(matches!(configuration, Configuration::Intel(intel) if intel.version == 6));
        run(configuration, &program, false);
    }

    #[test]
    fn saving_and_restoring_between_the_steps_makes_no_difference(
        words: [u8; 4],
        program in program(),
    ) {
        run(configuration(words), &program, true);
    }

    #[test]
    fn any_configuration_is_refused_or_works(
        bytes: [u8; 6],
        version in 0..8u8,
        widths in [30..68u8, 30..68u8],
        features: u16,
        is_intel: bool,
    ) {
        let amd = AmdConfiguration::perf_mon_v2(bytes[5]);
        let intel = IntelConfiguration::new(version, 0, 0).with(|intel| {
            intel.general = bytes[1];
            intel.general_width = widths[0];
            intel.fixed = bytes[3];
            intel.fixed_width = widths[1];
            for (number, feature) in IntelFeature::ALL.into_iter().enumerate() {
                intel.set(feature, features >> number & 1 != 0);
            }
            intel.events = bytes[4];
        });
        let configuration =
            if is_intel { Configuration::Intel(intel) } else { Configuration::Amd(amd) };
        for leaf in [0, 1, 7, 0x0A, 0x1C, 0x23, 0x8000_0000, 0x8000_0001, 0x8000_0022] {
            let _ = configuration.cpuid(leaf, u32::from(bytes[0]), [0; 4]);
        }
        let built = VirtualPmu::new(configuration, FedEvents::NONE).map(|pmu| pmu.state());
        prop_assert_eq!(built.as_ref().err().copied(), configuration.check().err());
        if let Ok(state) = built {
            prop_assert!(VirtualPmu::restore(&state, configuration, FedEvents::NONE).is_ok());
        }
    }

    /// A PMU that is restored from a state holds exactly the values that the state accepted.
    #[test]
    fn any_state_is_refused_or_comes_back(
        words: [u8; 4],
        registers in prop::collection::vec((any::<u8>(), any::<u64>(), any::<u64>()), 1..40),
        pending: bool,
    ) {
        let configuration = configuration(words);
        let mut state = PmuState::new(configuration).unwrap();
        let addresses: Vec<_> = state.registers().map(|(address, _)| address).collect();
        for (place, value, mask) in registers {
            let Some(address) = addresses.get(usize::from(place) % addresses.len().max(1)) else { continue };
            let before = state;
            match state.set_register(*address, value & mask & 0xFF8F_0030_DFFF_FFFF) {
                Ok(()) => prop_assert_eq!(state.register(*address), Some(value & mask & 0xFF8F_0030_DFFF_FFFF)),
                Err(_) => prop_assert_eq!(state, before),
            }
        }
        let accepted = state.set_pmi_pending(pending).is_ok();
        prop_assert_eq!(accepted, !pending || !matches!(configuration, Configuration::Hidden(_)));
        let pmu = VirtualPmu::restore(&state, configuration, FedEvents::NONE).unwrap();
        prop_assert_eq!(pmu.state(), state);
        prop_assert_eq!(PmuState::from_bytes(&state.to_bytes()), Ok(state));
        // The same, register by register.
        let mut other = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
        for (address, value) in state.registers() {
            let written = other.host_write(address, value);
            prop_assert_ne!(written.answer, Write::GeneralProtection);
        }
        other.set_pmi_pending(state.pmi_pending());
        prop_assert_eq!(other.state(), state);
    }
}
