//! Every format decodes records whose fields were counted by hand.

use core::sync::atomic::AtomicU64;

use pmu_intel::precise::{GeneralRegister, PreciseFormat, PreciseRecord, PreciseRecords};
use pmu_tests::{Row, data};

/// The word at a place of a record, unless the file gives another one. No branch address is 0.
fn filler(offset: u64) -> u64 {
    0x7000_0000_0000 | offset << 16 | offset
}

/// A record of the data file.
pub(crate) struct Record {
    pub(crate) format: PreciseFormat,
    pub(crate) name: String,
    pub(crate) words: Vec<u64>,
    rows: Vec<(String, u64, Option<u64>)>,
}

pub(crate) fn format(name: &str) -> PreciseFormat {
    use PreciseFormat::*;
    [Core, Nehalem, Haswell, Skylake, Adaptive, Architectural]
        .into_iter()
        .find(|format| format!("{format:?}") == name)
        .expect(name)
}

/// Returns all records of the data file.
pub(crate) fn records() -> Vec<Record> {
    let rows: Vec<Row<'_>> = data!("precise_records.csv");
    let mut records: Vec<Record> = Vec::new();
    for row in rows {
        let (of, name) = (format(row.text("format")), row.text("record"));
        if records.last().is_none_or(|last| last.format != of || last.name != name) {
            records.push(Record {
                format: of,
                name: name.into(),
                words: Vec::new(),
                rows: Vec::new(),
            });
        }
        let record = records.last_mut().unwrap();
        let (field, offset) = (row.text("field"), row.number("offset"));
        record.rows.push((field.into(), offset, row.optional("value")));
        if field == "end" {
            record.words = (0..offset / 8).map(|word| filler(8 * word)).collect();
            for (field, offset, value) in &record.rows {
                if field == "header" {
                    record.words[*offset as usize / 8] = value.unwrap();
                }
            }
        }
    }
    records
}

pub(crate) fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn register(name: &str) -> GeneralRegister {
    let of_name = |register: &GeneralRegister| format!("{register:?}") == name;
    GeneralRegister::ALL.into_iter().find(of_name).expect(name)
}

/// Returns the words that the decoder returns for a field of the data file: one, or those of a vector register.
fn decoded(record: &PreciseRecord<'_>, field: &str) -> Vec<u64> {
    let mut parts = field.split(' ');
    let (first, second, third) = (parts.next().unwrap(), parts.next(), parts.next());
    let number = || second.unwrap().parse().unwrap();
    let word =
        match first {
            "address" => record.address(),
            "next_address" => record.next_address(),
            "counters" => record.counters().map(|set| set.bits()),
            "time" => record.time(),
            "retire_latency" => record.retire_latency().map(u64::from),
            "register" => record.registers().unwrap().get(register(second.unwrap())),
            "memory" => {
                let memory = record.memory().unwrap();
                match second.unwrap() {
                    "address" => memory.address,
                    "source" => Some(memory.source),
                    "latency" => Some(memory.latency),
                    _ => memory.transaction.map(|word| word.into_bits()),
                }
            }
            "branch" => record.branches().unwrap().raw().nth(number() as usize).map(|branch| {
                match third.unwrap() {
                    "from" => branch.from,
                    "to" => branch.to,
                    _ => branch.info,
                }
            }),
            "counter" => record
                .counter_values()
                .unwrap()
                .iter()
                .find(|(counter, _)| counter.bit() == number())
                .map(|(_, value)| value),
            "slots" => record.counter_values().unwrap().metrics().map(|(slots, _)| slots),
            "metrics" => record.counter_values().unwrap().metrics().map(|(_, metrics)| metrics),
            kind => {
                let vectors = record.vectors().unwrap();
                let words = match kind {
                    "xmm" => vectors.xmm(number()).map(Vec::from),
                    "ymm_high" => vectors.ymm_high(number()).map(Vec::from),
                    "opmask" => vectors.opmask(number()).map(|mask| vec![mask]),
                    "zmm_high" => vectors.zmm_high(number()).map(Vec::from),
                    "zmm" => vectors.zmm(number()).map(Vec::from),
                    other => panic!("{other}"),
                };
                return words.expect(field);
            }
        };
    vec![word.expect(field)]
}

fn check(of_file: &Record, record: &PreciseRecord<'_>) {
    for (field, offset, value) in &of_file.rows {
        let at = format!("{:?} {} {field}", of_file.format, of_file.name);
        match field.as_str() {
            "header" => {}
            "end" => assert_eq!(record.size() as u64, *offset, "{at}"),
            "no retire_latency" => assert_eq!(record.retire_latency(), None, "{at}"),
            "counters" => {
                let expected = pmu_core::CounterSet::from_bits(filler(*offset)).bits();
                assert_eq!(decoded(record, field), [expected], "{at}");
            }
            _ => {
                let words = decoded(record, field);
                for (place, word) in words.iter().enumerate() {
                    let expected = value.unwrap_or(filler(offset + 8 * place as u64));
                    assert_eq!(*word, expected, "{at}, word {place}");
                }
            }
        }
    }
}

