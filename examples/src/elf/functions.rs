//! The functions that a file's symbol tables name (System V ABI, "Symbol Table"). Each table is read as a whole, and a
//! name is looked at when its function is asked for: large programs have half a million.

use core::cmp::Reverse;
use core::ops::Range;
use std::borrow::Cow;
use std::fs;

use object::elf;
use object::read::elf::{ElfFile, FileHeader, SectionHeader, Sym, SymbolTable};
use object::read::{ReadCache, SymbolIndex};

use super::parts::Parts;

/// The most symbols that a file's tables may have, functions or not, and bytes of names: one that another user maps may
/// have any number. A browser with all its symbols has a million.
pub(super) const MOST_SYMBOLS: usize = 2 << 20;
const MOST_NAMES: usize = 512 << 20;

/// The longest name that is read, and the bytes by which names are compared.
const LONGEST_NAME: usize = 64 << 10;
const COMPARED: usize = 256;

type Cache<'f> = &'f ReadCache<fs::File>;

/// Functions by their addresses.
#[derive(Default)]
pub(super) struct Functions {
    /// Ascending by address after [`sort`](Self::sort).
    all: Vec<Symbol>,
    /// The names, each up to a zero.
    names: Vec<u8>,
    /// Set once a table had more than the limits allow: then there is no function.
    are_too_many: bool,
}

struct Symbol {
    address: u64,
    size: u64,
    /// The first byte of its name.
    name: usize,
}

impl Functions {
    /// Adds the functions in a file's tables.
    pub(super) fn add_file(&mut self, file: &Parts<'_>) {
        match file {
            object::File::Elf32(file) => self.add_tables(file),
            object::File::Elf64(file) => self.add_tables(file),
            _ => {}
        }
    }

    fn add_tables<'f, Elf: FileHeader>(&mut self, file: &ElfFile<'f, Elf, Cache<'f>>) {
        self.add_table(file, file.elf_symbol_table());
        self.add_table(file, file.elf_dynamic_symbol_table());
    }

    fn add_table<'f, Elf: FileHeader>(
        &mut self,
        file: &ElfFile<'f, Elf, Cache<'f>>,
        table: &SymbolTable<'f, Elf, Cache<'f>>,
    ) {
        let (endian, sections) = (file.endian(), file.elf_section_table());
        let names = sections.section(table.string_section()).ok();
        let names = names.and_then(|section| section.data(endian, file.data()).ok());
        let Some(names) = names else { return };
        if self.are_too_many
            || names.len() > MOST_NAMES - self.names.len()
            || table.len() > MOST_SYMBOLS - self.all.len()
        {
            *self = Self { are_too_many: true, ..Self::default() };
            return;
        }
        let begin = self.names.len();
        self.names.extend_from_slice(names);
        // So that the last name ends.
        self.names.push(0);
        for (number, symbol) in table.symbols().iter().enumerate() {
            let section = table.symbol_section(endian, symbol, SymbolIndex(number));
            let Ok(Some(section)) = section else { continue };
            if symbol.st_type() != elf::STT_FUNC {
                continue;
            }
            let name = symbol.st_name(endian) as usize;
            if name >= names.len() {
                continue;
            }
            let address: u64 = symbol.st_value(endian).into();
            let size = match symbol.st_size(endian).into() {
                // Assembly may give no size: then it reaches to the next symbol, or to its section's end.
                0 => {
                    let section = sections.section(section).ok();
                    let end = section.map(|section| {
                        section
                            .sh_addr(endian)
                            .into()
                            .saturating_add(section.sh_size(endian).into())
                    });
                    let Some(size) = end.and_then(|end| end.checked_sub(address)) else { continue };
                    size
                }
                size => size,
            };
            self.all.push(Symbol { address, size, name: begin + name });
        }
    }

    /// Adds a function.
    pub(super) fn add(&mut self, address: u64, size: u64, name: &str) {
        let is_room = self.all.len() < MOST_SYMBOLS && name.len() < MOST_NAMES - self.names.len();
        if is_room && !self.are_too_many {
            self.all.push(Symbol { address, size, name: self.names.len() });
            self.names.extend(name.bytes().chain([0]));
        }
    }

    /// Makes functions to be found: of those at one address the largest, and of these the first by name.
    pub(super) fn sort(&mut self) {
        let Self { all, names, .. } = self;
        all.sort_by(|a, b| {
            let sizes = || (a.address, Reverse(a.size)).cmp(&(b.address, Reverse(b.size)));
            let names = || bytes(names, a.name, COMPARED).cmp(bytes(names, b.name, COMPARED));
            sizes().then_with(names)
        });
        all.dedup_by_key(|symbol| symbol.address);
        all.shrink_to_fit();
    }

    /// Returns whether a table had more than the limits allow.
    pub(super) fn are_too_many(&self) -> bool {
        self.are_too_many
    }

    /// Returns the bytes of memory that they take.
    pub(super) fn bytes(&self) -> usize {
        self.names.len() + self.all.len() * size_of::<Symbol>()
    }

    /// Returns whether there is any.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the addresses and the name of the function at an address.
    pub(super) fn at(&self, address: u64) -> Option<(Range<u64>, Cow<'_, str>)> {
        let next = self.all.partition_point(|symbol| symbol.address <= address);
        let symbol = self.all[..next].last()?;
        let extent = symbol.address..symbol.address.saturating_add(symbol.size);
        let name = String::from_utf8_lossy(bytes(&self.names, symbol.name, LONGEST_NAME));
        (address - symbol.address < symbol.size).then_some((extent, name))
    }
}

