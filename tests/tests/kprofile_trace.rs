//! Tracing of profile interrupts: records and group masks against the data file, the rings, what
//! starts and stops it all; and the chain of sources that Windows answers.

mod kprofile;

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread;

use kprofile::{
    FAULT, Frame, Machine, REFUSAL, VERSIONS, WIDTHS, leak, process, processor, source,
};
use pmu_amd::Amd64;
use pmu_core::{
    CounterMemory, CounterSlot, DefaultInterface, InterruptFrame, IntervalLimits, KProfileSource,
    ProcessorNumber, ProfileInterface,
};
use pmu_intel::Emon;
use pmu_kprofile::PointerWidth::{self, Bits32, Bits64};
use pmu_kprofile::WindowsVersion::{Windows8, WindowsXp};
use pmu_kprofile::compat::source_list::{
    SOURCE_LIST_CLASS, SourceListError, read_source_list, write_source_list,
};
use pmu_kprofile::trace::{
    CacheErrata, Detail, EVENT_TRACE_FLAG_PROFILE, GroupMask, Hook, MAX_PMC_SOURCES,
    PERF_PMC_PROFILE, PERF_PROFILE, RecordError, TraceCallback, TraceControl, TraceError,
    TraceObjects, TraceRecord, TraceRing,
};
use pmu_kprofile::{
    Affinity, ProfileCallback, ProfileError, ProfileObject, Profiles, Rules, ThisProcessor,
};
use pmu_tests::{FakePlatform, RegisterFile, Row, data, intel_processor};
use proptest::prelude::*;

const TIME: KProfileSource = KProfileSource::TIME;

/// A row of the data file.
fn fact(item: &str) -> Row<'static> {
    let rows = data!("trace.csv");
    rows.into_iter().find(|row| row.text("item") == item).unwrap_or_else(|| panic!("no {item}"))
}

/// An offset or value of the data file.
fn value(item: &str) -> u64 {
    fact(item).number("offset_or_value")
}

/// Writes a member of a structure that begins at `base`.
fn put(image: &mut [u8], base: usize, item: &str, value: u64) {
    let row = fact(item);
    let (at, size) = (base + row.number("offset_or_value") as usize, row.number("size") as usize);
    image[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
}

/// The record's bytes, by the data file.
fn expected(record: &TraceRecord) -> Vec<u8> {
    let (width, marker) = match record.width {
        Bits32 => ("32", value("PERFINFO_TRACE_MARKER32")),
        Bits64 => ("64", value("PERFINFO_TRACE_MARKER64")),
    };
    let (event, hook) = match record.detail {
        Detail::SampledProfile { .. } => ("SAMPLED_PROFILE", "PERFINFO_LOG_TYPE_SAMPLED_PROFILE"),
        Detail::PmcInterrupt { .. } => ("PMC_INTERRUPT", "PERFINFO_LOG_TYPE_PMC_INTERRUPT"),
    };
    let member = |name: &str| format!("{event}_{width}.{name}");
    let header = value("PERFINFO_TRACE_HEADER.total") as usize;
    let payload = header + if record.pebs_index.is_some() { 8 } else { 0 };
    let total = payload + value(&member("total")) as usize;
    let mut image = vec![0; total];
    let flag = record.pebs_index.map_or(0, |_| value("TRACE_HEADER_PEBS_INDEX_FLAG"));
    put(&mut image, 0, "PERFINFO_TRACE_HEADER.Marker", marker | 2 | flag);
    put(&mut image, 0, "PERFINFO_TRACE_HEADER.Size", total as u64);
    put(&mut image, 0, "PERFINFO_TRACE_HEADER.HookId", value(hook));
    put(&mut image, 0, "PERFINFO_TRACE_HEADER.TimeStamp", record.timestamp);
    if let Some(index) = record.pebs_index {
        image[header..payload].copy_from_slice(&index.to_le_bytes());
    }
    let mut put = |name: &str, value| put(&mut image, payload, &member(name), value);
    put("InstructionPointer", record.pc);
    put("ThreadId", record.thread.into());
    match record.detail {
        Detail::SampledProfile { count, flags, rank } => {
            put("Count", count.into());
            put("Flags", flags.into());
            put("Rank", rank.into());
        }
        Detail::PmcInterrupt { source } => {
            put("ProfileSource", source.into());
            put("Reserved", 0);
        }
    }
    image
}

fn a_record() -> impl Strategy<Value = TraceRecord> {
    let detail = prop_oneof![
        any::<(u16, u8, u8)>().prop_map(|(count, flags, rank)| Detail::SampledProfile {
            count,
            flags,
            rank
        }),
        any::<u16>().prop_map(|source| Detail::PmcInterrupt { source }),
    ];
    let width = prop::sample::select(vec![Bits32, Bits64]);
    (width, any::<u64>(), any::<Option<u64>>(), any::<u64>(), any::<u32>(), detail).prop_map(
        |(width, timestamp, pebs_index, pc, thread, detail)| TraceRecord {
            width,
            timestamp,
            pebs_index,
            pc: pc & width.max_address(),
            thread,
            detail,
        },
    )
}

/// One record of each form, with telling values.
fn every_form() -> Vec<TraceRecord> {
    let mut records = Vec::new();
    for width in [Bits32, Bits64] {
        for pebs_index in [None, Some(0x2122_2324_2526_2728)] {
            for detail in [
                Detail::SampledProfile { count: 0x4142, flags: 0x43, rank: 0x44 },
                Detail::PmcInterrupt { source: 0x4546 },
            ] {
                records.push(TraceRecord {
                    width,
                    timestamp: 0x1112_1314_1516_1718,
                    pebs_index,
                    pc: 0x0102_0304_0506_0708 & width.max_address(),
                    thread: 0x3132_3334,
                    detail,
                });
            }
        }
    }
    records
}

#[test]
fn records_have_the_data_file_s_bytes_in_both_widths_with_and_without_a_pebs_index() {
    for (record, length) in every_form().into_iter().zip([28, 28, 36, 36, 32, 32, 40, 40]) {
        let bytes = record.encode();
        assert_eq!(bytes.as_slice(), expected(&record), "{record:x?}");
        assert_eq!(bytes.as_slice().len(), length);
        assert_eq!(TraceRecord::decode(bytes.as_slice()), Ok((record, length)));
    }
    assert_eq!(u64::from(Hook::SampledProfile.id()), value("PERFINFO_LOG_TYPE_SAMPLED_PROFILE"));
    assert_eq!(u64::from(Hook::PmcInterrupt.id()), value("PERFINFO_LOG_TYPE_PMC_INTERRUPT"));
}

#[test]
fn pmc_values_that_others_attach_are_skipped() {
    let header = value("PERFINFO_TRACE_HEADER.total") as usize;
    for record in every_form() {
        for count in 1..=7u32 {
            let mut bytes = record.encode().as_slice().to_vec();
            let flag = count << value("TRACE_HEADER_PMC_COUNTERS_SHIFT");
            assert_eq!(u64::from(flag) & !value("TRACE_HEADER_PMC_COUNTERS_MASK"), 0);
            bytes[1] |= (flag >> 8) as u8;
            // Behind the PEBS index.
            let at = header + if record.pebs_index.is_some() { 8 } else { 0 };
            bytes.splice(at..at, vec![0xC5; 8 * count as usize]);
            let length = bytes.len();
            bytes[4..6].copy_from_slice(&(length as u16).to_le_bytes());
            assert_eq!(TraceRecord::decode(&bytes), Ok((record, length)));
        }
    }
}

#[test]
fn what_is_no_whole_record_of_a_profile_interrupt_is_refused() {
    for record in every_form() {
        let whole = record.encode().as_slice().to_vec();
        let decode = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = whole.clone();
            change(&mut bytes);
            TraceRecord::decode(&bytes).map(|(record, _)| record)
        };
        for length in 0..whole.len() {
            let too_short = Err(RecordError::TooShort);
            assert_eq!(decode(&|bytes| bytes.truncate(length)), too_short);
            // The size that the record says is what counts.
            assert_eq!(decode(&|bytes| bytes[4] = length as u8), too_short);
        }
        assert_eq!(decode(&|bytes| bytes[4] += 1), Err(RecordError::TooShort));
        assert_eq!(decode(&|bytes| bytes.extend([0xFF; 9])), Ok(record));
        for hook in [0x0F30u16, 0x0F2D, 0x0524, 0] {
            let other = decode(&|bytes| bytes[6..8].copy_from_slice(&hook.to_le_bytes()));
            assert_eq!(other, Err(RecordError::Hook(hook)));
        }
        for (at, byte) in [(3, 0xC1), (2, 0x12), (3, 0x40), (2, 0x01)] {
            let mut marker = [whole[0], whole[1], whole[2], whole[3]];
            marker[at] = byte;
            let error = RecordError::Marker(u32::from_le_bytes(marker));
            assert_eq!(decode(&|bytes| bytes[at] = byte), Err(error));
        }
        assert_eq!(decode(&|bytes| bytes[0] = 3), Ok(record), "version 3");
    }
}

