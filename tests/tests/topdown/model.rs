//! The software PMU's top-down metrics.

use pmu_tests::software_pmu::each_forged;
use pmu_virt::branches::VirtualBranches;
use pmu_virt::configuration::{Configuration, IntelConfiguration, Vendor};
use pmu_virt::topdown::{TopDownMix, VirtualTopDown};
use pmu_virt::{GuestFacility, Mode, Read, VirtualPmu, Write, Writer};

use crate::support::{BRANCHES, MIXES, SLOTS, events};

fn configuration() -> Configuration {
    Configuration::Intel(IntelConfiguration::new(5, 8, 4))
}

fn feed(slots: u64) -> pmu_virt::Feed {
    let mut feed = pmu_virt::Feed::new(&events());
    feed.add(events().find(SLOTS).unwrap(), pmu_virt::Privilege::User, slots).unwrap();
    feed
}

fn running(level_2: bool) -> (VirtualPmu, VirtualTopDown) {
    let mut pmu = VirtualPmu::new(configuration(), events()).unwrap();
    let mut metrics = VirtualTopDown::new(&configuration(), level_2).unwrap();
    for (register, value) in [(0x38D, 0b1011 << 12), (0x38F, 1 << 48 | 1 << 35)] {
        assert_eq!(pmu.write_beside(&mut metrics, register, value).answer, Write::Done);
    }
    (pmu, metrics)
}

#[test]
fn a_hidden_register_faults_and_so_does_its_rdpmc() {
    let pmu = VirtualPmu::new(configuration(), events()).unwrap();
    let mut hidden: Option<VirtualTopDown> = None;
    assert_eq!(pmu.read_beside(&hidden, 0x329), Read::GeneralProtection);
    assert_eq!(pmu.read_pmc_beside(&hidden, 1 << 29, Mode::KERNEL), Read::GeneralProtection);
    assert!(matches!(pmu.read_beside(&hidden, 0x345), Read::Value(bits) if bits >> 15 & 1 == 0));
    let mut pmu = pmu;
    let written = pmu.write_beside(&mut hidden, 0x38F, 1 << 48);
    assert_eq!((written.answer, written.illegal), (Write::GeneralProtection, 1 << 48));
    assert!(VirtualTopDown::new(&Configuration::hidden(Vendor::Intel), true).is_err());
    assert!(
        VirtualTopDown::new(&Configuration::Intel(IntelConfiguration::new(5, 8, 3)), true).is_err()
    );
}

/// SDM vol. 4: `MSR_PERF_METRICS`; its bits of the other registers, which are merged with the PMU's own.
#[test]
fn the_registers_are_there_and_hold_what_the_manual_allows() {
    for level_2 in [false, true] {
        let (mut pmu, mut metrics) = running(level_2);
        assert!(
            matches!(pmu.read_beside(&metrics, 0x345), Read::Value(bits) if bits >> 15 & 1 == 1)
        );
        assert_eq!(pmu.write_beside(&mut metrics, 0x345, 1 << 15).answer, Write::GeneralProtection);
        assert_eq!(pmu.read_beside(&metrics, 0x38F), Read::Value(1 << 48 | 1 << 35));
        let high = pmu.write_beside(&mut metrics, 0x329, 1 << 40);
        let answer = if level_2 { Write::Done } else { Write::GeneralProtection };
        assert_eq!(high.answer, answer);
        assert_eq!(pmu.write_beside(&mut metrics, 0x329, 0x1122_3344).answer, Write::Done);
        assert_eq!(pmu.read_beside(&metrics, 0x329), Read::Value(0x1122_3344));
        // The status is set and cleared by the write registers, which read 0.
        assert_eq!(pmu.write_beside(&mut metrics, 0x391, 1 << 48 | 1).answer, Write::Done);
        assert_eq!(pmu.read_beside(&metrics, 0x38E), Read::Value(1 << 48 | 1));
        assert_eq!(pmu.write_beside(&mut metrics, 0x390, 1).answer, Write::Done);
        assert_eq!(pmu.read_beside(&metrics, 0x38E), Read::Value(1 << 48));
        assert_eq!(pmu.write_beside(&mut metrics, 0x390, 1 << 48).answer, Write::Done);
        assert_eq!(pmu.read_beside(&metrics, 0x38E), Read::Value(0));
        assert_eq!(pmu.read_beside(&metrics, 0x390), Read::Value(0));
        // RDPMC in user mode needs CR4.PCE alone.
        let user = |pce| Mode { cpl: 3, pce, protected: true };
        assert_eq!(pmu.read_pmc_beside(&metrics, 1 << 29, user(true)), Read::Value(0x1122_3344));
        assert_eq!(pmu.read_pmc_beside(&metrics, 1 << 29, user(false)), Read::GeneralProtection);
        assert_eq!(pmu.read_pmc_beside(&metrics, 1 << 29 | 1, user(true)), Read::GeneralProtection);
    }
}

