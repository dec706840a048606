//! Version 6 of Intel's architectural performance monitoring, one test a rule. Expected values are the manual's:
//! Intel SDM vol. 3B, "Architectural Performance Monitoring Version 6"; vol. 4 for register numbers.

use pmu_tests::StateRegisters;
use pmu_tests::software_pmu::*;
use pmu_virt::configuration::{Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::policy::{EventFilter, EventPolicy, FilterAction, FilterEntry};
use pmu_virt::{
    EventKey, FedEvents, Feed, Mode, PmuState, Privilege, Read, StateError, VirtualPmu, Write,
};

/// No feature that leaf 23H can declare.
const PLAIN: IntelConfiguration = IntelConfiguration::new(6, 8, 4);
/// Every one of them.
const FULL: IntelConfiguration = {
    let mut full = PLAIN;
    full.set(IntelFeature::UnitMask2, true);
    full.set(IntelFeature::Equal, true);
    full.set(IntelFeature::RdpmcUserDisable, true);
    full
};

const UNIT_MASK_2: u64 = 0xFF << 40;
const EQ: u64 = 1 << 36;
const RDPMC_USER_DISABLE: u64 = 1 << 37;

const USER: Mode = Mode { cpl: 3, pce: true, protected: true };

fn of_intel(configuration: IntelConfiguration) -> VirtualPmu {
    pmu(Configuration::Intel(configuration))
}

/// A PMU whose embedder feeds these events.
fn fed(keys: &[EventKey]) -> (VirtualPmu, FedEvents) {
    let events = FedEvents::new(keys).unwrap();
    (VirtualPmu::new(Configuration::Intel(FULL), events).unwrap(), events)
}

/// Vol. 4: IA32_PMC_GPn_CTR at 1900H + 4n, IA32_PMC_GPn_CFG_A at 1901H + 4n and IA32_PMC_FXn_CTR at 1980H + 4n
/// are the registers at the older addresses.
#[test]
fn each_counter_has_its_registers_at_the_addresses_of_version_6_too() {
    let mut pmu = of_intel(PLAIN);
    for n in 0..8 {
        let (counter, select) = (0x1900 + 4 * n, 0x1901 + 4 * n);
        set(&mut pmu, counter, 0x8000_0000_0000 + u64::from(n));
        set(&mut pmu, select, 0x53_0000 + u64::from(n));
        assert_eq!(get(&pmu, 0xC1 + n), 0x8000_0000_0000 + u64::from(n));
        assert_eq!(get(&pmu, 0x4C1 + n), 0x8000_0000_0000 + u64::from(n));
        assert_eq!(get(&pmu, 0x186 + n), 0x53_0000 + u64::from(n));
        set(&mut pmu, 0xC1 + n, u64::from(n));
        set(&mut pmu, 0x186 + n, 0x43_0000 + u64::from(n));
    }
    for n in 0..4 {
        set(&mut pmu, 0x1980 + 4 * n, 0x8000_0000_0000 + u64::from(n));
        assert_eq!(get(&pmu, 0x309 + n), 0x8000_0000_0000 + u64::from(n));
        set(&mut pmu, 0x309 + n, u64::from(n));
    }
    for n in 0..8 {
        assert_eq!(get(&pmu, 0x1900 + 4 * n), u64::from(n));
        assert_eq!(get(&pmu, 0x1901 + 4 * n), 0x43_0000 + u64::from(n));
    }
    for n in 0..4 {
        assert_eq!(get(&pmu, 0x1980 + 4 * n), u64::from(n));
    }
}

/// Vol. 4: CFG_B (auto counter reload) and CFG_C (architectural PEBS) exist where leaf 23H has their
/// sub-leaves, a fixed counter has no CFG_A, and a counter that leaf 23H does not name has no register.
#[test]
fn no_other_register_of_version_6_exists() {
    let gaps = PLAIN.with(|intel| {
        intel.general = 0b101;
        intel.fixed = 0b1010;
    });
    for intel in [PLAIN, gaps] {
        let mut pmu = of_intel(intel);
        for address in 0x1900..0x19C0 {
            let (bank, n) = ((address - 0x1900) / 0x80, (address - 0x1900) % 0x80 / 4);
            let counters = if bank == 0 { intel.general } else { intel.fixed };
            let exists = u32::from(counters).checked_shr(n).unwrap_or(0) & 1 != 0;
            let registers = if bank == 0 { 0..2 } else { 0..1 };
            if exists && registers.contains(&(address % 4)) {
                set(&mut pmu, address, 0);
            } else {
                read_faults(&pmu, address);
                let written = pmu.write(address, 0);
                assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, u64::MAX));
            }
        }
        for address in [0x18FF, 0x19C0] {
            assert_eq!(pmu.read(address), Read::Unhandled);
        }
    }
    for intel in intel_matrix().filter(|intel| intel.version < 6) {
        let mut pmu = of_intel(intel);
        for address in 0x1900..0x19C0 {
            read_faults(&pmu, address);
            write_faults(&mut pmu, address, 0);
        }
    }
}

