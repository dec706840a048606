//! Recordings that lie about themselves: each is an error, and none makes the reader allocate what it declares.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A recording that the fuzzer keeps: 50 samples of one event.
const WHOLE: &[u8] = include_bytes!("../../fuzz/seeds/profile_recording/fifty-samples");

/// Memory that a recording of a few kilobytes does not need, in bytes.
const TOO_MUCH: u64 = 3 << 30;

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Reports by a file with these bytes, in a process that has no more than [`TOO_MUCH`] of memory.
fn report(name: &str, bytes: &[u8]) -> Output {
    let file = scratch(name);
    fs::write(&file, bytes).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_profile"));
    command.arg("report").arg(&file);
    let limit = libc::rlimit { rlim_cur: TOO_MUCH, rlim_max: TOO_MUCH };
    let limited = move || {
        // SAFETY: the pointer is valid for the call.
        match unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: one system call, which may be made between fork and exec.
    unsafe { command.pre_exec(limited) };
    let output = command.output().unwrap();
    fs::remove_file(&file).unwrap();
    output
}

fn word(bytes: &[u8], place: usize) -> u64 {
    u64::from_le_bytes(bytes[place..place + 8].try_into().unwrap())
}

/// Returns the place of a feature's section: those of the features that are set follow the records, in their order.
fn feature(bytes: &[u8], feature: u32) -> usize {
    let bits = word(bytes, 72);
    assert!(bits >> feature & 1 == 1);
    let before = (bits & ((1 << feature) - 1)).count_ones() as usize;
    word(bytes, (word(bytes, 40) + word(bytes, 48)) as usize + 16 * before) as usize
}

/// The kinds of features, by their bits: the command line, and the events' names.
const COMMAND_LINE: u32 = 11;
const EVENTS: u32 = 12;

#[test]
fn a_count_beyond_its_sections_room_is_an_error_and_is_not_allocated() {
    assert_eq!(report("hostile-whole.data", WHOLE).status.code(), Some(0));
    let (words, events) = (feature(WHOLE, COMMAND_LINE), feature(WHOLE, EVENTS));
    let attributes = word(WHOLE, events) >> 32;
    let numbers = events + 8 + attributes as usize;
    for (what, place) in [
        ("words", words),
        ("a word's length", words + 4),
        ("events", events),
        ("an event's attributes' bytes", events + 4),
        ("an event's numbers", numbers),
        ("an event's name's length", numbers + 4),
    ] {
        for count in [u32::MAX, 0xB000_0000, 1 << 28] {
            let mut changed = WHOLE.to_vec();
            changed[place..place + 4].copy_from_slice(&count.to_le_bytes());
            let output = report("hostile-count.data", &changed);
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{what}, {count}: {complaint}");
            assert!(complaint.contains("damaged recording"), "{what}, {count}: {complaint}");
        }
    }
}

/// Of such a size the library would take the name's length from elsewhere.
#[test]
fn attributes_of_a_size_that_no_kernel_has_are_an_error_and_do_not_shift_what_follows() {
    let attributes = feature(WHOLE, EVENTS) + 8;
    for bytes in [65_u32, 71, 73, 100, 111, 121, 127] {
        let mut changed = WHOLE.to_vec();
        changed[attributes + 4..attributes + 8].copy_from_slice(&bytes.to_le_bytes());
        let output = report("hostile-attributes.data", &changed);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{bytes}: {complaint}");
        assert!(complaint.contains("damaged recording"), "{bytes}: {complaint}");
    }
}

/// Without the section of names, the events are those of the header: of today's files, or, with their names, of old
/// ones.
#[test]
fn an_events_numbers_that_are_not_in_the_file_are_an_error_and_are_not_allocated() {
    for first in [24, 56] {
        for (place, size) in [(0, 1 << 40), (1 << 40, 8), (u64::MAX, u64::MAX)] {
            let mut changed = WHOLE.to_vec();
            let bits = word(WHOLE, 72) & !(1 << EVENTS);
            changed[72..80].copy_from_slice(&bits.to_le_bytes());
            let begin = word(WHOLE, 24);
            // As many bytes as the one event has, with the place of its numbers.
            let bytes = word(WHOLE, 16) + if first == 56 { 16 } else { 0 };
            changed[first..first + 8].copy_from_slice(&begin.to_le_bytes());
            changed[first + 8..first + 16].copy_from_slice(&bytes.to_le_bytes());
            let last = (begin + bytes) as usize - 16;
            changed[last..last + 8].copy_from_slice(&u64::to_le_bytes(place));
            changed[last + 8..last + 16].copy_from_slice(&u64::to_le_bytes(size));
            let output = report("hostile-numbers.data", &changed);
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{first}, {place:#x}: {complaint}");
            assert!(complaint.contains("damaged recording"), "{first}, {place:#x}: {complaint}");
        }
    }
}

#[test]
fn sections_that_are_the_same_bytes_are_not_allocated_once_for_each() {
    // Room for 256 features behind the records, each of which is the file's first 40 MB.
    let mut changed = WHOLE.to_vec();
    changed.resize(48 << 20, 0);
    let table = (word(WHOLE, 40) + word(WHOLE, 48)) as usize;
    for number in 0..256 {
        changed[table + 16 * number..][..8].copy_from_slice(&0_u64.to_le_bytes());
        changed[table + 16 * number + 8..][..8].copy_from_slice(&(40_u64 << 20).to_le_bytes());
    }
    changed[72..104].fill(0xFF);
    let output = report("hostile-features.data", &changed);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("damaged recording"), "{complaint}");
}

/// Returns the recording with these records behind its own, and without features.
fn with_records(more: &[u8]) -> Vec<u8> {
    let (begin, size) = (word(WHOLE, 40), word(WHOLE, 48));
    let mut changed = WHOLE[..(begin + size) as usize].to_vec();
    changed.extend(more);
    changed[48..56].copy_from_slice(&(size + more.len() as u64).to_le_bytes());
    changed[72..104].fill(0);
    changed
}

/// Returns the first record of a kind: `PERF_RECORD_SAMPLE` is 9, `PERF_RECORD_MMAP2` 10.
fn first(kind: u32) -> Vec<u8> {
    let mut rest = &WHOLE[word(WHOLE, 40) as usize..];
    loop {
        let length = usize::from(u16::from_le_bytes([rest[6], rest[7]]));
        if rest[..4] == kind.to_le_bytes() {
            return rest[..length].to_vec();
        }
        rest = &rest[length..];
    }
}

#[test]
fn mappings_as_large_as_can_be_do_not_take_a_buffer_of_their_size_each() {
    let (mut mapping, mut sample, mut records) = (first(10), first(9), Vec::new());
    for number in 1..60_u64 {
        let (start, size) = (number << 41, (1_u64 << 41) - (number << 12));
        mapping[16..24].copy_from_slice(&start.to_le_bytes());
        mapping[24..32].copy_from_slice(&size.to_le_bytes());
        sample[8..16].copy_from_slice(&start.to_le_bytes());
        records.extend([&*mapping, &sample].concat());
    }
    let output = report("hostile-mappings.data", &with_records(&records));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("109 seen, 109 hit"), "{text}");
}

