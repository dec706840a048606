//! The software PMU's report of its counters: those that run, at which privilege levels, and which are in use.

use pmu_tests::software_pmu::{get, pmu, set};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::{EventKey, RunningEvent, VirtualPmu};

/// SDM vol. 3B, figure "Layout of IA32_PERFEVTSELx MSRs": 16 USR, 17 OS, 20 INT, 22 EN.
const USR: u64 = 1 << 16;
const OS: u64 = 1 << 17;
const INT: u64 = 1 << 20;
const EN: u64 = 1 << 22;

/// The counter, its event, whether it counts at CPL 1–3 and at CPL 0, and whether the event is fed.
type Fields = (u8, EventKey, bool, bool, bool);

fn fields(event: RunningEvent) -> Fields {
    (event.counter, event.key, event.user, event.kernel, event.fed)
}

fn the_only_one(pmu: &VirtualPmu) -> Option<Fields> {
    let mut running = pmu.running().map(fields);
    let one = running.next();
    assert_eq!(running.next(), None);
    one
}

#[test]
fn a_general_counter_runs_at_the_privilege_levels_of_its_select() {
    let intel = Configuration::Intel(IntelConfiguration::new(2, 4, 0));
    let amd = Configuration::Amd(AmdConfiguration::CORE_EXTENSION);
    for (configuration, select_of_2) in [(intel, 0x188), (amd, 0xC001_0204)] {
        for (privileges, user, kernel) in
            [(USR, true, false), (OS, false, true), (USR | OS, true, true)]
        {
            for (event, fed) in [(0x3C, true), (0x4F2E, false)] {
                let mut pmu = pmu(configuration);
                set(&mut pmu, select_of_2, event | privileges | EN);
                let key = EventKey::general((event & 0xFF) as u16, (event >> 8) as u8);
                let expected = (2, key, user, kernel, fed);
                assert_eq!(the_only_one(&pmu), Some(expected));
                assert_eq!(pmu.unfed().next().map(fields), (!fed).then_some(expected));
            }
        }
        let mut pmu = pmu(configuration);
        set(&mut pmu, select_of_2, 0x3C | EN);
        assert_eq!(the_only_one(&pmu), None, "without a privilege level nothing runs");
    }
}

/// SDM vol. 3B, "IA32_FIXED_CTR_CTRL MSR": four bits per counter, of which 0 is OS and 1 is USR.
#[test]
fn a_fixed_counter_runs_at_the_privilege_levels_of_its_control() {
    let any_thread =
        IntelConfiguration::new(3, 4, 4).with(|intel| intel.set(IntelFeature::AnyThread, true));
    for counter in 0..4 {
        for field in 0..16_u64 {
            let mut pmu = pmu(Configuration::Intel(any_thread));
            set(&mut pmu, 0x38F, 1 << (32 + counter));
            set(&mut pmu, 0x38D, field << (4 * counter));
            let key = EventKey::fixed(counter).unwrap();
            let (os, usr, any) = (field & 1 != 0, field & 2 != 0, field & 4 != 0);
            let counted = if any { key.any_thread() } else { key };
            let expected = (32 + counter, counted, usr, os, !any);
            assert_eq!(the_only_one(&pmu), (os || usr).then_some(expected), "{field:#06b}");
        }
    }
}

const IN_USE: u32 = 0x392;

/// SDM vol. 3B, "IA32_PERF_GLOBAL_INUSE MSR": PERFEVTSELn_InUse is set while the event select field of
/// the register is not 0, whatever else it holds.
#[test]
fn a_counter_is_in_use_whichever_event_it_selects_and_its_neighbors_are_not() {
    let mut pmu = pmu(Configuration::Intel(IntelConfiguration::new(4, 8, 0)));
    for counter in 0..8 {
        for event in 0..=0xFF {
            for others in [0, 0xFF00, USR | OS | EN] {
                set(&mut pmu, 0x186 + counter, event | others);
                let expected = if event == 0 { 0 } else { 1 << counter };
                assert_eq!(get(&pmu, IN_USE), expected, "counter {counter}, event {event:#X}");
            }
        }
        set(&mut pmu, 0x186 + counter, 0);
    }
}

#[test]
fn counters_are_in_use_each_for_itself() {
    // Events with both, one and none of the field's two high bits, which may not carry into the next.
    let events = [0xFF, 0xC0, 0x00, 0x80, 0x01, 0xC4, 0x00, 0xFF];
    for rotation in 0..8 {
        let mut pmu = pmu(Configuration::Intel(IntelConfiguration::new(4, 8, 0)));
        let mut expected = 0;
        for counter in 0..8 {
            let event = events[(counter + rotation) % 8];
            set(&mut pmu, 0x186 + counter as u32, event);
            expected |= u64::from(event != 0) << counter;
        }
        assert_eq!(get(&pmu, IN_USE), expected);
    }
}

/// The same section: FCn_InUse while the enable field of the fixed counter is not 0; PMI_InUse, bit 63,
/// while any counter, enabled or not, is to interrupt.
#[test]
fn fixed_counters_and_the_interrupt_are_in_use() {
    for counter in 0..4 {
        for field in [0, 1, 2, 3, 8, 9, 10, 11_u64] {
            let mut pmu = pmu(Configuration::Intel(IntelConfiguration::new(4, 8, 4)));
            set(&mut pmu, 0x38D, field << (4 * counter));
            let enabled = u64::from(field & 3 != 0) << (32 + counter);
            assert_eq!(get(&pmu, IN_USE), enabled | (field >> 3) << 63, "{field:#06b}");
        }
    }
    for counter in 0..8 {
        let mut pmu = pmu(Configuration::Intel(IntelConfiguration::new(4, 8, 4)));
        set(&mut pmu, 0x186 + counter, INT);
        assert_eq!(get(&pmu, IN_USE), 1 << 63);
    }
}
