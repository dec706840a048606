//! Intel's architectural rules, one test each. Expected values are the manual's: Intel SDM vol. 3B,
//! chapter "Performance Monitoring"; vol. 4 for register numbers.

mod virt_support;

use pmu_tests::StateRegisters;
use pmu_virt::{
    Configuration, ConfigurationError, EventKey, IntelConfiguration, Mode, Privilege, Read, Write,
};
use virt_support::*;

fn each(mut test: impl FnMut(IntelConfiguration, pmu_virt::VirtualPmu)) {
    for intel in intel_matrix() {
        test(intel, pmu(Configuration::Intel(intel)));
    }
}

fn general(intel: &IntelConfiguration) -> u32 {
    intel.general.count_ones()
}

fn fixed(intel: &IntelConfiguration) -> u32 {
    intel.fixed.count_ones()
}

/// Enables everything in the global register, where there is one.
fn enable_globally(intel: &IntelConfiguration, pmu: &mut pmu_virt::VirtualPmu) {
    if intel.version >= 2 {
        set(pmu, 0x38F, low(general(intel)) | low(fixed(intel)) << 32);
    }
}

#[test]
fn the_matrix_is_the_issues() {
    assert_eq!(intel_matrix().count(), 12 + 5 * 36);
}

/// "Architectural Performance Monitoring": impossible declarations.
#[test]
fn contradictions_are_refused() {
    use ConfigurationError as E;
    let sound = IntelConfiguration::new(5, 8, 4);
    for (configuration, error) in [
        (sound.with(|intel| intel.version = 0), E::Version(0)),
        (sound.with(|intel| intel.version = 7), E::Version(7)),
        (sound.with(|intel| intel.version = 6), E::NoExtendedLeaf { version: 6 }),
        (sound.with(|intel| intel.unit_mask_2 = true), E::SelectFeature { version: 5 }),
        (sound.with(|intel| intel.equal = true), E::SelectFeature { version: 5 }),
        (sound.with(|intel| intel.rdpmc_user_disable = true), E::SelectFeature { version: 5 }),
        (sound.with(|intel| intel.general = 0), E::NoGeneralCounter),
        (sound.with(|intel| intel.general = 0b101), E::GeneralGaps { general: 0b101 }),
        (sound.with(|intel| intel.general = 0b110), E::GeneralGaps { general: 0b110 }),
        (sound.with(|intel| intel.general_width = 31), E::Width(31)),
        (sound.with(|intel| intel.general_width = 65), E::Width(65)),
        (sound.with(|intel| intel.fixed_width = 31), E::Width(31)),
        (sound.with(|intel| intel.fixed_width = 255), E::Width(255)),
        (IntelConfiguration::new(1, 4, 3), E::FixedInVersion1),
        (
            IntelConfiguration::new(4, 4, 4).with(|intel| intel.fixed = 0b1010),
            E::FixedGaps { fixed: 0b1010 },
        ),
        (
            IntelConfiguration::new(2, 4, 3).with(|intel| intel.any_thread = true),
            E::AnyThread { version: 2 },
        ),
        (
            IntelConfiguration::new(4, 4, 3).with(|intel| intel.extended_leaf = true),
            E::ExtendedLeaf { version: 4 },
        ),
    ] {
        assert_eq!(Configuration::Intel(configuration).check(), Err(error));
        let built = pmu_virt::VirtualPmu::new(Configuration::Intel(configuration), events());
        assert_eq!(built.err(), Some(error));
    }
    for intel in intel_matrix() {
        assert_eq!(Configuration::Intel(intel).check(), Ok(()));
    }
    let odd = sound.with(|intel| {
        intel.extended_leaf = true;
        intel.general = 0b1010_0001;
        intel.fixed = 0x82;
    });
    assert_eq!(Configuration::Intel(odd).check(), Ok(()));
}

/// "Architectural Performance Monitoring Version 1": IA32_PMCx from 0C1H and IA32_PERFEVTSELx from
/// 186H, as many as leaf 0AH EAX[15:8] says.
#[test]
fn the_declared_general_counters_exist_and_no_others() {
    each(|intel, mut pmu| {
        for n in 0..8 {
            if n < general(&intel) {
                set(&mut pmu, 0x186 + n, 0x53_0100 + u64::from(n));
                set(&mut pmu, 0xC1 + n, 0x100 + u64::from(n));
            } else {
                write_faults(&mut pmu, 0x186 + n, 0);
                write_faults(&mut pmu, 0xC1 + n, 0);
                read_faults(&pmu, 0x186 + n);
                read_faults(&pmu, 0xC1 + n);
            }
        }
        for n in 0..general(&intel) {
            assert_eq!(get(&pmu, 0x186 + n), 0x53_0100 + u64::from(n));
            assert_eq!(get(&pmu, 0xC1 + n), 0x100 + u64::from(n));
        }
    });
}