/// A mask as the set of its bits: (word, bit).
fn bits(mask: &GroupMask) -> Vec<(usize, u32)> {
    let of_word = |(word, bits): (usize, u32)| {
        (0..32).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| (word, bit))
    };
    mask.masks.into_iter().enumerate().flat_map(of_word).collect()
}

#[test]
fn a_flag_s_top_three_bits_are_its_word() {
    assert_eq!(u64::from(PERF_PROFILE), value("PERF_PROFILE"));
    assert_eq!(u64::from(PERF_PMC_PROFILE), value("PERF_PMC_PROFILE"));
    assert_eq!(u64::from(EVENT_TRACE_FLAG_PROFILE), value("EVENT_TRACE_FLAG_PROFILE"));
    assert_eq!(size_of::<GroupMask>() as u64, value("PERFINFO_GROUPMASK.total"));
    assert_eq!(GroupMask::EMPTY.masks.len() as u64, value("PERF_NUM_MASKS"));
    for (flag, expected) in [
        ("PERF_PROFILE", vec![(1, 1)]),
        ("PERF_CONTEXT_SWITCH", vec![(1, 2)]),
        ("PERF_COMPACT_CSWITCH", vec![(1, 8)]),
        ("PERF_PMC_PROFILE", vec![(1, 10)]),
        ("PERF_PROFILING", vec![(1, 1), (1, 10)]),
        ("PERF_HV_PROFILE", vec![(4, 23)]),
        ("EVENT_TRACE_FLAG_PROFILE", vec![(0, 24)]),
    ] {
        let flag_value = value(flag) as u32;
        let mask = GroupMask::EMPTY.with(flag_value);
        assert_eq!(bits(&mask), expected, "{flag}");
        assert!(mask.contains(flag_value) && !GroupMask::EMPTY.contains(flag_value));
    }
    let profiling = value("PERF_PROFILING") as u32;
    assert!(!GroupMask::EMPTY.with(PERF_PROFILE).contains(profiling), "all bits, not any");
    assert_eq!(
        GroupMask::EMPTY.with(PERF_PROFILE).with(PERF_PMC_PROFILE),
        GroupMask::EMPTY.with(profiling)
    );
}

#[test]
fn enable_flags_are_the_first_word_but_for_the_profile_s() {
    let profile = GroupMask::EMPTY.with(PERF_PROFILE);
    assert_eq!(GroupMask::from_enable_flags(EVENT_TRACE_FLAG_PROFILE), profile);
    assert_eq!(GroupMask::from_enable_flags(0), GroupMask::EMPTY);
    for bit in (0..32).filter(|bit| 1 << bit != EVENT_TRACE_FLAG_PROFILE) {
        let mask = GroupMask::from_enable_flags(1 << bit);
        assert_eq!(bits(&mask), [(0, bit)]);
        assert!(!mask.contains(PERF_PROFILE) && !mask.contains(PERF_PMC_PROFILE));
    }
    assert_eq!(bits(&GroupMask::from_enable_flags(0x0100_0005)), [(0, 0), (0, 2), (1, 1)]);
}