#[test]
fn the_fractions_are_of_the_slots_since_the_metrics_were_written() {
    let (mut pmu, mut metrics) = running(true);
    let pass = |pmu: &mut VirtualPmu, metrics: &mut VirtualTopDown, slots, mix| {
        metrics.observe(pmu, &mix, |pmu| pmu.advance(&mut feed(slots))).unwrap();
    };
    pass(&mut pmu, &mut metrics, 600, TopDownMix { shares: [255, 0, 0, 0, 0, 0, 0, 0] });
    pass(&mut pmu, &mut metrics, 200, TopDownMix { shares: [0, 0, 255, 0, 0, 0, 0, 0] });
    // Three quarters and a quarter, in 255ths: 191.25 and 63.75.
    assert_eq!(pmu.read_beside(&metrics, 0x329), Read::Value(191 | 64 << 16));
    for register in [0x30C, 0x329] {
        let _ = pmu.write_beside(&mut metrics, register, 0);
    }
    assert_eq!(pmu.read_beside(&metrics, 0x329), Read::Value(0));
    pass(&mut pmu, &mut metrics, 1, MIXES[2]);
    assert_eq!(pmu.read_beside(&metrics, 0x329), Read::Value(u64::from_le_bytes(MIXES[2].shares)));
    // Without its bit of the global control, nothing is divided.
    let _ = pmu.write_beside(&mut metrics, 0x38F, 1 << 35);
    pass(&mut pmu, &mut metrics, 1_000_000, MIXES[0]);
    assert_eq!(pmu.read_beside(&metrics, 0x329), Read::Value(u64::from_le_bytes(MIXES[2].shares)));
}

/// Saved and restored register by register, the fractions are of the slots in the slots' counter.
#[test]
fn a_restored_processor_counts_on_with_the_same_fractions() {
    let (mut pmu, mut metrics) = running(true);
    metrics.observe(&mut pmu, &MIXES[1], |pmu| pmu.advance(&mut feed(255_000))).unwrap();
    let mut copy = VirtualPmu::new(configuration(), events()).unwrap();
    let mut copied = VirtualTopDown::new(&configuration(), true).unwrap();
    let registers = configuration().registers().filter(|register| register.is_state);
    let own: Vec<_> = metrics.registers().filter(|register| register.is_state).collect();
    assert_eq!(own.len(), 1);
    for register in registers.chain(own) {
        if let Read::Value(value) | Read::Shared { value, .. } =
            pmu.read_beside(&metrics, register.address)
        {
            let written = copy.host_write_beside(&mut copied, register.address, value);
            assert!(matches!(written.answer, Write::Done | Write::Shared { .. }), "{register:?}");
        }
    }
    for (pmu, metrics) in [(&mut pmu, &mut metrics), (&mut copy, &mut copied)] {
        metrics.observe(pmu, &MIXES[3], |pmu| pmu.advance(&mut feed(255_000))).unwrap();
    }
    assert_eq!(copied.metrics(), metrics.metrics());
    assert_eq!(copied.metrics() as u8, 63); // (40 + 85) / 2, rounded up
    metrics.reset();
    assert_eq!(metrics, VirtualTopDown::new(&configuration(), true).unwrap());
}

/// Beside branch records, which share the capabilities and the status.
#[test]
fn metrics_and_branch_records_share_registers() {
    use pmu_virt::branches::BranchConfiguration;
    let (mut pmu, metrics) = running(true);
    let branches =
        VirtualBranches::new(&configuration(), BranchConfiguration::Legacy { format: 5 });
    let mut both = (branches.unwrap(), metrics);
    let capabilities = pmu.read_beside(&both, 0x345);
    assert!(
        matches!(capabilities, Read::Value(bits) if bits & 0x803F == 0x8005),
        "{capabilities:?}"
    );
    let _ = both.0.write(Writer::Host, 0x38E, 1 << 58);
    let _ = both.1.write(Writer::Host, 0x38E, 1 << 48);
    assert_eq!(pmu.read_beside(&both, 0x38E), Read::Value(1 << 58 | 1 << 48));
    assert_eq!(pmu.write_beside(&mut both, 0x390, 1 << 58 | 1 << 48).answer, Write::Done);
    assert_eq!(pmu.read_beside(&both, 0x38E), Read::Value(0));
}