/// Vol. 4, IA32_PMC_GPn_CTR: in full width, whether or not IA32_PERF_CAPABILITIES[13] declares the older
/// full-width addresses. Bits beyond the width fault; of a fixed counter they are dropped, as at 309H.
#[test]
fn counters_are_written_in_full_width() {
    for full_width_writes in [false, true] {
        let intel = PLAIN.with(|intel| {
            intel.general_width = 40;
            intel.fixed_width = 40;
            intel.set(IntelFeature::FullWidthWrites, full_width_writes);
        });
        let mut pmu = of_intel(intel);
        set(&mut pmu, 0x1904, 0x80_0000_0001);
        assert_eq!(get(&pmu, 0x1904), 0x80_0000_0001);
        for bit in 40..64 {
            let written = pmu.write(0x1904, 1 << bit);
            assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << bit));
            let written = pmu.write(0x1984, 1 << bit | 7);
            assert_eq!((written.answer, written.illegal), (Write::Done, 1 << bit));
            assert_eq!(get(&pmu, 0x1984), 7);
        }
        assert_eq!(get(&pmu, 0x1904), 0x80_0000_0001);
    }
}

/// "IA32_PERFEVTSELx": UMASK2 (47:40), EQ (36) and RDPMC_USR_DISABLE (37), each where leaf 23H declares it, at
/// both addresses. Bits 33 + 4n of IA32_FIXED_CTR_CTRL likewise.
#[test]
fn the_controls_have_the_bits_that_leaf_23_declares() {
    for features in 0..8 {
        let [unit_mask_2, equal, rdpmc_user_disable] = [1, 2, 4].map(|bit| features & bit != 0);
        let mut pmu = of_intel(PLAIN.with(|intel| {
            intel.set(IntelFeature::UnitMask2, unit_mask_2);
            intel.set(IntelFeature::Equal, equal);
            intel.set(IntelFeature::RdpmcUserDisable, rdpmc_user_disable);
        }));
        let legal = 0xFFDF_FFFF
            | if unit_mask_2 { UNIT_MASK_2 } else { 0 }
            | if equal { EQ } else { 0 }
            | if rdpmc_user_disable { RDPMC_USER_DISABLE } else { 0 };
        for address in [0x187, 0x1905] {
            for bit in 0..64 {
                let written = pmu.write(address, 1 << bit);
                if legal >> bit & 1 == 0 {
                    let fault = (Write::GeneralProtection, 1 << bit);
                    assert_eq!((written.answer, written.illegal), fault, "{address:#X} {bit}");
                } else {
                    assert_eq!((written.answer, written.illegal), (Write::Done, 0));
                    assert_eq!(get(&pmu, address), 1 << bit);
                }
            }
        }
        for bit in 0..64 {
            let of_counter = match bit {
                0..16 => bit % 4 != 2,
                // Four counters.
                33 | 37 | 41 | 45 => rdpmc_user_disable,
                _ => false,
            };
            let written = pmu.write(0x38D, 1 << bit);
            assert_eq!(written.answer == Write::Done, of_counter, "{bit}");
            assert_eq!(written.illegal, if of_counter { 0 } else { 1 << bit });
        }
    }
}