proptest! {
    #[test]
    fn any_record_survives_its_bytes(record in a_record()) {
        let bytes = record.encode();
        prop_assert_eq!(bytes.as_slice(), expected(&record));
        let length = bytes.as_slice().len();
        prop_assert_eq!(TraceRecord::decode(bytes.as_slice()), Ok((record, length)));
    }

    #[test]
    fn any_bytes_decode_or_are_refused(
        mut bytes in prop::collection::vec(any::<u8>(), 0..130),
        marker in prop::option::of(prop::sample::select(vec![0xC010u16, 0xC011])),
        size in prop::option::of(0u8..140),
        hook in prop::option::of(0x0F2Eu16..0x0F30),
    ) {
        let fields = [(2, marker), (4, size.map(u16::from)), (6, hook)];
        for (at, field) in fields {
            if let (Some(field), Some(place)) = (field, bytes.get_mut(at..at + 2)) {
                place.copy_from_slice(&field.to_le_bytes());
            }
        }
        if let Ok((record, length)) = TraceRecord::decode(&bytes) {
            prop_assert!(length <= bytes.len());
            prop_assert_eq!(TraceRecord::decode(&bytes[..length]), Ok((record, length)));
        }
    }

    #[test]
    fn a_mask_is_the_union_of_its_flags(flags in prop::collection::vec(any::<u32>(), 0..6)) {
        let mask = flags.iter().fold(GroupMask::EMPTY, |mask, flag| mask.with(*flag));
        let mut expected: Vec<(usize, u32)> = flags
            .iter()
            .flat_map(|flag| (0..29).filter(move |bit| flag >> bit & 1 != 0).map(move |bit| {
                ((flag >> 29) as usize, bit)
            }))
            .collect();
        expected.sort_unstable();
        expected.dedup();
        prop_assert_eq!(bits(&mask), expected);
        prop_assert!(flags.iter().all(|flag| mask.contains(*flag)));
    }
}

/// What interrupts write to is read by another thread meanwhile: in order, each or counted dropped.
#[test]
fn a_ring_read_while_it_is_written_loses_nothing_but_what_it_counts() {
    const PUSHES: u64 = 200_000;
    let ring = TraceRing::<2>::new();
    let record = |n: u64| TraceRecord {
        width: Bits64,
        timestamp: n,
        pebs_index: n.is_multiple_of(3).then_some(!n),
        pc: n ^ 0x5555,
        thread: n as u32,
        detail: Detail::PmcInterrupt { source: n as u16 },
    };
    let (read, pushed) = thread::scope(|scope| {
        let writer = scope.spawn(|| (0..PUSHES).filter(|n| ring.push(&record(*n))).count());
        let (mut read, mut last) = (0, None);
        let mut over = false;
        loop {
            for found in ring.drain().expect("the only reader") {
                let found = found.expect("whole records");
                assert_eq!(found, record(found.timestamp));
                assert!(last < Some(found.timestamp), "in order");
                last = Some(found.timestamp);
                read += 1;
            }
            if over {
                break;
            }
            over = writer.is_finished();
        }
        (read, writer.join().unwrap())
    });
    assert_eq!((read, ring.dropped()), (pushed, PUSHES - pushed as u64));
}

type Lists = Profiles<6, 70>;

/// Tracing on a machine of three processors, of which two have rings, with room for 3 records each.
struct Tracing {
    lists: &'static Lists,
    rings: &'static [TraceRing<3>],
    sampled: &'static TraceCallback<3>,
    pmc: &'static TraceCallback<3>,
    control: TraceControl<6, 70>,
    machine: Machine,
}

impl Tracing {
    fn new(rules: Rules, width: PointerWidth) -> Self {
        let lists = leak(Lists::with_rules(rules));
        let rings: &[TraceRing<3>] = leak([TraceRing::new(), TraceRing::new()]);
        let sampled = leak(TraceCallback::new(Hook::SampledProfile, width, rings));
        let pmc = leak(TraceCallback::new(Hook::PmcInterrupt, width, rings));
        let control = TraceControl::new(lists, leak(TraceObjects::new(rules, sampled, pmc)));
        Self { lists, rings, sampled, pmc, control, machine: Machine::new(Affinity::first(3)) }
    }

    fn latest() -> Self {
        Self::new(Rules::LATEST, Bits64)
    }

    fn sources(&mut self, values: &[u32]) -> Result<(), TraceError> {
        let sources: Vec<_> = values.iter().map(|value| source(*value)).collect();
        self.control.set_pmc_sources(&sources, &self.machine)
    }

    fn flags(&mut self, flags: &[u32]) -> Result<(), TraceError> {
        let mask = flags.iter().fold(GroupMask::EMPTY, |mask, flag| mask.with(*flag));
        self.control.set_group_mask(mask, &mut self.machine)
    }

    fn configured(&self) -> Vec<u32> {
        self.control.pmc_sources().map(KProfileSource::value).collect()
    }

    /// The sources that run, each of them on all processors.
    #[track_caller]
    fn running(&self) -> Vec<u32> {
        let all = self.machine.running();
        let on = |number| all.iter().filter(move |(_, on, _)| *on == number).map(|(.., s)| *s);
        let sources: Vec<u32> = on(0).collect();
        assert!([1, 2].into_iter().all(|number| on(number).eq(sources.iter().copied())));
        sources
    }

    /// The records of a processor's ring so far.
    fn drain(&self, number: usize) -> Vec<TraceRecord> {
        self.rings[number].drain().unwrap().map(Result::unwrap).collect()
    }
}

/// An interrupt that differs from others by its number alone.
fn frame(number: u8, pc: u64) -> Frame {
    Frame {
        processor: processor(0, number),
        process: process(pc),
        thread: pc as u32 + 1,
        timestamp: pc + 2,
        ..Frame::at(pc)
    }
}

