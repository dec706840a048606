//! Saved states from anywhere: refused, or a guest's PMU like any other.
//!
//! The bytes: the state, field by field; then turns, each of which writes, reads, and lets happen.

use pmu_core::raw_cpuid::CpuIdResult;
use pmu_virt::{
    AmdConfiguration, Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Mode, PmuState,
    Privilege, StateError, Vendor, VirtualPmu,
};

use crate::input::Input;

fn configuration(input: &mut Input<'_>) -> Configuration {
    match input.u8() % 6 {
        0 => Configuration::Hidden(if input.bool() { Vendor::Intel } else { Vendor::Amd }),
        1 => Configuration::Amd(AmdConfiguration::Legacy),
        2 => Configuration::Amd(AmdConfiguration::CoreExtension),
        3 => Configuration::Amd(AmdConfiguration::PerfMonV2 { counters: input.u8() }),
        _ => Configuration::Intel(IntelConfiguration {
            version: input.u8() % 7,
            general: input.u8(),
            general_width: 30 + input.u8() % 37,
            fixed: input.u8(),
            fixed_width: 30 + input.u8() % 37,
            full_width_writes: input.bool(),
            events: input.u8(),
            any_thread: input.bool(),
            ..of_leaf_23(input.u8())
        }),
    }
}

/// The features of leaf 0x23, one bit each.
fn of_leaf_23(bits: u8) -> IntelConfiguration {
    IntelConfiguration {
        extended_leaf: bits & 1 != 0,
        unit_mask_2: bits & 2 != 0,
        equal: bits & 4 != 0,
        rdpmc_user_disable: bits & 8 != 0,
        ..IntelConfiguration::new(0, 0, 0)
    }
}

fn state(input: &mut Input<'_>) -> PmuState {
    PmuState {
        version: u16::from(input.u8() % 3),
        configuration: configuration(input),
        selects: [(); 8].map(|()| input.u64()),
        general: [(); 8].map(|()| input.u64()),
        fixed: [(); 8].map(|()| input.u64()),
        fixed_control: input.u64(),
        global_control: input.u64(),
        global_status: input.u64(),
        debug_control: input.u64(),
        pmi_pending: input.bool(),
    }
}

/// Takes out the bits that the error names, so that more states are accepted.
fn pardon(mut state: PmuState, events: FedEvents) -> Option<VirtualPmu> {
    for _ in 0..64 {
        match VirtualPmu::restore(&state, state.configuration, events) {
            Ok(pmu) => return Some(pmu),
            Err(StateError::Impossible { bits, .. }) => {
                let PmuState { selects, general, fixed, .. } = &mut state;
                for value in selects.iter_mut().chain(general).chain(fixed) {
                    *value &= !bits;
                }
                state.fixed_control &= !bits;
                state.global_control &= !bits;
                state.global_status &= !bits;
                state.debug_control &= !bits;
                state.pmi_pending &= bits & 1 == 0;
            }
            Err(_) => return None,
        }
    }
    None
}

/// See the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let state = state(&mut input);
    let key = EventKey::of_select(state.selects[usize::from(input.u8() % 8)]);
    let keys = [key, EventKey::fixed(0), EventKey::fixed(7)];
    let events = FedEvents::new(&keys).unwrap();
    let Some(mut pmu) = pardon(state, events) else { return };
    for leaf in [0, 1, 7, 0x0A, 0x1C, 0x23, 0x8000_0000, 0x8000_0001, 0x8000_0022] {
        let given = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
        let _ = pmu.configuration().cpuid(leaf, input.u8().into(), given);
    }
    while !input.is_empty() {
        let _ = pmu.write(input.u32(), input.u64());
        let _ = pmu.read(input.u32());
        let mode = Mode { cpl: input.u8(), pce: input.bool(), protected: true };
        let _ = pmu.read_pmc(input.u32(), mode);
        let mut feed = Feed::new();
        for key in keys {
            let event = events.find(key).unwrap();
            feed.add(event, Privilege::User, input.u64() >> 24);
            feed.add(event, Privilege::Kernel, input.u64() >> 24);
        }
        // A counter wraps again after 2³² events; a call leaves a rest only at an overflow.
        let most = 16 * (1 + (1 << (41 - 32)));
        let calls = (0..most).take_while(|_| {
            pmu.advance(&mut feed);
            !feed.is_empty()
        });
        assert!(calls.count() < most);
        let _ = pmu.next_overflow();
        // What it came to is a state in turn.
        let state = pmu.state();
        pmu = VirtualPmu::restore(&state, state.configuration, events).unwrap();
        assert_eq!(pmu.state(), state);
    }
}
