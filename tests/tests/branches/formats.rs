//! Every format decodes words that were counted by hand.

use core::iter::zip;
use pmu_core::{
    Branch, BranchFilter, BranchKind, BranchKinds, BranchOffers, BranchPath, BranchTransaction,
    BranchUnit, RawBranch, Snapshot,
};
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