fn record_of(frame: Frame, width: PointerWidth, detail: Detail) -> TraceRecord {
    TraceRecord {
        width,
        timestamp: frame.timestamp,
        // Windows stamps context switches alone.
        pebs_index: None,
        pc: frame.pc,
        thread: frame.thread,
        detail,
    }
}

const SAMPLE: Detail = Detail::SampledProfile { count: 1, flags: 0, rank: 0 };

#[test]
fn sampled_profile_goes_from_the_timer_interrupt_through_the_ring_to_a_record() {
    for width in [Bits32, Bits64] {
        for mask in [
            GroupMask::EMPTY.with(PERF_PROFILE),
            GroupMask::from_enable_flags(EVENT_TRACE_FLAG_PROFILE),
        ] {
            let mut tracing = Tracing::new(Rules::LATEST, width);
            assert_eq!(tracing.lists.timer_interrupt(&frame(0, 0x10)).hits, 0);
            tracing.control.set_group_mask(mask, &mut tracing.machine).unwrap();
            assert_eq!(tracing.control.group_mask(), mask);
            assert_eq!(tracing.running(), [0]);
            let plain = frame(0, 0x8000_1234);
            let with_pebs = Frame { pebs_index: Some(77), ..frame(1, 0x11) };
            assert_eq!(tracing.lists.timer_interrupt(&plain).hits, 1);
            assert_eq!(tracing.lists.timer_interrupt(&with_pebs).hits, 1);
            assert_eq!(tracing.lists.interrupt(&plain, source(0x19)).hits, 0);
            assert_eq!(tracing.drain(0), [record_of(plain, width, SAMPLE)]);
            assert_eq!(tracing.drain(1), [record_of(with_pebs, width, SAMPLE)]);
            assert_eq!(tracing.drain(0), []);

            tracing.flags(&[]).unwrap();
            assert_eq!(tracing.running(), []);
            assert_eq!(tracing.lists.timer_interrupt(&plain).hits, 0);
            assert_eq!(tracing.drain(0), []);
            assert_eq!((tracing.sampled.dropped(), tracing.lists.started()), (0, 0));
        }
    }
}

#[test]
fn up_to_four_sources_of_pmc_interrupts_are_traced_each_with_its_source() {
    assert_eq!(MAX_PMC_SOURCES, 4);
    for count in 1..=4 {
        let mut tracing = Tracing::latest();
        let sources = &[0x7FFF, 0x19, 0x02, 0x1D][..count];
        tracing.sources(sources).unwrap();
        assert_eq!((tracing.configured(), tracing.running()), (sources.to_vec(), vec![]));
        tracing.flags(&[PERF_PMC_PROFILE]).unwrap();
        let mut running = sources.to_vec();
        running.sort_unstable();
        assert_eq!(tracing.running(), running);
        for from in [0x7FFF, 0x19, 0x02, 0x1D, 0x00, 0x1E] {
            let hits = tracing.lists.interrupt(&frame(1, 0x20), source(from)).hits;
            assert_eq!(hits, u32::from(sources.contains(&from)), "{from:#X}");
            let detail = Detail::PmcInterrupt { source: from as u16 };
            let expected = record_of(frame(1, 0x20), Bits64, detail);
            assert_eq!(tracing.drain(1), vec![expected; hits as usize]);
        }
        tracing.flags(&[]).unwrap();
        assert_eq!((tracing.running(), tracing.lists.started()), (vec![], 0));
        assert_eq!(tracing.lists.interrupt(&frame(1, 0x20), source(0x7FFF)).hits, 0);
    }
}

#[test]
fn flags_start_and_stop_what_changes_and_nothing_else() {
    let mut tracing = Tracing::latest();
    tracing.sources(&[0x19, 0x1A]).unwrap();
    let other = 0x2000_0004;
    let steps: [(&[u32], &[u32], usize); 9] = [
        (&[PERF_PROFILE], &[0], 3),
        (&[PERF_PROFILE], &[0], 0),
        (&[PERF_PROFILE, other], &[0], 0),
        (&[PERF_PROFILE, PERF_PMC_PROFILE], &[0, 0x19, 0x1A], 6),
        (&[PERF_PMC_PROFILE], &[0x19, 0x1A], 3),
        (&[PERF_PROFILE], &[0], 9),
        (&[PERF_PMC_PROFILE], &[0x19, 0x1A], 9),
        (&[other], &[], 6),
        (&[], &[], 0),
    ];
    for (number, (flags, running, changes)) in steps.into_iter().enumerate() {
        let before = tracing.machine.changes;
        tracing.flags(flags).unwrap();
        assert_eq!(tracing.running(), running, "step {number}");
        assert_eq!(tracing.machine.changes - before, changes, "step {number}");
        let mask = tracing.control.group_mask();
        assert_eq!(bits(&mask).len(), flags.len());
        assert!(flags.iter().all(|flag| mask.contains(*flag)));
    }
}

#[test]
fn a_configuration_replaces_the_one_before() {
    let mut tracing = Tracing::latest();
    tracing.sources(&[0x19, 0x1A, 0x1B]).unwrap();
    tracing.sources(&[0x1C]).unwrap();
    assert_eq!(tracing.configured(), [0x1C]);
    tracing.flags(&[PERF_PMC_PROFILE]).unwrap();
    assert_eq!(tracing.running(), [0x1C]);
    tracing.flags(&[]).unwrap();
    tracing.sources(&[0x1A, 0x19]).unwrap();
    tracing.flags(&[PERF_PMC_PROFILE]).unwrap();
    assert_eq!(tracing.running(), [0x19, 0x1A]);
}