/// "Full-Width Writes to Performance Counter Registers": WRMSR to IA32_PMCx takes the
/// sign-extended EAX.
#[test]
fn a_narrow_write_is_sign_extended_from_bit_31() {
    each(|intel, mut pmu| {
        let mask = mask(intel.general_width);
        for (value, stored) in [
            (0x7FFF_FFFF, 0x7FFF_FFFF),
            (0x8000_0000, 0xFFFF_FFFF_8000_0000 & mask),
            (0xFFFF_FFFF, mask),
            // A negative number, written in the counter's width or in 64 bits.
            (mask - 0xFFFF, mask - 0xFFFF),
            (0xFFFF_FFFF_FFFF_0000, mask - 0xFFFF),
        ] {
            set(&mut pmu, 0xC1, value);
            assert_eq!(get(&pmu, 0xC1), stored);
        }
        // EDX is ignored, and told of.
        let written = pmu.write(0xC1, 0x12_0000_0001);
        assert_eq!((written.answer, written.illegal), (Write::Done, 0x12_0000_0000));
        assert_eq!(get(&pmu, 0xC1), 1);
    });
}

/// The same section: IA32_A_PMCx at 4C1H where IA32_PERF_CAPABILITIES[13] is set; bits beyond the
/// width fault.
#[test]
fn full_width_writes_are_there_if_declared() {
    each(|intel, mut pmu| {
        for n in 0..8 {
            if !intel.full_width_writes || n >= general(&intel) {
                write_faults(&mut pmu, 0x4C1 + n, 0);
                read_faults(&pmu, 0x4C1 + n);
                continue;
            }
            let value = 0x80_8000_0001;
            set(&mut pmu, 0x4C1 + n, value);
            assert_eq!((get(&pmu, 0x4C1 + n), get(&pmu, 0xC1 + n)), (value, value));
            for bit in intel.general_width..64 {
                let written = pmu.write(0x4C1 + n, value | 1 << bit);
                assert_eq!(written.answer, Write::GeneralProtection);
                assert_eq!(written.illegal, 1 << bit);
            }
            assert_eq!(get(&pmu, 0x4C1 + n), value);
        }
        assert_eq!(get(&pmu, 0x345), u64::from(intel.full_width_writes) << 13);
        write_faults(&mut pmu, 0x345, 1 << 13);
    });
}

/// Figure "Layout of IA32_PERFEVTSELx MSRs": bits 63:32 are reserved, and AnyThread (21) where the
/// version or leaf 0AH EDX[15] says so.
#[test]
fn reserved_bits_of_an_event_select_fault() {
    each(|_, mut pmu| {
        for bit in 0..64 {
            let reserved = bit == 21 || bit >= 32;
            let written = pmu.write(0x186, 1 << bit);
            if reserved {
                assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << bit));
            } else {
                assert_eq!((written.answer, written.illegal), (Write::Done, 0));
                assert_eq!(get(&pmu, 0x186), 1 << bit);
            }
        }
        // A write that faults changes nothing.
        write_faults(&mut pmu, 0x186, 0x1_0053_003C);
        assert_eq!(get(&pmu, 0x186), 1 << 31);
    });
    for version in 3..=6 {
        let intel = IntelConfiguration::new(version, 4, 3).with(|intel| intel.any_thread = true);
        let mut pmu = pmu(Configuration::Intel(intel));
        set(&mut pmu, 0x186, 1 << 21);
        set(&mut pmu, 0x38D, 0xFFF);
        write_faults(&mut pmu, 0x38D, 0xFFFF);
    }
}

