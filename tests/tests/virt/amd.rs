//! AMD's rules, one test each. Expected values are the manual's: AMD APM vol. 2, chapter "Debug and Performance
//! Resources"; where it is silent, KVM's behavior.

use pmu_tests::software_pmu::*;
use pmu_virt::configuration::{
    AmdConfiguration, AmdCounters, Configuration, ConfigurationError, Vendor,
};
use pmu_virt::{EventKey, Privilege, Read, VirtualPmu, Write};

fn each(mut test: impl FnMut(AmdConfiguration, u32, VirtualPmu)) {
    for (amd, counters) in AMD_MATRIX {
        test(amd, counters, pmu(Configuration::Amd(amd)));
    }
}

fn has_core_extension(amd: AmdConfiguration) -> bool {
    amd != AmdConfiguration::LEGACY
}

fn has_global(amd: AmdConfiguration) -> bool {
    matches!(amd.counters, AmdCounters::PerfMonV2 { .. })
}

/// The addresses of a counter's select and value.
fn registers(amd: AmdConfiguration, counter: u32) -> (u32, u32) {
    if has_core_extension(amd) {
        (0xC001_0200 + 2 * counter, 0xC001_0201 + 2 * counter)
    } else {
        (0xC001_0000 + counter, 0xC001_0004 + counter)
    }
}

#[test]
fn there_is_no_perfmon_v2_with_fewer_than_four_counters_or_more_than_eight() {
    for counters in (0..4).chain(9..=255) {
        let amd = Configuration::Amd(AmdConfiguration::perf_mon_v2(counters));
        assert_eq!(amd.check(), Err(ConfigurationError::AmdCounters(counters)));
    }
}

/// "Performance Counter MSRs": PerfEvtSel0–3 and PerfCtr0–3, on every processor.
#[test]
fn the_four_legacy_counters_are_always_there() {
    each(|_, _, mut pmu| {
        for n in 0..4 {
            set(&mut pmu, 0xC001_0000 + n, 0x53_0076);
            set(&mut pmu, 0xC001_0004 + n, 0xFFFF_FFFF_0000 + u64::from(n));
            assert_eq!(get(&pmu, 0xC001_0000 + n), 0x53_0076);
            assert_eq!(get(&pmu, 0xC001_0004 + n), 0xFFFF_FFFF_0000 + u64::from(n));
        }
    });
}

/// "Core Performance-Monitoring Counters": with the core extension, the legacy addresses are aliases
/// of the first four.
#[test]
fn the_legacy_registers_are_aliases_of_the_core_extension() {
    each(|amd, counters, mut pmu| {
        for n in 0..8 {
            let (select, counter) = (0xC001_0200 + 2 * n, 0xC001_0201 + 2 * n);
            if !has_core_extension(amd) || n >= counters {
                for address in [select, counter] {
                    read_faults(&pmu, address);
                    write_faults(&mut pmu, address, 0);
                }
                continue;
            }
            set(&mut pmu, select, 0x43_0100 + u64::from(n));
            set(&mut pmu, counter, 0x1000 + u64::from(n));
            if n < 4 {
                assert_eq!(get(&pmu, 0xC001_0000 + n), 0x43_0100 + u64::from(n));
                assert_eq!(get(&pmu, 0xC001_0004 + n), 0x1000 + u64::from(n));
                set(&mut pmu, 0xC001_0004 + n, 7);
                assert_eq!(get(&pmu, counter), 7);
                set(&mut pmu, 0xC001_0000 + n, 0);
                assert_eq!(get(&pmu, select), 0);
            }
        }
        for n in 0..counters {
            if has_core_extension(amd) && n >= 4 {
                assert_eq!(get(&pmu, 0xC001_0201 + 2 * n), 0x1000 + u64::from(n));
            }
        }
    });
}

/// Figure "Core Performance Event-Select Register": 19, 21 and 63:36 are reserved (41:40 without
/// SVM). KVM: dropped, no fault.
#[test]
fn reserved_bits_of_an_event_select_are_dropped() {
    each(|amd, counters, mut pmu| {
        for n in 0..counters {
            let (select, _) = registers(amd, n);
            for bit in 0..64 {
                let reserved = matches!(bit, 19 | 21 | 36..);
                let written = pmu.write(select, 1 << bit);
                assert_eq!(written.answer, Write::Done);
                assert_eq!(written.illegal, if reserved { 1 << bit } else { 0 });
                assert_eq!(get(&pmu, select), if reserved { 0 } else { 1 << bit });
            }
        }
    });
}

