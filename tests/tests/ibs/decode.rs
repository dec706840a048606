//! Hand-made register values, and what a record says of them.

use pmu_amd::ibs::registers::{IbsFetchCtl, IbsOpData, IbsOpData2, IbsOpData3};
use pmu_amd::ibs::{IbsErratum, IbsFetchRecord, IbsKind, IbsOpRecord, IbsUnit, IbsUnits};
use pmu_core::precise::{
    AccessType, BranchOutcome, DataSource, LineState, PageSize, PreciseSample, Translation,
};
use pmu_tests::ibs_processor as processor;

/// Capabilities of Zen 2 and 3, and of Zen 4 (leaf 0x8000001B of recorded processors).
pub(crate) const ZEN_3: u32 = 0x3FF;
pub(crate) const ZEN_4: u32 = 0xBFF;

fn unit(family: u32, model: u32, capabilities: u32, kind: IbsKind) -> IbsUnit {
    let units = IbsUnits::of(&processor(family, model, capabilities)).expect("units");
    *units.get(kind).expect("a unit")
}

fn op(unit: &IbsUnit, data: u64, data2: u64, data3: u64) -> PreciseSample {
    let record = IbsOpRecord {
        rip: 0x40_1000,
        data: IbsOpData::from_bits(data),
        data2: IbsOpData2::from_bits(data2),
        data3: IbsOpData3::from_bits(data3),
        linear_address: 0x7FFF_0010,
        physical_address: None,
        target: 0x40_2000,
    };
    record.sample(unit)
}

/// A load that misses both caches: bits 0, 7 and 20, its address valid (bit 17), latency 0x123 (from bit 32).
const MISS: u64 = 0x0000_0123_0012_0081;

#[test]
fn a_load_that_missed_has_its_source_and_latency() {
    let zen_4 = unit(0x19, 0x11, ZEN_4, IbsKind::Op);
    for (source, expected) in [
        (0x01, Some(DataSource::L3)),
        (0x02, Some(DataSource::NearCache)),
        (0x03, Some(DataSource::Memory)),
        (0x05, Some(DataSource::FarCache)),
        (0x06, Some(DataSource::PersistentMemory)),
        (0x07, Some(DataSource::Io)),
        (0x40, Some(DataSource::ExtensionMemory)), // 8: high bits 1, low bits 0
        (0x44, Some(DataSource::PeerMemory)),      // 12: high bits 1, low bits 4
        (0x00, None),
        (0x04, None),
        (0xC7, None),
    ] {
        let access = op(&zen_4, 0, source, MISS).access.expect("an access");
        assert_eq!(access.source, expected, "{source:#X}");
        assert_eq!(access.latency, Some(0x123));
        assert_eq!(access.address, Some(0x7FFF_0010));
    }
    let zen_3 = unit(0x19, 0x21, ZEN_3, IbsKind::Op);
    for (source, expected) in [
        (0, None),
        (1, None),
        (2, Some(DataSource::L3)),
        (3, Some(DataSource::Memory)),
        (4, Some(DataSource::OtherCache)),
        (7, Some(DataSource::Io)),
        (0x43, Some(DataSource::Memory)), // the high bits do not exist
    ] {
        assert_eq!(op(&zen_3, 0, source, MISS).access.expect("an access").source, expected);
    }
}

#[test]
fn the_remote_node_and_the_line_s_state_belong_to_some_sources_only() {
    let zen_4 = unit(0x19, 0x11, ZEN_4, IbsKind::Op);
    let access = |data2| op(&zen_4, 0, data2, MISS).access.expect("an access");
    assert_eq!(access(0x13).remote, Some(true));
    assert_eq!(access(0x03).remote, Some(false));
    assert_eq!(access(0x11).remote, None, "a cache");
    assert_eq!(access(0x02).line, Some(LineState::Modified));
    assert_eq!(access(0x25).line, Some(LineState::Owned));
    assert_eq!(access(0x23).line, None, "memory");
    // Family 19h, models 20h–5Fh: the state is invalid.
    let zen_3 = unit(0x19, 0x21, ZEN_3, IbsKind::Op);
    assert_eq!(op(&zen_3, 0, 0x02, MISS).access.expect("an access").line, None);
}

