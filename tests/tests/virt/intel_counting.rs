//! Intel's rules of counting, overflow and RDPMC, one test each. Expected values are the manual's: Intel SDM vol. 3B,
//! chapter "Performance Monitoring"; vol. 2B, RDPMC.

use pmu_tests::StateRegisters;
use pmu_tests::software_pmu::intel::*;
use pmu_tests::software_pmu::*;
use pmu_virt::configuration::{Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::{EventKey, Mode, Privilege, Read, Write};

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
    let intel =
        IntelConfiguration::new(3, 4, 3).with(|intel| intel.set(IntelFeature::AnyThread, true));
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
            assert_eq!(pmu.read_counter(n, KERNEL), expected);
            let expected = if n < fixed(&intel) {
                Read::Value(0x200 + u64::from(n))
            } else {
                Read::GeneralProtection
            };
            assert_eq!(pmu.read_counter(1 << 30 | n, KERNEL), expected);
        }
        for bit in (3..32).filter(|bit| *bit != 30) {
            assert_eq!(pmu.read_counter(1 << bit, KERNEL), Read::GeneralProtection);
            assert_eq!(pmu.read_counter(1 << 30 | 1 << bit, KERNEL), Read::GeneralProtection);
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
                let read = pmu.read_counter(0, Mode { cpl, pce, protected });
                assert_eq!(read == Read::Value(0), allowed);
                assert_eq!(read == Read::GeneralProtection, !allowed);
            }
        }
    }
}
