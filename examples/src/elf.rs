//! The functions and lines of an ELF file.

mod debug_file;
mod functions;
pub mod identity;
pub mod lines;
pub mod parts;
mod plt;
pub mod unwind_sections;

use core::cell::OnceCell;
use core::ops::Range;
use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::Path;

use object::read::ReadCache;
use object::{Object, ObjectSegment};

use functions::Functions;
use identity::Identity;
use lines::{Lines, SourceFrame};
use parts::Parts;

/// An ELF file.
pub struct File {
    /// The build ID, and the ID of the symbols.
    pub identity: Identity,
    segments: Vec<Segment>,
    functions: Functions,
    /// The file with the lines: this one, or a separate one. It is read when the first line is asked for.
    with_lines: Option<fs::File>,
    lines: OnceCell<Option<Lines>>,
}

struct Segment {
    file_offset: u64,
    file_size: u64,
    address: u64,
}

impl File {
    /// Reads a file that was opened. Where its symbols are stripped, the separate file of them is looked for beside
    /// `path`.
    ///
    /// # Errors
    /// It cannot be read, or is no ELF file.
    pub fn read(file: fs::File, path: &Path) -> io::Result<Self> {
        let owner = file.metadata()?;
        let cache = ReadCache::new(file.try_clone()?);
        let parts = Parts::parse(&cache).map_err(io::Error::other)?;
        let segments = parts
            .segments()
            .map(|segment| {
                let (file_offset, file_size) = segment.file_range();
                Segment { file_offset, file_size, address: segment.address() }
            })
            .collect();
        let identity = Identity::of(&parts, &cache);
        let mut functions = Functions::default();
        functions.add_file(&parts);
        let mut with_lines = Some(file);
        if parts.symbols().next().is_none()
            && let Some(separate) = debug_file::find(path, &parts, &owner)
        {
            let cache = ReadCache::new(separate.try_clone()?);
            if let Ok(parts) = Parts::parse(&cache) {
                functions.add_file(&parts);
                with_lines = Some(separate);
            }
        }
        plt::stubs(&parts, |address, size, name| functions.add(address, size, &name));
        functions.sort();
        Ok(Self { identity, segments, functions, with_lines, lines: OnceCell::new() })
    }

    /// Returns whether the file has more symbols, or bytes of their names, than are read: it is known as a whole then.
    pub fn has_too_many_symbols(&self) -> bool {
        self.functions.are_too_many()
    }

    /// Returns the bytes of memory that its symbols take.
    pub fn bytes(&self) -> usize {
        self.functions.bytes()
    }

    /// Returns whether the file names any function.
    pub fn has_functions(&self) -> bool {
        !self.functions.is_empty()
    }

    /// Returns the address of a place in the file, in the file's own address space.
    pub fn address(&self, file_offset: u64) -> Option<u64> {
        let (segment, distance) = self.segments.iter().find_map(|segment| {
            let distance = file_offset.checked_sub(segment.file_offset)?;
            (distance < segment.file_size).then_some((segment, distance))
        })?;
        segment.address.checked_add(distance)
    }

    /// Returns the address of the first segment, from which other tools count.
    pub fn base(&self) -> u64 {
        self.segments.first().map_or(0, |segment| segment.address)
    }

    /// Returns the addresses of the function at an address.
    pub fn extent(&self, address: u64) -> Option<Range<u64>> {
        Some(self.functions.at(address)?.0)
    }

    /// Returns the function at an address.
    pub fn function(&self, address: u64) -> Option<Function> {
        let (extent, name) = self.functions.at(address)?;
        Some(Function { name: demangle(&name), start: extent.start })
    }

    /// Returns the frames of the source at an address, first those of functions that are inlined there; nothing where
    /// the file does not tell.
    pub fn source_frames(&self, address: u64) -> Vec<SourceFrame> {
        let read = || Lines::read(self.with_lines.as_ref()?);
        // The last address is in no unit, and the library would look behind it.
        match self.lines.get_or_init(read) {
            Some(lines) if address != u64::MAX => lines.frames(address),
            _ => Vec::new(),
        }
    }
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

    #[test]
    fn a_place_beyond_a_functions_size_is_not_in_it() {
        let mut functions = Functions::default();
        functions.add(0x40_1010, 0x10, "first");
        functions.add(0x40_1040, 0x100, "second");
        functions.sort();
        let file = File {
            identity: Identity::default(),
            segments: vec![Segment { file_offset: 0x1000, file_size: 0x1000, address: 0x40_1000 }],
            functions,
            with_lines: None,
            lines: OnceCell::new(),
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
        assert_eq!((file.base(), file.extent(0x40_1041)), (0x40_1000, Some(0x40_1040..0x40_1140)));
    }
}
