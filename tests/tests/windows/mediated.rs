//! Guests on real counters, which the mock plays: what is loaded, what is put back, and what is refused.

use super::machine::*;
use pmu_core::CounterSet;
use pmu_core::lending::LentCounters;
use pmu_tests::software_pmu;
use pmu_virt::configuration::{
    AmdConfiguration, Configuration, IntelConfiguration, IntelFeature, Vendor,
};
use pmu_virt::mediated::{GuestInterrupts, HostCounters, MediationError};
use pmu_virt::policy::{EventFilter, FilterAction, FilterEntry};
use pmu_virt::{FedEvents, VirtualPmu, Write};

/// After a guest no counter is armed: a host that enables all of them counts nothing.
#[test]
fn a_guest_leaves_nothing_armed() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        if machine.vendor == Vendor::Intel {
            assert_eq!(machine.guest.write(0x38D, 0xBBB).answer, Write::Done);
        }
        machine.enter();
        machine.happen(99, 33, true);
        machine.leave();
        let control = if machine.vendor == Vendor::Intel { GLOBAL_CONTROL } else { 0xC000_0301 };
        machine.mock.with_pmu(|pmu| {
            assert_eq!(pmu.write(control, 0xF).answer, Write::Done);
            assert_eq!(pmu.running().count(), 0, "{host:?}");
        });
    }
}

/// Another guest, of the same PMU or a copy, neither gets the loaded state nor writes to the counters.
#[test]
fn what_is_loaded_is_put_back_into_its_own_guest() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        machine.enter();
        machine.happen(50, 50, true);
        let saved = machine.saved();
        let mut loaded = machine.loaded.take().unwrap();
        let of_same_kind = VirtualPmu::new(given, events()).unwrap();
        for mut other in [of_same_kind, machine.guest.clone()] {
            let before = other.state();
            let (Machine { counters, mock, .. }, no) = (&machine, MediationError::NotTheLoaded);
            let select = if machine.vendor == Vendor::Intel { 0x186 } else { 0xC001_0200 };
            assert_eq!(counters.write(&mut loaded, &mut other, select, 0, mock), Err(no));
            assert_eq!(counters.read(&loaded, &other, select, mock), Err(no));
            assert_eq!(
                counters.read_counter(&loaded, &other, 0, software_pmu::KERNEL, mock),
                Err(no)
            );
            let (again, error) = counters.put(loaded, saved, &mut other, mock).unwrap_err();
            assert_eq!((error, other.state()), (no, before), "{host:?}");
            loaded = again;
        }
        machine.set_global_control(0);
        let put = machine.counters.put(loaded, saved, &mut machine.guest, &machine.mock);
        assert!(!put.unwrap().interrupt_is_coming);
        let counter = if machine.vendor == Vendor::Intel { 0x4C1 } else { 0xC001_0201 };
        let value = software_pmu::get(&machine.guest, counter);
        assert_eq!(value, (1 << 48) - 50, "{host:?}: nothing was lost");
    }
}

/// The policy forbids the event by now, or the guest was reset: the counter stayed armed.
#[test]
fn a_put_disarms_what_was_loaded_and_not_what_the_guest_has_then() {
    let filter =
        |action, entries: &[FilterEntry]| EventFilter::<2>::compile(action, 0, entries).unwrap();
    for (host, given) in pairs() {
        for resets in [false, true] {
            let mut machine = Machine::new(host, given);
            let allow = filter(FilterAction::Deny, &[]);
            let mut guest = VirtualPmu::with_policy(given, events(), allow).unwrap();
            let intel = machine.vendor == Vendor::Intel;
            let (select, counter) = if intel { (0x186, 0x4C1) } else { (0xC001_0200, 0xC001_0201) };
            assert_eq!(guest.write(select, 0x53_003C).answer, Write::Done);
            if intel {
                assert_eq!(guest.write(0x38D, 0x33).answer, Write::Done);
            }
            let loaded = machine.counters.load(lent(), &mut guest, machine.cell, &machine.mock);
            let loaded = loaded.unwrap();
            machine.set_global_control(loaded.global_control());
            machine.happen(40, 40, true);
            let saved = machine.saved();
            machine.set_global_control(0);
            if resets {
                guest.reset();
            } else {
                guest.set_policy(filter(FilterAction::Allow, &[]));
            }
            let put = machine.counters.put(loaded, saved, &mut guest, &machine.mock);
            assert!(!put.unwrap().interrupt_is_coming);
            assert_eq!(left_over(&machine), 0, "{host:?}, {resets}");
            // A guest that was reset has no count from before.
            let counted = pmu_virt::Read::Value(if resets { 0 } else { 40 });
            let value = guest.read(counter);
            assert_eq!(value, counted, "{host:?}, {resets}");
        }
    }
}

/// RDPMC of the host's user mode, or of the next guest's before it is loaded, finds nothing of a guest's.
#[test]
fn no_value_of_a_guests_stays_in_a_counter() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        machine.enter();
        machine.happen(99, 33, true);
        assert_ne!(left_over(&machine), 0);
        machine.leave();
        assert_eq!(left_over(&machine), 0, "{host:?}");
    }
}