#[test]
fn each_field_of_each_format_is_at_its_place() {
    let records = records();
    assert_eq!(records.len(), 15);
    for of_file in &records {
        let bytes = bytes(&of_file.words);
        let mut decoder = PreciseRecords::from_bytes(of_file.format, &bytes);
        check(of_file, &decoder.next().expect(&of_file.name));
        assert!(decoder.next().is_none() && decoder.malformed() == 0, "{}", of_file.name);
    }
}

#[test]
fn records_of_one_format_follow_each_other_in_lent_memory() {
    for of_format in ["Core", "Nehalem", "Haswell", "Skylake", "Adaptive", "Architectural"] {
        let all = records();
        let of_format: Vec<&Record> =
            all.iter().filter(|record| record.format == format(of_format)).collect();
        let words = of_format.iter().flat_map(|record| record.words.iter().copied());
        let words: Vec<AtomicU64> = words.map(AtomicU64::new).collect();
        let mut decoder = PreciseRecords::from_words(of_format[0].format, &words);
        for of_file in of_format {
            check(of_file, &decoder.next().expect(&of_file.name));
        }
        assert!(decoder.next().is_none() && decoder.malformed() == 0);
    }
}

#[test]
fn a_group_that_a_record_lacks_is_none() {
    let text = records();
    let of = |format, name: &str| {
        text.iter().find(|record| record.format == format && record.name == name).unwrap()
    };
    for format in [PreciseFormat::Adaptive, PreciseFormat::Architectural] {
        let bytes = bytes(&of(format, "basic").words);
        let record = PreciseRecords::from_bytes(format, &bytes).next().unwrap();
        assert!(record.memory().is_none() && record.registers().is_none());
        assert!(record.vectors().is_none() && record.branches().is_none());
        assert!(record.counter_values().is_none() && record.next_address().is_none());
    }
    let core = bytes(&of(PreciseFormat::Core, "whole").words);
    let record = PreciseRecords::from_bytes(PreciseFormat::Core, &core).next().unwrap();
    assert!(record.address().is_none() && record.counters().is_none() && record.time().is_none());
    assert!(record.memory().is_none() && record.retire_latency().is_none());
    let nehalem = bytes(&of(PreciseFormat::Nehalem, "whole").words);
    let record = PreciseRecords::from_bytes(PreciseFormat::Nehalem, &nehalem).next().unwrap();
    assert!(record.address().is_none() && record.memory().unwrap().transaction.is_none());
}

/// SDM vol. 3B, "32-bit PEBS Record Format": ten words of 32 bits.
#[test]
fn a_32_bit_record_has_ten_words() {
    let words: Vec<u8> = (1..=20_u32).flat_map(u32::to_le_bytes).collect();
    let mut records = PreciseRecords::from_bytes(PreciseFormat::Bits32, &words);
    for first in [0, 10] {
        let record = records.next().unwrap();
        assert_eq!(record.next_address(), Some(first + 2));
        let registers = record.registers().unwrap();
        let values: Vec<u64> =
            GeneralRegister::ALL.into_iter().map_while(|name| registers.get(name)).collect();
        assert_eq!(values, Vec::from_iter(first + 1..=first + 10));
    }
    assert!(records.next().is_none());
}

/// Branches of the user, a system call, one within the kernel, and its return: SDM vol. 3B, "Adaptive PEBS", the basic
/// group and the branches' group; and the Architecture Instruction Set Extensions reference, "Architectural PEBS".
#[test]
fn a_record_limited_to_a_privilege_level_has_no_branch_from_or_to_another() {
    const KERNEL: u64 = 0xFFFF_FFFF_8000_0000;
    let branches =
        [(0x1000, 0x2000), (0x2010, KERNEL), (KERNEL + 8, KERNEL + 16), (KERNEL + 32, 0x2012)];
    let mut words: Vec<u64> = branches.into_iter().flat_map(|(from, to)| [from, to, 0]).collect();
    words.resize(3 * 8, 0);
    let adaptive = [(32 + 24 * 8) << 48 | 7 << 24 | 1 << 3, 0x1000, 1, 0];
    let architectural = [(8 * (2 + 6 + 6 + 24)) | 1 << 40 | 1 << 63, 0, 0x1000, 1, 0, 0, 0, 0];
    let header_of_branches = [0, 0, 8, 0, 0, 0];
    for (format, head) in [
        (PreciseFormat::Adaptive, adaptive.to_vec()),
        (PreciseFormat::Architectural, [&architectural[..], &header_of_branches].concat()),
    ] {
        let bytes: Vec<u8> =
            head.iter().chain(&words).flat_map(|word: &u64| word.to_le_bytes()).collect();
        let record = PreciseRecords::from_bytes(format, &bytes).next().unwrap();
        let shown = |record: PreciseRecord<'_>| -> Vec<u64> {
            record.branches().unwrap().raw().map(|branch| branch.from).collect()
        };
        assert_eq!(shown(record), branches.map(|(from, _)| from), "{format:?}");
        let user = record.limited_to(true, false).unwrap();
        assert_eq!(shown(user), [0x1000], "{format:?}");
        // A limit is not lifted by another one.
        assert_eq!(shown(user.limited_to(true, true).unwrap()), [0x1000], "{format:?}");
        assert!(record.limited_to(false, true).is_none(), "{format:?}");
    }
}