/// "Performance Counter MSRs": 48 bits; KVM drops the others.
#[test]
fn a_counter_has_48_bits() {
    each(|amd, counters, mut pmu| {
        for n in 0..counters {
            let (_, counter) = registers(amd, n);
            let written = pmu.write(counter, u64::MAX);
            assert_eq!((written.answer, written.illegal), (Write::Done, 0xFFFF_0000_0000_0000));
            assert_eq!(get(&pmu, counter), 0xFFFF_FFFF_FFFF);
            // No sign extension.
            set(&mut pmu, counter, 0x8000_0000);
            assert_eq!(get(&pmu, counter), 0x8000_0000);
        }
    });
}

/// "Performance Monitoring Version 2": PerfCntrGlobalStatus, Ctl, StatusClr, StatusSet.
#[test]
fn the_global_registers_come_with_version_2() {
    each(|amd, counters, mut pmu| {
        if !has_global(amd) {
            for address in 0xC000_0300..=0xC000_0303 {
                read_faults(&pmu, address);
                write_faults(&mut pmu, address, 0);
            }
            return;
        }
        let all = low(counters);
        assert_eq!(get(&pmu, 0xC000_0301), all, "as KVM: enabled at reset");
        // Reserved bits are dropped.
        let written = pmu.write(0xC000_0301, u64::MAX);
        assert_eq!((written.answer, written.illegal), (Write::Done, !all));
        assert_eq!(get(&pmu, 0xC000_0301), all);
        // The status ignores writes, is set and cleared by bit.
        let written = pmu.write(0xC000_0300, 1);
        assert_eq!((written.answer, written.illegal), (Write::Done, u64::MAX));
        assert_eq!(get(&pmu, 0xC000_0300), 0);
        let written = pmu.write(0xC000_0303, u64::MAX);
        assert_eq!((written.answer, written.illegal), (Write::Done, !all));
        assert_eq!(get(&pmu, 0xC000_0300), all);
        set(&mut pmu, 0xC000_0302, 0b101);
        assert_eq!(get(&pmu, 0xC000_0300), all & !0b101);
        assert_eq!((get(&pmu, 0xC000_0302), get(&pmu, 0xC000_0303)), (0, 0));
    });
}

/// "Core Performance Event-Select": the event has 12 bits, and the counter counts in its privileges.
#[test]
fn a_counter_counts_its_event_in_its_privileges_while_enabled() {
    let key = pmu_virt::EventKey::general(0xFC0, 0x41);
    let fed = pmu_virt::FedEvents::new(&[key]).unwrap();
    for (amd, counters) in AMD_MATRIX {
        let mut pmu = VirtualPmu::new(Configuration::Amd(amd), fed).unwrap();
        for n in 0..counters {
            let (select, counter) = registers(amd, n);
            for (value, in_user, in_kernel) in [
                (0xF_0041_41C0, 7, 0),
                (0xF_0042_41C0, 0, 5),
                (0xF_0043_41C0, 7, 5),
                (0xF_0003_41C0, 0, 0),
                (0x43_41C0, 0, 0),
                (0xF_0047_41C0, 0, 0),
            ] {
                set(&mut pmu, select, value);
                set(&mut pmu, counter, 0);
                let mut feed = pmu_virt::Feed::new(&fed);
                feed.add(fed.find(key).unwrap(), Privilege::User, 7).unwrap();
                feed.add(fed.find(key).unwrap(), Privilege::Kernel, 5).unwrap();
                let _ = pmu.advance(&mut feed);
                assert_eq!(get(&pmu, counter), in_user + in_kernel, "{value:#X}");
            }
        }
    }
}

/// "Core Performance Event-Select", table of CntMask and Inv: with a CntMask of 0 the event is counted,
/// whatever Inv is.
#[test]
fn invert_without_a_counter_mask_counts_the_plain_event() {
    each(|amd, counters, mut pmu| {
        for n in 0..counters {
            let (select, counter) = registers(amd, n);
            // Inv is bit 23, CntMask 31:24.
            set(&mut pmu, select, 0x43_003C | 1 << 23);
            set(&mut pmu, counter, 0);
            happen(&mut pmu, CYCLES, Privilege::User, 9);
            assert_eq!(get(&pmu, counter), 9);
            set(&mut pmu, select, 0x43_003C | 1 << 23 | 1 << 24);
            happen(&mut pmu, CYCLES, Privilege::User, 9);
            assert_eq!(get(&pmu, counter), 9, "fewer than one a cycle is another quantity");
            set(&mut pmu, select, 0);
        }
    });
}

