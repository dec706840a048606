//! The model against a naive one, on random programs.

mod virt_naive;

use pmu_core::raw_cpuid::CpuIdResult;
use pmu_virt::{
    AmdConfiguration, Configuration, FedEvents, IntelConfiguration, PmuState, VirtualPmu,
};
use proptest::prelude::*;
use virt_naive::{Step, configuration, run};

fn program() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any::<Step>(), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_model_and_the_naive_one_agree(words: [u8; 4], program in program()) {
        run(configuration(words), &program, false);
    }

    /// Half of the programs have each of its features.
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
        flags: [bool; 7],
    ) {
        let amd = AmdConfiguration::PerfMonV2 { counters: bytes[5] };
        let intel = IntelConfiguration {
            version,
            general: bytes[1],
            general_width: widths[0],
            fixed: bytes[3],
            fixed_width: widths[1],
            full_width_writes: flags[0],
            events: bytes[4],
            any_thread: flags[1],
            extended_leaf: flags[2],
            unit_mask_2: flags[4],
            equal: flags[5],
            rdpmc_user_disable: flags[6],
        };
        let configuration =
            if flags[3] { Configuration::Intel(intel) } else { Configuration::Amd(amd) };
        for leaf in [0, 1, 7, 0x0A, 0x1C, 0x23, 0x8000_0000, 0x8000_0001, 0x8000_0022] {
            let given = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
            let _ = configuration.cpuid(leaf, u32::from(bytes[0]), given);
        }
        let built = VirtualPmu::new(configuration, FedEvents::NONE).map(|pmu| pmu.state());
        prop_assert_eq!(built.as_ref().err().copied(), configuration.check().err());
        if let Ok(state) = built {
            prop_assert!(VirtualPmu::restore(&state, state.configuration, FedEvents::NONE).is_ok());
        }
    }

    #[test]
    fn any_state_is_refused_or_comes_back(
        words: [u8; 4],
        registers: [u64; 8],
        place in 0..8usize,
        version in 0..3u16,
    ) {
        let fresh = VirtualPmu::new(configuration(words), FedEvents::NONE).unwrap().state();
        let [select, general, fixed, fixed_control, control, status, debug, mask] = registers;
        let mut state = PmuState { version, ..fresh };
        state.selects[place] = select & mask & 0xFF3F_FFFF_FFFF;
        state.general[place] = general & mask;
        state.fixed[place] = fixed & mask & mask.rotate_left(7);
        state.fixed_control = fixed_control & mask & mask.rotate_left(13) & 0x2222_0000_BBBB;
        state.global_control = control & mask & mask.rotate_left(23) & 0xF_0000_00FF;
        state.global_status = status & mask & mask.rotate_left(31) & 0xF_0000_00FF;
        state.debug_control = debug & mask & mask.rotate_left(43) & 0x1000;
        if let Ok(pmu) = VirtualPmu::restore(&state, state.configuration, FedEvents::NONE) {
            prop_assert_eq!(pmu.state(), state);
            prop_assert_eq!(version, PmuState::VERSION);
        }
    }
}