/// The guest's counters are those that the session lent, and no others.
#[test]
fn counters_that_were_not_lent_are_not_loaded() {
    for (host, given) in pairs() {
        let mut machine = busy(host, given);
        let mut general = LentCounters::unowned(CounterSet::from_bits(0b11), 0);
        machine.mock.clear();
        let load =
            machine.counters.load(&mut general, &mut machine.guest, machine.cell, &machine.mock);
        let Err(MediationError::NotLent(missing)) = load.map(|_| ()) else { panic!("{host:?}") };
        assert!(!missing.is_empty() && (missing & CounterSet::from_bits(0b11)).is_empty());
        assert_eq!(machine.mock.accesses().total(), 0);
        general.add_unowned(missing);
        let load =
            machine.counters.load(&mut general, &mut machine.guest, machine.cell, &machine.mock);
        assert!(load.is_ok(), "{host:?}");
    }
}

/// A processor with ten general counters, and one with PERF_METRICS: no guest gets at what is not offered.
#[test]
fn a_processor_with_more_than_is_offered_has_more_intercepted() {
    let leaf = |general: u32, leaf: u32| match leaf {
        0 => [0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
        0x0A => [0x0730_0005 | general << 8, 0, 0b111, 48 << 5],
        _ => [0; 4],
    };
    let metrics = 1 << 15;
    for (general, capabilities, has_more) in
        [(8, 1 << 13, false), (10, 1 << 13, true), (8, 1 << 13 | metrics, true)]
    {
        let counters = HostCounters::from_cpuid(|of, _| leaf(general, of), capabilities).unwrap();
        let expected = IntelConfiguration::new(5, 8, 3)
            .with(|intel| intel.set(IntelFeature::AnyThread, false));
        assert_eq!(counters.guest(), Configuration::Intel(expected));
        let mut guest = VirtualPmu::new(counters.guest(), events()).unwrap();
        assert_eq!(counters.intercepts_rdpmc(), has_more, "{general}");
        for register in [0x38F, 0x38E, 0x390] {
            assert_eq!(counters.intercepts(&guest, register), has_more, "{general}, {register:#X}");
        }
        for register in [0x186, 0x38D, 0x391, 0x392, 0x1D9, 0x329, 0x10, 0xC9, 0x345] {
            assert!(counters.intercepts(&guest, register), "{register:#X}");
        }
        assert!(!counters.intercepts(&guest, 0xC8) && !counters.intercepts(&guest, 0x4C1));
        let mock = processor(counters.guest());
        let loaded = counters.load(lent(), &mut guest, Box::leak(Box::default()), &mock).unwrap();
        let pmc =
            |ecx| counters.read_counter(&loaded, &guest, ecx, software_pmu::KERNEL, &mock).unwrap();
        assert_eq!([8, 0x2000_0000].map(pmc), [pmu_virt::Read::GeneralProtection; 2]);
        assert_eq!(pmc(7), pmu_virt::Read::Value(0));
    }
    // A configuration does not tell of PERF_METRICS.
    let unknown = HostCounters::new(Configuration::Intel(IntelConfiguration::new(5, 8, 3)));
    assert!(unknown.unwrap().intercepts_rdpmc());
    let amd = |leaf: u32, _: u32| match leaf {
        0 => [0x10, 0x6874_7541, 0x444D_4163, 0x6974_6E65],
        0x8000_0000 => [0x8000_0028, 0, 0, 0],
        0x8000_0001 => [0, 0, 1 << 23 | 1 << 2, 0],
        0x8000_0022 => [1, 12, 0, 0],
        _ => [0; 4],
    };
    let counters = HostCounters::from_cpuid(amd, 0).unwrap();
    assert_eq!(counters.guest(), Configuration::Amd(AmdConfiguration::perf_mon_v2(8)));
    assert!(counters.intercepts_rdpmc());
}

/// The accesses that the documentation of `load` and `put` promises.
#[test]
fn a_guest_comes_and_goes_in_few_accesses() {
    let counts = |host: Configuration, given: Configuration| {
        let mut machine = busy(host, given);
        machine.mock.clear();
        machine.enter();
        let inside = machine.mock.accesses();
        machine.happen(50, 50, true);
        machine.mock.clear();
        machine.leave();
        let out = machine.mock.accesses();
        [inside.reads, inside.writes, inside.pmc_reads, out.reads, out.writes, out.pmc_reads]
    };
    let intel = |version, general, fixed| {
        Configuration::Intel(IntelConfiguration::new(version, general, fixed))
    };
    // 4 counters, 4 selects, 3 fixed counters and their control; the status read, nothing in it. Two selects are
    // enabled, and their counters are not 0.
    assert_eq!(counts(intel(4, 4, 3), intel(4, 4, 3)), [1, 12, 0, 1, 4, 7]);
    let amd = |counters, guest_host| {
        let mut amd = AmdConfiguration::perf_mon_v2(counters);
        amd.guest_host = guest_host;
        Configuration::Amd(amd)
    };
    // The global control is started last, and stopped first.
    assert_eq!(counts(amd(6, true), amd(6, false)), [1, 13, 0, 2, 5, 6]);
}

#[test]
fn hosts_and_guests_that_do_not_fit_are_refused() {
    let refused = |host| HostCounters::new(host).map(|_| ()).unwrap_err();
    let intel = |version| IntelConfiguration::new(version, 4, if version > 1 { 3 } else { 0 });
    for version in 1..4 {
        assert_eq!(refused(Configuration::Intel(intel(version))), MediationError::NoStatusSet);
    }
    let narrow = intel(4).with(|intel| intel.set(IntelFeature::FullWidthWrites, false));
    assert_eq!(refused(Configuration::Intel(narrow)), MediationError::NoFullWidthWrites);
    for mut amd in [AmdConfiguration::LEGACY, AmdConfiguration::CORE_EXTENSION] {
        amd.guest_host = true;
        assert_eq!(refused(Configuration::Amd(amd)), MediationError::NoStatusSet);
    }
    let without = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    assert_eq!(refused(without), MediationError::NoGuestOnly);
    let hidden = Configuration::hidden(Vendor::Intel);
    assert_eq!(refused(hidden), MediationError::NoStatusSet);
    let impossible = Configuration::Intel(IntelConfiguration::new(9, 4, 3));
    assert!(matches!(refused(impossible), MediationError::Configuration(_)));

    let host = Configuration::Intel(IntelConfiguration::new(5, 4, 3));
    let counters = HostCounters::new(host).unwrap();
    let mock = processor(host);
    let mut guests = vec![hidden, Configuration::Amd(AmdConfiguration::perf_mon_v2(4))];
    guests.extend(
        [
            IntelConfiguration::new(5, 8, 3),
            IntelConfiguration::new(5, 3, 3),
            IntelConfiguration::new(5, 4, 4),
            IntelConfiguration::new(5, 4, 2),
            IntelConfiguration::new(2, 4, 3),
            intel(5).with(|intel| intel.general_width = 40),
            intel(5).with(|intel| intel.fixed_width = 40),
            intel(5).with(|intel| intel.set(IntelFeature::AnyThread, true)),
            IntelConfiguration::new(6, 4, 3),
        ]
        .map(Configuration::Intel),
    );
    for guest in guests {
        let mut pmu = VirtualPmu::new(guest, FedEvents::NONE).unwrap();
        let interrupts = GuestInterrupts::new();
        let refused = counters.load(lent(), &mut pmu, &interrupts, &mock).map(|_| ()).unwrap_err();
        assert_eq!(refused, MediationError::NotTheHosts, "{guest:?}");
    }
    assert_eq!(mock.accesses().reads + mock.accesses().writes, 0, "nothing was touched");
}

/// An event that the hypervisor's policy forbids is not enabled on the real counter.
#[test]
fn a_forbidden_event_does_not_count_on_a_real_counter() {
    let configuration = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    let entries = [FilterEntry::new(0x3C, 0)];
    let filter = EventFilter::<1>::compile(FilterAction::Deny, 0b10, &entries).unwrap();
    let mut guest = VirtualPmu::with_policy(configuration, events(), filter).unwrap();
    for (address, value) in [(0x186, 0x43_003C), (0x187, 0x43_00C0), (0x38D, 0x33)] {
        assert_eq!(guest.write(address, value).answer, Write::Done);
    }
    let counters = HostCounters::new(configuration).unwrap();
    let mock = processor(configuration);
    let interrupts = GuestInterrupts::new();
    let mut loaded = counters.load(lent(), &mut guest, &interrupts, &mock).unwrap();
    let found = |address| mock.with_pmu(|pmu| software_pmu::get(pmu, address));
    assert_eq!([0x186, 0x187, 0x38D].map(found), [0x03_003C, 0x43_00C0, 0x03]);
    let written = counters.write(&mut loaded, &mut guest, 0x188, 0x53_003C, &mock);
    assert_eq!(written, Ok(Write::Done));
    assert_eq!(found(0x188), 0x13_003C);
    let seen = guest.read(0x188);
    assert_eq!(seen, pmu_virt::Read::Value(0x53_003C), "the guest sees what it wrote");
    // Of what is in use, too: three selects and two fixed counters, an interrupt enabled.
    assert_eq!(found(0x392) >> 32 & 0b11, 0b01, "the real one");
    let in_use = counters.read(&loaded, &guest, 0x392, &mock);
    assert_eq!(in_use, Ok(pmu_virt::Read::Value(1 << 63 | 0b11 << 32 | 0b111)));
}

#[test]
fn a_host_with_any_thread_offers_its_counters_without_it() {
    let plain = IntelConfiguration::new(4, 8, 3);
    let host = plain.with(|intel| intel.set(IntelFeature::AnyThread, true));
    let counters = HostCounters::new(Configuration::Intel(host)).unwrap();
    assert_eq!(counters.guest(), Configuration::Intel(plain));
}
