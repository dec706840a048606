//! Records byte by byte, against the data file (`tests/data/trace.csv`); the payloads of stack walks and context
//! switches are counted by hand: a stack walk has the event's time stamp (u64), process and thread (u32 each) and the
//! addresses; a context switch 24 bytes, as `CSwitch` in the Windows SDK.

use pmu_kprofile::PointerWidth::{self, Bits32, Bits64};
use pmu_kprofile::trace::{
    COLLECTION_END_HOOK, COLLECTION_START_HOOK, CONTEXT_SWITCH_HOOK, ContextSwitch, CounterNames,
    Detail, EXECUTING_DPC, EXECUTING_ISR, Event, Extended, IntervalHook, MAX_CACHED_SAMPLES,
    MAX_PMC_VALUES, PEBS_INDEX_FLAG, PMC_CONFIG_HOOK, PMC_COUNT_MASK, PMC_INTERRUPT_HOOK, PRIORITY,
    Record, SAMPLED_PROFILE_CACHE_HOOK, SAMPLED_PROFILE_HOOK, SAMPLED_PROFILE_NMI_HOOK,
    SET_INTERVAL_HOOK, STACK_WALK_HOOK, Sample, SampleCache, SourceInterval, TraceError, TraceRing,
};
use pmu_tests::kprofile::facts::{fact, put, unread, value};
use proptest::prelude::*;

const STAMP: u64 = 0x1112_1314_1516_1718;
const INDEX: u64 = 0x2122_2324_2526_2728;

/// Builds a record's bytes: header by the data file, index and values, and a payload.
fn record(width: PointerWidth, hook: u16, extended: &Extended, payload: &[u8]) -> Vec<u8> {
    let marker = match width {
        Bits32 => value("PERFINFO_TRACE_MARKER32"),
        Bits64 => value("PERFINFO_TRACE_MARKER64"),
    };
    let flag = extended.pebs_index.map_or(0, |_| value("TRACE_HEADER_PEBS_INDEX_FLAG"));
    let count = (extended.pmc_values.len() as u64) << value("TRACE_HEADER_PMC_COUNTERS_SHIFT");
    let mut image = vec![0; value("PERFINFO_TRACE_HEADER.total") as usize];
    image.extend(
        extended.pebs_index.iter().chain(&extended.pmc_values).flat_map(|word| word.to_le_bytes()),
    );
    image.extend(payload);
    let size = image.len() as u64;
    put(&mut image, 0, "PERFINFO_TRACE_HEADER.Marker", marker | 2 | flag | count);
    put(&mut image, 0, "PERFINFO_TRACE_HEADER.Size", size);
    put(&mut image, 0, "PERFINFO_TRACE_HEADER.HookId", hook.into());
    put(&mut image, 0, "PERFINFO_TRACE_HEADER.TimeStamp", STAMP);
    image
}

/// Builds the members of a structure, by the data file.
fn payload(name: &str, members: &[(&str, u64)]) -> Vec<u8> {
    let mut image = vec![0; value(&format!("{name}.total")) as usize];
    for (member, value) in members {
        put(&mut image, 0, &format!("{name}.{member}"), *value);
    }
    image
}

fn with_width(name: &str, width: PointerWidth) -> String {
    format!("{name}_{}", 8 * width.bytes())
}

fn sample_payload(width: PointerWidth, sample: &Sample) -> Vec<u8> {
    let (name, detail) = match sample.detail {
        Detail::SampledProfile { count, flags, rank } => (
            "SAMPLED_PROFILE",
            vec![("Count", count.into()), ("Flags", flags.into()), ("Rank", rank.into())],
        ),
        Detail::PmcInterrupt { source, reserved } => {
            ("PMC_INTERRUPT", vec![("ProfileSource", source.into()), ("Reserved", reserved.into())])
        }
    };
    let common = [("InstructionPointer", sample.pc), ("ThreadId", sample.thread.into())];
    payload(&with_width(name, width), &[&common[..], &detail].concat())
}

fn extended(pebs_index: Option<u64>, values: usize) -> Extended {
    let pmc_values = (0..values as u64).map(|n| 0x7172_7374_7576_7700 + n).collect();
    Extended { pebs_index, pmc_values }
}

