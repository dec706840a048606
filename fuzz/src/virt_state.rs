//! Saved states and configurations from anywhere: refused, or a guest's PMU like any other.
//!
//! The bytes: a configuration, or the kind of one and its fields; a state's registers; then turns, each of which
//! writes, reads, and lets happen. The same bytes are read as a state and as a configuration that were saved.

use pmu_virt::configuration::{
    AmdConfiguration, Configuration, IntelConfiguration, IntelFeature, Vendor,
};
use pmu_virt::{EventKey, FedEvents, Feed, Mode, PmuState, Privilege, VirtualPmu};

use crate::input::Input;

fn configuration(input: &mut Input<'_>) -> Configuration {
    match input.u8() % 6 {
        0 => Configuration::hidden(if input.bool() { Vendor::Intel } else { Vendor::Amd }),
        1 => Configuration::Amd(AmdConfiguration::LEGACY),
        2 => Configuration::Amd(AmdConfiguration::CORE_EXTENSION),
        3 => Configuration::Amd(AmdConfiguration::perf_mon_v2(input.u8())),
        _ => {
            let flags = input.u16();
            let intel = IntelConfiguration::new(input.u8() % 7, 0, 0).with(|intel| {
                intel.general = input.u8();
                intel.general_width = 30 + input.u8() % 37;
                intel.fixed = input.u8();
                intel.fixed_width = 30 + input.u8() % 37;
                intel.events = input.u8();
                for (bit, feature) in IntelFeature::ALL.into_iter().enumerate() {
                    intel.set(feature, flags >> bit & 1 != 0);
                }
            });
            Configuration::Intel(intel)
        }
    }
}

/// Asserts that accepted bytes are written as they were read, up to zeros at the end.
fn assert_round_trip(bytes: &[u8]) {
    if let Ok(configuration) = Configuration::from_bytes(bytes) {
        assert_eq!(configuration.to_bytes(), bytes);
        assert_eq!(configuration.check(), Ok(()));
    }
    if let Ok(state) = PmuState::from_bytes(bytes) {
        let written = state.to_bytes();
        let common = written.len().min(bytes.len());
        assert_eq!(written[..common], bytes[..common]);
        assert!(written[common..].iter().chain(&bytes[common..]).all(|byte| *byte == 0));
        let pmu = VirtualPmu::restore(&state, state.configuration(), FedEvents::NONE).unwrap();
        assert_eq!(pmu.state(), state);
    }
}

/// A state of this configuration with registers from the input: the bits that a register lacks are taken out.
fn state(configuration: Configuration, input: &mut Input<'_>) -> Option<PmuState> {
    use pmu_virt::StateError::Impossible;
    let mut state = PmuState::new(configuration).ok()?;
    let addresses: Vec<_> = state.registers().map(|(address, _)| address).collect();
    for address in addresses {
        let value = input.u64();
        if let Err(Impossible { bits, .. }) = state.set_register(address, value) {
            state.set_register(address, value & !bits).unwrap();
        }
    }
    let _ = state.set_pmi_pending(input.bool());
    Some(state)
}

/// Runs one input: see the module.
pub fn run(bytes: &[u8]) {
    assert_round_trip(bytes);
    let mut input = Input::new(bytes);
    let configuration = configuration(&mut input);
    let Some(state) = state(configuration, &mut input) else {
        assert!(configuration.check().is_err());
        return;
    };
    assert_round_trip(&state.to_bytes());
    assert_round_trip(&configuration.to_bytes());
    let select = state.register([0x186, 0xC001_0000][usize::from(input.bool())]).unwrap_or(0);
    let keys = [
        EventKey::of_select(configuration.vendor(), select),
        EventKey::fixed(2).unwrap(),
        EventKey::fixed(7).unwrap(),
    ];
    let events = FedEvents::new(&keys).unwrap();
    let mut pmu = VirtualPmu::restore(&state, configuration, events).unwrap();
    for leaf in [0, 1, 7, 0x0A, 0x1C, 0x23, 0x8000_0000, 0x8000_0001, 0x8000_0022] {
        let _ = pmu.configuration().cpuid(leaf, input.u8().into(), [0; 4]);
    }
    while !input.is_empty() {
        let (address, value) = (input.u32(), input.u64());
        let expected = pmu.check_write(address, value);
        assert_eq!(pmu.write(address, value), expected);
        let _ = pmu.read(input.u32());
        let mode = Mode { cpl: input.u8(), pce: input.bool(), protected: true };
        let _ = pmu.read_counter(input.u32(), mode);
        let mut feed = Feed::new(&events);
        for key in keys {
            let event = events.find(key).unwrap();
            feed.add(event, Privilege::User, input.u64() >> 24).unwrap();
            feed.add(event, Privilege::Kernel, input.u64() >> 24).unwrap();
        }
        // A counter wraps again after 2³² events; a call leaves a rest only at an overflow.
        let most = 16 * (1 + (1 << (41 - 32)));
        let calls = (0..most).take_while(|_| {
            pmu.advance(&mut feed).unwrap();
            !feed.is_empty()
        });
        assert!(calls.count() < most);
        let _ = pmu.next_overflow();
        // The result is a state in turn.
        let state = pmu.state();
        assert_round_trip(&state.to_bytes());
        pmu = VirtualPmu::restore(&state, configuration, events).unwrap();
        assert_eq!(pmu.state(), state);
    }
}