/// The slots' counter and the metrics overflow together, and interrupt once.
#[test]
fn a_wrap_sets_both_bits_and_interrupts_once() {
    let (mut pmu, mut metrics) = running(true);
    let mut slots = feed((1 << 48) + 10);
    let advanced = metrics.observe(&mut pmu, &MIXES[1], |pmu| pmu.advance(&mut slots)).unwrap();
    assert!(advanced.pmi && advanced.overflowed == 1 << 35 && !slots.is_empty());
    assert_eq!(pmu.read_beside(&metrics, 0x38E), Read::Value(1 << 48 | 1 << 35));
    assert_eq!(metrics.metrics(), u64::from_le_bytes(MIXES[1].shares));
}

/// Overflows reload the slots' counter, whose value then is lower: the slots are counted all the same.
#[test]
fn slots_of_a_counter_that_is_reloaded_are_counted_once() {
    use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
    let configuration = Configuration::Intel(IntelConfiguration::new(6, 8, 4));
    for (reloaded_by, value) in [(1 << 35, 0xFFFF_FF00), (1, 0x8000_0000), (1, 0xFFFF_FFFF)] {
        let mut pmu = VirtualPmu::new(configuration, events()).unwrap();
        let metrics = VirtualTopDown::new(&configuration, true).unwrap();
        let reload =
            VirtualReload::new(&configuration, ReloadConfiguration::of(0xFF, 0xF)).unwrap();
        let mut both = (metrics, reload);
        for (register, value) in [
            (0x38D, 0b0011 << 12),
            (0x198E, reloaded_by),
            (0x198F, value),
            (0x1902, 1),
            (0x1903, 0xFFFF_FFF6),
            (0x1900, (1 << 48) - 10),
            (0x1901, 0x43_00C4),
            (0x30C, (1 << 48) - 5),
            (0x329, 0),
            (0x38F, 1 << 48 | 1 << 35 | 1),
        ] {
            let written = pmu.write_beside(&mut both, register, value);
            assert_eq!(written.answer, Write::Done, "{register:#x}");
        }
        let (metrics, reload) = &mut both;
        for mix in [MIXES[1], MIXES[3]] {
            let mut feed = feed(600);
            feed.add(events().find(BRANCHES).unwrap(), pmu_virt::Privilege::User, 60).unwrap();
            reload
                .advance_by(&mut pmu, &mut feed, |pmu, feed| {
                    metrics.observe(pmu, &mix, |pmu| pmu.advance(feed))
                })
                .unwrap();
            assert!(feed.is_empty());
        }
        // The mean of both mixes.
        let mean = MIXES[1].shares.into_iter().zip(MIXES[3].shares);
        let mean = mean.map(|(one, other)| (u16::from(one) + u16::from(other)).div_ceil(2) as u8);
        assert!(mean.eq(metrics.metrics().to_le_bytes()), "{reloaded_by:#x}, {value:#x}");
    }
}

/// Bytes of a state with each byte changed are refused, or written as they were read.
#[test]
fn bytes_are_read_as_they_were_written_and_forged_ones_are_refused() {
    for level_2 in [false, true] {
        let (mut pmu, mut metrics) = running(level_2);
        metrics.observe(&mut pmu, &MIXES[1], |pmu| pmu.advance(&mut feed(12_345))).unwrap();
        let bytes = metrics.to_bytes();
        let new = || VirtualTopDown::new(&configuration(), level_2).unwrap();
        let mut copy = new();
        copy.restore(&bytes).unwrap();
        assert_eq!((copy, &bytes[..4], bytes[6]), (metrics, &b"vTDM"[..], level_2.into()));
        assert_eq!(u64::from_le_bytes(bytes[16..24].try_into().unwrap()), 12_345);
        each_forged(&bytes, |forged| {
            let mut restored = new();
            let refused = restored.restore(forged).is_err();
            assert!(!refused || restored == new(), "{forged:?}");
            (!refused).then(|| restored.to_bytes().to_vec())
        });
        assert!(new().restore(&bytes[1..]).is_err());
    }
}