/// "Architectural Performance Monitoring Version 2": IA32_FIXED_CTRx from 309H.
#[test]
fn fixed_counters_exist_as_declared() {
    each(|intel, mut pmu| {
        for n in 0..8 {
            if n < fixed(&intel) {
                let value = mask(intel.fixed_width) - u64::from(n);
                set(&mut pmu, 0x309 + n, value);
                assert_eq!(get(&pmu, 0x309 + n), value);
                // Bits beyond the width are reserved (same section); KVM drops them.
                let written = pmu.write(0x309 + n, u64::MAX);
                assert_eq!(written.answer, Write::Done);
                assert_eq!(written.illegal, !mask(intel.fixed_width));
                assert_eq!(get(&pmu, 0x309 + n), mask(intel.fixed_width));
            } else {
                write_faults(&mut pmu, 0x309 + n, 0);
                read_faults(&pmu, 0x309 + n);
            }
        }
    });
}

/// Figure "Layout of IA32_FIXED_CTR_CTRL MSR": OS, USR and PMI of each fixed counter.
#[test]
fn fixed_control_has_the_bits_of_its_counters() {
    each(|intel, mut pmu| {
        if intel.version == 1 {
            write_faults(&mut pmu, 0x38D, 0);
            return read_faults(&pmu, 0x38D);
        }
        for bit in 0..64 {
            let written = pmu.write(0x38D, 1 << bit);
            let legal = bit < 4 * fixed(&intel) && bit % 4 != 2;
            if legal {
                assert_eq!((written.answer, written.illegal), (Write::Done, 0));
                assert_eq!(get(&pmu, 0x38D), 1 << bit);
            } else {
                assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << bit));
            }
        }
    });
}

/// Figure "Layout of IA32_PERF_GLOBAL_CTRL MSR", version 2 on.
#[test]
fn global_control_has_a_bit_a_counter() {
    each(|intel, mut pmu| {
        if intel.version == 1 {
            for register in 0x38E..=0x392 {
                write_faults(&mut pmu, register, 0);
                read_faults(&pmu, register);
            }
            return;
        }
        for bit in 0..64 {
            let legal = bit < general(&intel) || (32..32 + fixed(&intel)).contains(&bit);
            let written = pmu.write(0x38F, 1 << bit);
            if legal {
                assert_eq!((written.answer, written.illegal), (Write::Done, 0));
                assert_eq!(get(&pmu, 0x38F), 1 << bit);
            } else {
                assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << bit));
            }
        }
    });
}

/// Vol. 3A, "Processor States Following Power-up, Reset, or INIT": the general counters are enabled
/// globally, everything else is 0; INIT changes nothing.
#[test]
fn reset_enables_the_general_counters_globally_and_init_changes_nothing() {
    each(|intel, mut pmu| {
        let fresh = pmu.state();
        let expected = if intel.version >= 2 { low(general(&intel)) } else { 0 };
        assert_eq!(fresh.global_control(), expected);
        set(&mut pmu, 0x186, 0x53_003C);
        set(&mut pmu, 0xC1, 77);
        if intel.version >= 2 {
            set(&mut pmu, 0x38F, 0);
        }
        let programmed = pmu.state();
        pmu.init();
        assert_eq!(pmu.state(), programmed);
        pmu.reset();
        assert_eq!(pmu.state(), fresh);
        assert_eq!((fresh.selects(), fresh.general()), ([0; 8], [0; 8]));
    });
}

/// "IA32_PERF_GLOBAL_STATUS MSR": read-only.
#[test]
fn the_status_cannot_be_written() {
    each(|intel, mut pmu| {
        if intel.version >= 2 {
            let written = pmu.write(0x38E, 1);
            assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, u64::MAX));
            assert_eq!(get(&pmu, 0x38E), 0);
        }
    });
}

/// The bits that IA32_PERF_GLOBAL_STATUS_RESET and _SET have beside the counters' from version 4 on:
/// Trace_ToPA_PMI, LBR_Frz, CTR_Frz, ASCI, Ovf_Uncore, OvfBuf. Vol. 4, 390H and 391H.
const STATUS_FROM_VERSION_4: [u32; 6] = [55, 58, 59, 60, 61, 62];

/// "IA32_PERF_GLOBAL_STATUS_RESET", "_SET", version 4 on; vol. 4, 390H and 391H.
#[test]
fn the_status_is_set_and_cleared_by_bit_from_version_4_on() {
    each(|intel, mut pmu| {
        let counters = low(general(&intel)) | low(fixed(&intel)) << 32;
        if intel.version < 4 {
            write_faults(&mut pmu, 0x391, 0);
            write_faults(&mut pmu, 0x392, 0);
            read_faults(&pmu, 0x391);
            return read_faults(&pmu, 0x392);
        }
        let all = STATUS_FROM_VERSION_4.iter().fold(counters, |bits, bit| bits | 1 << bit);
        set(&mut pmu, 0x391, all);
        assert_eq!(get(&pmu, 0x38E), all);
        for bit in 0..64 {
            if all >> bit & 1 == 0 {
                let written = pmu.write(0x391, 1 << bit);
                assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << bit));
            }
        }
        set(&mut pmu, 0x390, 1);
        assert_eq!(get(&pmu, 0x38E), all & !1);
        set(&mut pmu, 0x390, all);
        assert_eq!((get(&pmu, 0x38E), get(&pmu, 0x390), get(&pmu, 0x391)), (0, 0, 0));
    });
}

