//! Symbols of ELF files: arbitrary files, and such as the bytes describe, against a look at every symbol.
//!
//! The bytes: whether a whole file follows. If not: its segments and its functions with their numbers;
//! then places in the file to ask for.

use core::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use pmu_examples::elf::Function;
use pmu_examples::profiler::symbols::Symbols;

use crate::input::Input;

/// A file with these contents, for as long as this lives.
struct File(PathBuf);

impl File {
    fn new(contents: &[u8]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
        let path = folder.join(format!("pmu-fuzz-{}-{number}", std::process::id()));
        fs::write(&path, contents).expect("room for a file");
        Self(path)
    }

    /// Returns the label of a place without a function.
    fn label(&self) -> String {
        format!("[{}]", self.0.file_name().unwrap().to_string_lossy())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Place of a part of the file in memory.
struct Segment {
    file_offset: u64,
    size: u64,
    address: u64,
}

#[derive(Clone)]
struct Symbol {
    address: u64,
    size: u64,
    name: String,
}

/// The only section, and its contents.
struct Described {
    section: (u64, u64),
    segments: Vec<Segment>,
    symbols: Vec<Symbol>,
}

fn described(input: &mut Input<'_>) -> Described {
    let (segments, symbols) = (input.u8() % 4, input.u8() % 16);
    let section = (input.u64(), input.u64());
    let segment = |input: &mut Input<'_>| {
        let (file_offset, size, address) = (input.u64(), input.u64(), input.u64());
        Segment { file_offset, size, address }
    };
    let segments = (0..segments).map(|_| segment(input)).collect();
    let symbol = |number| {
        let (address, size) = (input.u64(), input.u16().into());
        Symbol { address, size, name: format!("function_{number}") }
    };
    let symbols = (0..symbols).map(symbol).collect();
    Described { section, segments, symbols }
}

/// System V ABI, "Object Files", and its AMD64 supplement.
fn elf(described: &Described) -> Vec<u8> {
    let Described { section, segments, symbols } = described;
    let mut names = vec![0];
    let mut table = vec![0; 24];
    for Symbol { address, size, name } in symbols {
        // st_name, st_info (STB_GLOBAL, STT_FUNC), st_other, st_shndx, st_value, st_size.
        table.extend((names.len() as u32).to_le_bytes());
        table.extend([0x12, 0, 1, 0]);
        table.extend([*address, *size].iter().flat_map(|word| word.to_le_bytes()));
        names.extend(name.bytes().chain([0]));
    }
    let tables = 64 + 56 * segments.len() as u64;
    let (table_size, names_size) = (table.len() as u64, names.len() as u64);
    let sections = tables + table_size + names_size;

    let mut file = b"\x7FELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let halves = |file: &mut Vec<u8>, halves: &[u16]| {
        file.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
    };
    let words = |file: &mut Vec<u8>, words: &[u64]| {
        file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    };
    // e_type, e_machine, e_version; e_entry, e_phoff, e_shoff; e_flags; and the numbers and sizes.
    halves(&mut file, &[2, 62, 1, 0]);
    words(&mut file, &[0, 64, sections]);
    halves(&mut file, &[0, 0, 64, 56, segments.len() as u16, 64, 4, 3]);
    for Segment { file_offset, size, address } in segments {
        // p_type PT_LOAD, p_flags; p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align.
        halves(&mut file, &[1, 0, 5, 0]);
        words(&mut file, &[*file_offset, *address, *address, *size, *size, 1]);
    }
    file.extend(table);
    file.extend(names);
    // sh_name, sh_type; sh_flags, sh_addr, sh_offset, sh_size; sh_link, sh_info; sh_addralign, sh_entsize.
    let (text, symtab, strtab) = (1 << 32, 2 << 32, 3 << 32);
    words(&mut file, &[0; 8]);
    words(&mut file, &[text, 6, section.0, 0, section.1, 0, 16, 0]);
    words(&mut file, &[symtab, 0, 0, tables, table_size, 3 | 1 << 32, 8, 24]);
    words(&mut file, &[strtab, 0, 0, tables + table_size, names_size, 0, 1, 0]);
    file
}

impl Described {
    /// A function without a size reaches to the section's end; `None` beyond that.
    fn size(&self, symbol: &Symbol) -> Option<u64> {
        if symbol.size != 0 {
            return Some(symbol.size);
        }
        let end = self.section.0.saturating_add(self.section.1);
        end.checked_sub(symbol.address)
    }

    /// Returns the function at a place in the file, and the offset into it.
    fn function(&self, place: u64) -> Option<(Function, u64)> {
        let inside = |segment: &&Segment| place.wrapping_sub(segment.file_offset) < segment.size;
        let segment = self.segments.iter().filter(|s| place >= s.file_offset).find(inside)?;
        let address = segment.address.checked_add(place - segment.file_offset)?;
        // The last that begins at or before the address; of several, the largest, and of those the first
        // by name.
        let nearest = self
            .symbols
            .iter()
            .filter(|symbol| symbol.address <= address && self.size(symbol).is_some())
            .max_by_key(|symbol| (symbol.address, self.size(symbol), Reverse(&symbol.name)))?;
        let distance = address - nearest.address;
        let function = Function { name: nearest.name.clone(), start: nearest.address };
        (Some(distance) < self.size(nearest)).then_some((function, distance))
    }
}

/// Runs one input: see the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.bool() {
        return arbitrary(input.rest());
    }
    let described = described(&mut input);
    let file = File::new(&elf(&described));
    let mut symbols = Symbols::default();
    while !input.is_empty() {
        let place = input.u64();
        let unknown = (Function { name: file.label(), start: 0 }, place);
        let expected = described.function(place).unwrap_or(unknown);
        assert_eq!(symbols.function(&file.0, place), expected, "{place:#x}");
        assert_eq!(symbols.line(&file.0, place), None, "there are no lines in it");
    }
}

/// Asserts of any file that repeated lookups agree, and that a function begins at or before its addresses.
fn arbitrary(contents: &[u8]) {
    let file = File::new(contents);
    let mut symbols = Symbols::default();
    let length = contents.len() as u64;
    let step = (length / 16).max(1) as usize;
    for place in (0..length).step_by(step).chain([length, u64::MAX]) {
        let found = symbols.function(&file.0, place);
        let line = symbols.line(&file.0, place);
        let (Function { name, start }, distance) = &found;
        if *name == file.label() {
            assert_eq!((*start, *distance), (0, place));
        } else {
            assert!(start.checked_add(*distance).is_some());
        }
        let mut anew = Symbols::default();
        assert_eq!(anew.function(&file.0, place), found);
        assert_eq!(anew.line(&file.0, place), line);
    }
}