#[test]
fn nearer_caches_are_told_by_the_access_itself() {
    let zen_4 = unit(0x19, 0x11, ZEN_4, IbsKind::Op);
    let access = |data3| op(&zen_4, 0, 0x03, data3).access.expect("an access");
    assert_eq!(access(0x01).source, Some(DataSource::L1));
    assert_eq!(access(0x01).latency, None, "a hit has no miss latency");
    assert_eq!(access(0x81).source, Some(DataSource::L2));
    assert_eq!(access(0x10_0081).source, Some(DataSource::Memory));
    assert_eq!(access(0x11_0081).source, Some(DataSource::FillBuffer));
    assert_eq!(access(0x10_0082).source, None, "a store");
    assert_eq!(op(&zen_4, 0, 0x03, 0x80).access, None, "neither a load nor a store");
    // Family 15h before model 30h does not tell misses of the second-level cache: its source says where the data was.
    let bulldozer = unit(0x15, 0x01, 0xFF, IbsKind::Op);
    assert_eq!(op(&bulldozer, 0, 0x03, 0x81).access.expect("one").source, Some(DataSource::Memory));
}

/// Erratum 1293.
#[test]
fn a_prefetch_on_an_early_zen_3_has_no_source() {
    let prefetch = 0x30_0081; // bit 21
    for (model, expected) in [(0x01, None), (0x21, Some(DataSource::Memory))] {
        let unit = unit(0x19, model, ZEN_3, IbsKind::Op);
        let access = op(&unit, 0, 0x03, prefetch).access.expect("an access");
        assert_eq!(access.source, expected);
        assert!(access.prefetch);
    }
    let early = unit(0x19, 0x01, ZEN_3, IbsKind::Op);
    let hit_a_buffer = op(&early, 0, 0x03, 0x11_0081).access.expect("an access");
    assert_eq!(hit_a_buffer.source, Some(DataSource::FillBuffer));
    assert_eq!(hit_a_buffer.remote, None);
}

#[test]
fn a_translation_names_the_tlb_and_its_page() {
    let unit = unit(0x19, 0x11, ZEN_4, IbsKind::Op);
    let valid = 1 << 17;
    for (bits, translation, page) in [
        (0x00, Translation::L1Tlb, Some(PageSize::Small)),
        (0x10, Translation::L1Tlb, Some(PageSize::Large)),
        (0x20, Translation::L1Tlb, Some(PageSize::Huge)),
        (0x04, Translation::L2Tlb, Some(PageSize::Small)),
        (0x44, Translation::L2Tlb, Some(PageSize::Large)),
        (0x8_0004, Translation::L2Tlb, Some(PageSize::Huge)),
        (0x0C, Translation::PageWalk, None),
    ] {
        let access = op(&unit, 0, 0, 1 | valid | bits).access.expect("an access");
        assert_eq!((access.translation, access.page), (Some(translation), page), "{bits:#X}");
    }
    let access = op(&unit, 0, 0, 0x0045_0000_0000_0005).access.expect("an access");
    assert_eq!(access.tlb_latency, Some(0x45));
    assert_eq!((access.address, access.translation), (None, None), "the address is not valid");
}

/// The bits of the TLBs with and without the capability of the page size, by the PPRs' tables of the register.
#[test]
fn zen_5_s_page_size_is_not_taken_for_a_tlb_s_hit() {
    for row in pmu_tests::data!("ibs_pages.csv") {
        let unit = unit(0x1A, 0x24, row.number("capabilities") as u32, IbsKind::Op);
        let access = op(&unit, 0, 0, row.number("data3")).access.expect("an access");
        let translation = access.translation.map_or("-".into(), |told| format!("{told:?}"));
        let page = access.page.map_or("-".into(), |told| format!("{told:?}"));
        let latency = access.tlb_latency.map_or("-".into(), |told| told.to_string());
        let told = [translation, page, latency];
        assert_eq!(told, ["translation", "page", "latency"].map(|at| row.text(at)), "{row:?}");
    }
}

