//! Branch records of a guest: the manuals' rules, and a naive model on random programs.

use super::naive_branches::{Step, run};
use super::random::{self, Random};
use pmu_core::access::{AccessErrorKind, RegisterAddress, RegisterBackend};
use pmu_virt::branches::{
    BranchConfiguration, FedBranch, FedBranchKind, FedPath, FedTransaction, VirtualBranches,
};
use pmu_virt::configuration::{AmdConfiguration, Configuration, IntelConfiguration, IntelFeature};
use pmu_virt::mock::{Deviation, Deviations, MockMsr};
use pmu_virt::{
    BytesError, EventKey, FedEvents, Feed, GuestFacility, Privilege, Read, VirtualPmu, Write,
};
use proptest::prelude::*;

mod state;

/// Programs on every kind of records, with more than four writes each: `PMU_TEST_PROGRAMS` of them and 250,000 at most,
/// by default 2,000.
#[test]
fn the_models_of_branch_records_agree_on_many_programs() {
    let programs = random::programs(2_000).min(250_000);
    let (mut random, mut accesses) = (Random::default(), [0; 2]);
    for number in 0..programs {
        let words = random.next().to_le_bytes();
        let program: Vec<Step> = random.steps(6 + number % 30).collect();
        let of_program =
            run([number as u8 % 3, words[1], words[2], words[3]], &program, number % 4 == 0);
        accesses = [0, 1].map(|of| accesses[of] + of_program[of]);
    }
    let [writes, reads] = accesses;
    println!("{writes} writes and {reads} reads of registers");
    assert!(writes > 4 * u64::from(programs) && reads > 800 * u64::from(programs));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_models_of_branch_records_agree_on_any_program(
        words: [u8; 4],
        program in prop::collection::vec(any::<Step>(), 1..120),
    ) {
        run(words, &program, true);
    }
}

const CYCLES: EventKey = EventKey::general(0x3C, 0);
const AMD_CYCLES: EventKey = EventKey::general(0x76, 0);
const KINDS: [FedBranchKind; 7] = [
    FedBranchKind::Conditional,
    FedBranchKind::RelativeJump,
    FedBranchKind::IndirectJump,
    FedBranchKind::RelativeCall,
    FedBranchKind::IndirectCall,
    FedBranchKind::Return,
    FedBranchKind::Far,
];

fn intel(version: u8) -> Configuration {
    Configuration::Intel(IntelConfiguration::new(version, 4, 3))
}

fn amd() -> Configuration {
    Configuration::Amd(AmdConfiguration::perf_mon_v2(6))
}

fn msr(address: u32) -> RegisterAddress {
    // SAFETY: the mock's registers are numbers.
    unsafe { RegisterAddress::new(address) }
}

/// Returns the branch number `number` of a program: each has addresses of its own.
fn numbered(number: u64) -> FedBranch {
    let from = 0x40_0000 + 0x10 * number;
    FedBranch::new(from, from + 0x1000, FedBranchKind::Conditional, Privilege::User)
}

