//! Streams of trace records from arbitrary bytes, against the documents' offsets; and the samples among them, through
//! a ring.

use std::collections::VecDeque;

use pmu_kprofile::PointerWidth;
use pmu_kprofile::trace::{Detail, Event, Extended, Record, Sample, TraceError, TraceRing};

use crate::input::number;

/// `PERFINFO_TRACE_HEADER`: marker at 0, size at 4, hook at 6, time stamp at 8; a PEBS index and up to seven PMC
/// values, if the marker says so; then the payload. Its offset, and the record's size.
fn frame(bytes: &[u8]) -> Option<(PointerWidth, usize, usize)> {
    let marker = number(bytes, 0, 4);
    let size = number(bytes, 4, 2) as usize;
    let width = match marker >> 16 {
        0xC010 => PointerWidth::Bits32,
        0xC011 => PointerWidth::Bits64,
        _ => return None,
    };
    let payload = 0x10 + 8 * (marker >> 15 & 1) as usize + 8 * (marker >> 8 & 7) as usize;
    (bytes.len() >= 0x10 && payload <= size && size <= bytes.len())
        .then_some((width, payload, size))
}

/// Returns the minimum number of payload bytes of an event.
fn least(bytes: &[u8], width: PointerWidth, at: usize, size: usize) -> Option<usize> {
    let pointer = width.bytes();
    let payload = &bytes[at..size];
    Some(match number(bytes, 6, 2) {
        0x0F2E | 0x0F2F => pointer + 8,
        0x0F48..=0x0F4A => 12,
        0x0524 => 24,
        0x1820 => 16,
        0x0F37 if payload.len() < pointer => pointer,
        0x0F37 => pointer + number(bytes, at, 4) as usize * (pointer + 8),
        0x0F30 if payload.len() < 4 => 4,
        0x0F30 => {
            let zeros = payload[4..].chunks_exact(2).filter(|unit| *unit == [0, 0]).count();
            if (zeros as u64) < number(bytes, at, 4) { usize::MAX } else { 4 }
        }
        _ => return None,
    })
}

/// Runs one input: records, one after the other.
pub fn run(bytes: &[u8]) {
    let mut samples = Vec::new();
    let mut rest = bytes;
    loop {
        let decoded = Record::decode(rest);
        let expected = frame(rest).filter(|(width, at, size)| {
            least(rest, *width, *at, *size).is_none_or(|least| at.saturating_add(least) <= *size)
        });
        let (Some((width, at, size)), Ok((record, length))) = (expected, &decoded) else {
            assert_eq!(expected.is_some(), decoded.is_ok(), "{decoded:?}");
            if let Err(TraceError::Marker(marker)) = decoded {
                assert_eq!(u64::from(marker), number(rest, 0, 4));
                assert!(!matches!(marker >> 16, 0xC010 | 0xC011));
            }
            break;
        };
        assert_eq!((record.width, *length), (width, size), "a reader of a stream goes on");
        assert_eq!(
            (record.timestamp, u64::from(record.event.hook())),
            (number(rest, 8, 8), number(rest, 6, 2))
        );
        let values = record.extended.pebs_index.iter().chain(&record.extended.pmc_values);
        assert!(values.copied().eq((0x10..at).step_by(8).map(|at| number(rest, at, 8))));
        check(record, &rest[at..size]);
        // Written again, it is what it was.
        let mut again = vec![0; size];
        assert_eq!(record.encode(&mut again), Ok(size));
        assert_eq!(again, rest[..size]);
        assert!(matches!(record.encode(&mut again[1..]), Err(TraceError::NoRoom { .. })));
        assert_eq!(Record::decode(&rest[..size - 1]), Err(TraceError::TooShort));
        if let Event::Sample(sample) = record.event {
            samples.push((width, record.timestamp, sample));
        }
        rest = &rest[size..];
    }
    through_a_ring(&samples);
}

