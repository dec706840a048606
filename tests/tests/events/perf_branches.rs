//! Branch records as perf samples them.
//!
//! Bits and fields by `perf_event_open(2)`: `branch_sample_type`, `struct perf_branch_entry`.

use pmu::perf::{BranchEntry, BranchSamples, PerfAttributes, PerfError, PerfEvent, PerfEventAttr};
use pmu_core::branches::{Branch, BranchFilter, BranchKind, BranchPath, BranchTransaction};
use pmu_core::precise::Precision;

fn samples(wanted: u64) -> BranchSamples {
    BranchSamples::of(wanted, &PerfAttributes::default()).unwrap()
}

#[test]
fn branch_sample_type_selects_what_the_manual_page_says() {
    use BranchKind::*;
    for (wanted, user, kernel, kinds) in [
        // any, user; any, kernel and user; any_call, any_ret, ind_call, cond, ind_jmp, call.
        (0x9, true, false, &BranchKind::ALL[..]),
        (0xB, true, true, &BranchKind::ALL[..]),
        (0x11, true, false, &[DirectCall, IndirectCall, Other]),
        (0x22, false, true, &[Return, Other]),
        (0x41, true, false, &[IndirectCall]),
        (0x401, true, false, &[Conditional]),
        (0x1001, true, false, &[IndirectJump]),
        (0x2001, true, false, &[DirectCall]),
        (0x2401, true, false, &[Conditional, DirectCall]),
        // abort_tx; flags that select nothing.
        (0x81, true, false, &[Other]),
        (0xF_C009, true, false, &BranchKind::ALL[..]),
    ] {
        let filter = samples(wanted).filter();
        assert_eq!((filter.user(), filter.kernel()), (user, kernel), "{wanted:#X}");
        assert_eq!(filter.kinds().iter().collect::<Vec<_>>(), kinds, "{wanted:#X}");
        assert!(!filter.is_call_stack());
    }
    assert_eq!(samples(0x801).filter(), BranchFilter::USER.call_stack());
}

#[test]
fn without_a_level_the_events_own_levels_count() {
    let of = |exclude_user, exclude_kernel| {
        let attributes =
            PerfAttributes { exclude_user, exclude_kernel, ..PerfAttributes::default() };
        let filter = BranchSamples::of(0x8, &attributes).unwrap().filter();
        (filter.user(), filter.kernel())
    };
    assert_eq!(of(false, false), (true, true));
    assert_eq!(of(false, true), (true, false));
    assert_eq!(of(true, false), (false, true));
}

#[test]
fn what_linux_refuses_is_refused() {
    let refused = |wanted| BranchSamples::of(wanted, &PerfAttributes::default()).unwrap_err();
    assert_eq!(refused(0x1), PerfError::NoBranchKind);
    assert_eq!(refused(0xF_C003), PerfError::NoBranchKind);
    assert_eq!(refused(0x801 | 0x8), PerfError::CallStackWithKinds);
    assert_eq!(refused(1 << 20 | 1 << 63 | 0x9), PerfError::BranchBits(1 << 20 | 1 << 63));
}