#[test]
fn sources_that_cannot_be_configured_change_nothing() {
    let mut tracing = Tracing::latest();
    tracing.machine.unsupported = Some(source(0x77));
    let unsupported = |value| TraceError::UnsupportedSource(source(value));
    let parameter = Some(0xC000_000D);
    let not_supported = Some(0xC000_00BB);
    tracing.sources(&[0x19]).unwrap();
    let cases: [(&[u32], TraceError, Option<u32>); 9] = [
        (&[], TraceError::NoSource, parameter),
        (&[1, 2, 3, 4, 5], TraceError::TooManySources(5), parameter),
        (&[0x1A, 0x1B, 0x1A], TraceError::DuplicateSource(source(0x1A)), parameter),
        (&[0x1A, 0x77], unsupported(0x77), not_supported),
        (&[0], unsupported(0), not_supported),
        (&[0x1A, 0], unsupported(0), not_supported),
        (&[0x8000], unsupported(0x8000), not_supported),
        (&[0xFFFF], unsupported(0xFFFF), not_supported),
        (&[u32::MAX], unsupported(u32::MAX), not_supported),
    ];
    for (sources, error, status) in cases {
        assert_eq!(tracing.sources(sources), Err(error));
        assert_eq!(error.status().map(|status| status.value()), status);
        assert_eq!(tracing.configured(), [0x19]);
    }
    tracing.flags(&[PERF_PMC_PROFILE]).unwrap();
    for sources in [&[0x1A][..], &[0x19], &[]] {
        assert_eq!(tracing.sources(sources), Err(TraceError::Busy));
    }
    assert_eq!(TraceError::Busy.status(), None);
    assert_eq!((tracing.configured(), tracing.running()), (vec![0x19], vec![0x19]));
}

#[test]
fn pmc_interrupts_without_sources_are_not_traced() {
    let mut tracing = Tracing::latest();
    let both = [PERF_PROFILE, PERF_PMC_PROFILE];
    assert_eq!(tracing.flags(&both), Err(TraceError::NotConfigured));
    assert_eq!((tracing.running(), tracing.lists.started()), (vec![], 0));
    assert_eq!(tracing.control.group_mask(), GroupMask::EMPTY);
}

/// Windows XP began to trace the sampled profile; PMC interrupts, and the objects that all of it became,
/// are Windows 8's.
#[test]
fn sampled_profiles_are_traced_from_windows_xp_on_and_pmc_interrupts_from_windows_8() {
    for version in VERSIONS {
        for width in WIDTHS {
            let rules = Rules { version, width };
            let mut tracing = Tracing::new(rules, width);
            let nothing = |tracing: &Tracing| {
                assert_eq!((tracing.running(), tracing.lists.started()), (vec![], 0), "{rules:?}");
                assert_eq!(tracing.control.group_mask(), GroupMask::EMPTY);
            };
            let refused = |flag| Err(TraceError::NotTraced(flag));
            assert_eq!(TraceError::NotTraced(PERF_PROFILE).status().unwrap().value(), 0xC000_00BB);

            // Who cannot trace PMC interrupts cannot configure them.
            let pmc = if version >= Windows8 { Ok(()) } else { refused(PERF_PMC_PROFILE) };
            assert_eq!(tracing.sources(&[0x19]), pmc, "{rules:?}");
            assert_eq!(tracing.flags(&[PERF_PMC_PROFILE]), pmc, "{rules:?}");
            assert_eq!(tracing.configured().len(), usize::from(pmc.is_ok()));
            if pmc.is_ok() {
                assert_eq!(tracing.lists.interrupt(&frame(1, 0x20), source(0x19)).hits, 1);
                let detail = Detail::PmcInterrupt { source: 0x19 };
                assert_eq!(tracing.drain(1), [record_of(frame(1, 0x20), width, detail)]);
                tracing.flags(&[]).unwrap();
            }
            nothing(&tracing);

            let sampled = if version >= WindowsXp { Ok(()) } else { refused(PERF_PROFILE) };
            assert_eq!(tracing.flags(&[PERF_PROFILE]), sampled, "{rules:?}");
            if sampled.is_ok() {
                assert_eq!(tracing.running(), [0]);
                assert_eq!(tracing.lists.timer_interrupt(&frame(0, 0x10)).hits, 1);
                assert_eq!(tracing.drain(0), [record_of(frame(0, 0x10), width, SAMPLE)]);
                tracing.flags(&[]).unwrap();
            }
            nothing(&tracing);
            // Others' flags are not this crate's to refuse.
            tracing.flags(&[0x2000_0004]).unwrap();
        }
    }
}

#[test]
fn hardware_that_refuses_one_source_leaves_tracing_as_it_was() {
    let both = [PERF_PROFILE, PERF_PMC_PROFILE];
    for before in [&[][..], &[PERF_PROFILE]] {
        for refused in [0x19, 0x1A, 0x1B, 0x1C] {
            let mut tracing = Tracing::latest();
            tracing.sources(&[0x19, 0x1A, 0x1B, 0x1C]).unwrap();
            tracing.flags(before).unwrap();
            let (mask, running) = (tracing.control.group_mask(), tracing.running());
            tracing.machine.counterless = Some(source(refused));
            let refusal = ProfileError::Hardware { processor: processor(0, 0), error: REFUSAL };
            assert_eq!(tracing.flags(&both), Err(TraceError::Profile(refusal)));
            assert_eq!(TraceError::Profile(refusal).status(), refusal.status());
            assert_eq!((tracing.control.group_mask(), tracing.running()), (mask, running));
            assert_eq!(tracing.lists.started(), before.len());
            tracing.machine.counterless = None;
            tracing.flags(&both).unwrap();
            assert_eq!(tracing.running(), [0, 0x19, 0x1A, 0x1B, 0x1C]);
        }
    }
}

#[test]
fn an_undo_that_fails_too_is_told_as_the_fault_and_nothing_is_traced() {
    let mut tracing = Tracing::latest();
    tracing.sources(&[0x19]).unwrap();
    tracing.machine.counterless = Some(source(0x19));
    tracing.machine.stuck = Some(TIME);
    let fault = ProfileError::Hardware { processor: processor(0, 0), error: FAULT };
    let outcome = tracing.flags(&[PERF_PROFILE, PERF_PMC_PROFILE]);
    assert_eq!(outcome, Err(TraceError::Profile(fault)));
    assert_eq!((tracing.lists.started(), tracing.control.group_mask()), (0, GroupMask::EMPTY));
}