/// "IA32_PERF_GLOBAL_OVF_CTRL", versions 2 and 3: the counters' bits and CondChgd (63) can be cleared; ClrOvfBuffer
/// (62) has nothing to clear without a DS area, and is reported.
#[test]
fn the_status_is_cleared_with_the_bits_that_there_are() {
    each(|intel, mut pmu| {
        if !matches!(intel.version, 2 | 3) {
            return;
        }
        let counters = low(general(&intel)) | low(fixed(&intel)) << 32;
        let legal = counters | 1 << 63;
        for bit in 0..64 {
            let written = pmu.write(0x390, 1 << bit);
            let illegal = !legal & 1 << bit;
            assert_eq!(written.illegal, illegal);
            let faults = illegal != 0 && bit != 62;
            assert_eq!(written.answer == Write::GeneralProtection, faults, "bit {bit}");
        }
    });
}

/// "IA32_PERF_GLOBAL_STATUS_RESET", version 4 on: a bit that cannot be set in this guest, since it lacks the feature,
/// is cleared without effect. The other bits are reserved.
#[test]
fn a_reset_of_the_status_bits_of_absent_features_is_ignored() {
    each(|intel, mut pmu| {
        if intel.version < 4 {
            return;
        }
        let counters = low(general(&intel)) | low(fixed(&intel)) << 32;
        let legal =
            STATUS_FROM_VERSION_4.iter().fold(counters | 1 << 63, |bits, bit| bits | 1 << bit);
        set(&mut pmu, 0x391, counters);
        for bit in (0..64).filter(|bit| counters >> bit & 1 == 0) {
            let written = pmu.write(0x390, 1 << bit);
            let expected = match legal >> bit & 1 {
                1 => (Write::Done, 0),
                _ => (Write::GeneralProtection, 1 << bit),
            };
            assert_eq!((written.answer, written.illegal), expected, "bit {bit}");
            assert_eq!(get(&pmu, 0x38E), counters, "bit {bit}");
        }
        set(&mut pmu, 0x390, legal);
        assert_eq!(get(&pmu, 0x38E), 0);
    });
}

/// "IA32_PERF_GLOBAL_INUSE MSR", version 4 on.
#[test]
fn in_use_tells_of_selected_events_enabled_fixed_counters_and_interrupts() {
    each(|intel, mut pmu| {
        if intel.version < 4 {
            return;
        }
        assert_eq!(get(&pmu, 0x392), 0);
        for n in 0..general(&intel) {
            // The event select alone; not the unit mask.
            set(&mut pmu, 0x186 + n, 0x43_FF00);
            assert_eq!(get(&pmu, 0x392) >> n & 1, 0);
            set(&mut pmu, 0x186 + n, 0x80);
            assert_eq!(get(&pmu, 0x392) & low(8), low(n + 1));
        }
        let general_bits = low(general(&intel));
        set(&mut pmu, 0x186, 0x10_0001);
        assert_eq!(get(&pmu, 0x392), general_bits | 1 << 63);
        set(&mut pmu, 0x186, 1);
        for n in 0..fixed(&intel) {
            for (nibble, expected) in [(1, 1 << (32 + n)), (2, 1 << (32 + n)), (8, 1 << 63), (0, 0)]
            {
                set(&mut pmu, 0x38D, nibble << (4 * n));
                assert_eq!(get(&pmu, 0x392), general_bits | expected);
            }
        }
        write_faults(&mut pmu, 0x392, 0);
    });
}

