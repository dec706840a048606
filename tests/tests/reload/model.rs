//! The software PMU's counter reload.

use pmu_tests::software_pmu::each_forged;
use pmu_virt::configuration::{Configuration, ConfigurationError, IntelConfiguration};
use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
use pmu_virt::{
    EventKey, FedEvents, Feed, GuestFacility, Privilege, Read, VirtualPmu, Write, Writer,
};

const A: EventKey = EventKey::general(0xC5, 0);
const B: EventKey = EventKey::general(0xC4, 0);

fn configuration() -> Configuration {
    Configuration::Intel(IntelConfiguration::new(6, 8, 4))
}

fn pmu() -> (VirtualPmu, VirtualReload) {
    let events = FedEvents::new(&[A, B]).unwrap();
    let reload = VirtualReload::new(&configuration(), ReloadConfiguration::of(0x0F, 0b11)).unwrap();
    (VirtualPmu::new(configuration(), events).unwrap(), reload)
}

#[test]
fn hidden_registers_fault_and_the_leaf_is_zero() {
    let (mut pmu, _) = pmu();
    let mut hidden: Option<VirtualReload> = None;
    for register in [0x1902, 0x1903, 0x1982, 0x1983] {
        assert_eq!(pmu.read_beside(&hidden, register), Read::GeneralProtection);
        assert_eq!(pmu.write_beside(&mut hidden, register, 0).answer, Write::GeneralProtection);
    }
    let leaf = |subleaf| configuration().cpuid_leaf(0x23, subleaf).unwrap();
    assert_eq!(hidden.cpuid(leaf(2)).apply([7; 4]), [0; 4]);
    assert_eq!(hidden.cpuid(leaf(0)).apply([7; 4])[0] >> 2 & 1, 0);
}

#[test]
fn the_leaf_and_the_registers_are_those_of_the_configuration() {
    let (mut pmu, mut reload) = pmu();
    let leaf = |subleaf| configuration().cpuid_leaf(0x23, subleaf).unwrap();
    assert_eq!(reload.cpuid(leaf(2)).apply([9; 4]), [0x0F, 0b11, 0x0F, 0b11]);
    assert_eq!(reload.cpuid(leaf(0)).apply([0; 4])[0], 0b1111);
    assert_eq!(reload.registers().count(), 2 * (4 + 2));
    for register in [0x1902, 0x190E, 0x1982, 0x1986] {
        // A bit for each counter that can reload others.
        let all = 0b11 << 32 | 0x0F;
        assert_eq!(pmu.write_beside(&mut reload, register, all).answer, Write::Done);
        assert_eq!(pmu.read_beside(&reload, register), Read::Value(all));
        let written = pmu.write_beside(&mut reload, register, 1 << 4);
        assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << 4));
        let value = register + 1;
        assert_eq!(pmu.write_beside(&mut reload, value, 0xFFFF_FFFF).answer, Write::Done);
        assert_eq!(pmu.read_beside(&reload, value), Read::Value(0xFFFF_FFFF));
        assert_eq!(pmu.write_beside(&mut reload, value, 1 << 63).answer, Write::GeneralProtection);
    }
    for absent in [0x1912, 0x198A, 0x1916] {
        assert_eq!(pmu.read_beside(&reload, absent), Read::GeneralProtection, "{absent:#x}");
    }
    let mut copy = VirtualReload::new(&configuration(), reload.configuration()).unwrap();
    for register in reload.registers().filter(|register| register.is_state) {
        let Read::Value(value) = reload.read(register.address) else { panic!("a value") };
        assert_eq!(copy.write(Writer::Host, register.address, value).answer, Write::Done);
    }
    assert_eq!(copy, reload);
    reload.reset();
    assert_ne!(copy, reload);
}

#[test]
fn impossible_configurations_are_refused() {
    let of = |intel, reload| VirtualReload::new(&Configuration::Intel(intel), reload).map(|_| ());
    let five = of(IntelConfiguration::new(5, 8, 4), ReloadConfiguration::of(1, 0));
    assert_eq!(five, Err(ConfigurationError::ReloadVersion));
    let many = of(IntelConfiguration::new(6, 4, 4), ReloadConfiguration::of(0x1F, 0));
    assert_eq!(many, Err(ConfigurationError::ReloadCounters));
}

