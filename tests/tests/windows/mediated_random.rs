//! Guests on real counters, which the mock plays, against a guest of the software alone with the same events.

use super::machine::*;
use pmu_virt::VirtualPmu;
use pmu_virt::configuration::{Configuration, Vendor};
use pmu_virt::registers::RegisterKind;
use proptest::prelude::*;

/// One step of a guest and its hypervisor.
type Step = (u8, u8, u16, u64);

fn run((host, given): (Configuration, Configuration), intercepts_all: bool, program: &[Step]) {
    let mut machine = Machine::new(host, given);
    machine.intercepts_all = intercepts_all;
    let mut alone = VirtualPmu::new(given, events()).unwrap();
    let mut interrupts = 0;
    let (general, fixed) = match given {
        Configuration::Intel(intel) => (intel.general.count_ones(), intel.fixed.count_ones()),
        _ => (
            given
                .registers()
                .filter(|r| {
                    r.exists && r.kind == RegisterKind::EventSelect && r.address >= 0xC001_0200
                })
                .count() as u32,
            0,
        ),
    };
    let intel = given.vendor() == Vendor::Intel;
    let mask = ((1 << general) - 1) | (((1 << fixed) - 1) << 32);
    // Bits of the status that are no counter's.
    let bits = [55, 58, 60, 61, 62];
    let others = |small: u16| {
        let chosen = bits.iter().enumerate().filter(|(n, _)| intel && small >> n & 1 != 0);
        chosen.fold(0u64, |all, (_, bit)| all | 1 << bit)
    };
    let seen =
        [0x38D, 0x38E, 0x38F, 0x390, 0x391, 0x392, 0x186, 0x4C1, 0xC2, 0x309, 0x345, 0xC000_0300]
            .into_iter()
            .chain([0xC000_0301, 0xC000_0303, 0xC001_0200, 0xC001_0205, 0xC001_0004]);
    for (operation, which, small, word) in program {
        let n = u32::from(*which) % general;
        let select_of = |n| if intel { 0x186 + n } else { 0xC001_0200 + 2 * n };
        let value_of = |n| if intel { 0x4C1 + n } else { 0xC001_0201 + 2 * n };
        let near = |word: u64| word.wrapping_neg() & 0xFFFF_FFFF_FFFF;
        let selects = [0x53_003C, 0x43_003C, 0x52_00C0, 0x42_00C0, 0, 0x51_003C, 0x53_00D0];
        let write = match operation % 10 {
            0 | 1 => Some((select_of(n), selects[usize::from(*small) % selects.len()])),
            2 => Some((value_of(n), near(word & 0x3FFF))),
            3 if fixed != 0 => Some((0x309 + u32::from(*which) % fixed, near(word & 0x3FFF))),
            4 if fixed != 0 => {
                let fields = (1 << (4 * fixed)) - 1;
                Some((0x38D, word & fields & 0xBBBB_BBBB))
            }
            5 => {
                let register = if intel { GLOBAL_CONTROL } else { 0xC000_0301 };
                Some((register, (word | word >> 20) & mask))
            }
            6 => {
                let register = if intel { 0x390 } else { 0xC000_0302 };
                // The interrupt of what it acknowledges has come.
                if machine.loaded.is_some() {
                    machine.arrive();
                    machine.deliver();
                }
                Some((register, word & mask | others(*small)))
            }
            8 if *which > 200 => {
                let register = if intel { 0x391 } else { 0xC000_0303 };
                Some((register, word & mask | others(*small)))
            }
            _ => None,
        };
        if machine.loaded.is_none() {
            machine.enter();
        }
        match write {
            Some((address, value)) => {
                let expected = alone.write(address, value);
                assert_eq!(machine.guest_writes(address, value), expected.answer, "{address:#X}");
            }
            None if operation % 10 == 7 => {
                machine.leave();
                assert_eq!(machine.guest.state(), alone.state());
                assert_eq!(machine.interrupts, interrupts, "{host:?}");
            }
            None => {
                let (cycles, instructions) = (u64::from(*small), word & 0xFFF);
                machine.happen(cycles, instructions, which & 1 == 0);
                let mut feed = in_software(cycles, instructions);
                while !feed.is_empty() {
                    if alone.advance(&mut feed).unwrap().pmi {
                        alone.set_pmi_pending(false);
                        interrupts += 1;
                    }
                }
                // Two overflows of which the second comes before the first one's interrupt are one interrupt.
                if machine.in_flight {
                    machine.arrive();
                    machine.deliver();
                }
            }
        }
        if machine.loaded.is_some() {
            for register in seen.clone() {
                assert_eq!(machine.guest_reads(register), alone.read(register), "{register:#X}");
            }
            for ecx in [0, 1, 9, 0x4000_0000, 0x4000_0009, 0x2000_0000] {
                let expected = alone.read_counter(ecx, pmu_virt::Mode::KERNEL);
                assert_eq!(machine.guest_reads_pmc(ecx), expected, "RDPMC {ecx:#X}");
            }
        }
    }
    machine.leave();
    assert_eq!(machine.guest.state(), alone.state());
    assert_eq!(machine.interrupts, interrupts, "{host:?}");
    assert_eq!(machine.mock.breach(), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_guest_on_real_counters_is_as_one_of_software(
        pair in 0..6usize,
        intercepts_all: bool,
        program in prop::collection::vec(any::<Step>(), 1..80),
    ) {
        run(pairs()[pair], intercepts_all, &program);
    }
}
