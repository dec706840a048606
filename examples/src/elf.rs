//! The functions and lines of an ELF file.

mod debug_file;

use core::cell::OnceCell;
use core::cmp::Reverse;
use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

/// An ELF file.
pub struct File {
    segments: Vec<Segment>,
    /// Ascending by address.
    symbols: Vec<Symbol>,
    loader: OnceCell<Option<Loader>>,
    /// The file with the lines: this one, or a separate one.
    lines: Option<PathBuf>,
}

/// Bytes that zlib's densest stream has for each of its own. What a compressed section declares beyond that would be
/// allocated, and be wrong.
const DENSEST: u64 = 1032;

struct Segment {
    file_offset: u64,
    file_size: u64,
    address: u64,
}

struct Symbol {
    address: u64,
    size: u64,
    name: String,
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, it is no regular file, or no ELF file.
    pub fn read(path: &Path) -> io::Result<Self> {
        // A mapped file need not be one that ends.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let data = std::fs::read(path)?;
        let file = object::File::parse(&*data).map_err(io::Error::other)?;
        let segments = file
            .segments()
            .map(|segment| {
                let (file_offset, file_size) = segment.file_range();
                Segment { file_offset, file_size, address: segment.address() }
            })
            .collect();
        let mut symbols = functions(&file);
        let mut lines = may_be_decompressed(&file).then(|| path.to_owned());
        if file.symbols().next().is_none()
            && let Some((found, data)) = debug_file::find(path, &file)
            && let Ok(file) = object::File::parse(&*data)
        {
            symbols.extend(functions(&file));
            lines = may_be_decompressed(&file).then_some(found);
        }
        symbols.sort_by(|a, b| {
            (a.address, Reverse(a.size), &a.name).cmp(&(b.address, Reverse(b.size), &b.name))
        });
        symbols.dedup_by_key(|symbol| symbol.address);
        Ok(Self { segments, symbols, loader: OnceCell::new(), lines })
    }

    /// Returns whether the file names any function.
    pub fn has_functions(&self) -> bool {
        !self.symbols.is_empty()
    }

    /// Returns the address of a place in the file, in the file's own address space.
    pub fn address(&self, file_offset: u64) -> Option<u64> {
        let (segment, distance) = self.segments.iter().find_map(|segment| {
            let distance = file_offset.checked_sub(segment.file_offset)?;
            (distance < segment.file_size).then_some((segment, distance))
        })?;
        segment.address.checked_add(distance)
    }

    /// Returns the function at an address.
    pub fn function(&self, address: u64) -> Option<Function> {
        let next = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = self.symbols[..next].last()?;
        let inside = address - symbol.address < symbol.size;
        inside.then(|| Function { name: demangle(&symbol.name), start: symbol.address })
    }

    /// Returns the lines of the file.
    pub fn loader(&self) -> Option<&Loader> {
        let path = self.lines.as_ref()?;
        self.loader.get_or_init(|| Loader::new(path).ok()).as_ref()
    }
}

/// Returns whether each compressed section declares a size that its bytes can have.
fn may_be_decompressed(file: &object::File<'_>) -> bool {
    file.sections().filter_map(|section| section.compressed_data().ok()).all(|section| {
        section.uncompressed_size <= (section.data.len() as u64).saturating_mul(DENSEST)
    })
}

/// Returns the functions in a file's tables of symbols.
fn functions(file: &object::File<'_>) -> Vec<Symbol> {
    file.symbols()
        .chain(file.dynamic_symbols())
        .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
        .filter_map(|symbol| {
            let (address, name) = (symbol.address(), symbol.name().ok()?.into());
            let size = match symbol.size() {
                // Assembly may give no size: then it reaches to the next symbol, or to its
                // section's end.
                0 => {
                    let section = file.section_by_index(symbol.section_index()?).ok()?;
                    section.address().saturating_add(section.size()).checked_sub(address)?
                }
                size => size,
            };
            Some(Symbol { address, size, name })
        })
        .collect()
}

/// The function that a place belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Function {
    /// Its name, readable; of a place in no known function, the file's name in brackets.
    pub name: String,
    /// Its first address: in the file's own address space, or of a place in no known
    /// function 0.
    pub start: u64,
}

/// The readable form of a Rust or C++ name, without a hash.
fn demangle(name: &str) -> String {
    addr2line::demangle_auto(Cow::Borrowed(name), None).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_readable() {
        assert_eq!(demangle("_ZN4core3ptr4read17h0123456789abcdefE"), "core::ptr::read");
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
        assert_eq!(demangle("_ZNSt6vectorIiE4sizeEv"), "std::vector<int>::size()");
        assert_eq!(demangle("main"), "main");
    }

    /// Files that the fuzzer keeps, after its byte that says that they are whole.
    #[test]
    fn a_section_that_declares_more_than_its_bytes_can_have_is_not_decompressed() {
        let plain = include_bytes!("../../fuzz/seeds/profile_symbols/program-with-lines");
        let vast = include_bytes!("../../fuzz/seeds/profile_symbols/section-that-declares-4-gib");
        let is_read = |kept: &[u8]| may_be_decompressed(&object::File::parse(&kept[1..]).unwrap());
        assert!(is_read(plain));
        assert!(!is_read(vast));
    }

    #[test]
    fn a_place_beyond_a_functions_size_is_not_in_it() {
        let symbol = |address, size, name: &str| Symbol { address, size, name: name.into() };
        let file = File {
            segments: vec![Segment { file_offset: 0x1000, file_size: 0x1000, address: 0x40_1000 }],
            symbols: vec![symbol(0x40_1010, 0x10, "first"), symbol(0x40_1040, 0x100, "second")],
            loader: OnceCell::new(),
            lines: None,
        };
        let name = |offset| file.function(file.address(offset)?).map(|function| function.name);
        assert_eq!(name(0xFFF), None);
        assert_eq!(name(0x100F), None);
        assert_eq!(name(0x1010).as_deref(), Some("first"));
        assert_eq!(name(0x101F).as_deref(), Some("first"));
        assert_eq!(name(0x1020), None);
        assert_eq!(name(0x113F).as_deref(), Some("second"));
        assert_eq!(name(0x1140), None);
        assert_eq!(file.address(0x2000), None);
    }
}