/// The reader reports the samples of a round before it reads the next round. A report of the rounds before the damage
/// would look whole.
#[test]
fn a_record_behind_many_rounds_that_is_not_read_is_an_error_and_not_a_shorter_report() {
    let round: Vec<u8> = [68, 0, 0, 0, 0, 0, 8, 0].to_vec();
    let rounds = [first(9), round].concat().repeat(10_000);
    assert_eq!(report("hostile-rounds.data", &with_records(&rounds)).status.code(), Some(0));
    for (kind, told) in [(71, "trace"), (81, "compressed"), (83, "compressed")] {
        let last = [kind, 0, 0, 0, 0, 0, 16, 0].into_iter().chain([0xFF; 8]);
        let records = rounds.iter().copied().chain(last).collect::<Vec<_>>();
        let output = report("hostile-last.data", &with_records(&records));
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains(told) && output.stdout.is_empty(), "{complaint}");
    }
}

/// Until a round ends, all records are held: 20 million of the smallest take gigabytes, and so do the largest.
#[test]
fn records_that_no_round_ends_are_an_error_and_are_not_held() {
    let smallest: Vec<u8> = [15, 39, 0, 0, 0, 0, 8, 0].repeat(10_000_000);
    let mut largest = vec![15, 39, 0, 0, 0, 0, 0xF8, 0xFF];
    largest.resize(0xFFF8, 0);
    for (name, records) in [("smallest", smallest), ("largest", largest.repeat(17_000))] {
        let output = report(&format!("hostile-{name}.data"), &with_records(&records));
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some_and(|code| code != 0), "{name}: {output:?}");
        assert!(told.contains("cannot be sorted"), "{name}: {told}");
    }
}

#[test]
fn a_period_as_large_as_can_be_does_not_overflow() {
    for (period, status) in [(u64::MAX, 2), (1 << 63, 2), (1 << 62, 0), (1 << 59, 0)] {
        let mut changed = WHOLE.to_vec();
        // The period is the third word of the attributes, which the section of the events' names has once more.
        for attributes in [word(WHOLE, 24) as usize, feature(WHOLE, EVENTS) + 8] {
            changed[attributes + 16..attributes + 24].copy_from_slice(&period.to_le_bytes());
        }
        let output = report("hostile-period.data", &changed);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{complaint}");
    }
}

/// Changes of one to four words each, by a generator that is the same each time (Marsaglia, "Xorshift RNGs", 2003).
#[test]
fn a_recording_with_any_words_changed_is_read_or_refused_and_never_aborts() {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) as usize % below
    };
    let values =
        [0, 1, 8, 0x7F, 0xFF, 0xFFFF, 1 << 31, u32::MAX as u64, 1 << 40, 1 << 63, u64::MAX];
    for round in 0..100 {
        let mut changed = WHOLE.to_vec();
        for _ in 0..=next(4) {
            // One in two is in the header, the attributes or the features.
            let records = word(WHOLE, 40) as usize..(word(WHOLE, 40) + word(WHOLE, 48)) as usize;
            let mut place = next(WHOLE.len() - 8);
            if next(2) == 0 && records.contains(&place) {
                place = next(records.start - 8);
            }
            let bytes = 1 << next(4);
            let value = values[next(values.len())].to_le_bytes();
            changed[place..place + bytes].copy_from_slice(&value[..bytes]);
        }
        let output = report("hostile-changed.data", &changed);
        let complaint = String::from_utf8_lossy(&output.stderr);
        let is_fine = matches!(output.status.code(), Some(0 | 2));
        if !is_fine || complaint.contains("panicked") {
            let kept = scratch("hostile-kept.data");
            fs::write(&kept, &changed).unwrap();
            panic!("round {round}, kept as {}: {:?} {complaint}", kept.display(), output.status);
        }
    }
}
