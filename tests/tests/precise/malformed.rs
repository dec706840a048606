//! Records that contradict themselves are dropped and counted.

use pmu_intel::precise::{PreciseFormat, PreciseRecords};

use crate::decode::{bytes, records};

/// Returns the addresses of the records that are decoded, and the number of those that are dropped.
fn decode(format: PreciseFormat, words: &[u64]) -> (Vec<u64>, u32) {
    let bytes = bytes(words);
    let mut records = PreciseRecords::from_bytes(format, &bytes);
    let addresses = records.by_ref().filter_map(|record| record.address()).collect();
    (addresses, records.malformed())
}

/// An adaptive record of the basic group, and `more` words, whose header has these groups and this size.
fn adaptive(groups: u64, size: u64, address: u64, more: usize) -> Vec<u64> {
    let mut words = vec![size << 48 | groups, address, 1, 2];
    words.resize(4 + more, 0);
    words
}

#[test]
fn an_adaptive_record_whose_size_lies_is_dropped_alone() {
    let (good, bad) = (adaptive(0, 32, 0x40, 0), 0xBAD);
    for lie in [
        adaptive(1, 32, bad, 0),      // The memory group does not fit.
        adaptive(0, 64, bad, 4),      // There is no group in the second half.
        adaptive(1 << 6, 32, bad, 0), // A group that is not known,
        adaptive(1 << 6, 64, bad, 4), // of any size.
        adaptive(1 << 23, 32, bad, 0),
        adaptive(1 << 4, 32, bad, 0), // The counters' header does not fit.
        adaptive(1 << 4, 48, bad, 2).into_iter().map(|w| if w == 0 { !0 } else { w }).collect(),
    ] {
        let all = [good.clone(), lie, good.clone()].concat();
        assert_eq!(decode(PreciseFormat::Adaptive, &all), (vec![0x40, 0x40], 1), "{all:x?}");
    }
}

#[test]
fn after_a_size_that_cannot_be_nothing_is_read() {
    let good = adaptive(0, 32, 0x40, 0);
    for size in [0, 8, 24, 33, 36, 0xFFF8, 0xFFFF] {
        let all = [good.clone(), adaptive(0, size, 0xBAD, 0), good.clone()].concat();
        assert_eq!(decode(PreciseFormat::Adaptive, &all), (vec![0x40], 1), "{size}");
    }
    // The buffer ends within the record.
    let all = [good.clone(), good[..3].to_vec()].concat();
    assert_eq!(decode(PreciseFormat::Adaptive, &all), (vec![0x40], 1));
}

#[test]
fn a_part_of_a_record_at_the_end_is_counted() {
    for record in records() {
        let whole = bytes(&record.words);
        for length in [1, 7, 8, whole.len() - 1] {
            let mut records = PreciseRecords::from_bytes(record.format, &whole[..length]);
            assert_eq!(records.by_ref().count(), 0, "{:?} {}", record.format, record.name);
            assert_eq!(records.malformed(), 1, "{:?} {}: {length}", record.format, record.name);
        }
    }
}

/// A fragment of an architectural record, whose basic group has this address.
fn fragment(format: u64, size: u64, address: u64) -> Vec<u64> {
    let mut words = vec![format | size, 0, address];
    words.resize((size / 8) as usize, 0);
    words
}

const BASIC: u64 = 1 << 63;
const CONTINUED: u64 = 1 << 31;
const REGISTERS: u64 = 1 << 61;

#[test]
fn an_architectural_record_that_is_cut_or_headless_is_dropped_alone() {
    let good = fragment(BASIC, 0x40, 0x40);
    for bad in [
        fragment(REGISTERS, 0xB0, 0xBAD),         // No basic group.
        fragment(BASIC | CONTINUED, 0x40, 0xBAD), // Another record begins instead.
        fragment(BASIC | REGISTERS, 0x40, 0xBAD), // A group that does not fit.
        fragment(BASIC, 0x50, 0xBAD),             // More than the groups and their padding.
        fragment(BASIC | 1 << 42, 0x40, 0xBAD),   // Groups that are not known.
        fragment(BASIC | 1 << 51, 0x40, 0xBAD),
        fragment(BASIC | 1 << 60, 0x40, 0xBAD),
        fragment(BASIC | 3 << 40, 0x70, 0xBAD).into_iter().map(|w| w.max(1 << 62)).collect(),
        fragment(0, 0x10, 0), // A fragment without any group.
    ] {
        let all = [good.clone(), bad.clone(), good.clone()].concat();
        let found = decode(PreciseFormat::Architectural, &all);
        assert_eq!(found, (vec![0x40, 0x40], 1), "{:#x}", bad[0]);
    }
}

#[test]
fn a_size_of_0_ends_the_reading() {
    let good = fragment(BASIC, 0x40, 0x40);
    let all = [good.clone(), vec![0; 8], good.clone()].concat();
    assert_eq!(decode(PreciseFormat::Architectural, &all), (vec![0x40], 0));
    // Not where a fragment was announced.
    let all = [fragment(BASIC | CONTINUED, 0x40, 0xBAD), vec![0; 8], good].concat();
    assert_eq!(decode(PreciseFormat::Architectural, &all), (vec![], 1));
}

/// Whatever one word of a record becomes, the decoder ends, and each method of what it returns, too.
#[test]
fn any_word_may_be_anything() {
    for record in records() {
        for place in 0..record.words.len() {
            for value in [0, 1, u64::MAX, 1 << 63, 0xFFFF, 0xFFF8 << 48, 0x20 << 48] {
                let mut words = record.words.clone();
                words[place] = value;
                let bytes = bytes(&[words, record.words.clone()].concat());
                let mut records = PreciseRecords::from_bytes(record.format, &bytes);
                let read = records.by_ref().filter(|record| read_all(record) < usize::MAX).count();
                assert!(read + records.malformed() as usize <= 2 + record.words.len());
            }
        }
    }
}

/// Calls each method of a record.
fn read_all(record: &pmu_intel::precise::PreciseRecord<'_>) -> usize {
    let branches = record.branches().map_or(0, |branches| branches.raw().count());
    let values = record.counter_values().map_or(0, |values| values.iter().count());
    let vectors = record.vectors().map_or(0, |vectors| {
        (0..=255).filter(|number| vectors.xmm(*number).is_some()).count()
            + (0..=255).filter(|number| vectors.zmm(*number).is_some()).count()
    });
    let memory = record.memory().is_some() as usize;
    branches + values + vectors + memory + record.address().is_some() as usize
}