/// Returns no extended data, either kind alone, and the maximum.
fn extensions() -> [Extended; 4] {
    [extended(None, 0), extended(Some(INDEX), 0), extended(None, 3), extended(Some(INDEX), 7)]
}

/// Checks that the event's record has these bytes, with any extended data, and that incomplete records are refused.
#[track_caller]
fn check(width: PointerWidth, event: Event<'_>, payload: &[u8]) {
    for extended in extensions() {
        let expected = record(width, event.hook(), &extended, payload);
        let written = Record { extended, ..Record::new(width, STAMP, event) };
        let mut bytes = vec![0xEE; expected.len() + 5];
        assert_eq!(written.encode(&mut bytes), Ok(expected.len()));
        assert_eq!(bytes[..expected.len()], expected, "{written:x?}");
        assert_eq!(bytes[expected.len()..], [0xEE; 5]);
        assert_eq!(Record::decode(&bytes), Ok((written.clone(), expected.len())));
        for room in 0..expected.len() {
            let mut small = vec![0xEE; room];
            let no_room = TraceError::NoRoom { needed: expected.len() };
            assert_eq!(written.encode(&mut small), Err(no_room));
            assert_eq!(small, vec![0xEE; room], "nothing is written");
            assert_eq!(Record::decode(&expected[..room]), Err(TraceError::TooShort));
            // The size in the record counts: fewer bytes are another record, or none.
            let mut says_less = expected.clone();
            says_less[4..6].copy_from_slice(&(room as u16).to_le_bytes());
            assert!(
                Record::decode(&says_less).is_ok_and(|(_, size)| size == room)
                    || Record::decode(&says_less) == Err(TraceError::TooShort)
            );
        }
        // Members of a later version and unknown flags are kept.
        let mut later = expected.clone();
        later.push(0x99);
        let size = later.len() as u16;
        later[..2].iter_mut().zip([1, 0x78]).for_each(|(to, bits)| *to ^= bits);
        later[4..6].copy_from_slice(&size.to_le_bytes());
        let (read, length) = Record::decode(&later).unwrap();
        assert_eq!((read.version, length), (0x7803, later.len()));
        let mut again = vec![0; length];
        assert_eq!(read.encode(&mut again), Ok(length));
        assert_eq!(again, later);
    }
}

fn sampled() -> Sample {
    let detail = Detail::SampledProfile { count: 0x4142, flags: 0x43, rank: 0x44 };
    Sample { pc: 0x0102_0304_0506_0708, thread: 0x3132_3334, detail }
}

fn interrupt() -> Sample {
    Sample { detail: Detail::PmcInterrupt { source: 0x4546, reserved: 0x4748 }, ..sampled() }
}

fn check_samples() {
    for width in [Bits32, Bits64] {
        for sample in [sampled(), interrupt()] {
            let sample = Sample { pc: sample.pc & width.max_address(), ..sample };
            let payload = sample_payload(width, &sample);
            assert_eq!(payload.len(), width.bytes() + 8);
            check(width, sample.into(), &payload);
            // A record that an interrupt stores has the same bytes.
            let ring: TraceRing<1> = TraceRing::new();
            assert!(ring.push_sample(
                width,
                STAMP,
                &Sample { pc: sample.pc | !width.max_address(), ..sample }
            ));
            let hook = Event::from(sample).hook();
            let expected = record(width, hook, &Extended::default(), &payload);
            assert_eq!(ring.drain().next().unwrap().as_slice(), expected);
        }
    }
    assert_eq!(u64::from(SAMPLED_PROFILE_HOOK), value("PERFINFO_LOG_TYPE_SAMPLED_PROFILE"));
    assert_eq!(u64::from(PMC_INTERRUPT_HOOK), value("PERFINFO_LOG_TYPE_PMC_INTERRUPT"));
    assert_eq!(u64::from(SAMPLED_PROFILE_NMI_HOOK), value("PERFINFO_LOG_TYPE_SAMPLED_PROFILE_NMI"));
    let flags = |name| value(&format!("SAMPLED_PROFILE.Flags.{name}_mask"));
    assert_eq!(u64::from(EXECUTING_DPC), flags("ExecutingDpc"));
    assert_eq!(u64::from(EXECUTING_ISR), flags("ExecutingIsr"));
    assert_eq!(u64::from(PRIORITY), flags("Priority"));
    assert_eq!(u64::from(!(EXECUTING_DPC | EXECUTING_ISR | PRIORITY)), flags("Reserved"));
}