/// Chapter "RDPMC User Disable" of the Instruction Set Extensions Programming Reference, and Linux's commit
/// 59af95e028d4: "(!CPL0 && RDPMC_USR_DISABLE[x] == 1) ? 0 : counter_value".
#[test]
fn a_counter_that_is_hidden_from_user_code_reads_0_there() {
    let mut pmu = of_intel(FULL);
    for n in 0..8 {
        set(&mut pmu, 0x1900 + 4 * n, 0x100 + u64::from(n));
    }
    for n in 0..4 {
        set(&mut pmu, 0x1980 + 4 * n, 0x200 + u64::from(n));
    }
    for hidden in 0..12u32 {
        let (general, fixed) = (hidden, hidden.checked_sub(8));
        match fixed {
            None => set(&mut pmu, 0x1901 + 4 * general, RDPMC_USER_DISABLE),
            Some(n) => set(&mut pmu, 0x38D, 1 << (33 + 4 * n)),
        }
        for n in 0..12 {
            let (ecx, value) =
                if n < 8 { (n, 0x100 + n) } else { (1 << 30 | (n - 8), 0x200 + n - 8) };
            for cpl in 0..4 {
                let shown = if n == hidden && cpl != 0 { 0 } else { u64::from(value) };
                assert_eq!(pmu.read_counter(ecx, Mode { cpl, ..USER }), Read::Value(shown));
                // Without CR4.PCE, RDPMC faults first.
                let denied = Mode { cpl, pce: false, protected: true };
                if cpl != 0 {
                    assert_eq!(pmu.read_counter(ecx, denied), Read::GeneralProtection);
                }
            }
            // Outside protected mode there are no privilege levels.
            let real = Mode { cpl: 0, pce: false, protected: false };
            assert_eq!(pmu.read_counter(ecx, real), Read::Value(value.into()));
        }
        match fixed {
            None => set(&mut pmu, 0x1901 + 4 * general, 0),
            Some(_) => set(&mut pmu, 0x38D, 0),
        }
    }
    // RDMSR reads the value, and a counter that does not exist faults all the same.
    set(&mut pmu, 0x186, RDPMC_USER_DISABLE);
    assert_eq!(get(&pmu, 0x1900), 0x100);
    set(&mut pmu, 0x38D, 1 << 33);
    assert_eq!(pmu.read_counter(1 << 30 | 4, USER), Read::GeneralProtection);
}

/// The same sections: the bit says who reads the counter, and not what or when it counts.
#[test]
fn a_hidden_counter_counts_and_interrupts_as_ever() {
    let mut pmu = of_intel(FULL);
    set(&mut pmu, 0x38F, 0xF_0000_00FF);
    set(&mut pmu, 0x1901, 0x53_003C | RDPMC_USER_DISABLE);
    set(&mut pmu, 0x1900, mask(48));
    let advanced = happen(&mut pmu, CYCLES, Privilege::Kernel, 1);
    assert_eq!((advanced.overflowed, advanced.pmi), (1, true));
    assert!(pmu.running().all(|event| event.key == CYCLES && event.fed));

    // The bits of fixed counters 0 to 3 are in the upper half, and enable nothing of counter 0 to 7.
    set(&mut pmu, 0x1901, 0);
    set(&mut pmu, 0x38D, 0x2222_0000_0000);
    assert_eq!(pmu.running().count(), 0);
    assert_eq!(get(&pmu, 0x392), 0, "IA32_PERF_GLOBAL_INUSE");
    set(&mut pmu, 0x38D, 0x2222_0000_B000);
    let running: Vec<_> = pmu.running().map(|event| (event.counter, event.key)).collect();
    assert_eq!(running, [(35, EventKey::fixed(3).unwrap())]);
    assert_eq!(get(&pmu, 0x392), 1 << 63 | 1 << 35);
    set(&mut pmu, 0x1901, RDPMC_USER_DISABLE | EQ | UNIT_MASK_2);
    assert_eq!(get(&pmu, 0x392), 1 << 63 | 1 << 35, "no event is selected");
}