/// An object whose source does not stop is off its list all the same, and so are those after it.
#[test]
fn hardware_that_does_not_stop_is_told_and_nothing_is_traced_any_more() {
    for stuck in [0, 0x19, 0x1A] {
        let mut tracing = Tracing::latest();
        tracing.sources(&[0x19, 0x1A]).unwrap();
        tracing.flags(&[PERF_PROFILE, PERF_PMC_PROFILE]).unwrap();
        tracing.machine.stuck = Some(source(stuck));
        let fault = ProfileError::Hardware { processor: processor(0, 0), error: FAULT };
        assert_eq!(tracing.flags(&[]), Err(TraceError::Profile(fault)));
        assert_eq!((tracing.running(), tracing.lists.started()), (vec![stuck], 0));
        assert_eq!(tracing.control.group_mask(), GroupMask::EMPTY);
        assert_eq!(tracing.flags(&[]), Ok(()));
    }
}

#[test]
fn full_lists_leave_tracing_as_it_was() {
    struct Nothing;
    impl ProfileCallback for Nothing {
        fn profile_interrupt(&self, _: &dyn InterruptFrame, _: KProfileSource) {}
    }
    let mut tracing = Tracing::latest();
    for from in [0x30, 0x31] {
        let object = ProfileObject::callback(Rules::LATEST, source(from), &Nothing).unwrap();
        tracing.lists.start(leak(object), &mut tracing.machine).unwrap();
    }
    tracing.sources(&[0x19, 0x1A, 0x1B, 0x1C]).unwrap();
    let full = Err(TraceError::Profile(ProfileError::AtLimit));
    assert_eq!(tracing.flags(&[PERF_PROFILE, PERF_PMC_PROFILE]), full);
    assert_eq!((tracing.running(), tracing.lists.started()), (vec![0x30, 0x31], 2));
    assert_eq!(tracing.control.group_mask(), GroupMask::EMPTY);
    tracing.flags(&[PERF_PMC_PROFILE]).unwrap();
    assert_eq!(tracing.lists.started(), 6);
}

/// A callback that sets the group mask of the tracing that it is a part of.
struct Meddler {
    tracing: Mutex<Tracing>,
    answers: Mutex<Vec<Result<(), TraceError>>>,
}

impl ProfileCallback for Meddler {
    fn profile_interrupt(&self, frame: &dyn InterruptFrame, _: KProfileSource) {
        let mut tracing = self.tracing.lock().unwrap();
        tracing.machine.this = frame.processor();
        let answers = [tracing.flags(&[PERF_PROFILE, PERF_PMC_PROFILE]), tracing.flags(&[])];
        tracing.machine.this = processor(0, 2);
        self.answers.lock().unwrap().extend(answers);
    }
}

/// An interrupt may not change tracing, neither on nor off; afterwards a task still can.
#[test]
fn a_change_from_an_interrupt_is_refused_and_changes_nothing() {
    let mut tracing = Tracing::latest();
    let lists = tracing.lists;
    tracing.sources(&[0x19]).unwrap();
    tracing.flags(&[PERF_PROFILE]).unwrap();
    let meddler: &Meddler =
        leak(Meddler { tracing: Mutex::new(tracing), answers: Mutex::default() });
    let object = leak(ProfileObject::callback(Rules::LATEST, source(0x30), meddler).unwrap());
    lists.start(object, &mut meddler.tracing.lock().unwrap().machine).unwrap();
    assert_eq!(lists.interrupt(&frame(0, 0x10), source(0x30)).hits, 1);
    let refused = Err(TraceError::Profile(ProfileError::WrongContext));
    assert_eq!(*meddler.answers.lock().unwrap(), [refused; 2]);
    let mut tracing = meddler.tracing.lock().unwrap();
    assert_eq!(tracing.running(), [0, 0x30]);
    assert_eq!(tracing.control.group_mask(), GroupMask::EMPTY.with(PERF_PROFILE));
    tracing.flags(&[]).unwrap();
    assert_eq!(tracing.running(), [0x30]);
}

#[test]
fn records_without_room_and_those_of_processors_without_a_ring_are_counted_as_dropped() {
    let mut tracing = Tracing::latest();
    tracing.sources(&[0x19]).unwrap();
    tracing.flags(&[PERF_PROFILE, PERF_PMC_PROFILE]).unwrap();
    let dropped = |tracing: &Tracing| (tracing.sampled.dropped(), tracing.pmc.dropped());
    for pc in 0..5 {
        assert_eq!(tracing.lists.timer_interrupt(&frame(0, pc)).hits, 1);
        let full = u64::saturating_sub(pc, 2);
        assert_eq!(dropped(&tracing), (full, full), "a shared ring's losses are either's");
    }
    // Processor 1's ring has room; processor 2 has none, which each callback counts for itself.
    tracing.lists.interrupt(&frame(1, 9), source(0x19));
    assert_eq!(dropped(&tracing), (2, 2));
    tracing.lists.interrupt(&frame(2, 9), source(0x19));
    tracing.lists.interrupt(&frame(2, 9), source(0x19));
    tracing.lists.timer_interrupt(&frame(2, 9));
    assert_eq!(dropped(&tracing), (3, 4));
    let kept = tracing.drain(0).into_iter().map(|record| record.pc);
    assert_eq!(kept.collect::<Vec<_>>(), [0, 1, 2], "the oldest stay");
    tracing.lists.timer_interrupt(&frame(0, 5));
    assert_eq!(tracing.drain(0).len(), 1);
    assert_eq!(tracing.rings[0].dropped(), 2);
}