/// "IA32_PERFEVTSELx MSRs": a counter counts while EN is set, and USR or OS is for the privilege.
#[test]
fn a_general_counter_counts_its_event_in_its_privileges_while_enabled() {
    each(|intel, mut pmu| {
        enable_globally(&intel, &mut pmu);
        let n = general(&intel) - 1;
        for (select, in_user, in_kernel) in [
            (0x41_003C, 7, 0),
            (0x42_003C, 0, 5),
            (0x43_003C, 7, 5),
            (0x40_003C, 0, 0),
            (0x03_003C, 0, 0),
            (0x43_01C0, 0, 0),
            // Pin control makes no difference.
            (0x4B_003C, 7, 5),
        ] {
            set(&mut pmu, 0x186 + n, select);
            set(&mut pmu, 0xC1 + n, 100);
            happen(&mut pmu, CYCLES, Privilege::User, 7);
            assert_eq!(get(&pmu, 0xC1 + n), 100 + in_user, "{select:#X}");
            happen(&mut pmu, CYCLES, Privilege::Kernel, 5);
            assert_eq!(get(&pmu, 0xC1 + n), 100 + in_user + in_kernel, "{select:#X}");
        }
        // Another counter's event is not counted.
        set(&mut pmu, 0x186 + n, 0x43_00C0);
        set(&mut pmu, 0xC1 + n, 0);
        happen(&mut pmu, CYCLES, Privilege::User, 7);
        assert_eq!(get(&pmu, 0xC1 + n), 0);
    });
}

/// Figure "Layout of IA32_PERFEVTSELx MSRs": edge, invert and counter mask make another quantity.
#[test]
fn edge_invert_and_counter_mask_count_only_what_is_fed_as_such() {
    each(|intel, mut pmu| {
        enable_globally(&intel, &mut pmu);
        for (select, key) in [
            (0x47_003C, CYCLES.edge()),
            (0x0143_003C, CYCLES.counter_mask(1, false)),
            (0x01C3_003C, CYCLES.counter_mask(1, true)),
        ] {
            set(&mut pmu, 0x186, select);
            set(&mut pmu, 0xC1, 0);
            happen(&mut pmu, CYCLES, Privilege::Kernel, 1000);
            assert_eq!(get(&pmu, 0xC1), 0);
            let unfed: Vec<_> = pmu.unfed().map(|event| (event.counter, event.key)).collect();
            assert_eq!(unfed, [(0, key)]);
        }
        set(&mut pmu, 0x186, 0x43_003C);
        assert_eq!(pmu.unfed().count(), 0);
        assert_eq!(pmu.running().count(), 1);
    });
}

/// Figure "Layout of IA32_PERFEVTSELx MSRs", INV: "if counter-mask is programmed to zero, INV flag is
/// ignored".
#[test]
fn invert_without_a_counter_mask_counts_the_plain_event() {
    each(|intel, mut pmu| {
        enable_globally(&intel, &mut pmu);
        // INV is bit 23.
        set(&mut pmu, 0x186, 0x43_003C | 1 << 23);
        assert_eq!(get(&pmu, 0x186), 0x43_003C | 1 << 23);
        happen(&mut pmu, CYCLES, Privilege::Kernel, 1000);
        assert_eq!(get(&pmu, 0xC1), 1000);
        assert_eq!(pmu.unfed().count(), 0);
        assert!(pmu.running().all(|event| event.key == CYCLES));
    });
    // The embedder's key with invert is the same.
    assert_eq!(CYCLES.counter_mask(0, true), CYCLES);
    assert_eq!(CYCLES.counter_mask(3, true).counter_mask(0, true), CYCLES);
    assert_eq!(CYCLES.edge().counter_mask(0, true), CYCLES.edge());
}

/// "IA32_PERF_GLOBAL_CTRL": ANDed with each counter's own enable.
#[test]
fn a_counter_stands_still_while_it_is_disabled_globally() {
    each(|intel, mut pmu| {
        if intel.version == 1 {
            return;
        }
        for n in 0..general(&intel) {
            set(&mut pmu, 0x186 + n, 0x43_003C);
        }
        for n in 0..fixed(&intel) {
            let control = get(&pmu, 0x38D) | 3 << (4 * n);
            set(&mut pmu, 0x38D, control);
        }
        let all = low(general(&intel)) | low(fixed(&intel)) << 32;
        for off in (0..64).filter(|bit| all >> bit & 1 != 0) {
            let before = pmu.state();
            set(&mut pmu, 0x38F, all & !(1 << off));
            let mut everything = feed(CYCLES, Privilege::User, 10);
            for n in (0..8).filter(|n| *n != 1) {
                let event = events().find(EventKey::fixed(n).unwrap()).unwrap();
                everything.add(event, Privilege::User, 10).unwrap();
            }
            assert_eq!(pmu.advance(&mut everything).unwrap().overflowed, 0);
            for n in 0..8 {
                let bit = u32::from(n as u8);
                let counted = pmu.state().general()[n] - before.general()[n];
                let counts = bit < general(&intel) && bit != off;
                assert_eq!(counted, if counts { 10 } else { 0 });
                let counted = pmu.state().fixed()[n] - before.fixed()[n];
                let counts = bit < fixed(&intel) && bit + 32 != off;
                assert_eq!(counted, if counts { 10 } else { 0 });
            }
        }
    });
}