/// A processor: its PMU and records; and the writes that enable everything, by address and value.
type Processor = (Configuration, BranchConfiguration, &'static [(u32, u64)]);

type New = fn() -> Processor;

/// Each freezes as its manual says: a bit of the status, or DEBUGCTL.LBR.
const PROCESSORS: [(&str, New); 5] = [
    ("architectural", || {
        (intel(5), BranchConfiguration::ARCHITECTURAL, &[(0x1D9, 1 << 11), (0x14CE, 0x7F_0007)])
    }),
    ("legacy, version 4", || {
        (intel(4), BranchConfiguration::Legacy { format: 5 }, &[(0x1C8, 0), (0x1D9, 1 << 11 | 1)])
    }),
    ("legacy, version 2", || {
        (intel(2), BranchConfiguration::Legacy { format: 3 }, &[(0x1C8, 0), (0x1D9, 1 << 11 | 1)])
    }),
    ("AMD", || (amd(), BranchConfiguration::AMD, &[(0x1D9, 1 << 11), (0xC000_010F, 1 << 6)])),
    ("AMD, without freeze", || {
        (amd(), BranchConfiguration::amd(16, false), &[(0xC000_010F, 1 << 6)])
    }),
];

/// Returns the FROM words of the records, the newest first, until the first empty one.
fn recorded(read: impl Fn(u32) -> u64, configuration: BranchConfiguration, depth: u32) -> Vec<u64> {
    let address = |number: u32| match configuration {
        BranchConfiguration::Architectural(_) => 0x1500 + number,
        BranchConfiguration::Legacy { .. } => {
            0x680 + (read(0x1C9) as u32).wrapping_sub(number) % depth
        }
        _ => 0xC001_0300 + 2 * number,
    };
    (0..depth).map(|number| read(address(number))).take_while(|from| *from != 0).collect()
}

/// SDM vol. 3B, "Freezing LBR and Performance Counters on PMI"; APM vol. 2, "Last Branch Stack": a handler that reads
/// the records finds the branches before the overflow, and its own where the processor cannot freeze.
#[test]
fn records_freeze_at_the_interrupt_and_are_released_by_the_acknowledgement() {
    for (name, processor) in PROCESSORS {
        let (configuration, branches, enable) = processor();
        let amd = matches!(configuration, Configuration::Amd(_));
        let key = if amd { AMD_CYCLES } else { CYCLES };
        let events = FedEvents::new(&[key]).unwrap();
        let freezes = name != "AMD, without freeze";
        for never in [false, true] {
            let platform: &[_] = if never { &[Deviation::NeverFreezesBranches] } else { &[] };
            let records = VirtualBranches::new(&configuration, branches).unwrap();
            let depth = u32::from(records.depth());
            let mock = MockMsr::<8>::strict(VirtualPmu::new(configuration, events).unwrap())
                .with_branches(records)
                .deviating(Deviations::of(platform));
            let read = |address| mock.read(msr(address)).unwrap();
            for (address, value) in enable {
                mock.write(msr(*address), *value).unwrap();
            }
            let (status, acknowledge) =
                if amd { (0xC000_0300, 0xC000_0302) } else { (0x38E, 0x390) };
            let own = FedBranch::new(0x9000, 0x9100, FedBranchKind::Far, Privilege::Kernel);
            let found = core::cell::RefCell::new((Vec::new(), 0));
            let handler = |mock: &MockMsr<8>| {
                mock.branch(&own);
                let read = |address| mock.read(msr(address)).unwrap();
                *found.borrow_mut() = (recorded(read, branches, depth), read(status));
                mock.write(msr(acknowledge), read(status)).unwrap();
            };
            mock.on_interrupt(&handler);
            mock.set_performance_entry(0x400);
            let (select, counter) = if amd { (0xC001_0200, 0xC001_0201) } else { (0x186, 0xC1) };
            // On Intel a write of 32 bits, whose sign is extended.
            let start = if amd { (1 << 48) - 10 } else { 10u32.wrapping_neg().into() };
            mock.write(msr(counter), start).unwrap();
            mock.write(msr(select), if amd { 0x53_0076 } else { 0x53_003C }).unwrap();
            mock.write(msr(if amd { 0xC000_0301 } else { 0x38F }), 1).unwrap();
            // More branches than there are records, and the overflow.
            let fed = u64::from(depth) + 5;
            (1..=fed).for_each(|number| mock.branch(&numbered(number)));
            let mut feed = Feed::new(&events);
            feed.add(events.find(key).unwrap(), Privilege::User, 10).unwrap();
            mock.advance(&mut feed);
            let newest = (1..=fed).rev().map(|number| numbered(number).from);
            let expected: Vec<_> = if freezes && !never {
                newest.take(depth as usize).collect()
            } else {
                core::iter::once(own.from).chain(newest).take(depth as usize).collect()
            };
            let (records, seen) = found.take();
            assert_eq!(records, expected, "{name}, never {never}");
            let bit = freezes && !never && name != "legacy, version 2";
            assert_eq!(seen, 1 | u64::from(bit) << 58, "{name}, never {never}");
            // Released: versions 2 and 3 have cleared DEBUGCTL.LBR, which software sets again.
            let enabled = never || name != "legacy, version 2";
            mock.branch(&numbered(100));
            let newest = recorded(read, branches, depth)[0];
            assert_eq!(newest == numbered(100).from, enabled, "{name}, never {never}");
        }
    }
}

/// The words are counted by hand from the manuals' figures: SDM vol. 3B, "LBR Format" and "IA32_LBR_x_INFO"; APM
/// vol. 2, "LastBranchStackFromIp" and "LastBranchStackToIp".
#[test]
fn each_format_has_the_words_of_the_manual() {
    let kernel = 0xFFFF_FFFF_8101_349E;
    let branch = FedBranch {
        mispredicted: true,
        cycles: Some(0x12),
        transaction: FedTransaction::Inside,
        counts: [1, 0, 6, 2],
        ..FedBranch::new(
            kernel,
            0xFFFF_FFFF_8200_0000,
            FedBranchKind::IndirectCall,
            Privilege::User,
        )
    };
    let transactional = Configuration::Intel(
        IntelConfiguration::new(4, 4, 3).with(|intel| intel.set(IntelFeature::Transactional, true)),
    );
    let legacy = |format| BranchConfiguration::Legacy { format };
    let to = 0xFFFF_FFFF_8200_0000;
    let logging = [(0x186, 1 << 35), (0x188, 1 << 35), (0x189, 1 << 35)];
    for (configuration, branches, enable, addresses, words) in [
        // 63 mispredicted, 62 in a transaction, 60 cycles valid, 59:56 indirect call, 39:32 events, 15:0 cycles.
        (
            transactional,
            BranchConfiguration::ARCHITECTURAL,
            (0x14CE, 0x7F_0007),
            [0x1500, 0x1600, 0x1200],
            [kernel, to, 0xD300_00B1_0000_0012],
        ),
        (intel(4), legacy(3), (0x1D9, 1), [0x681, 0x6C1, 0], [kernel, to, 0]),
        // A hardware record has 0 in bits 62:61, whatever the sign.
        (intel(4), legacy(4), (0x1D9, 1), [0x681, 0x6C1, 0], [0x9FFF_FFFF_8101_349E, to, 0]),
        (transactional, legacy(4), (0x1D9, 1), [0x681, 0x6C1, 0], [0xDFFF_FFFF_8101_349E, to, 0]),
        (
            transactional,
            legacy(5),
            (0x1D9, 1),
            [0x681, 0x6C1, 0xDC1],
            [kernel, to, 0xC000_0000_0000_0012],
        ),
        (intel(4), legacy(6), (0x1D9, 1), [0x681, 0x6C1, 0], [kernel, 0x0012_FFFF_8200_0000, 0]),
        (
            transactional,
            legacy(7),
            (0x1D9, 1),
            [0x681, 0x6C1, 0xDC1],
            [kernel, to, 0x8000_0000_0000_0012],
        ),
        // 63 valid, 62 speculative, 61 reserved, 60:58 sign.
        (
            amd(),
            BranchConfiguration::AMD,
            (0xC000_010F, 1 << 6),
            [0xC001_0300, 0xC001_0301, 0],
            [kernel, 0x9FFF_FFFF_8200_0000, 0],
        ),
    ] {
        let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
        let mut records = VirtualBranches::new(&configuration, branches).unwrap();
        if matches!(branches, BranchConfiguration::Architectural(_)) {
            for (address, value) in logging {
                assert_eq!(pmu.write_beside(&mut records, address, value).answer, Write::Done);
            }
        }
        let written = pmu.write_beside(&mut records, enable.0, enable.1).answer;
        assert!(matches!(written, Write::Done | Write::Shared { .. }));
        assert!(records.record(&branch));
        for (address, word) in addresses.into_iter().zip(words).filter(|(address, _)| *address != 0)
        {
            let read = pmu.read_beside(&records, address);
            assert_eq!(read, Read::Value(word), "{branches:?} {address:#X}");
        }
    }
    // A positive address, predicted; AMD's speculative and wrong paths.
    let mut records = VirtualBranches::new(&amd(), BranchConfiguration::AMD).unwrap();
    let _ = records.write(pmu_virt::Writer::Guest, 0xC000_010F, 1 << 6);
    for (path, bits) in [(FedPath::Retired, 2), (FedPath::Speculative, 3), (FedPath::Wrong, 1u64)] {
        assert!(records.record(&FedBranch { path, ..numbered(1) }));
        assert_eq!(records.read(0xC001_0300), Read::Value(0x40_0010));
        assert_eq!(records.read(0xC001_0301), Read::Value(bits << 62 | 0x40_1010));
    }
}

/// SDM vol. 3B, tables of `IA32_LBR_CTL` and `MSR_LBR_SELECT`; APM vol. 2, "LBR_SELECT": the bit of each kind.
#[test]
fn each_bit_of_a_filter_is_of_its_kind() {
    let enabling = [16, 17, 18, 19, 20, 21, 22];
    let suppressing = [2, 7, 6, 3, 4, 5, 8];
    let places = [(Privilege::Kernel, 1, 0), (Privilege::User, 2, 1)];
    for (kind, (enable, suppress)) in KINDS.into_iter().zip(enabling.into_iter().zip(suppressing)) {
        for (privilege, own, others) in places {
            let branch = FedBranch { kind, privilege, ..numbered(1) };
            let takes = |configuration, branches, writes: [(u32, u64); 2]| {
                let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
                let mut records = VirtualBranches::new(&configuration, branches).unwrap();
                for (address, value) in writes {
                    let written = pmu.write_beside(&mut records, address, value);
                    assert_eq!(written.illegal, 0, "{address:#X} {value:#X}");
                }
                records.record(&branch)
            };
            let architectural = |control| {
                takes(
                    intel(5),
                    BranchConfiguration::ARCHITECTURAL,
                    [(0x14CF, 8), (0x14CE, control)],
                )
            };
            let all = 0x7F_0007u64;
            assert!(architectural(1 << enable | 1 << own | 1), "{kind:?}");
            assert!(!architectural(all & !(1 << enable)) && !architectural(all & !(1 << own)));
            assert!(!architectural(all & !1));
            let select = |value| {
                let legacy = takes(
                    intel(4),
                    BranchConfiguration::Legacy { format: 5 },
                    [(0x1C8, value), (0x1D9, 1)],
                );
                let amd = takes(
                    amd(),
                    BranchConfiguration::AMD,
                    [(0xC000_010E, value), (0xC000_010F, 1 << 6)],
                );
                assert_eq!(legacy, amd, "{kind:?} {value:#X}");
                legacy
            };
            assert!(select(0x1FF & !(1 << suppress) & !(1 << others)), "{kind:?}");
            assert!(!select(1 << suppress) && !select(1 << others) && select(0));
        }
    }
}

/// SDM vol. 3B, "Call-Stack Mode": a call adds a record, a return takes the newest one away.
#[test]
fn a_call_stack_has_the_calls_that_have_not_returned() {
    for (configuration, branches, writes) in [
        (intel(5), BranchConfiguration::ARCHITECTURAL, [(0x14CE, 0x7F_000F), (0x14CE, 0x7F_000F)]),
        (intel(4), BranchConfiguration::Legacy { format: 4 }, [(0x1C8, 1 << 9), (0x1D9, 1)]),
    ] {
        let mut pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
        let mut records = VirtualBranches::new(&configuration, branches).unwrap();
        for (address, value) in writes {
            assert_eq!(pmu.write_beside(&mut records, address, value).illegal, 0);
        }
        let mut feed = |number, kind| records.record(&FedBranch { kind, ..numbered(number) });
        feed(1, FedBranchKind::RelativeCall);
        feed(2, FedBranchKind::IndirectCall);
        assert!(!feed(3, FedBranchKind::Conditional));
        feed(4, FedBranchKind::Return);
        feed(5, FedBranchKind::RelativeCall);
        feed(6, FedBranchKind::RelativeCall);
        feed(7, FedBranchKind::Return);
        let read = |address| match pmu.read_beside(&records, address) {
            Read::Value(value) => value,
            other => panic!("{other:?}"),
        };
        let depth = records.depth().into();
        let expected = vec![numbered(5).from, numbered(1).from];
        assert_eq!(recorded(read, branches, depth), expected, "{branches:?}");
    }
}

/// A driver that writes what the manual does not allow is told so by the strict mock, also where the processor takes
/// the write.
#[test]
fn a_driver_that_writes_what_the_manual_does_not_allow_is_found() {
    let legacy = |format| BranchConfiguration::Legacy { format };
    let unfiltered = BranchConfiguration::ARCHITECTURAL.with_architectural(|b| {
        (b.privilege_filter, b.kind_filter, b.call_stack) = (false, false, false);
    });
    for (configuration, branches, before, address, value, fails) in [
        // Depths: 12, and 40.
        (intel(5), BranchConfiguration::ARCHITECTURAL, None, 0x14CF, 12, true),
        (intel(5), BranchConfiguration::ARCHITECTURAL, None, 0x14CF, 40, true),
        // The filters that the processor lacks.
        (intel(5), unfiltered, None, 0x14CE, 1 << 1 | 1, true),
        (intel(5), unfiltered, None, 0x14CE, 1 << 16 | 1, true),
        // A record beyond the depth.
        (intel(5), BranchConfiguration::ARCHITECTURAL, Some((0x14CF, 8)), 0x1508, 0, true),
        // A FROM of format 4 as the hardware has recorded it.
        (intel(4), legacy(4), None, 0x689, 0x1FFF_FFFF_8101_349E, true),
        // A call stack that freezes.
        (
            intel(5),
            BranchConfiguration::ARCHITECTURAL,
            Some((0x1D9, 1 << 11)),
            0x14CE,
            0x7F_000F,
            false,
        ),
        (intel(4), legacy(5), Some((0x1C8, 1 << 9)), 0x1D9, 1 << 11 | 1, false),
        // AMD drops reserved bits; without the freeze, its bit faults.
        (amd(), BranchConfiguration::AMD, None, 0xC000_010F, 1 << 6 | 1, false),
        (amd(), BranchConfiguration::AMD, None, 0xC001_0301, 1 << 61, false),
        (amd(), BranchConfiguration::amd(16, false), None, 0x1D9, 1 << 11, true),
    ] {
        let records = VirtualBranches::new(&configuration, branches).unwrap();
        let pmu = VirtualPmu::new(configuration, FedEvents::NONE).unwrap();
        let mock = MockMsr::<8>::new(pmu).with_branches(records);
        if let Some((address, value)) = before {
            mock.write(msr(address), value).unwrap();
        }
        assert_eq!(mock.breach(), None);
        assert_eq!(mock.write(msr(address), value).is_err(), fails, "{address:#X} {value:#X}");
        assert!(mock.breach().is_some_and(|breach| breach.register == address), "{address:#X}");
    }
    // Linux restores it with bits 60:59 copied to 62:61.
    let records = VirtualBranches::new(&intel(4), legacy(4)).unwrap();
    let mock = MockMsr::<8>::strict(VirtualPmu::new(intel(4), FedEvents::NONE).unwrap())
        .with_branches(records);
    assert_eq!(mock.write(msr(0x689), 0x7FFF_FFFF_8101_349E), Ok(()));
}

/// Linux' "Discard erroneous branch entries" of AMD, and `lbr_double_abort` of Haswell.
#[test]
fn erroneous_records_and_lost_ones_are_those_of_the_platform() {
    let erroneous = Deviations::of(&[Deviation::ErroneousBranches]);
    let zen = MockMsr::<8>::new(VirtualPmu::new(amd(), FedEvents::NONE).unwrap())
        .with_branches(VirtualBranches::new(&amd(), BranchConfiguration::AMD).unwrap())
        .deviating(erroneous);
    zen.write(msr(0xC000_010F), 1 << 6).unwrap();
    (1..=4).for_each(|number| zen.branch(&numbered(number)));
    let reserved = |number: u32| zen.read(msr(0xC001_0301 + 2 * number)).unwrap() >> 61 & 1;
    assert_eq!([0, 1, 2, 3].map(reserved), [1, 0, 0, 0]);

    let tsx =
        IntelConfiguration::new(4, 4, 3).with(|intel| intel.set(IntelFeature::Transactional, true));
    let haswell = Configuration::Intel(tsx);
    let legacy = BranchConfiguration::Legacy { format: 4 };
    let mock = MockMsr::<8>::new(VirtualPmu::new(haswell, FedEvents::NONE).unwrap())
        .with_branches(VirtualBranches::new(&haswell, legacy).unwrap())
        .deviating(erroneous);
    mock.write(msr(0x1D9), 1).unwrap();
    let abort = FedBranch { transaction: FedTransaction::Abort, ..numbered(4) };
    (1..=3).for_each(|number| mock.branch(&numbered(number)));
    mock.branch(&abort);
    let read = |address| mock.read(msr(address)).unwrap();
    assert_eq!(read(0x1C9), 5);
    assert_eq!([read(0x684), read(0x685)], [abort.from | 1 << 61, abort.from]);

    for deviation in [None, Some(Deviation::BranchesLostInDeepSleep)] {
        let mock = MockMsr::<8>::new(VirtualPmu::new(amd(), FedEvents::NONE).unwrap())
            .with_branches(VirtualBranches::new(&amd(), BranchConfiguration::AMD).unwrap())
            .deviating(Deviations::of(deviation.as_slice()));
        mock.write(msr(0xC000_010F), 1 << 6).unwrap();
        mock.branch(&numbered(1));
        mock.sleep();
        let kept = mock.read(msr(0xC001_0300)).unwrap() != 0;
        assert_eq!(kept, deviation.is_none());
        assert_eq!(mock.read(msr(0xC000_010F)), Ok(1 << 6));
    }
}

/// A PMU alone has a bit of version 4 for records that it lacks, and a guest may set the bit. Beside records, the bit
/// is the records' own.
#[test]
fn the_bit_of_frozen_records_is_the_records_own() {
    let mut pmu = VirtualPmu::new(intel(4), FedEvents::NONE).unwrap();
    assert_eq!(pmu.write(0x391, 1 << 58 | 1).answer, Write::Done);
    assert_eq!(pmu.read(0x38E), Read::Value(1 << 58 | 1));
    let mut records =
        VirtualBranches::new(&intel(4), BranchConfiguration::Legacy { format: 5 }).unwrap();
    assert_eq!(pmu.read_beside(&records, 0x38E), Read::Value(1));
    let written = pmu.write_beside(&mut records, 0x391, 1 << 58 | 2);
    assert_eq!((written.answer, written.illegal), (Write::Done, 0));
    assert_eq!(pmu.read_beside(&records, 0x38E), Read::Value(1 << 58 | 3));
    // A write that the PMU refuses changes nothing of the records.
    let refused = pmu.write_beside(&mut records, 0x390, 1 << 58 | 1 << 50);
    assert_eq!(refused.answer, Write::GeneralProtection);
    assert_eq!(pmu.read_beside(&records, 0x38E), Read::Value(1 << 58 | 3));
}

/// A guest on real counters has no branch records: they are the host's, and not switched.
#[test]
fn a_mediated_guest_has_no_branch_records() {
    let pmu = VirtualPmu::new(intel(5), FedEvents::NONE).unwrap();
    let mock = MockMsr::<8>::new(pmu).with_branches(
        VirtualBranches::new(&intel(5), BranchConfiguration::ARCHITECTURAL).unwrap(),
    );
    mock.write(msr(0x14CE), 0x7F_0007).unwrap();
    mock.branch(&numbered(1));
    // The guest's PMU answers, and it has none.
    let guest = VirtualPmu::new(intel(5), FedEvents::NONE).unwrap();
    for address in [0x14CE, 0x14CF, 0x1500, 0x1600, 0x1200] {
        assert_eq!(guest.read(address), Read::GeneralProtection);
    }
    assert_eq!(guest.configuration().cpuid(0x1C, 0, [u32::MAX; 4]), [0; 4]);
    // The host's are as they were.
    assert_eq!(mock.read(msr(0x1500)), Ok(numbered(1).from));
    assert_eq!(mock.read(msr(0x1520)), Err(AccessErrorKind::Fault));
}
