//! The decoders of Intel's precise records, of each format.
//!
//! The bytes: the format, then a buffer.

use core::sync::atomic::AtomicU64;

use pmu_intel::precise::{GeneralRegister, PreciseFormat, PreciseRecord, PreciseRecords};

const FORMATS: [PreciseFormat; 7] = [
    PreciseFormat::Bits32,
    PreciseFormat::Core,
    PreciseFormat::Nehalem,
    PreciseFormat::Haswell,
    PreciseFormat::Skylake,
    PreciseFormat::Adaptive,
    PreciseFormat::Architectural,
];

/// Reads all groups of a record. Returns all values.
fn read(record: &PreciseRecord<'_>) -> Vec<Option<u64>> {
    let mut all = vec![record.address(), record.next_address(), record.time()];
    all.push(record.counters().map(|counters| counters.bits()));
    all.push(record.retire_latency().map(u64::from));
    if let Some(memory) = record.memory() {
        all.extend([memory.address, Some(memory.source), Some(memory.latency)]);
        all.push(memory.transaction.map(|transaction| transaction.into_bits()));
    }
    if let Some(registers) = record.registers() {
        all.extend(GeneralRegister::ALL.map(|register| registers.get(register)));
    }
    if let Some(vectors) = record.vectors() {
        for number in 0..=u8::MAX {
            let [xmm, ymm] = [vectors.xmm(number), vectors.ymm_high(number)];
            assert!(number < 16 || xmm.is_none() && ymm.is_none());
            all.extend([xmm, ymm].into_iter().flatten().flatten().map(Some));
            all.extend(vectors.zmm_high(number).into_iter().flatten().map(Some));
            all.extend(vectors.zmm(number).into_iter().flatten().map(Some));
            all.push(vectors.opmask(number));
        }
    }
    if let Some(branches) = record.branches() {
        all.extend(branches.raw().map(|branch| Some(branch.from ^ branch.to ^ branch.info)));
    }
    if let Some(values) = record.counter_values() {
        all.extend(values.iter().map(|(_, value)| Some(value)));
        all.extend(values.metrics().map(|(slots, metrics)| Some(slots ^ metrics)));
    }
    all
}

/// Asserts that a record that user mode sees has no address of the kernel.
fn check_user(record: PreciseRecord<'_>) {
    let Some(record) = record.limited_to(true, false) else { return };
    let is_user = |address: Option<u64>| assert!(address.is_none_or(|address| address >> 63 == 0));
    is_user(record.address());
    is_user(record.next_address());
    is_user(record.memory().and_then(|memory| memory.address));
    for branch in record.branches().into_iter().flat_map(|branches| branches.raw()) {
        is_user(Some(branch.from));
        is_user(Some(branch.to));
    }
}

/// Decodes a buffer, as bytes and as words.
pub fn run(bytes: &[u8]) {
    let Some((format, buffer)) = bytes.split_first() else { return };
    let format = FORMATS[usize::from(*format) % FORMATS.len()];
    let mut records = PreciseRecords::from_bytes(format, buffer);
    let (mut size, mut all) = (0, Vec::new());
    for record in records.by_ref() {
        size += record.size();
        all.push(read(&record));
        check_user(record);
    }
    // Nothing is read twice.
    assert!(size <= buffer.len());
    let (words, rest) = buffer.as_chunks();
    if rest.is_empty() {
        let words: Vec<AtomicU64> =
            words.iter().map(|word| AtomicU64::new(u64::from_le_bytes(*word))).collect();
        let mut shared = PreciseRecords::from_words(format, &words);
        let of_words: Vec<_> = shared.by_ref().map(|record| read(&record)).collect();
        assert_eq!((of_words, shared.malformed()), (all, records.malformed()));
    }
}