/// "UnitMask2": another event.
#[test]
fn unit_mask_2_selects_an_event_of_its_own() {
    let plain = EventKey::general(0xD1, 0x01);
    let (mut pmu, events) = fed(&[plain, plain.with_unit_mask_2(0x80)]);
    assert_eq!(plain.with_unit_mask_2(0x80).with_unit_mask_2(0), plain);
    set(&mut pmu, 0x1901, 0x43_01D1);
    set(&mut pmu, 0x1905, 0x43_01D1 | 0x80 << 40);
    set(&mut pmu, 0x1909, 0x43_01D1 | 0x01 << 40);
    let mut feed = Feed::new(&events);
    feed.add(events.find(plain).unwrap(), Privilege::User, 3).unwrap();
    feed.add(events.find(plain.with_unit_mask_2(0x80)).unwrap(), Privilege::User, 5).unwrap();
    let _ = pmu.advance(&mut feed);
    assert_eq!([0x1900, 0x1904, 0x1908].map(|address| get(&pmu, address)), [3, 5, 0]);
    let unfed: Vec<_> = pmu.unfed().map(|event| (event.counter, event.key)).collect();
    assert_eq!(unfed, [(2, plain.with_unit_mask_2(1))]);
    let key = plain.with_unit_mask_2(0xA5);
    assert_eq!((key.event(), key.unit_mask(), key.unit_mask_2()), (0xD1, 0x01, 0xA5));
    assert_eq!(format!("{key:?}"), "event 0x0D1/0xA5_01");
}

/// "EQ": compares for equality with the counter mask, in place of at least. Like the other comparisons, that is
/// another quantity. INV is ignored where nothing is compared, and EQ compares with 0 too.
#[test]
fn equal_counts_only_what_is_fed_as_such() {
    let keys = [
        CYCLES,
        CYCLES.counter_mask(2, false),
        CYCLES.equal(2, false),
        CYCLES.equal(2, true),
        CYCLES.equal(0, false),
        CYCLES.equal(0, true),
    ];
    let (mut pmu, events) = fed(&keys);
    let selects = [
        0x43_003C,
        0x0243_003C,
        0x0243_003C | EQ,
        0x02C3_003C | EQ,
        0x43_003C | EQ,
        0xC3_003C | EQ,
    ];
    let mut feed = Feed::new(&events);
    for (n, (key, select)) in keys.into_iter().zip(selects).enumerate() {
        set(&mut pmu, 0x1901 + 4 * n as u32, select);
        feed.add(events.find(key).unwrap(), Privilege::User, 1 << n).unwrap();
    }
    let _ = pmu.advance(&mut feed);
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(get(&pmu, 0x1900 + 4 * n as u32), 1 << n, "{key:?}");
    }
    // Each comparison replaces the one before.
    assert_eq!(CYCLES.equal(2, true).counter_mask(0, true), CYCLES);
    assert_eq!(CYCLES.counter_mask(2, true).equal(3, false), CYCLES.equal(3, false));
    assert_eq!(format!("{:?}", CYCLES.equal(0, true)), "event 0x03C/0x00 inverted equal 0");
    assert_eq!(format!("{:?}", CYCLES.counter_mask(3, false)), "event 0x03C/0x00 threshold 3");
}