/// Figure "Layout of IA32_FIXED_CTR_CTRL MSR": bit 0 is OS, bit 1 is USR.
#[test]
fn a_fixed_counter_counts_in_its_privileges() {
    each(|intel, mut pmu| {
        enable_globally(&intel, &mut pmu);
        for n in 0..fixed(&intel) {
            let key = EventKey::fixed(n as u8).unwrap();
            for (nibble, in_user, in_kernel) in [(0, 0, 0), (1, 0, 5), (2, 7, 0), (3, 7, 5)] {
                set(&mut pmu, 0x38D, nibble << (4 * n));
                set(&mut pmu, 0x309 + n, 0);
                happen(&mut pmu, key, Privilege::User, 7);
                assert_eq!(get(&pmu, 0x309 + n), in_user);
                happen(&mut pmu, key, Privilege::Kernel, 5);
                assert_eq!(get(&pmu, 0x309 + n), in_user + in_kernel);
            }
        }
    });
}

/// Table "Intel 64 and IA-32 … AnyThread": another quantity, as edge is.
#[test]
fn any_thread_counts_only_what_is_fed_as_such() {
    let intel = IntelConfiguration::new(3, 4, 3).with(|intel| intel.any_thread = true);
    // Of fixed counter 1, too.
    let keys = [CYCLES.any_thread(), CYCLES];
    let fed = pmu_virt::FedEvents::new(&keys).unwrap();
    let mut pmu = pmu_virt::VirtualPmu::new(Configuration::Intel(intel), fed).unwrap();
    set(&mut pmu, 0x38F, 0x7_0000_000F);
    set(&mut pmu, 0x186, 0x63_003C);
    set(&mut pmu, 0x187, 0x43_003C);
    set(&mut pmu, 0x38D, 0x70);
    let mut feed = pmu_virt::Feed::new(&fed);
    for (key, count) in keys.into_iter().zip([3, 7]) {
        feed.add(fed.find(key).unwrap(), Privilege::User, count).unwrap();
    }
    let _ = pmu.advance(&mut feed.clone()).unwrap();
    assert_eq!((get(&pmu, 0xC1), get(&pmu, 0xC2), get(&pmu, 0x30A)), (3, 7, 3));
    set(&mut pmu, 0x38D, 0x30);
    let _ = pmu.advance(&mut feed).unwrap();
    assert_eq!(get(&pmu, 0x30A), 10);
}

/// "IA32_PERF_GLOBAL_STATUS MSR": set on overflow, whether or not it interrupts, until cleared.
#[test]
fn an_overflow_is_in_the_status_until_it_is_cleared() {
    each(|intel, mut pmu| {
        enable_globally(&intel, &mut pmu);
        for n in 0..general(&intel) {
            for (select, interrupts) in [(0x53_003C, true), (0x43_003C, false)] {
                set(&mut pmu, 0x186 + n, select);
                set(&mut pmu, 0xC1 + n, 0xFFFF_FFFE);
                let before = happen(&mut pmu, CYCLES, Privilege::User, 1);
                assert_eq!((before.overflowed, before.pmi), (0, false));
                assert_eq!(get(&pmu, 0xC1 + n), mask(intel.general_width));
                let after = happen(&mut pmu, CYCLES, Privilege::User, 1);
                assert_eq!((after.overflowed, after.pmi), (1 << n, interrupts));
                assert_eq!((get(&pmu, 0xC1 + n), after.wraps(n as u8)), (0, 1));
                if intel.version >= 2 {
                    set(&mut pmu, 0xC1 + n, 5);
                    set(&mut pmu, 0x186 + n, 0);
                    assert_eq!(get(&pmu, 0x38E), 1 << n);
                    set(&mut pmu, 0x390, 1 << n);
                    assert_eq!(get(&pmu, 0x38E), 0);
                } else {
                    set(&mut pmu, 0x186 + n, 0);
                }
            }
        }
        for n in 0..fixed(&intel) {
            let key = EventKey::fixed(n as u8).unwrap();
            for (nibble, interrupts) in [(0xB, true), (0x3, false)] {
                set(&mut pmu, 0x38D, nibble << (4 * n));
                set(&mut pmu, 0x309 + n, mask(intel.fixed_width));
                let advanced = happen(&mut pmu, key, Privilege::Kernel, 1);
                assert_eq!((advanced.overflowed, advanced.pmi), (1 << (32 + n), interrupts));
                assert_eq!(advanced.wraps(32 + n as u8), 1);
                assert_eq!(get(&pmu, 0x38E), 1 << (32 + n));
                set(&mut pmu, 0x390, 1 << (32 + n));
            }
        }
    });
}

