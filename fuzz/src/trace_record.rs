//! Streams of trace records from arbitrary bytes, against a decoder by the manual's offsets; and what
//! was decoded, through a ring.

use std::collections::VecDeque;

use pmu_kprofile::PointerWidth;
use pmu_kprofile::trace::{
    ContextSwitch, Detail, Hook, IntervalRecord, RecordError, StackWalk, TraceRecord, TraceRing,
};

use crate::input::number;

/// `PERFINFO_TRACE_HEADER`: marker at 0, size at 4, hook at 6, time stamp at 8; a PEBS index and up to
/// seven PMC values, if the marker says so; then the instruction pointer, the thread, and two shorts.
fn by_hand(bytes: &[u8]) -> Option<(TraceRecord, usize)> {
    let marker = number(bytes, 0, 4);
    let size = number(bytes, 4, 2) as usize;
    let width = match marker >> 16 {
        0xC010 => PointerWidth::Bits32,
        0xC011 => PointerWidth::Bits64,
        _ => return None,
    };
    let has_pebs = marker >> 15 & 1 != 0;
    let values = (marker >> 8 & 7) as usize;
    let pebs = if has_pebs { 8 } else { 0 };
    let ip = 0x10 + pebs + 8 * values;
    let payload = ip + width.bytes();
    if bytes.len() < 0x10 || size > bytes.len() || size < payload + 8 {
        return None;
    }
    let detail = match number(bytes, 6, 2) {
        0x0F2E => Detail::SampledProfile {
            count: number(bytes, payload + 4, 2) as u16,
            flags: bytes[payload + 6],
            rank: bytes[payload + 7],
        },
        0x0F2F => Detail::PmcInterrupt { source: number(bytes, payload + 4, 2) as u16 },
        _ => return None,
    };
    let record = TraceRecord {
        width,
        timestamp: number(bytes, 8, 8),
        pebs_index: has_pebs.then(|| number(bytes, 0x10, 8)),
        pc: number(bytes, ip, width.bytes()),
        thread: number(bytes, payload, 4) as u32,
        detail,
    };
    Some((record, size))
}

/// Whether the error is true of the bytes.
fn is_true(error: RecordError, bytes: &[u8]) -> bool {
    match error {
        RecordError::TooShort => {
            let (marker, size) = (number(bytes, 0, 4), number(bytes, 4, 2) as usize);
            let optional = 8 * (marker >> 15 & 1) + 8 * (marker >> 8 & 7);
            let pointer = if marker >> 16 == 0xC010 { 4 } else { 8 };
            bytes.len() < 0x10 || size > bytes.len() || size < 0x18 + optional as usize + pointer
        }
        RecordError::Marker(marker) => {
            u64::from(marker) == number(bytes, 0, 4) && !matches!(marker >> 16, 0xC010 | 0xC011)
        }
        RecordError::Hook(hook) => {
            let hooks = [Hook::SampledProfile.id(), Hook::PmcInterrupt.id()];
            u64::from(hook) == number(bytes, 6, 2) && !hooks.contains(&hook)
        }
        _ => false,
    }
}

/// The bytes are records, one after the other.
pub fn run(bytes: &[u8]) {
    let mut records = Vec::new();
    let mut rest = bytes;
    loop {
        let decoded = TraceRecord::decode(rest);
        assert_eq!(decoded.ok(), by_hand(rest), "{decoded:?}");
        let (record, size) = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                assert!(is_true(error, rest), "{error:?}");
                break;
            }
        };
        assert!((0x1C..=rest.len()).contains(&size), "a reader of a stream goes on");
        // What comes behind it, and nothing less, is nothing to it.
        assert_eq!(TraceRecord::decode(&rest[..size]), Ok((record, size)));
        assert_eq!(TraceRecord::decode(&rest[..size - 1]), Err(RecordError::TooShort));
        // Written, it has no PMC values, and nothing else is different.
        let written = record.encode();
        let pebs = if record.pebs_index.is_some() { 8 } else { 0 };
        let length = 0x18 + pebs + record.width.bytes();
        assert_eq!(TraceRecord::decode(written.as_slice()), Ok((record, length)));
        records.push(record);
        rest = &rest[size..];
    }
    through_a_ring(&records);
    others(bytes);
}

/// The records of other kinds: a reader can go on behind each, and what is written again reads the same.
fn others(bytes: &[u8]) {
    if let Ok((width, switch, size)) = ContextSwitch::decode(bytes) {
        assert_eq!(ContextSwitch::decode(&bytes[..size]), Ok((width, switch, size)));
        let mut again = [0; ContextSwitch::MAX_SIZE];
        let length = switch.encode(width, &mut again);
        assert_eq!(ContextSwitch::decode(&again[..length]), Ok((width, switch, length)));
    }
    if let Ok((width, record, size)) = IntervalRecord::decode(bytes) {
        assert_eq!(IntervalRecord::decode(&bytes[..size]), Ok((width, record, size)));
        let again = record.encode(width);
        assert_eq!(IntervalRecord::decode(&again), Ok((width, record, IntervalRecord::SIZE)));
    }
    if let Ok((walk, size)) = StackWalk::decode(bytes) {
        assert_eq!(number(bytes, 4, 2) as usize, size);
        for (place, address) in walk.addresses.iter().enumerate() {
            let at = 0x20 + place * walk.width.bytes();
            assert_eq!(number(&bytes[..size], at, walk.width.bytes()), *address);
        }
        assert_eq!(StackWalk::decode(&bytes[..size]), Ok((walk, size)));
    }
}

/// What was read before each record, and how many, is told by the records themselves.
fn through_a_ring(records: &[TraceRecord]) {
    let ring = TraceRing::<3>::new();
    let (mut expected, mut dropped) = (VecDeque::new(), 0);
    for record in records {
        let room = expected.len() < 3;
        assert_eq!(ring.push(record), room);
        if room {
            expected.push_back(*record);
        } else {
            dropped += 1;
        }
        assert_eq!(ring.dropped(), dropped);
        let mut drain = ring.drain().expect("nobody else reads");
        for _ in 0..record.thread % 5 {
            assert_eq!(drain.next(), expected.pop_front().map(Ok));
        }
    }
    let rest: Vec<_> = ring.drain().expect("nobody else reads").collect();
    assert_eq!(rest, expected.into_iter().map(Ok).collect::<Vec<_>>());
}