/// KVM's entries name no unit mask 2 (Documentation/virt/kvm/api.rst, 4.120): what is not listed as allowed is
/// not, and what is denied is denied with each.
#[test]
fn a_filter_speaks_of_no_unit_mask_2() {
    let entries = [FilterEntry::new(0x3C, 0)];
    let other = EventKey::general(0xC0, 0);
    let keys = [CYCLES, CYCLES.with_unit_mask_2(1), other, other.with_unit_mask_2(1)];
    let events = FedEvents::new(&keys).unwrap();
    for (action, counts) in [
        (FilterAction::Allow, [true, false, false, false]),
        (FilterAction::Deny, [false, false, true, true]),
    ] {
        let filter = EventFilter::<1>::compile(action, 0, &entries).unwrap();
        let mut pmu = VirtualPmu::with_policy(Configuration::Intel(FULL), events, &filter).unwrap();
        for (n, select) in
            [0x43_003C, 0x43_003C | 1 << 40, 0x43_00C0, 0x43_00C0 | 1 << 40].into_iter().enumerate()
        {
            assert_eq!(pmu.write(0x1901 + 4 * n as u32, select).answer, Write::Done);
        }
        let running: Vec<_> = pmu.running().map(|event| event.counter).collect();
        let expected: Vec<_> = (0..4).filter(|n| counts[usize::from(*n)]).collect();
        assert_eq!(running, expected, "{action:?}");
    }
}

/// A policy that was written before version 6.
#[test]
fn a_policy_that_does_not_speak_of_unit_mask_2_allows_none() {
    struct Old;
    impl EventPolicy for Old {
        fn allows_general(&self, _: u16, _: u8) -> bool {
            true
        }
        fn allows_fixed(&self, _: u8) -> bool {
            true
        }
    }
    let mut pmu = VirtualPmu::with_policy(Configuration::Intel(FULL), events(), Old).unwrap();
    let _ = pmu.write(0x1901, 0x43_003C);
    let _ = pmu.write(0x1905, 0x43_003C | 1 << 40);
    assert_eq!(pmu.running().map(|event| event.counter).collect::<Vec<_>>(), [0]);
    let allowed: Vec<_> = {
        let mut pmu = of_intel(FULL);
        set(&mut pmu, 0x1905, 0x43_003C | 1 << 40);
        pmu.running().map(|event| event.counter).collect()
    };
    assert_eq!(allowed, [1]);
}

#[test]
fn a_saved_state_has_the_bits_of_the_features() {
    let mut pmu = of_intel(FULL);
    let select = 0x43_003C | RDPMC_USER_DISABLE | EQ | UNIT_MASK_2;
    set(&mut pmu, 0x1901, select);
    set(&mut pmu, 0x38D, 0x2222_0000_0000);
    let state = pmu.state();
    assert_eq!((state.selects()[0], state.fixed_control()), (select, 0x2222_0000_0000));
    let back = VirtualPmu::restore(&state, Configuration::Intel(FULL), events()).unwrap();
    assert_eq!(back.state(), state);
    assert_eq!(back.read_counter(0, USER), Read::Value(0));

    let plain = Configuration::Intel(PLAIN);
    let mut forged = PmuState::new(plain).unwrap();
    let bits = RDPMC_USER_DISABLE | EQ | UNIT_MASK_2;
    let refused = forged.set_register(0x186, select);
    assert_eq!(refused, Err(StateError::Impossible { address: 0x186, bits }));
    let bits = 0x2222_0000_0000;
    let refused = forged.set_register(0x38D, bits);
    assert_eq!(refused, Err(StateError::Impossible { address: 0x38D, bits }));
}

/// The rules of version 4 on hold: the status freezes, and is set and reset by bit.
#[test]
fn counters_freeze_by_the_status() {
    let mut pmu = of_intel(FULL);
    assert_eq!(pmu.write(0x1D9, 1 << 12).answer, Write::Shared { mask: 0x7FC1 });
    set(&mut pmu, 0x1901, 0x53_003C);
    set(&mut pmu, 0x1900, mask(48));
    let mut span = feed(CYCLES, Privilege::User, 10);
    assert!(pmu.advance_through(&mut span).unwrap().pmi);
    assert_eq!((get(&pmu, 0x1900), get(&pmu, 0x38E)), (0, 1 << 59 | 1));
    set(&mut pmu, 0x390, 1 << 59 | 1);
    happen(&mut pmu, CYCLES, Privilege::User, 3);
    assert_eq!(get(&pmu, 0x1900), 3);
}