#[test]
fn a_capability_is_told_by_its_own_bit_alone() {
    let of = |bit: u32| unit(0x1A, 0x50, 0b111 | 1 << bit, IbsKind::Op).capabilities();
    for bit in 3..32 {
        assert_eq!(of(bit).memory_profiler(), bit == 18, "{bit}");
        assert_eq!(of(bit).data_page_size(), bit == 19, "{bit}");
    }
    // A recorded Zen 5.
    let zen_5 =
        pmu_core::x86::dump::CpuidDump::parse(include_str!("../../data/cpuid/amd-zen5.txt"));
    let zen_5 = pmu_core::x86::Snapshot::capture(&zen_5.expect("a dump"));
    let zen_5 = pmu_amd::ibs::IbsCapabilities::of(&zen_5).expect("a unit");
    assert!(zen_5.data_page_size() && !zen_5.memory_profiler());
}

#[test]
fn widths_types_and_locks_are_told() {
    let unit = unit(0x19, 0x11, ZEN_4, IbsKind::Op);
    let access = |data3| op(&unit, 0, 0, data3).access.expect("an access");
    let widths = [None, Some(1), Some(2), Some(4), Some(8), Some(16), Some(32), Some(64), None];
    for (code, bytes) in (0..).zip(widths) {
        assert_eq!(access(2 | code << 22).bytes, bytes, "{code}");
    }
    assert_eq!(access(0x4001).memory_type, Some(AccessType::Uncacheable));
    assert_eq!(access(0x2001).memory_type, Some(AccessType::WriteCombining));
    assert_eq!(access(0x0001).memory_type, None);
    assert_eq!((access(0x8103).locked, access(0x8103).misaligned), (Some(true), Some(true)));
    assert!(access(0x8103).load && access(0x8103).store);
}

#[test]
fn a_branch_has_an_outcome_and_a_target_if_it_was_taken() {
    let zen_4 = unit(0x19, 0x11, ZEN_4, IbsKind::Op);
    let taken = BranchOutcome { taken: true, target: Some(0x40_2000), ..Default::default() };
    assert_eq!(op(&zen_4, 0x28_0000_0000, 0, 0).branch, Some(taken));
    let mispredicted = BranchOutcome { mispredicted: true, ..Default::default() };
    assert_eq!(op(&zen_4, 0x30_0000_0000, 0, 0).branch, Some(mispredicted));
    let returns = BranchOutcome { is_return: true, ..taken };
    assert_eq!(op(&zen_4, 0x2C_0000_0000, 0, 0).branch, Some(returns));
    assert_eq!(op(&zen_4, 0x08_0000_0000, 0, 0).branch, None, "no branch retired");
    // Family 10h records no targets.
    let family_10h = unit(0x10, 0x02, 0x07, IbsKind::Op);
    let without = BranchOutcome { taken: true, ..Default::default() };
    assert_eq!(op(&family_10h, 0x28_0000_0000, 0, 0).branch, Some(without));
}

#[test]
fn an_invalid_address_is_none_where_the_processor_tells() {
    let invalid = 1 << 38;
    let zen_4 = unit(0x19, 0x11, ZEN_4, IbsKind::Op);
    let sample = op(&zen_4, invalid | 0x0007_0003, 0, 0);
    assert_eq!(sample.address, None);
    assert_eq!((sample.latency, sample.retire_latency), (Some(7), Some(3)));
    assert_eq!(op(&zen_4, 0, 0, 0).address, Some(0x40_1000));
    let family_10h = unit(0x10, 0x02, 0x07, IbsKind::Op);
    assert_eq!(op(&family_10h, invalid, 0, 0).address, Some(0x40_1000));
}

