//! Configurations, CPUID and registers; records beside other facilities, and beside real counters.

use super::guest::*;
use pmu_virt::branches::{BranchConfiguration, VirtualBranches};
use pmu_virt::configuration::{
    AmdConfiguration, Configuration, ConfigurationError, IntelConfiguration,
};
use pmu_virt::mediated::{GuestInterrupts, HostCounters, MediationError};
use pmu_virt::mock::MockMsr;
use pmu_virt::precise::{PreciseConfiguration, VirtualPrecise};
use pmu_virt::{FedEvents, GuestFacility, Read, VirtualPmu, Write};

/// SDM vol. 2A, CPUID; vol. 4, `IA32_MISC_ENABLE` and `IA32_PERF_CAPABILITIES`.
#[test]
fn records_are_declared_only_where_they_are_offered() {
    let declared = |version, precise: Option<PreciseConfiguration>, leaf, subleaf| {
        let configuration = intel(version);
        let precise = precise.map(|own| VirtualPrecise::new(&configuration, own).unwrap());
        let leaf = configuration.cpuid_leaf(leaf, subleaf).unwrap();
        precise.cpuid(leaf).apply([0; 4])
    };
    let store = Some(PreciseConfiguration::debug_store(4));
    let trace = Some(PreciseConfiguration::BRANCH_TRACE);
    let architectural = Some(PreciseConfiguration::ARCHITECTURAL);
    // ECX: 2 DTES64, 4 DS-CPL, 15 PDCM. EDX: 21 DS.
    for (version, own, c, d) in [
        (5, None, 1 << 15, 0),
        (5, store, 1 << 15 | 1 << 2, 1 << 21),
        (5, trace, 1 << 15 | 1 << 2 | 1 << 4, 1 << 21),
        (6, architectural, 1 << 15, 0),
    ] {
        assert_eq!(declared(version, own, 1, 0), [0, 0, c, d]);
    }
    assert_eq!(declared(6, None, 0x23, 0)[0], 0b00_1011);
    assert_eq!(declared(6, architectural, 0x23, 0)[0], 0b11_1011);
    assert_eq!(declared(6, None, 0x23, 4), [0; 4]);
    assert_eq!(declared(6, architectural, 0x23, 4), [0, 0x60E6_0378, 0, 0]);
    // Four general and three fixed counters; of each the first is exact.
    assert_eq!(declared(6, architectural, 0x23, 5), [0xF, 1, 7, 1]);
    let exact = PreciseConfiguration::ARCHITECTURAL.with_architectural(|records| {
        (records.general_exact, records.fixed_exact) = (0xFF, 0xFE);
    });
    assert_eq!(declared(6, Some(exact), 0x23, 5), [0xF, 0xF, 7, 6]);
    for (own, misc, capabilities) in [
        (None, 0x1880, 0x2000),
        (store, 0x880, 0x2000 | 0x4000 | 0x400 | 0xC0),
        (trace, 0x1080, 0x2000),
        (Some(PreciseConfiguration::debug_store(2)), 0x880, 0x2000 | 0x200 | 0xC0),
        (Some(PreciseConfiguration::debug_store(5)), 0x880, 0x2_0000 | 0x6000 | 0x500 | 0xC0),
    ] {
        let mut pmu = VirtualPmu::new(intel(5), FedEvents::NONE).unwrap();
        let mut precise = own.map(|own| VirtualPrecise::new(&intel(5), own).unwrap());
        let read = pmu.read_beside(&precise, 0x1A0);
        assert_eq!(read, Read::Shared { value: misc, mask: 0x1880 });
        assert_eq!(pmu.read_beside(&precise, 0x345), Read::Value(capabilities));
        // The guest can write back the value that it reads. It cannot make records available.
        let mut write = |value| pmu.write_beside(&mut precise, 0x1A0, value).answer;
        assert_eq!(write(misc), Write::Shared { mask: 0x1880 });
        for bit in [1 << 11, 1 << 12] {
            assert_eq!(write(misc ^ bit), Write::GeneralProtection);
        }
    }
}

/// Without records, each of their registers faults, and no feed stops for them.
#[test]
fn hidden_records_are_as_a_processor_without_them() {
    let mut pmu = VirtualPmu::new(intel(6), FedEvents::NONE).unwrap();
    let mut hidden: Option<VirtualPrecise> = None;
    let store = VirtualPrecise::new(&intel(6), PreciseConfiguration::debug_store(6)).unwrap();
    let architectural =
        VirtualPrecise::new(&intel(6), PreciseConfiguration::ARCHITECTURAL).unwrap();
    let own: Vec<u32> =
        store.registers().chain(architectural.registers()).map(|one| one.address).collect();
    assert_eq!(own.len(), 5 + 4 + 7);
    for address in own {
        assert_eq!(pmu.read_beside(&hidden, address), Read::GeneralProtection, "{address:#X}");
        let written = pmu.write_beside(&mut hidden, address, 0);
        assert_eq!(written.answer, Write::GeneralProtection, "{address:#X}");
        // The PMU's list has the address, for a hypervisor that intercepts it.
        let listed = intel(6).registers().find(|register| register.address == address);
        assert!(listed.is_some_and(|register| !register.exists), "{address:#X}");
    }
    for (address, value) in [(0x186, 1 << 34), (0x38D, 1 << 32), (0x1D9, 1 << 7), (0x391, 1 << 54)]
    {
        let written = pmu.write_beside(&mut hidden, address, value);
        assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, value));
    }
}