/// From the counters' registers to records, by way of a real session of the Emon interface.
#[test]
fn four_counters_and_the_timer_are_traced_from_the_registers_up() {
    let emon = Emon::declared();
    let registers = RegisterFile::intel(4, false);
    let platform = FakePlatform::default();
    let memory: CounterMemory<[CounterSlot; 4]> = CounterMemory::new();
    let mut session =
        emon.initialize(&intel_processor(1, 4), &registers, &platform, &memory).unwrap();
    let mut hardware = ThisProcessor::new(&mut session, processor(0, 1));
    let Tracing { lists, rings, mut control, .. } = Tracing::latest();
    let sources = [0x19, 0x1A, 0x1F, 0x1D].map(source);
    control.set_pmc_sources(&sources, &hardware).unwrap();
    let no_such = control.set_pmc_sources(&[source(0x20)], &hardware);
    assert_eq!(no_such, Err(TraceError::UnsupportedSource(source(0x20))));
    let both = GroupMask::EMPTY.with(PERF_PROFILE).with(PERF_PMC_PROFILE);
    control.set_group_mask(both, &mut hardware).unwrap();
    assert_eq!(platform.timer.get().map(|interval| interval.get()), Some(10_000));

    // Counters 0 and 2 pass zero; the others are still on their way.
    registers.set(0xC1, 3);
    registers.set(0xC3, 0);
    let frame = Frame { pebs_index: Some(5), ..frame(1, 0x7_0000) };
    let dispatch = |overflow: pmu_core::Overflow| {
        assert_eq!(lists.interrupt(&frame, overflow.source).hits, 1);
    };
    assert_eq!(emon.service(&registers, &platform, &memory, dispatch).unwrap().overflows, 2);
    assert_eq!(lists.timer_interrupt(&frame).hits, 1);
    let records: Vec<_> = rings[1].drain().unwrap().map(Result::unwrap).collect();
    let pmc = |source| record_of(frame, Bits64, Detail::PmcInterrupt { source });
    assert_eq!(records, [pmc(0x19), pmc(0x1F), record_of(frame, Bits64, SAMPLE)]);

    control.set_group_mask(GroupMask::EMPTY, &mut hardware).unwrap();
    assert!(platform.timer.get().is_none());
    assert!((0x186..0x18A).all(|select| registers.get(select) == 0), "every counter is stopped");
}

#[test]
fn cache_errata_bookkeeping_counts_time_interrupts_and_keeps_the_interval_short_enough() {
    let errata: &CacheErrata = leak(CacheErrata::new());
    let lists = leak(Lists::new());
    let mut machine = Machine::new(Affinity::first(2));
    let object = leak(ProfileObject::callback(Rules::LATEST, TIME, errata).unwrap());
    lists.start(object, &mut machine).unwrap();
    for number in 0..5 {
        lists.timer_interrupt(&frame(number % 2, 9));
        lists.interrupt(&frame(0, 9), source(0x19));
    }
    assert_eq!(errata.interrupts(), 5);
    let limits = IntervalLimits::TIME;
    for units in [limits.min, limits.default, limits.max].map(u64::from) {
        assert_eq!(errata.limit(units), units, "nothing is needed");
    }
    errata.require(limits.check(20_000).unwrap());
    for (asked, set) in [(1_221, 1_221), (20_000, 20_000), (20_001, 20_000), (1_000_000, 20_000)] {
        assert_eq!(errata.limit(asked), set);
    }
}

/// The answer that Windows would give, by the data files: an interface's sources in a chain.
fn source_list(rows: &[Row<'_>]) -> Vec<u8> {
    let header = value("PROFILE_LIST_INFORMATION.Profile") as usize;
    let mut image = vec![0; header];
    put(&mut image, 0, "PROFILE_LIST_INFORMATION.EventTraceInformationClass", 0x0D);
    put(&mut image, 0, "PROFILE_LIST_INFORMATION.Spare", 0);
    for (number, row) in rows.iter().enumerate() {
        let base = image.len();
        let name = base + value("PROFILE_SOURCE_INFO.Description") as usize;
        image.resize(name, 0);
        let units = row.text("windows_name").encode_utf16().chain([0]);
        image.extend(units.flat_map(u16::to_le_bytes));
        // The next entry's 64-bit member is aligned.
        image.resize(image.len().next_multiple_of(8), 0);
        let next = if number + 1 == rows.len() { 0 } else { image.len() - base };
        let source = row.number("value");
        let (min, max) = if source == 0 { (1_221, 1_000_000) } else { (0x1000, 0x7FFF_FFFF) };
        let mut put = |name: &str, value| {
            put(&mut image, base, &format!("PROFILE_SOURCE_INFO.{name}"), value);
        };
        put("NextEntryOffset", next as u64);
        put("Source", source);
        put("MinInterval", min);
        put("MaxInterval", max);
        put("Reserved", 0);
    }
    image
}

/// A buffer that asks for the list, of that length, filled with what must not be taken for an answer.
fn query(length: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; length];
    bytes.iter_mut().zip(SOURCE_LIST_CLASS.to_le_bytes()).for_each(|(to, from)| *to = from);
    bytes
}