/// Returns a name, of which at most so many bytes are looked at.
fn bytes(names: &[u8], begin: usize, most: usize) -> &[u8] {
    let end = names.len().min(begin + most);
    names[begin..end].split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_functions_at_one_address_the_largest_counts_and_none_reaches_beyond_its_size() {
        let mut functions = Functions::default();
        assert!(functions.is_empty() && functions.at(0).is_none());
        for (address, size, name) in [
            (0x40, 0x100, "second"),
            (0x10, 0x8, "small"),
            (0x10, 0x10, "z"),
            (0x10, 0x10, "first"),
        ] {
            functions.add(address, size, name);
        }
        functions.sort();
        let name = |address| functions.at(address).map(|(_, name)| name.into_owned());
        for (address, expected) in [
            (0xF, None),
            (0x10, Some("first")),
            (0x1F, Some("first")),
            (0x20, None),
            (0x13F, Some("second")),
            (0x140, None),
        ] {
            assert_eq!(name(address).as_deref(), expected, "{address:#x}");
        }
        assert_eq!(functions.at(0x41).unwrap().0, 0x40..0x140);
    }

    /// This test's own program, each of whose functions `object` reads one by one.
    #[test]
    fn a_programs_functions_are_those_that_another_reading_finds() {
        use object::{Object, ObjectSymbol, SymbolKind};
        let file = fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let cache = ReadCache::new(file);
        let parts = Parts::parse(&cache).unwrap();
        let mut functions = Functions::default();
        // A name before the tables'.
        functions.add(0, 1, "null");
        functions.add_file(&parts);
        functions.sort();
        let all = parts.symbols().chain(parts.dynamic_symbols());
        let is_function = |one: &object::Symbol<'_, '_, Cache<'_>>| {
            one.is_definition() && one.kind() == SymbolKind::Text && one.size() > 0
        };
        let mut at = std::collections::HashMap::<u64, Vec<(u64, String)>>::new();
        for symbol in all.filter(is_function) {
            let name = symbol.name().unwrap().to_string();
            at.entry(symbol.address()).or_default().push((symbol.size(), name));
        }
        let count = at.len();
        for (address, mut there) in at {
            there.sort_by(|a, b| (b.0, &a.1).cmp(&(a.0, &b.1)));
            let (extent, name) = functions.at(address).unwrap();
            assert_eq!((extent.end - extent.start, &*name), (there[0].0, &*there[0].1));
        }
        assert!(count > 1000, "{count}");
    }
}
