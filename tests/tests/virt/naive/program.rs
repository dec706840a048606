//! Random programs, on both models.

use super::*;

/// One step of a program: four words, any of which are valid.
pub(crate) type Step = (u8, u8, u32, u64);

/// Returns a valid configuration from any words.
pub(crate) fn configuration(words: [u8; 4]) -> Configuration {
    let [kind, version, counters, flags] = words;
    let amd = |amd: AmdConfiguration| {
        let mut amd = amd;
        amd.guest_host = flags & 1 != 0;
        Configuration::Amd(amd)
    };
    match kind % 8 {
        0 => {
            let vendor = if flags & 1 == 0 { Vendor::Intel } else { Vendor::Amd };
            let mut hidden = HiddenConfiguration::new(vendor);
            if flags & 2 != 0 {
                hidden.registers = HiddenRegisters::Kvm;
            }
            if flags & 4 != 0 {
                hidden.rdpmc = HiddenRdpmc::Zero;
            }
            Configuration::Hidden(hidden)
        }
        1 => amd(AmdConfiguration::LEGACY),
        2 => amd(AmdConfiguration::CORE_EXTENSION),
        3 => amd(AmdConfiguration::perf_mon_v2(4 + counters % 5)),
        _ => {
            let (version, features) = (1 + version % 6, version >> 5);
            let fixed = if version == 1 { 0 } else { (counters >> 3) % 9 };
            let widths = [32, 40, 48, 63, 64];
            let mut intel =
                IntelConfiguration::new(version, 1 + counters % 8, fixed).with(|intel| {
                    intel.general_width = widths[usize::from(flags >> 2) % 5];
                    intel.fixed_width = widths[usize::from(flags >> 4) % 5];
                });
            // Every feature of the table, so that none is forgotten.
            for (bit, feature) in (0..).zip(IntelFeature::ALL) {
                let chosen = (flags ^ features.rotate_left(3)) >> (bit % 8) & 1 != 0;
                intel.set(feature, feature.since() <= version && chosen);
            }
            if version >= 5 {
                intel.set(IntelFeature::ExtendedLeaf, version == 6 || kind & 0x80 != 0);
            }
            if version >= 5 && kind & 0x80 != 0 {
                intel.general = counters | 1;
                intel.fixed = flags;
            }
            Configuration::Intel(intel)
        }
    }
}

/// Returns the address of a register of either vendor.
fn address(choice: u32) -> u32 {
    const BASES: [(u32, u32); 12] = [
        (0x186, 8),
        (0xC1, 8),
        (0x4C1, 8),
        (0x309, 8),
        (0x38D, 6),
        (0xC001_0000, 8),
        (0xC001_0200, 16),
        (0xC000_0300, 4),
        (0x1A0, 1),
        (0x1D9, 1),
        // All four of each counter, and of one more.
        (0x1900, 36),
        (0x1980, 36),
    ];
    match BASES.get(choice as usize & 15) {
        Some((base, count)) => base + (choice >> 4) % count,
        None if choice & 15 == 15 => choice,
        None => [0x345, 0x38F, 0x38E, 0x38D][choice as usize >> 4 & 3],
    }
}

/// Returns a meaningful value for the register.
fn value(address: u32, shape: u8, word: u64) -> u64 {
    let select = [
        0x53_003C,
        0x43_00C0,
        0x51_003C,
        0x52_003C,
        0xF_0053_41D0,
        0x57_003C,
        0x02D3_00C0,
        // Inverted, without a counter mask.
        0x00D3_00C0,
        0x73_003C,
        // IN_TX, IN_TXCP, GuestOnly.
        0x0001_0053_003C,
        0x0002_0053_003C,
        0x0100_0053_003C,
        // Version 6: unit mask 2; EQ with a counter mask, without one, and inverted.
        0x0200_0053_01D1,
        0x0010_0253_00C0,
        0x0010_0053_003C,
        0x0010_00D3_003C,
    ];
    // Those of the fed events, too, so that a new one is reached.
    let fed = fed().map(|(of_event, _)| of_event | 0x53_0000);
    let selects = [&select[..], &fed].concat();
    let plain = selects[word as usize % selects.len()];
    match shape % 8 {
        0 => word,
        // Close to an overflow, of whatever width.
        1 => (word & 0xFF).wrapping_neg(),
        // Close to the last overflow.
        2 if word & 1 == 0 => word >> 62,
        2 => (word & 0xFF).wrapping_neg(),
        3 => (word & 0xFF).wrapping_neg() & 0xFFFF_FFFF_FFFF,
        4 => 1 << (word & 63),
        5 if address == 0x38D && word & 1 << 32 != 0 => 0x2222_2222_BBBB_BBBB & word,
        5 if address == 0x38D => 0xBBBB_BBBB & word,
        5 if matches!(address, 0x390 | 0x391) => word & 0xFC80_000F_0000_00FF,
        5 => word & 0xFF | (word & 0xFF00) << 24,
        6 if address == 0x1D9 => 1 << 12,
        // RDPMC user disable.
        _ if word >> 62 == 0 => plain | 1 << 37,
        _ => plain,
    }
}