#[test]
fn profile_interrupts_have_the_data_file_s_bytes() {
    check_samples();
}

fn check_caches() {
    assert_eq!(
        u64::from(SAMPLED_PROFILE_CACHE_HOOK),
        value("PERFINFO_LOG_TYPE_SAMPLED_PROFILE_CACHE")
    );
    for width in [Bits32, Bits64] {
        let name = with_width("SAMPLED_PROFILE_CACHE", width);
        let (at, size) =
            (value(&format!("{name}.Sample")), fact(&format!("{name}.Sample")).number("size"));
        let mut whole = payload(&name, &[("Entries", 20)]);
        assert_eq!(whole.len() as u64, at + size * MAX_CACHED_SAMPLES as u64);
        let samples: Vec<Sample> =
            (0..20).map(|n| Sample { pc: 0x1000 + n, thread: n as u32, ..sampled() }).collect();
        for (place, sample) in whole[at as usize..].chunks_exact_mut(size as usize).zip(&samples) {
            place.copy_from_slice(&sample_payload(width, sample));
        }
        for count in [0, 1, 20] {
            let mut buffer = [0; 20 * 16];
            let cache = SampleCache::new(width, &samples[..count], &mut buffer).unwrap();
            assert!(cache.samples().eq(samples[..count].iter().copied()));
            whole[0] = count as u8;
            check(width, cache.into(), &whole[..at as usize + count * size as usize]);
        }
        let mut small = [0; 16];
        let needed = 2 * size as usize;
        let no_room = Err(TraceError::NoRoom { needed });
        assert_eq!(SampleCache::new(width, &samples[..2], &mut small), no_room);
        let hook = Err(TraceError::Hook(PMC_INTERRUPT_HOOK));
        assert_eq!(SampleCache::new(width, &[interrupt()], &mut small), hook);
        let many = vec![sampled(); 21];
        assert_eq!(SampleCache::new(width, &many, &mut small), Err(TraceError::TooMany(21)));
    }
}

#[test]
fn samples_are_collected_behind_their_number_which_is_aligned() {
    check_caches();
}

fn check_intervals() {
    for (hook, id, name) in [
        (IntervalHook::Set, SET_INTERVAL_HOOK, "SET_INTERVAL"),
        (IntervalHook::CollectionStart, COLLECTION_START_HOOK, "DC_START"),
        (IntervalHook::CollectionEnd, COLLECTION_END_HOOK, "DC_END"),
    ] {
        assert_eq!(u64::from(id), value(&format!("PERFINFO_LOG_TYPE_SAMPLED_PROFILE_{name}")));
        let (source, new, old) = (0x18, 0x2122_2324, 0x3132_3334);
        let interval = SourceInterval { hook, source, new, old, name: None };
        assert_eq!(Event::from(interval).hook(), id);
        let members = [("Source", source), ("NewInterval", new), ("OldInterval", old)];
        let members = members.map(|(name, value)| (name, u64::from(value)));
        let mut bytes = payload("SAMPLED_PROFILE_CONFIG", &members);
        check(Bits64, interval.into(), &bytes);
        // Version 3 has the source's name.
        bytes.extend(*b"T\0\xE4\0\0\0");
        let whole = record(Bits32, id, &Extended::default(), &bytes);
        let (read, _) = Record::decode(&whole).unwrap();
        match read.event {
            Event::SourceInterval(SourceInterval { name: Some(name), .. }) => {
                assert_eq!((name.to_string(), read.rest), ("T\u{E4}".into(), &[][..]));
            }
            other => panic!("{other:?}"),
        }
        check(Bits32, read.event, &bytes);
    }
}

#[test]
fn intervals_have_their_source_and_later_its_name() {
    check_intervals();
}