/// Counter 0 counts A with an interrupt, and is reloaded by counter 1, which counts B and reloads itself.
#[test]
fn an_overflow_reloads_and_a_counter_that_reloads_itself_has_no_status_bit() {
    for silent in [true, false] {
        let (mut pmu, mut reload) = pmu();
        let minus = |period: u32| u64::from(period.wrapping_neg());
        let b = if silent { 0x43_00C4 } else { 0x53_00C4 };
        for (register, value) in [
            (0x1903, minus(100)),
            (0x1902, 0b10),
            (0x1907, minus(1_000)),
            (0x1906, 0b10),
            (0x1900, (1 << 48) - 100),
            (0x1904, (1 << 48) - 1_000),
            (0x1901, 0x53_00C5),
            (0x1905, b),
        ] {
            assert_eq!(pmu.write_beside(&mut reload, register, value).answer, Write::Done);
        }
        let events = FedEvents::new(&[A, B]).unwrap();
        let pass = |pmu: &mut VirtualPmu, a, b| {
            let mut feed = Feed::new(&events);
            feed.add(events.find(A).unwrap(), Privilege::User, a).unwrap();
            feed.add(events.find(B).unwrap(), Privilege::User, b).unwrap();
            let advanced = reload.advance(pmu, &mut feed).unwrap();
            (advanced.pmi, feed.is_empty())
        };
        // 60 of A within 1,000 of B, twice: A's period begins anew in between.
        assert_eq!(pass(&mut pmu, 60, 600), (false, true));
        let overflowed = pass(&mut pmu, 0, 400);
        assert_eq!(overflowed, (!silent, true));
        assert_eq!(pmu.read(0x38E), Read::Value(0), "no status bit");
        assert_eq!(pmu.read(0x1900), Read::Value((1 << 48) - 100));
        assert_eq!(pmu.read(0x1904), Read::Value((1 << 48) - 1_000));
        assert_eq!(pass(&mut pmu, 60, 600), (false, true));
        // 100 within one stretch: A overflows and interrupts.
        assert_eq!(pass(&mut pmu, 40, 0), (true, true));
        assert_eq!(pmu.read(0x38E), Read::Value(1));
    }
}

/// A guest that chooses a period of 1 does not hold up the host.
#[test]
fn a_call_ends_whatever_period_the_guest_chooses() {
    let (mut pmu, mut reload) = pmu();
    for (register, value) in
        [(0x1903, 0xFFFF_FFFF), (0x1902, 1), (0x1900, (1 << 48) - 1), (0x1901, 0x43_00C5)]
    {
        let _ = pmu.write_beside(&mut reload, register, value);
    }
    let events = FedEvents::new(&[A, B]).unwrap();
    let mut feed = Feed::new(&events);
    feed.add(events.find(A).unwrap(), Privilege::User, 1 << 40).unwrap();
    reload.advance(&mut pmu, &mut feed).unwrap();
    assert!(feed.is_empty());
}

/// Bytes of a state with each byte changed are refused, or written as they were read.
#[test]
fn bytes_are_read_as_they_were_written_and_forged_ones_are_refused() {
    let (mut pmu, mut reload) = pmu();
    for (register, value) in
        [(0x1902, 0b101), (0x1903, 0xFFFF_FF00), (0x1986, 1 << 33), (0x1987, 7)]
    {
        assert_eq!(pmu.write_beside(&mut reload, register, value).answer, Write::Done);
    }
    let bytes = reload.to_bytes();
    let new = || VirtualReload::new(&configuration(), reload.configuration()).unwrap();
    let mut copy = new();
    copy.restore(&bytes).unwrap();
    assert_eq!((copy, &bytes[..4], bytes[16]), (reload, &b"vACR"[..], 0b101));
    each_forged(&bytes, |forged| {
        let mut restored = new();
        let refused = restored.restore(forged).is_err();
        assert!(!refused || restored == new(), "{forged:?}");
        (!refused).then(|| restored.to_bytes().to_vec())
    });
    assert!(new().restore(&bytes[1..]).is_err());
}
