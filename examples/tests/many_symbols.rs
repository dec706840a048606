//! Files with very many symbols, or vast names, that another user may map: reading them ends, and they are known as a
//! whole.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::time::Duration;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use pmu_examples::elf;
use pmu_examples::profiler::symbols::Symbols;

/// Time in which a busy machine reads what an idle one reads in a second, unoptimized.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes an ELF file with so many functions of 16 bytes, which all have names in one table, each a byte after the
/// other's (System V ABI, "ELF Header", "Sections", "Symbol Table").
fn made(name: &str, functions: u64, name_bytes: usize, is_at_one_address: bool) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut file = BufWriter::new(File::create(&path).unwrap());
    let (header, text, symbols) = (64_u64, 64_u64, 24 * (functions + 1));
    let names = name_bytes as u64 + 2;
    let begin = header + text;
    let sections = begin + symbols + names;
    let mut words = |halves: &[(u64, usize)]| {
        halves
            .iter()
            .for_each(|(value, bytes)| file.write_all(&value.to_le_bytes()[..*bytes]).unwrap());
    };
    words(&[(0x0001_0102_464C_457F, 8), (0, 8), (3, 2), (62, 2), (1, 4), (0, 8), (0, 8)]);
    words(&[(sections, 8), (0, 4), (64, 2), (56, 2), (0, 2), (64, 2), (4, 2), (3, 2)]);
    words(&[(0, 8); 8]);
    words(&[(0, 8); 3]);
    for number in 0..functions {
        let address = if is_at_one_address { 0 } else { 16 * number };
        let name = 1 + number % name_bytes as u64;
        words(&[(name, 4), (0x12, 1), (0, 1), (1, 2), (0x1_0000 + address, 8), (16, 8)]);
    }
    words(&[(0, 1)]);
    file.write_all(&vec![b'a'; name_bytes]).unwrap();
    file.write_all(&[0]).unwrap();
    // Kind, flags, address, place, size, the section that belongs to it, information, alignment, size of an entry.
    let mut section = |kind: u64, place: u64, size: u64, link: u64, entry: u64| {
        for (value, bytes) in [(0, 4), (kind, 4), (6, 8), (0x1_0000, 8), (place, 8), (size, 8)]
            .into_iter()
            .chain([(link, 4), (1, 4), (8, 8), (entry, 8)])
        {
            file.write_all(&u64::to_le_bytes(value)[..bytes]).unwrap();
        }
    };
    section(0, 0, 0, 0, 0);
    section(1, header, text, 0, 0);
    section(2, begin, symbols, 3, 24);
    section(3, begin + symbols, names, 0, 0);
    file.flush().unwrap();
    path
}

fn read(path: &Path) -> elf::File {
    elf::File::read(File::open(path).unwrap(), path).unwrap()
}

#[test]
fn a_file_of_millions_of_symbols_is_known_as_a_whole_and_a_note_tells_it() {
    let few = made("symbols-few", 1000, 100, false);
    let file = read(&few);
    assert!(!file.has_too_many_symbols());
    assert_eq!(file.function(0x1_0010).unwrap().name, "a".repeat(99));

    let many = made("symbols-many", 5_000_000, 100, false);
    let begin = Instant::now();
    let file = read(&many);
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    assert!(file.has_too_many_symbols() && !file.has_functions());
    assert_eq!(file.bytes(), 0);
    let mut symbols = Symbols::default();
    assert_eq!(symbols.note(), None);
    assert_eq!(symbols.function(&many, 0x10).0.name, "[symbols-many]");
    let note = symbols.note().unwrap();
    assert!(note.contains("symbols-many: shown as a whole"), "{note}");
    [few, many].iter().for_each(|path| fs::remove_file(path).unwrap());
}

#[test]
fn names_that_are_all_but_equal_and_very_long_are_sorted_in_time() {
    let path = made("symbols-long", 100_000, 4_000_000, true);
    let begin = Instant::now();
    let file = read(&path);
    assert!(file.function(0x1_0000).unwrap().name.len() <= 64 << 10);
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    fs::remove_file(path).unwrap();
}

#[test]
fn a_cpuid_dump_that_never_ends_is_an_error_that_says_so() {
    for program in [env!("CARGO_BIN_EXE_pmcsources"), env!("CARGO_BIN_EXE_events")] {
        let mut command = Command::new(program);
        command.args(["--cpuid", "/dev/zero"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let begin = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if begin.elapsed() > PATIENCE {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{program} does not end");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = child.wait_with_output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains("/dev/zero: more than 64 MiB"), "{complaint}");
    }
}