fn check_counter_names() {
    assert_eq!(u64::from(PMC_CONFIG_HOOK), value("PERFINFO_LOG_TYPE_PMC_CONFIG"));
    assert_eq!(value("PMC_CONFIG.CounterCount"), 0);
    assert_eq!(fact("PMC_CONFIG.CounterCount").number("size"), 4);
    let mut buffer = [0xEE; 40];
    // One of the names is empty, and the part after a zero does not belong to a name.
    let names = CounterNames::new(&["Ab", "", "\u{1F600}\0no"], &mut buffer).unwrap();
    let bytes = [3, 0, 0, 0, b'A', 0, b'b', 0, 0, 0, 0, 0, 0x3D, 0xD8, 0x00, 0xDE, 0, 0];
    assert!(names.names().map(|name| name.to_string()).eq(["Ab", "", "\u{1F600}"]));
    check(Bits64, names.into(), &bytes);
    check(Bits32, CounterNames::new(&[], &mut []).unwrap().into(), &[0; 4]);
    let no_room = Err(TraceError::NoRoom { needed: 6 });
    assert_eq!(CounterNames::new(&["Ab"], &mut [0; 5]), no_room);
    // One name fewer than the record says, and half a surrogate pair.
    let damaged = |at: usize, byte: u8| {
        let mut bytes = bytes;
        bytes[at] = byte;
        record(Bits64, PMC_CONFIG_HOOK, &Extended::default(), &bytes)
    };
    assert_eq!(Record::decode(&damaged(0, 4)), Err(TraceError::TooShort));
    assert_eq!(Record::decode(&damaged(3, 0xFF)), Err(TraceError::TooShort));
    match Record::decode(&damaged(15, 0)).unwrap().0.event {
        Event::CounterNames(names) => {
            assert_eq!(names.names().nth(2).unwrap().to_string(), "\u{FFFD}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn counters_have_names_in_their_order() {
    check_counter_names();
}

const SWITCH: ContextSwitch = ContextSwitch {
    new_thread: 0x1112_1314,
    old_thread: 0x2122_2324,
    new_priority: 0x31,
    old_priority: -2,
    previous_c_state: 0xF3,
    spare: -4,
    old_wait_reason: 0x35,
    old_wait_mode: 1,
    old_state: -7,
    ideal_processor: 0x38,
    new_wait_time: 0x4142_4344,
    reserved: 0x5152_5354,
};

const PAYLOAD: [u8; 24] = [
    0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21, 0x31, 0xFE, 0xF3, 0xFC, 0x35, 0x01, 0xF9, 0x38,
    0x44, 0x43, 0x42, 0x41, 0x54, 0x53, 0x52, 0x51,
];

fn check_switches() {
    assert_eq!(u64::from(CONTEXT_SWITCH_HOOK), value("PERFINFO_LOG_TYPE_CONTEXTSWAP"));
    for width in [Bits32, Bits64] {
        check(width, SWITCH.into(), &PAYLOAD);
    }
}

#[test]
fn a_context_switch_has_the_documented_payload() {
    check_switches();
}

fn check_stack_walks() {
    assert_eq!(u64::from(STACK_WALK_HOOK), value("PERFINFO_LOG_TYPE_STACKWALK"));
    let fixed = [8, 7, 6, 5, 4, 3, 2, 1, 7, 0, 0, 0, 0x0D, 0x0C, 0x0B, 0x0A];
    // More than this crate writes, and none.
    for (width, count) in [(Bits32, 3), (Bits64, 192), (Bits32, 0)] {
        let addresses = (0..count).map(|n: u64| 0x8000_0001 + n);
        let address = |address: u64| address.to_le_bytes()[..width.bytes()].to_vec();
        let bytes: Vec<u8> = fixed.into_iter().chain(addresses.clone().flat_map(address)).collect();
        let whole = record(width, STACK_WALK_HOOK, &Extended::default(), &bytes);
        let event = Record::decode(&whole).unwrap().0.event;
        match event {
            Event::StackWalk(walk) => {
                assert_eq!((walk.event_timestamp, walk.process), (0x0102_0304_0506_0708, 7));
                assert_eq!(walk.thread, 0x0A0B_0C0D);
                assert!(walk.addresses().eq(addresses));
            }
            other => panic!("{other:?}"),
        }
        check(width, event, &bytes);
    }
}

#[test]
fn a_stack_walk_has_its_event_s_stamp_and_owner_and_the_addresses() {
    check_stack_walks();
}

#[test]
fn an_unknown_event_is_kept_as_it_is() {
    for hook in [SAMPLED_PROFILE_NMI_HOOK, 0, 0xFFFF] {
        for length in [0, 1, 300] {
            let payload: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let whole = record(Bits32, hook, &Extended::default(), &payload);
            let (read, size) = Record::decode(&whole).unwrap();
            assert_eq!(read.event, Event::Other { hook, payload: &payload });
            assert_eq!((size, read.rest), (whole.len(), &[][..]));
            let mut again = vec![0; size];
            assert_eq!(read.encode(&mut again), Ok(size));
            assert_eq!(again, whole);
        }
    }
}

#[test]
fn another_marker_is_refused() {
    let whole = record(Bits64, SAMPLED_PROFILE_HOOK, &Extended::default(), &[0; 16]);
    for (at, byte) in [(3, 0xC1), (2, 0x12), (3, 0x40), (2, 0x01)] {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        let marker = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        assert_eq!(Record::decode(&bytes), Err(TraceError::Marker(marker)));
    }
}

/// A record's size has 16 bits.
#[test]
fn a_record_of_64_kib_cannot_be() {
    let payload = vec![0; 0x1_0000 - 16];
    let mut bytes = vec![0xEE; 0x1_0001];
    let event = Event::Other { hook: 1, payload: &payload };
    let needed = 0x1_0000;
    assert_eq!(
        Record::new(Bits64, 0, event).encode(&mut bytes),
        Err(TraceError::NoRoom { needed })
    );
    let event = Event::Other { hook: 1, payload: &payload[1..] };
    assert_eq!(Record::new(Bits64, 0, event).encode(&mut bytes), Ok(0xFFFF));
}

#[test]
fn every_row_of_the_data_file_is_tested() {
    check_samples();
    check_caches();
    check_intervals();
    check_counter_names();
    check_switches();
    check_stack_walks();
    assert_eq!(u64::from(PEBS_INDEX_FLAG), value("TRACE_HEADER_PEBS_INDEX_FLAG"));
    assert_eq!(u64::from(PMC_COUNT_MASK), value("TRACE_HEADER_PMC_COUNTERS_MASK"));
    assert_eq!(MAX_PMC_VALUES as u16, PMC_COUNT_MASK >> value("TRACE_HEADER_PMC_COUNTERS_SHIFT"));
    // The marker's halves: the version with the flags of extended data, and the part common to all.
    let marker = value("PERFINFO_TRACE_HEADER.Marker");
    for (half, at) in [("Version", 0), ("HeaderType", 2), ("Flags", 3)] {
        assert_eq!(value(&format!("PERFINFO_TRACE_HEADER.{half}")), marker + at);
    }
    // The rows of masks are tested with the masks.
    let of_records: Vec<String> = unread().into_iter().filter(|row| !is_of_masks(row)).collect();
    assert_eq!(of_records, [""; 0]);
}

fn is_of_masks(row: &str) -> bool {
    (row.starts_with("PERF_")
        || row == "EVENT_TRACE_FLAG_PROFILE"
        || row == "PERFINFO_GROUPMASK.total")
        && include_str!("masks.rs").contains(&format!("\"{row}\""))
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_are_written_again_as_they_were(
        mut bytes in prop::collection::vec(any::<u8>(), 0..130),
        marker in prop::option::of(prop::sample::select(vec![0xC010u16, 0xC011])),
        size in prop::option::of(0u8..140),
        hook in prop::option::of(prop::sample::select(vec![
            0x0F2E, 0x0F2F, 0x0F30, 0x0F37, 0x0F48, 0x0F49, 0x0F4A, 0x0524, 0x1820u16,
        ])),
        count in prop::option::of(0u8..4),
    ) {
        let fields = [(2, marker), (4, size.map(u16::from)), (6, hook)];
        for (at, field) in fields {
            if let (Some(field), Some(place)) = (field, bytes.get_mut(at..at + 2)) {
                place.copy_from_slice(&field.to_le_bytes());
            }
        }
        if let (Some(count), Some(place)) = (count, bytes.get_mut(16..20)) {
            place.copy_from_slice(&u32::from(count).to_le_bytes());
        }
        if let Ok((read, length)) = Record::decode(&bytes) {
            let mut again = vec![0; length];
            prop_assert_eq!(read.encode(&mut again), Ok(length));
            prop_assert_eq!(&again, &bytes[..length]);
            prop_assert_eq!(Record::decode(&again), Ok((read, length)));
        }
    }
}
