//! Every format decodes words that were counted by hand.

use core::iter::zip;
use pmu_core::branch_recording::BranchRecorder;
use pmu_core::branches::{
    Branch, BranchFilter, BranchKind, BranchKinds, BranchOffers, BranchPath, BranchTransaction,
    BranchUnit, RawBranch, SavedBranches,
};
use pmu_core::x86::Snapshot;
use pmu_intel::LbrFormat;
use pmu_tests::{RegisterFile, Row, data, result};

/// Returns an architectural unit, with or without transactions.
fn architectural(tsx: bool) -> BranchUnit {
    let processor = Snapshot::capture(move |leaf: u32, _: u32| {
        result(match leaf {
            0 => [0x1C, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
            7 => [0, u32::from(tsx) << 11, 0, 1 << 19],
            0x0A => [0x0730_0405, 0, 0, 0],
            0x1C => [0b1111, 0b111, 0xF_0007, 0],
            _ => [0; 4],
        })
    });
    pmu_intel::branches(&processor, &RegisterFile::new([], 0)).unwrap()
}

/// Returns AMD's last-branch stack, or branch sampling, with 48 bits of virtual addresses.
fn amd(sampling: bool) -> BranchUnit {
    let processor = Snapshot::capture(move |leaf: u32, _: u32| {
        result(match leaf {
            0 => [1, 0x6874_7541, 0x444D_4163, 0x6974_6E65],
            1 => [0x00A2_0F10, 0, 0, 0],
            0x8000_0000 => [0x8000_0022, 0, 0, 0],
            0x8000_0008 => [0x3030, u32::from(sampling) << 31, 0, 0],
            0x8000_0022 if !sampling => [0b111, 16 << 4 | 6, 0, 0],
            _ => [0; 4],
        })
    });
    pmu_amd::branches(&processor).unwrap()
}

/// Returns the branch of a row of the data file.
fn expected(row: &Row<'_>) -> Option<Branch> {
    let flag = |column| row.optional(column).map(|flag| flag != 0);
    let counts = row.text("events");
    let mut events = [0; 4];
    zip(&mut events, counts.split(' '))
        .for_each(|(event, count)| *event = count.parse().unwrap_or(0));
    let kind = BranchKind::ALL.into_iter().find(|kind| format!("{kind:?}") == row.text("kind"));
    let paths = [BranchPath::Correct, BranchPath::Speculative, BranchPath::Wrong];
    let path = paths.into_iter().find(|path| format!("{path:?}") == row.text("path"));
    let transaction = flag("inside")
        .map(|inside| BranchTransaction { inside, aborted: flag("aborted").unwrap() });
    (row.number("empty") == 0).then(|| Branch {
        from: row.number("branch_from"),
        to: row.number("branch_to"),
        mispredicted: flag("mispredicted"),
        cycles: row.optional("cycles").map(|cycles| cycles as u16),
        kind,
        path,
        transaction,
        events: (!counts.is_empty()).then_some(events),
    })
}

#[test]
fn each_format_decodes_the_words_of_the_data_file() {
    let mut formats = std::collections::BTreeSet::new();
    for row in data!("branch_records.csv") {
        let [from, to, info] = ["from", "to", "info"].map(|column| row.number(column));
        let (record, tsx) = (RawBranch { from, to, info }, row.number("tsx") != 0);
        let format = row.text("format");
        let branch = match format {
            "arch" => architectural(tsx).decode(record),
            "amd" => amd(false).decode(record),
            "brs" => amd(true).decode(record),
            number => {
                let offers = BranchOffers { transaction: tsx, ..BranchOffers::default() };
                let format = LbrFormat::of_number(number.parse().unwrap()).unwrap();
                format.decode(&offers, record)
            }
        };
        assert_eq!(branch, expected(&row), "{format}: {record:X?}");
        formats.insert(format.to_owned());
    }
    assert_eq!(formats.len(), 11, "{formats:?}");
    assert_eq!(LbrFormat::of_number(8), None);
}

#[test]
fn amds_addresses_have_the_sign_of_the_implemented_width() {
    // Five-level paging: bit 56 is the sign, and bit 47 is none.
    let processor = Snapshot::capture(|leaf: u32, _: u32| {
        result(match leaf {
            0 => [1, 0x6874_7541, 0x444D_4163, 0x6974_6E65],
            0x8000_0000 => [0x8000_0022, 0, 0, 0],
            0x8000_0008 => [0x3930, 0, 0, 0],
            0x8000_0022 => [0b111, 16 << 4 | 6, 0, 0],
            _ => [0; 4],
        })
    });
    let unit = pmu_amd::branches(&processor).unwrap();
    let of = |from: u64, to: u64| {
        let branch = unit.decode(RawBranch { from, to: 1 << 63 | to, info: 0 }).unwrap();
        (branch.from, branch.to)
    };
    assert_eq!(
        of(0x0000_8000_0000_0000, 0x0100_0000_0000_0010),
        (0x0000_8000_0000_0000, 0xFF00_0000_0000_0010)
    );
}

/// SDM vol. 3B, "Filtering of Last Branch Records": each bit suppresses; Nehalem's and Westmere's erratum by Linux'
/// driver.
#[test]
fn what_nehalem_cannot_select_alone_is_recorded_and_said() {
    use BranchKind::*;
    let processor = Snapshot::capture(|leaf: u32, _: u32| {
        result(match leaf {
            0 => [0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
            1 => [0x0001_06A5, 0, 1 << 15, 0],
            0x0A => [0x0730_0403, 0, 0, 0],
            _ => [0; 4],
        })
    });
    let msr = RegisterFile::new([0x345], 0);
    msr.set(0x345, 3);
    let unit = pmu_intel::branches(&processor, &msr).unwrap();
    let recorded = |kind: BranchKind| {
        let filter = unit.recorded(BranchFilter::USER.only(kind.only())).unwrap();
        filter.kinds().iter().collect::<Vec<_>>()
    };
    assert_eq!(recorded(Conditional), [Conditional]);
    assert_eq!(recorded(DirectJump), [DirectJump]);
    assert_eq!(recorded(IndirectJump), [IndirectJump]);
    assert_eq!(recorded(DirectCall), [DirectJump, IndirectJump, DirectCall]);
    assert_eq!(recorded(IndirectCall), [IndirectJump, IndirectCall]);
    assert_eq!(recorded(Return), [DirectJump, IndirectJump, Return, Other]);
    assert_eq!(recorded(Other), [Other]);
    assert_eq!(unit.recorded(BranchFilter::USER.call_stack()), None);
    let all = BranchFilter::ALL.only(BranchKinds::ALL);
    assert_eq!(unit.recorded(all), Some(all));
}

/// Registers of a legacy stack of 16 records.
fn stack_of_16() -> RegisterFile {
    let registers =
        [0x345, 0x1D9, 0x1C8, 0x1C9].into_iter().chain(0x680..0x690).chain(0x6C0..0x6D0);
    let msr = RegisterFile::new(registers, 0);
    // Haswell's format.
    msr.set(0x345, 4);
    msr
}

/// Linux' driver of Haswell: an abort is recorded twice, and the newer record lacks the bit.
#[test]
fn an_abort_that_haswell_recorded_twice_is_one_branch() {
    for (model, aborts) in [(0x3C, 1), (0x3D, 2)] {
        let processor = Snapshot::capture(move |leaf: u32, _: u32| {
            result(match leaf {
                0 => [0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
                1 => [0x0003_0603 | (model & 0xF) << 4, 0, 1 << 15, 0],
                // RTM.
                7 => [0, 1 << 11, 0, 0],
                0x0A => [0x0730_0403, 0, 0, 0],
                _ => [0; 4],
            })
        });
        let (msr, records) = (stack_of_16(), super::support::Records::new());
        let unit = pmu_intel::branches(&processor, &msr).unwrap();
        let mut recorder = BranchRecorder::take(&unit, &msr, &records).unwrap();
        recorder.start(BranchFilter::ALL).unwrap();
        // The newest last: a branch, the abort with bit 61, the abort without it, a branch.
        for (place, from) in [(15, 0x1000), (0, 0x2000 | 1 << 61), (1, 0x2000), (2, 0x3000)] {
            msr.set(0x680 + place, from);
            msr.set(0x6C0 + place, 0x9000);
        }
        msr.set(0x1C9, 0xFF00 | 2);
        let found: Vec<_> = recorder
            .read()
            .unwrap()
            .iter()
            .map(|branch| (branch.from, branch.transaction.unwrap().aborted))
            .collect();
        let all = [(0x3000, false), (0x2000, false), (0x2000, true), (0x1000, false)];
        let mut expected = all.to_vec();
        if aborts == 1 {
            expected.remove(1);
        }
        assert_eq!(found, expected, "model {model:#X}");
    }
}

/// Linux commit b0380e13502a: 0x1FFFFFFF8101349E was read from a record and faulted as it was written back.
#[test]
fn an_address_of_the_kernel_is_written_back_with_its_sign() {
    let processor = Snapshot::capture(|leaf: u32, _: u32| {
        result(match leaf {
            0 => [0x0A, 0x756E_6547, 0x6C65_746E, 0x4965_6E69],
            1 => [0x0003_06C3, 0, 1 << 15, 0],
            0x0A => [0x0730_0403, 0, 0, 0],
            _ => [0; 4],
        })
    });
    let (msr, records) = (stack_of_16(), super::support::Records::new());
    let unit = pmu_intel::branches(&processor, &msr).unwrap();
    let mut recorder = BranchRecorder::take(&unit, &msr, &records).unwrap();
    recorder.start(BranchFilter::ALL.call_stack()).unwrap();
    msr.set(0x689, 0x1FFF_FFFF_8101_349E);
    msr.set(0x6C9, 0x401000);
    msr.set(0x688, 0x8000_7F00_1234_5678);
    msr.set(0x6C8, 0x401000);
    msr.set(0x1C9, 9);
    let mut saved = SavedBranches::<16>::new();
    recorder.switch_out(Some(&mut saved)).unwrap();
    assert_eq!(msr.get(0x689), 0);
    recorder.switch_in(Some(&saved)).unwrap();
    assert_eq!(
        [0x1C9, 0x689, 0x688].map(|register| msr.get(register)),
        [9, 0x7FFF_FFFF_8101_349E, 0x8000_7F00_1234_5678]
    );
}