/// "Freezing LBR and Performance Counters on PMI": versions 2 and 3 clear IA32_PERF_GLOBAL_CTRL,
/// version 4 on sets CTR_FRZ, which stops the counters until it is cleared.
#[test]
fn counters_freeze_on_an_interrupt_if_asked() {
    each(|intel, mut pmu| {
        let freeze = 1 << 12;
        if intel.version == 1 {
            return write_faults(&mut pmu, 0x1D9, freeze);
        }
        assert_eq!(pmu.write(0x1D9, freeze).answer, Write::Shared { mask: 0x7FC1 });
        assert_eq!(pmu.read(0x1D9), Read::Shared { value: freeze, mask: 0x7FC1 });
        enable_globally(&intel, &mut pmu);
        let control = get(&pmu, 0x38F);
        // No freeze without an interrupt.
        set(&mut pmu, 0x186, 0x43_003C);
        set(&mut pmu, 0xC1, 0xFFFF_FFFF);
        happen(&mut pmu, CYCLES, Privilege::User, 1);
        assert_eq!((get(&pmu, 0x38F), get(&pmu, 0x38E)), (control, 1));

        set(&mut pmu, 0x186, 0x53_003C);
        set(&mut pmu, 0xC1, 0xFFFF_FFFF);
        let mut span = feed(CYCLES, Privilege::User, 10);
        assert!(pmu.advance(&mut span).unwrap().pmi);
        assert!(!pmu.advance(&mut span).unwrap().pmi);
        assert!(span.is_empty());
        assert_eq!(get(&pmu, 0xC1), 0, "the other nine came after the freeze");
        if intel.version < 4 {
            assert_eq!((get(&pmu, 0x38F), get(&pmu, 0x38E)), (0, 1));
            set(&mut pmu, 0x38F, control);
        } else {
            assert_eq!((get(&pmu, 0x38F), get(&pmu, 0x38E)), (control, 1 << 59 | 1));
            set(&mut pmu, 0x390, 1 << 59);
        }
        happen(&mut pmu, CYCLES, Privilege::User, 3);
        assert_eq!(get(&pmu, 0xC1), 3);
    });
}

/// Vol. 2B, RDPMC: ECX[30] is the type, ECX[29:0] the index; other types fault here.
#[test]
fn rdpmc_reads_general_and_fixed_counters_by_type() {
    each(|intel, mut pmu| {
        for n in 0..general(&intel) {
            set(&mut pmu, 0xC1 + n, 0xFFFF_0000 + u64::from(n));
        }
        for n in 0..fixed(&intel) {
            set(&mut pmu, 0x309 + n, 0x200 + u64::from(n));
        }
        for n in 0..0x20 {
            let expected = if n < general(&intel) {
                Read::Value((0xFFFF_FFFF_FFFF_0000 + u64::from(n)) & mask(intel.general_width))
            } else {
                Read::GeneralProtection
            };
            assert_eq!(pmu.read_pmc(n, KERNEL), expected);
            let expected = if n < fixed(&intel) {
                Read::Value(0x200 + u64::from(n))
            } else {
                Read::GeneralProtection
            };
            assert_eq!(pmu.read_pmc(1 << 30 | n, KERNEL), expected);
        }
        for bit in (3..32).filter(|bit| *bit != 30) {
            assert_eq!(pmu.read_pmc(1 << bit, KERNEL), Read::GeneralProtection);
            assert_eq!(pmu.read_pmc(1 << 30 | 1 << bit, KERNEL), Read::GeneralProtection);
        }
    });
}