#[test]
fn an_entry_has_the_fields_of_perf_branch_entry() {
    let branch = Branch {
        from: 0x1122_3344_5566_7788,
        to: 0x401000,
        mispredicted: Some(true),
        cycles: Some(0x1234),
        kind: Some(BranchKind::IndirectCall),
        path: Some(BranchPath::Speculative),
        transaction: Some(BranchTransaction { inside: true, aborted: false }),
        events: None,
    };
    // mispred 0, predicted 1, in_tx 2, abort 3, cycles 19:4, type 23:20, spec 25:24.
    let flags = |wanted| samples(wanted).entry(&branch).unwrap().flags;
    assert_eq!(flags(0x1_0009), 0b0101 | 0x1234 << 4 | 5 << 20 | 3 << 24);
    assert_eq!(flags(0x9), 0b0101 | 0x1234 << 4 | 3 << 24);
    assert_eq!(flags(0x8009), 0b0101 | 3 << 24);
    assert_eq!(flags(0xC009), 0);
    let predicted = Branch { mispredicted: Some(false), path: Some(BranchPath::Wrong), ..branch };
    let entry = samples(0xC_0009).entry(&predicted).unwrap();
    assert_eq!(entry.flags, 0b0110 | 0x1234 << 4 | 1 << 24);
    let unknown = Branch { from: 1, to: 2, ..Branch::default() };
    let entry = samples(0x1_0009).entry(&unknown).unwrap();
    assert_eq!(entry, BranchEntry { from: 1, to: 2, flags: 0 });
    let bytes = samples(0x1_0009).entry(&branch).unwrap().to_bytes();
    assert_eq!(bytes[..8], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    assert_eq!(bytes[8..16], [0x00, 0x10, 0x40, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[16..], [0x45, 0x23, 0x51, 0x03, 0, 0, 0, 0]);
    for (kind, number) in [
        (BranchKind::Conditional, 1),
        (BranchKind::DirectJump, 2),
        (BranchKind::IndirectJump, 3),
        (BranchKind::DirectCall, 4),
        (BranchKind::IndirectCall, 5),
        (BranchKind::Return, 6),
        (BranchKind::Other, 0),
    ] {
        let branch = Branch { kind: Some(kind), ..unknown };
        assert_eq!(samples(0x1_0009).entry(&branch).unwrap().flags, number << 20);
    }
}

#[test]
fn a_branch_that_was_not_asked_for_is_left_out() {
    let user = Branch { from: 1, to: 2, ..Branch::default() };
    let kernel = Branch { to: 0xFFFF_FFFF_8100_0000, ..user };
    let has = |wanted, branch: &Branch| samples(wanted).entry(branch).is_some();
    assert!(has(0x9, &user) && !has(0x9, &kernel) && !has(0xA, &user) && has(0xA, &kernel));
    let jump = Branch { kind: Some(BranchKind::DirectJump), ..user };
    assert!(!has(0x11, &jump) && has(0x9, &jump));
    let of = |inside, aborted| Branch {
        transaction: Some(BranchTransaction { inside, aborted }),
        ..user
    };
    assert!(has(0x109, &of(true, false)) && !has(0x109, &of(false, false)) && !has(0x109, &user));
    assert!(!has(0x209, &of(true, false)) && has(0x209, &of(false, false)) && has(0x209, &user));
    assert!(has(0x309, &of(true, false)) && has(0x309, &of(false, false)));
    assert!(has(0x81, &of(false, true)) && !has(0x81, &of(true, false)));
    assert!(has(0x89, &of(true, false)));
    // abort_tx,cond: of the far branches, aborts alone; of one whose type is unknown, nothing says that it is none.
    let far = |aborted| Branch { kind: Some(BranchKind::Other), ..of(true, aborted) };
    let conditional = Branch { kind: Some(BranchKind::Conditional), ..user };
    assert!(has(0x481, &far(true)) && !has(0x481, &far(false)) && has(0x481, &conditional));
    assert!(has(0x481, &user) && has(0x491, &far(false)) && has(0x4A1, &far(false)));
}

#[test]
fn an_event_has_the_branches_that_its_attributes_ask_for() {
    let with = |branch_sample_type| PerfEventAttr {
        sample_type: PerfEventAttr::SAMPLE_BRANCH_STACK,
        branch_sample_type,
        ..PerfEventAttr::default()
    };
    for (bits, refused) in [
        (0x1, PerfError::NoBranchKind),
        (0x808, PerfError::CallStackWithKinds),
        (1 << 20, PerfError::BranchBits(1 << 20)),
    ] {
        assert_eq!(with(bits).branches(), Err(refused));
        assert_eq!(with(bits).event(&()), Err(refused));
        assert_eq!(refused.errno(), 22);
        assert!(refused.to_string().contains("branch_sample_type"), "{refused}");
    }
    let attr = with(0x9);
    assert_eq!(attr.branches(), Ok(Some(samples(0x9))));
    assert_eq!(attr.event(&()).unwrap().branches(), Some(BranchFilter::USER));
    // Without the bit of `sample_type`, the field means nothing.
    let attr = PerfEventAttr { sample_type: 0, branch_sample_type: 0x1, ..attr };
    assert_eq!(attr.branches(), Ok(None));
    assert_eq!(attr.event(&()).unwrap().branches(), None);
}

#[test]
fn a_text_has_perfs_names_of_branches() {
    let attr = |terms: &str| {
        let text = format!("cycles/period=10007{terms}/pp");
        PerfEvent::parse(&text, &()).map(|event| event.attr)
    };
    let bits = |terms: &str| {
        let attr = attr(terms).unwrap();
        let asks = attr.sample_type & PerfEventAttr::SAMPLE_BRANCH_STACK != 0;
        asks.then_some(attr.branch_sample_type)
    };
    // By number: perf-record(1), `--branch-filter`, and `perf_event_open(2)`. A level alone selects any branch.
    for (name, expected) in [
        ("u", 0x9),
        ("k", 0xA),
        ("hv", 0xC),
        ("any", 0x8),
        ("any_call", 0x10),
        ("any_ret", 0x20),
        ("ind_call", 0x40),
        ("abort_tx", 0x80),
        ("in_tx", 0x100),
        ("no_tx", 0x200),
        ("cond", 0x400),
        ("stack", 0x800),
        ("ind_jmp", 0x1000),
        ("call", 0x2000),
        ("no_flags", 0x4000),
        ("no_cycles", 0x8000),
        ("save_type", 0x1_0000),
        ("hw_index", 0x2_0000),
        ("priv", 0x4_0000),
        ("counter", 0x8_0000),
        ("ANY", 0x8),
    ] {
        assert_eq!(bits(&format!(",branch_type={name}")), Some(expected), "{name}");
    }
    assert_eq!(bits(",branch_type=any_call,branch_type=save_type"), Some(0x1_0010));
    assert_eq!(bits(",branch_type=any,branch_type=no"), None);
    assert_eq!(bits(""), None);
    let at = ",period=10007".len() + "cycles/".len() - 1;
    for (terms, at) in [
        (",branch_type", at + ",branch_type".len()),
        (",branch_type=", at + ",branch_type=".len()),
        (",branch_type=anything", at + ",branch_type=".len()),
    ] {
        assert_eq!(attr(terms), Err(PerfError::Value { at }), "{terms}");
    }
    let event = attr(",branch_type=any").unwrap().event(&()).unwrap();
    assert_eq!(event.branches(), Some(BranchFilter::ALL));
    assert_eq!(event.precision(), Some(Precision::ZeroSkidRequested));
}