/// Without the global registers a counter's own enable is all there is; with them both count.
#[test]
fn the_global_control_gates_where_it_exists() {
    each(|amd, counters, mut pmu| {
        for n in 0..counters {
            let (select, counter) = registers(amd, n);
            set(&mut pmu, select, 0x43_003C);
            set(&mut pmu, counter, 0);
        }
        if has_global(amd) {
            set(&mut pmu, 0xC000_0301, 0b10);
        }
        happen(&mut pmu, CYCLES, Privilege::User, 9);
        for n in 0..counters {
            let counts = !has_global(amd) || n == 1;
            assert_eq!(get(&pmu, registers(amd, n).1), if counts { 9 } else { 0 });
        }
    });
}

/// "PerfCntrGlobalStatus": set by overflow until cleared; INT asks for the interrupt.
#[test]
fn an_overflow_is_in_the_status_until_it_is_cleared() {
    each(|amd, counters, mut pmu| {
        for n in 0..counters {
            let (select, counter) = registers(amd, n);
            for (value, interrupts) in [(0x53_003C, true), (0x43_003C, false)] {
                set(&mut pmu, select, value);
                set(&mut pmu, counter, 0xFFFF_FFFF_FFFE);
                assert_eq!(happen(&mut pmu, CYCLES, Privilege::User, 1).overflowed, 0);
                let advanced = happen(&mut pmu, CYCLES, Privilege::User, 3);
                assert_eq!((advanced.overflowed, advanced.pmi), (1 << n, interrupts));
                if has_global(amd) {
                    set(&mut pmu, select, 0);
                    assert_eq!(get(&pmu, 0xC000_0300), 1 << n);
                    set(&mut pmu, 0xC000_0302, 1 << n);
                    assert_eq!(get(&pmu, 0xC000_0300), 0);
                }
                set(&mut pmu, select, 0);
            }
        }
    });
}

/// APM vol. 3, RDPMC: ECX is the number, without types.
#[test]
fn rdpmc_takes_the_counters_number() {
    each(|amd, counters, mut pmu| {
        for n in 0..counters {
            set(&mut pmu, registers(amd, n).1, 0x8000_0000_0000 + u64::from(n));
        }
        for n in 0..0x40 {
            let expected = if n < counters {
                Read::Value(0x8000_0000_0000 + u64::from(n))
            } else {
                Read::GeneralProtection
            };
            assert_eq!(pmu.read_counter(n, KERNEL), expected);
        }
        for bit in 3..32 {
            assert_eq!(pmu.read_counter(1 << bit, KERNEL), Read::GeneralProtection);
        }
    });
}

/// APM vol. 2, appendix "MSR Cross-Reference": other registers are distinguished from absent ones.
#[test]
fn other_registers_are_not_the_pmus() {
    each(|_, _, mut pmu| {
        for address in [0xC1, 0x186, 0x38F, 0x1D9, 0xC000_0080, 0xC001_0010, 0xC001_0210] {
            assert_eq!(pmu.read(address), Read::Unhandled, "{address:#X}");
            assert_eq!(pmu.write(address, 0).answer, Write::Unhandled);
        }
        // IBS, LBR, the northbridge's and the L2 cache's counters.
        for address in [0xC001_1030, 0xC001_1033, 0xC000_010E, 0xC001_0240, 0xC001_0230] {
            read_faults(&pmu, address);
            write_faults(&mut pmu, address, 0);
        }
    });
}

/// APM vol. 2, "Core Performance Event-Select Registers", HG_ONLY: bit 40 is GuestOnly, bit 41 HostOnly.
#[test]
fn an_event_in_guests_alone_and_one_in_the_host_alone_have_keys_of_their_own() {
    let event = EventKey::general(0x76, 0);
    for (key, bits) in [
        (event.guest_only(), 0b01),
        (event.host_only(), 0b10),
        (event.guest_only().host_only(), 0b11),
    ] {
        assert_eq!(key, EventKey::of_select(Vendor::Amd, bits << 40 | 0x53_0076), "{bits:#b}");
        assert_ne!(key, event);
    }
}