/// A guest on real counters: its records would be the host's.
#[test]
fn real_counters_have_no_precise_records() {
    let mut guest = Guest::new(intel(5), PreciseConfiguration::debug_store(4));
    let processor = MockMsr::<8>::strict(VirtualPmu::new(intel(5), FedEvents::NONE).unwrap());
    let host = HostCounters::new(intel(5)).unwrap();
    let interrupts = GuestInterrupts::new();
    let mut lent = host.stop(&processor).unwrap();
    guest.write(0x3F1, 1);
    processor.clear();
    let refused = host.load(&mut lent, &mut guest.pmu, &interrupts, &processor).map(|_| ());
    assert_eq!(refused, Err(MediationError::PreciseRecords));
    assert_eq!(processor.accesses().total(), 0);
    guest.write(0x3F1, 0);
    let loaded = host.load(&mut lent, &mut guest.pmu, &interrupts, &processor).unwrap();
    // Every register of the records, and each that they share with the PMU.
    let own = guest.precise.registers().map(|register| register.address);
    for address in own.chain([0x1A0, 0x1D9, 0x345, 0x186, 0x38D, 0x391, 0x3F4, 0x3F5, 0x1903]) {
        assert!(host.intercepts(&guest.pmu, address), "{address:#X}");
    }
    host.put(loaded, 0, &mut guest.pmu, &processor).map_err(|(_, error)| error).unwrap();
}

#[test]
fn a_configuration_that_no_processor_has_is_refused() {
    use ConfigurationError as E;
    let refused = |pmu: Configuration, own| VirtualPrecise::new(&pmu, own).unwrap_err();
    let store = PreciseConfiguration::debug_store;
    let amd = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    let first = Configuration::Intel(IntelConfiguration::new(1, 2, 0));
    assert_eq!(refused(amd, store(4)), E::OtherVendor);
    assert_eq!(
        refused(Configuration::hidden(pmu_virt::configuration::Vendor::Intel), store(4)),
        E::OtherVendor
    );
    assert_eq!(refused(first, store(0)), E::RecordVersion(1));
    assert_eq!(refused(intel(5), PreciseConfiguration::ARCHITECTURAL), E::RecordVersion(5));
    assert_eq!(refused(intel(5), store(7)), E::RecordFormat(7));
    let changed = |format, change: fn(&mut pmu_virt::precise::DebugStoreRecords)| {
        refused(intel(5), store(format).with_debug_store(change))
    };
    assert_eq!(changed(3, |records| records.baseline = true), E::RecordBaseline(3));
    assert_eq!(changed(2, |records| records.general = 0x1F), E::RecordCounters(0x1F));
    assert_eq!(changed(3, |records| records.fixed = 1), E::RecordCounters(1));
    assert_eq!(changed(5, |records| records.metrics = true), E::RecordMetrics(5));
    let groups =
        PreciseConfiguration::ARCHITECTURAL.with_architectural(|records| records.groups |= 1 << 31);
    assert_eq!(refused(intel(6), groups), E::RecordGroups(1 << 31));
}

/// A guest's branch records and precise records share IA32_DEBUGCTL, the status, the selects, IA32_PERF_CAPABILITIES.
#[test]
fn two_facilities_share_registers_bit_by_bit() {
    let configuration = intel(5);
    let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
    let mut own = PreciseConfiguration::debug_store(4);
    own.branch_trace = true;
    let mut both = (
        VirtualBranches::new(&configuration, BranchConfiguration::ARCHITECTURAL).unwrap(),
        VirtualPrecise::new(&configuration, own).unwrap(),
    );
    let pairs = [
        (0x345, None, 0x2000 | 0x3F | 0x44C0),
        (0x186, Some(1 << 35 | 1 << 34 | 0x43_00C4), 1 << 35 | 1 << 34 | 0x43_00C4),
        (0x1D9, Some(0x1FC0 & !0x2000), 0x1FC0),
        (0x391, Some(1 << 62 | 1 << 59 | 1 << 58 | 1), 0),
        (0x38E, None, 1 << 62 | 1 << 59 | 1 << 58 | 1),
    ];
    for (address, write, expected) in pairs {
        if let Some(value) = write {
            let written = pmu.write_beside(&mut both, address, value);
            assert_ne!(written.answer, Write::GeneralProtection, "{address:#X}");
            assert_eq!(written.illegal, 0, "{address:#X}");
        }
        let read = pmu.read_beside(&both, address);
        assert!(
            matches!(read, Read::Value(value) | Read::Shared { value, .. } if value == expected),
            "{address:#X}: {read:?}",
        );
    }
    // A bit that one of them refuses changes neither the other nor the PMU.
    let before = both;
    for (address, value) in [(0x1D9, 1 << 13 | 1 << 11), (0x186, 1 << 33), (0x391, 1 << 54)] {
        let written = pmu.write_beside(&mut both, address, value);
        assert_eq!(written.answer, Write::GeneralProtection, "{address:#X}");
    }
    assert_eq!(both, before);
    // The order of the two does not matter.
    let swapped = (before.1, before.0);
    for address in [0x345, 0x186, 0x1D9, 0x38E, 0x14CE, 0x600, 0x3F1, 0x3F4] {
        assert_eq!(pmu.read_beside(&swapped, address), pmu.read_beside(&both, address));
    }
}