/// Vol. 2B, RDPMC: CPL 0, or CR4.PCE, or CR0.PE clear.
#[test]
fn rdpmc_wants_privilege_or_cr4_pce() {
    for configuration in matrix().filter(|c| !HIDDEN.contains(c)) {
        let pmu = pmu(configuration);
        for cpl in 0..4 {
            for (pce, protected) in [(false, true), (true, true), (false, false), (true, false)] {
                let allowed = cpl == 0 || pce || !protected;
                let read = pmu.read_pmc(0, Mode { cpl, pce, protected });
                assert_eq!(read == Read::Value(0), allowed);
                assert_eq!(read == Read::GeneralProtection, !allowed);
            }
        }
    }
}

/// Vol. 4, IA32_MISC_ENABLE (1A0H): 7 performance monitoring available, 11 BTS and 12 PEBS
/// unavailable, all read-only.
#[test]
fn misc_enable_says_what_there_is() {
    each(|_, mut pmu| {
        let value = 1 << 7 | 1 << 11 | 1 << 12;
        assert_eq!(pmu.read(0x1A0), Read::Shared { value, mask: value });
        let written = pmu.write(0x1A0, value | 1);
        assert_eq!((written.answer, written.illegal), (Write::Shared { mask: value }, 0));
        let written = pmu.write(0x1A0, value & !(1 << 7));
        assert_eq!((written.answer, written.illegal), (Write::Shared { mask: value }, 1 << 7));
        for bit in [11, 12] {
            let written = pmu.write(0x1A0, value & !(1 << bit));
            assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << bit));
        }
        assert_eq!(pmu.read(0x1A0), Read::Shared { value, mask: value });
    });
}

/// Vol. 3B, "IA32_DEBUGCTL MSR": BTS, TR and freezes of what there is not are reserved.
#[test]
fn debug_control_has_no_bits_for_what_there_is_not() {
    each(|intel, mut pmu| {
        for bit in 0..16 {
            let written = pmu.write(0x1D9, 1 << bit);
            let of_pmu = matches!(bit, 0 | 6..=14);
            let legal = !of_pmu || bit == 12 && intel.version >= 2;
            assert_eq!(written.illegal, if legal { 0 } else { 1 << bit });
            // KVM drops LBR.
            let faults = !legal && bit != 0;
            assert_eq!(written.answer == Write::GeneralProtection, faults);
        }
    });
}

/// Vol. 4: other registers are distinguished from absent ones.
#[test]
fn other_registers_are_not_the_pmus() {
    each(|_, mut pmu| {
        for address in [0, 0x10, 0xC0, 0xC9, 0x174, 0x185, 0x277, 0xC000_0080, 0xC001_0000] {
            assert_eq!(pmu.read(address), Read::Unhandled, "{address:#X}");
            let written = pmu.write(address, u64::MAX);
            assert_eq!((written.answer, written.illegal), (Write::Unhandled, 0));
        }
        // PEBS, DS, LBR, off-core response, auto counter reload: performance monitoring, and not offered.
        for address in [0x1A6, 0x1C8, 0x329, 0x3F1, 0x3F2, 0x600, 0x680, 0x14CE, 0x1902, 0x1981] {
            read_faults(&pmu, address);
            write_faults(&mut pmu, address, 0);
        }
    });
}

/// "Architectural Performance Monitoring Version 5" and leaf 23H: counters with gaps.
#[test]
fn counters_may_have_gaps() {
    let intel = IntelConfiguration::new(5, 8, 8).with(|intel| {
        intel.general = 0b1010_0001;
        intel.fixed = 0b1000_0010;
        intel.extended_leaf = true;
    });
    let mut pmu = pmu(Configuration::Intel(intel));
    assert_eq!(get(&pmu, 0x38F), 0xA1);
    set(&mut pmu, 0x38F, 0x82_0000_00A1);
    write_faults(&mut pmu, 0x38F, 0x2);
    set(&mut pmu, 0x18D, 0x53_003C);
    write_faults(&mut pmu, 0x187, 0);
    read_faults(&pmu, 0xC2);
    assert_eq!(pmu.read_pmc(1, KERNEL), Read::GeneralProtection);
    assert_eq!(pmu.read_pmc(7, KERNEL), Read::Value(0));
    set(&mut pmu, 0x38D, 0xB000_00B0);
    write_faults(&mut pmu, 0x38D, 0x1);
    set(&mut pmu, 0x310, mask(48));
    let advanced = happen(&mut pmu, EventKey::fixed(7).unwrap(), Privilege::User, 1);
    assert_eq!(advanced.overflowed, 1 << 39);
}
