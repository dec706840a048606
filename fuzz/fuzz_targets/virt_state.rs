//! Saved states from anywhere: refused, or a guest's PMU like any other.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use pmu_core::raw_cpuid::CpuIdResult;
use pmu_virt::{
    AmdConfiguration, Configuration, EventKey, FedEvents, Feed, IntelConfiguration, Mode, PmuState,
    Privilege, Vendor, VirtualPmu,
};

fn configuration(input: &mut Unstructured<'_>) -> Result<Configuration> {
    Ok(match input.int_in_range(0..=5)? {
        0 => Configuration::Hidden(if input.arbitrary()? { Vendor::Intel } else { Vendor::Amd }),
        1 => Configuration::Amd(AmdConfiguration::Legacy),
        2 => Configuration::Amd(AmdConfiguration::CoreExtension),
        3 => Configuration::Amd(AmdConfiguration::PerfMonV2 { counters: input.arbitrary()? }),
        _ => Configuration::Intel(IntelConfiguration {
            version: input.int_in_range(0..=6)?,
            general: input.arbitrary()?,
            general_width: input.int_in_range(30..=66)?,
            fixed: input.arbitrary()?,
            fixed_width: input.int_in_range(30..=66)?,
            full_width_writes: input.arbitrary()?,
            events: input.arbitrary()?,
            any_thread: input.arbitrary()?,
            extended_leaf: input.arbitrary()?,
        }),
    })
}

fn state(input: &mut Unstructured<'_>) -> Result<PmuState> {
    Ok(PmuState {
        version: input.int_in_range(0..=2)?,
        configuration: configuration(input)?,
        selects: input.arbitrary()?,
        general: input.arbitrary()?,
        fixed: input.arbitrary()?,
        fixed_control: input.arbitrary()?,
        global_control: input.arbitrary()?,
        global_status: input.arbitrary()?,
        debug_control: input.arbitrary()?,
        pmi_pending: input.arbitrary()?,
    })
}

/// Keeps the bits that the error does not name, so that more states are accepted.
fn pardon(mut state: PmuState, events: FedEvents) -> Option<VirtualPmu> {
    for _ in 0..64 {
        match VirtualPmu::restore(&state, state.configuration, events) {
            Ok(pmu) => return Some(pmu),
            Err(pmu_virt::StateError::Impossible { bits, .. }) => {
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

fn run(input: &mut Unstructured<'_>) -> Result<()> {
    let state = state(input)?;
    let key = EventKey::of_select(*input.choose(&state.selects)?);
    let events = FedEvents::new(&[key, EventKey::fixed(0), EventKey::fixed(7)]).unwrap();
    let Some(mut pmu) = pardon(state, events) else { return Ok(()) };
    for leaf in [0, 1, 7, 0x0A, 0x1C, 0x23, 0x8000_0000, 0x8000_0001, 0x8000_0022] {
        let given = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
        let _ = pmu.configuration().cpuid(leaf, input.arbitrary()?, given);
    }
    while !input.is_empty() {
        let _ = pmu.write(input.arbitrary()?, input.arbitrary()?);
        let _ = pmu.read(input.arbitrary()?);
        let mode = Mode { cpl: input.arbitrary()?, pce: input.arbitrary()?, protected: true };
        let _ = pmu.read_pmc(input.arbitrary()?, mode);
        let mut feed = Feed::new();
        for key in [key, EventKey::fixed(0), EventKey::fixed(7)] {
            let event = events.find(key).unwrap();
            feed.add(event, Privilege::User, input.arbitrary::<u64>()? >> 24);
            feed.add(event, Privilege::Kernel, input.arbitrary::<u64>()? >> 24);
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
    Ok(())
}

fuzz_target!(|input: &[u8]| {
    let _ = run(&mut Unstructured::new(input));
});