fn check_source_list<I: ProfileInterface>(interface: &I, rows: &[Row<'_>]) {
    let expected = source_list(rows);
    let needed = expected.len();
    let mut bytes = query(needed + 9);
    assert_eq!(write_source_list(interface, &mut bytes), Ok(needed));
    assert_eq!(bytes[..needed], expected, "{}", interface.name());
    assert_eq!(bytes[needed..], [0xEE; 9]);
    assert_eq!(write_source_list(interface, &mut query(needed)), Ok(needed));
    for image in [&bytes[..needed], &bytes] {
        let entries: Vec<_> = read_source_list(image).map(Result::unwrap).collect();
        assert_eq!(entries.len(), rows.len());
        for (entry, row) in entries.iter().zip(rows) {
            assert_eq!(u64::from(entry.source.value()), row.number("value"));
            assert_eq!(entry.name().collect::<String>(), row.text("windows_name"));
            let is_time = entry.source == TIME;
            let limits = if is_time { (1_221, 1_000_000) } else { (4_096, 2_147_483_647) };
            assert_eq!((entry.min_interval, entry.max_interval), limits);
        }
    }
    for length in (0..200.min(needed)).chain(needed - 1..needed) {
        let mut small = query(length);
        let error = write_source_list(interface, &mut small).unwrap_err();
        assert_eq!(error, SourceListError::BufferTooSmall { needed });
        assert_eq!(error.status().value(), 0xC000_0023);
        assert_eq!(small, query(length), "nothing is written");
    }
    for class in [0, 3, 0x0C, 0x0E, u32::MAX] {
        let mut other = query(needed);
        other[..4].copy_from_slice(&class.to_le_bytes());
        let before = other.clone();
        let error = write_source_list(interface, &mut other).unwrap_err();
        assert_eq!(error, SourceListError::WrongClass(class));
        assert_eq!((error.status().value(), other), (0xC000_0002, before));
    }
}

#[test]
fn the_source_list_has_the_data_files_bytes_and_reads_back() {
    assert_eq!(SOURCE_LIST_CLASS, 0x0D);
    let emon = data!("emon_sources.csv");
    check_source_list(&Emon::declared(), &emon);
    check_source_list(&Amd64::declared(), &data!("amd64_sources.csv"));
    check_source_list(&DefaultInterface::new(), &emon[..1]);
}

#[test]
fn a_malformed_entry_ends_the_list_with_an_error_that_says_where() {
    let rows = data!("emon_sources.csv");
    let whole = source_list(&rows[..3]);
    // Timer, TotalIssues, BranchInstructions.
    let (second, third) = (8 + 0x28, 8 + 0x28 + 0x30);
    let read = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        let found: Vec<_> = read_source_list(&bytes).take(99).collect();
        let good = found.iter().filter(|entry| entry.is_ok()).count();
        assert!(found.len() <= good + 1, "the error is the last item");
        (good, found.last().unwrap().err())
    };
    let link = |at: usize, next: u32| {
        move |bytes: &mut Vec<u8>| bytes[at..at + 4].copy_from_slice(&next.to_le_bytes())
    };
    let malformed = |offset| Some(SourceListError::Malformed { offset });
    assert_eq!(read(&|_| {}), (3, None));
    assert_eq!(malformed(8).unwrap().status().value(), 0xC000_000D);
    let rest = (whole.len() - second) as u32;
    for next in [1, 7, 8, 0x17, 0x18, 0x19, rest + 1, rest + 8, 0x8000_0000, u32::MAX] {
        assert_eq!(read(&link(second, next)), (1, malformed(second)), "{next:#X}");
    }
    // A link to the very end leads to no entry.
    assert_eq!(read(&link(second, rest)), (2, malformed(whole.len())));
    // An entry's name ends within the entry.
    assert_eq!(read(&link(second, 0x20)), (1, malformed(second)));
    assert_eq!(read(&link(8, 0)), (1, None));
    // ProfileMaximum is no source.
    assert_eq!(read(&|bytes| bytes[third + 4] = 0x18), (2, malformed(third)));
    // The last name's end is missing.
    for length in third..third + 0x18 + 2 * "BranchInstructions".len() + 2 {
        assert_eq!(read(&|bytes| bytes.truncate(length)), (2, malformed(third)), "{length:#X}");
    }
    for length in 0..8 + 0x1A {
        let error = read_source_list(&whole[..length]).collect::<Vec<_>>();
        assert_eq!(error, [Err(SourceListError::Malformed { offset: 8 })]);
    }
}

#[test]
fn what_is_no_character_of_a_name_is_replaced() {
    let rows = data!("emon_sources.csv");
    let mut bytes = source_list(&rows[..1]);
    let name = 8 + 0x18;
    bytes[name..name + 10].copy_from_slice(&[0x3D, 0xD8, 0x00, 0xDE, 0x00, 0xD8, 0x41, 0, 0, 0]);
    let entry = read_source_list(&bytes).next().unwrap().unwrap();
    assert_eq!(entry.name().collect::<String>(), "\u{1F600}\u{FFFD}A");
}

proptest! {
    #[test]
    fn any_source_list_is_read_to_an_end(
        mut bytes in prop::collection::vec(any::<u8>(), 0..600),
        links in prop::collection::vec((0usize..12, 0u32..0x90), 0..12),
    ) {
        // Small links now and then, so that there is a chain to follow.
        for (place, next) in links {
            let at = 8 + 0x20 * place;
            if let Some(link) = bytes.get_mut(at..at + 4) {
                link.copy_from_slice(&next.to_le_bytes());
            }
        }
        let found: Vec<_> = read_source_list(&bytes).take(1000).collect();
        prop_assert!(found.len() <= bytes.len() / 0x1A + 1);
        prop_assert!(found.iter().rev().skip(1).all(|entry| entry.is_ok()));
        for entry in found.into_iter().flatten() {
            prop_assert!(entry.name().count() <= bytes.len() / 2);
        }
    }
}

/// Counts by interrupts of several processors at a time are all in the statistics of the callbacks.
#[test]
fn callbacks_of_several_processors_at_a_time_lose_no_call() {
    struct Sum(AtomicU64);
    impl ProfileCallback for Sum {
        fn profile_interrupt(&self, frame: &dyn InterruptFrame, _: KProfileSource) {
            self.0.fetch_add(frame.pc(), Ordering::Relaxed);
        }
    }
    let lists = leak(Lists::new());
    let sum: &Sum = leak(Sum(AtomicU64::new(0)));
    let object = leak(ProfileObject::callback(Rules::LATEST, TIME, sum).unwrap());
    lists.start(object, &mut Machine::new(Affinity::first(3))).unwrap();
    thread::scope(|scope| {
        for number in 0..3 {
            scope.spawn(move || {
                for pc in 0..5_000 {
                    let on = ProcessorNumber::from_index(number);
                    lists.timer_interrupt(&Frame { processor: on, ..Frame::at(pc) });
                }
            });
        }
    });
    assert_eq!(sum.0.load(Ordering::Relaxed), 3 * (0..5_000).sum::<u64>());
    assert_eq!(lists.statistics().hit, 15_000);
}