#[test]
fn a_fetch_has_its_caches_and_tlbs() {
    let record = |control: u64| IbsFetchRecord {
        control: IbsFetchCtl::from_bits(control),
        linear_address: 0x40_3000,
        physical_address: None,
        tlb_latency: 0x33,
    };
    let zen_4 = unit(0x19, 0x11, ZEN_4, IbsKind::Fetch);
    // Valid and enabled; complete (50), cache miss (51), L1 TLB miss (55), L2 miss (58), L3 miss (61), latency 0x0102.
    let sample = record(0x248F_0102_0000_0000).sample(&zen_4);
    assert_eq!((sample.address, sample.access), (Some(0x40_3000), None));
    let fetch = sample.fetch.expect("a fetch");
    assert!(fetch.completed);
    assert_eq!(
        (fetch.cache_miss, fetch.l2_miss, fetch.l3_miss),
        (Some(true), Some(true), Some(true))
    );
    assert_eq!(fetch.op_cache_miss, Some(false));
    assert_eq!((fetch.latency, fetch.tlb_latency), (Some(0x102), Some(0x33)));
    assert_eq!(fetch.translation, Some(Translation::L2Tlb));
    let zen_3 = unit(0x19, 0x21, ZEN_3, IbsKind::Fetch);
    let fetch = record(0x248F_0102_0000_0000).sample(&zen_3).fetch.expect("a fetch");
    assert_eq!((fetch.l3_miss, fetch.op_cache_miss), (None, None));
    // Both TLBs missed (55, 56); page size 1 (53) with a valid physical address (52).
    let fetch = record(0x01B0_0000_0000_0000).sample(&zen_4).fetch.expect("a fetch");
    assert_eq!(
        (fetch.translation, fetch.page),
        (Some(Translation::PageWalk), Some(PageSize::Large))
    );
}

/// Erratum 1197.
#[test]
fn a_fetch_at_address_0_is_void_on_an_early_zen_3() {
    let record = IbsFetchRecord { ..Default::default() };
    assert_eq!(record.address(&unit(0x19, 0x01, ZEN_3, IbsKind::Fetch)), None);
    assert_eq!(record.address(&unit(0x19, 0x21, ZEN_3, IbsKind::Fetch)), Some(0));
}

/// The errata's families and models, from the revision guides and from what Linux does.
#[test]
fn each_erratum_has_its_processors() {
    use IbsErratum::*;
    for (family, model, expected) in [
        (0x10, 0x02, &[PeriodBeforeStop][..]),
        (0x15, 0x02, &[]),
        (0x16, 0x30, &[FetchCountKept]),
        (0x17, 0x31, &[FetchCountKept]),
        (0x18, 0x01, &[FetchCountKept]),
        (0x19, 0x01, &[FetchWithoutAddress, PrefetchWithoutSource, LineStateInvalid]),
        (0x19, 0x11, &[]),
        (0x19, 0x21, &[LineStateInvalid]),
        (0x19, 0x50, &[LineStateInvalid]),
        (0x19, 0x61, &[]),
        // Zen 5, by the models of which Linux says so.
        (0x1A, 0x02, &[LatencyFilterNeedsL3Miss]),
        (0x1A, 0x11, &[LatencyFilterNeedsL3Miss]),
        (0x1A, 0x24, &[LatencyFilterNeedsL3Miss]),
        (0x1A, 0x44, &[LatencyFilterNeedsL3Miss]),
        (0x1A, 0x60, &[LatencyFilterNeedsL3Miss]),
        (0x1A, 0x70, &[LatencyFilterNeedsL3Miss]),
        // Zen 6.
        (0x1A, 0x30, &[]),
        (0x1A, 0x50, &[]),
        (0x1A, 0x80, &[]),
    ] {
        let unit = unit(family, model, ZEN_3, IbsKind::Op);
        for erratum in IbsErratum::ALL {
            assert_eq!(unit.has(erratum), expected.contains(&erratum), "{family:#X} {model:#X}");
        }
    }
}