/// Runs a program on both models, comparing after each step. With `restored`, the model is saved and
/// restored before each step.
pub(crate) fn run(configuration: Configuration, program: &[Step], restored: bool) {
    let (events, keys) = (events(), keys());
    let mut pmu = VirtualPmu::new(configuration, events).unwrap();
    let mut naive = Naive::new(configuration);
    for &(operation, shape, choice, word) in program {
        if restored {
            pmu = VirtualPmu::restore(&pmu.state(), pmu.configuration(), events).unwrap();
        }
        let address = address(choice);
        match operation % 8 {
            0..=3 => {
                let value = value(address, shape, word);
                let written = pmu.write(address, value);
                let expected = naive.write(address, value);
                assert_eq!((written.answer, written.illegal), expected, "{address:#X} {value:#X}");
            }
            4 => {
                if naive.kind(address) != Kind::Foreign {
                    assert_eq!(pmu.read(address), naive.read(address), "{address:#X}");
                }
                let mode = Mode { cpl: shape & 3, pce: shape & 4 != 0, protected: shape & 8 == 0 };
                let user = Mode { cpl: 3, pce: true, protected: true };
                for ecx in [choice].into_iter().chain((0..8).flat_map(|n| [n, 1 << 30 | n])) {
                    for mode in [mode, user] {
                        assert_eq!(
                            pmu.read_counter(ecx, mode),
                            naive.read_counter(ecx, mode),
                            "{ecx:#X}"
                        );
                    }
                }
            }
            5 | 6 => {
                let mut happened = Happened::default();
                for (n, cell) in happened.iter_mut().flatten().enumerate() {
                    let count = word.rotate_left(7 * n as u32);
                    *cell = match shape % 4 {
                        0 => count & 0x1F,
                        1 => count & 0xFFF,
                        2 if choice >> n & 1 == 1 => count >> 16,
                        3 if choice >> n & 1 == 1 => (count >> 8).min(Feed::MAXIMUM),
                        _ => 0,
                    };
                }
                let mut feed = Feed::new(&events);
                for (key, [user, kernel]) in keys.iter().zip(happened) {
                    let event = events.find(*key).unwrap();
                    feed.add(event, Privilege::User, user).unwrap();
                    feed.add(event, Privilege::Kernel, kernel).unwrap();
                }
                if operation % 8 == 5 {
                    let through = pmu.advance_through(&mut feed).unwrap();
                    let first = naive.advance(&mut happened);
                    let rest = naive.count(&happened);
                    assert_eq!(through.overflowed, first.0 | rest.0);
                    assert_eq!(through.pmi, first.1 | rest.1);
                    assert!(feed.is_empty());
                } else {
                    assert_headroom(&mut pmu, &naive, &keys);
                    let advanced = pmu.advance(&mut feed).unwrap();
                    assert_eq!((advanced.overflowed, advanced.pmi), naive.advance(&mut happened));
                    for (key, [user, kernel]) in keys.iter().zip(happened) {
                        let event = events.find(*key).unwrap();
                        assert_eq!(feed.count(event, Privilege::User), user);
                        assert_eq!(feed.count(event, Privilege::Kernel), kernel);
                    }
                }
            }
            _ if shape % 16 == 0 => {
                pmu.reset();
                naive.reset();
            }
            _ => {
                pmu.init();
                naive.pending = false;
            }
        }
        naive.assert_same(&pmu);
    }
}

/// Asserts that the next overflow is the least room of any interrupting counter, by event and privilege.
fn assert_headroom(pmu: &mut VirtualPmu, naive: &Naive, keys: &[EventKey]) {
    let headroom = pmu.next_overflow();
    for (index, key) in keys.iter().enumerate() {
        for (mode, privilege) in [Privilege::User, Privilege::Kernel].into_iter().enumerate() {
            let missing = (0..16)
                .filter_map(|n| match naive.counts(n)? {
                    (modes, Some(event), true) if event == index && modes[mode] => {
                        let end = 1u128 << naive.width(n);
                        Some(end - u128::from(naive.get(Kind::Counter(n))))
                    }
                    _ => None,
                })
                .min();
            let told = headroom.of(events().find(*key).unwrap(), privilege);
            assert_eq!(told, missing.and_then(|m| u64::try_from(m).ok()));
        }
    }
}