/// Checks the members of a record by their offsets.
fn check(record: &Record<'_>, payload: &[u8]) {
    let (width, pointer) = (record.width, record.width.bytes());
    match &record.event {
        Event::Sample(sample) => {
            assert_eq!(*sample, self::sample(record.event.hook(), pointer, payload))
        }
        Event::SampleCache(cache) => {
            let size = pointer + 8;
            let samples: Vec<Sample> = cache.samples().collect();
            assert_eq!(samples.len() as u64, number(payload, 0, 4));
            for (found, bytes) in samples.iter().zip(payload[pointer..].chunks_exact(size)) {
                assert_eq!(*found, self::sample(0x0F2E, pointer, bytes));
            }
        }
        Event::StackWalk(walk) => {
            let (process, thread) = (walk.process.into(), walk.thread.into());
            assert_eq!(
                [walk.event_timestamp, process, thread],
                [(0, 8), (8, 4), (12, 4)].map(|(at, size)| number(payload, at, size))
            );
            let addresses = payload[16..].chunks_exact(width.bytes());
            assert!(walk.addresses().eq(addresses.map(|bytes| number(bytes, 0, pointer))));
        }
        Event::ContextSwitch(switch) => {
            assert_eq!(
                [switch.new_thread, switch.old_thread, switch.new_wait_time, switch.reserved]
                    .map(u64::from),
                [0, 4, 16, 20].map(|at| number(payload, at, 4))
            );
            assert_eq!(
                [switch.new_priority as u8, switch.old_priority as u8, switch.previous_c_state],
                payload[8..11]
            );
            let rest = [
                switch.spare,
                switch.old_wait_reason,
                switch.old_wait_mode,
                switch.old_state,
                switch.ideal_processor,
            ];
            assert_eq!(rest.map(|byte| byte as u8), payload[11..16]);
        }
        Event::SourceInterval(interval) => {
            let members = [interval.source, interval.new, interval.old].map(u64::from);
            assert_eq!(members, [0, 4, 8].map(|at| number(payload, at, 4)));
        }
        Event::CounterNames(names) => {
            assert_eq!(names.names().count() as u64, number(payload, 0, 4));
        }
        Event::Other { payload: found, .. } => assert_eq!(*found, payload),
        _ => {}
    }
}

fn sample(hook: u16, pointer: usize, payload: &[u8]) -> Sample {
    let detail = match hook {
        0x0F2F => Detail::PmcInterrupt {
            source: number(payload, pointer + 4, 2) as u16,
            reserved: number(payload, pointer + 6, 2) as u16,
        },
        _ => Detail::SampledProfile {
            count: number(payload, pointer + 4, 2) as u16,
            flags: payload[pointer + 6],
            rank: payload[pointer + 7],
        },
    };
    Sample { pc: number(payload, 0, pointer), thread: number(payload, pointer, 4) as u32, detail }
}

/// Stores samples, drains after each as many records as its thread number selects, and compares them with a queue.
fn through_a_ring(samples: &[(PointerWidth, u64, Sample)]) {
    let ring: TraceRing<3> = TraceRing::new();
    let (mut expected, mut dropped) = (VecDeque::new(), 0);
    for (width, timestamp, sample) in samples {
        let room = expected.len() < 3;
        assert_eq!(ring.push_sample(*width, *timestamp, sample), room);
        if room {
            expected.push_back(Record::new(*width, *timestamp, *sample));
        } else {
            dropped += 1;
        }
        assert_eq!(ring.dropped(), dropped);
        let mut drain = ring.drain();
        for _ in 0..sample.thread % 5 {
            let found = drain.next();
            assert_eq!(found.as_ref().map(|found| found.decode().unwrap()), expected.pop_front());
        }
    }
    for found in ring.drain() {
        let found = found.decode().unwrap();
        assert_eq!(found.extended, Extended::default());
        assert_eq!(Some(found), expected.pop_front());
    }
    assert!(expected.is_empty());
}
