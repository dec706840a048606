//! Counts and records in user mode, taken apart as `perf_event_open(2)` describes them.

use pmu::core::EventCount;
use pmu::{Kernel, PmuEvent};

use crate::subsystem::{Perf, Result};

/// A record of the ring, of an event whose attributes ask for [`FIELDS`](crate::subsystem::FIELDS) and maybe branches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) tag: u64,
    pub(crate) period: u64,
    pub(crate) address: u64,
    /// Sources of the branches before, the newest first.
    pub(crate) branches: Vec<u64>,
}

pub(crate) fn words(bytes: &[u8]) -> Vec<u64> {
    let (words, rest) = bytes.as_chunks::<8>();
    assert_eq!(rest, []);
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Takes the records out of the ring: those with this header.
pub(crate) fn raw_records<K: Kernel>(perf: &Perf<K>) -> Vec<Vec<u64>> {
    let (words, mut records, mut at) = (words(&perf.ring.take()), vec![], 0);
    while at < words.len() {
        let length = (words[at] >> 48) as usize;
        assert_eq!((words[at] as u32, length % 8), (9, 0), "PERF_RECORD_SAMPLE");
        records.push(words[at..at + length / 8].to_vec());
        at += length / 8;
    }
    records
}

pub(crate) fn read_records<K: Kernel>(perf: &Perf<K>) -> Vec<Record> {
    let record = |words: Vec<u64>| {
        let [_, tag, address, period] = words[..4] else { panic!("{words:x?}") };
        let branches = match words[4..] {
            [] => vec![],
            [number, ref entries @ ..] => {
                assert_eq!(3 * number as usize, entries.len());
                entries.chunks(3).map(|entry| entry[0]).collect()
            }
        };
        Record { tag, period, address, branches }
    };
    raw_records(perf).into_iter().map(record).collect()
}

/// Reads an event whose format has both times.
pub(crate) fn read_count<K: Kernel>(perf: &'static Perf<K>, event: PmuEvent) -> Result<EventCount> {
    let mut bytes = [0; 24];
    assert_eq!(perf.read(event, &mut bytes)?, 24);
    let [value, enabled, running] = words(&bytes)[..] else { unreachable!() };
    Ok(EventCount { value, enabled, running })
}
