//! From a place in a file to the function and the line there.

use core::cell::OnceCell;
use core::cmp::Reverse;
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use super::kallsyms::{KERNEL, Kallsyms};

/// The function that a place belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Function {
    /// Its name, readable; of a place in no known function, the file's name in brackets.
    pub name: String,
    /// Where it begins: its address in the file's own address space, or of a place in no known
    /// function 0.
    pub start: u64,
}

/// The symbols of files, read when first needed.
#[derive(Default)]
pub struct Symbols {
    files: HashMap<PathBuf, Option<File>>,
    kernel: OnceCell<Option<Kallsyms>>,
}

impl Symbols {
    /// The function at an offset in a file, and the distance from its start.
    pub fn function(&mut self, path: &Path, file_offset: u64) -> (Function, u64) {
        if path == Path::new(KERNEL)
            && let Some(kernel) = self.kernel.get_or_init(Kallsyms::read)
            && let Some((start, name)) = kernel.function(file_offset)
        {
            return (Function { name: name.into(), start }, file_offset - start);
        }
        let known = self.file(path).and_then(|file| {
            let address = file.address(file_offset)?;
            let function = file.function(address)?;
            let distance = address - function.start;
            Some((function, distance))
        });
        known.unwrap_or_else(|| (Function { name: module_name(path), start: 0 }, file_offset))
    }

    /// The source line at an offset in a file, where the file tells.
    pub fn line(&mut self, path: &Path, file_offset: u64) -> Option<String> {
        let file = self.file(path)?;
        // The last address is in no unit, and addr2line would look behind it.
        let address = file.address(file_offset).filter(|address| *address != u64::MAX)?;
        let mut frames = file.loader()?.find_frames(address).ok()?;
        // The last frame is the function's own; those before it were inlined into it.
        let mut own = None;
        while let Ok(Some(frame)) = frames.next() {
            own = frame.location;
        }
        let location = own?;
        let name = Path::new(location.file?).file_name()?.to_string_lossy().into_owned();
        Some(match location.line {
            Some(line) => format!("{name}:{line}"),
            None => name,
        })
    }

    fn file(&mut self, path: &Path) -> Option<&File> {
        let read = || if path.is_absolute() { File::read(path) } else { None };
        self.files.entry(path.into()).or_insert_with(read).as_ref()
    }
}

/// A file's name in brackets, as what has no symbol is called.
pub fn module_name(path: &Path) -> String {
    let label = path.to_string_lossy();
    match path.file_name() {
        // What is no file has a label: `[vdso]`, and `//anon` for memory of no file, or none.
        _ if label.starts_with('[') => label.into_owned(),
        Some(_) if label.starts_with("//anon") => "[anonymous memory]".into(),
        Some(name) => format!("[{}]", name.to_string_lossy()),
        None => "[anonymous memory]".into(),
    }
}

/// An ELF file.
struct File {
    path: PathBuf,
    segments: Vec<Segment>,
    /// Ascending by address.
    symbols: Vec<Symbol>,
    loader: OnceCell<Option<Loader>>,
}

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
    fn read(path: &Path) -> Option<Self> {
        // What was mapped need not be a file that ends.
        if !std::fs::metadata(path).ok()?.is_file() {
            return None;
        }
        let data = std::fs::read(path).ok()?;
        let file = object::File::parse(&*data).ok()?;
        let segments = file
            .segments()
            .map(|segment| {
                let (file_offset, file_size) = segment.file_range();
                Segment { file_offset, file_size, address: segment.address() }
            })
            .collect();
        let mut symbols: Vec<Symbol> = file
            .symbols()
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
            .collect();
        symbols.sort_by(|a, b| {
            (a.address, Reverse(a.size), &a.name).cmp(&(b.address, Reverse(b.size), &b.name))
        });
        symbols.dedup_by_key(|symbol| symbol.address);
        Some(Self { path: path.into(), segments, symbols, loader: OnceCell::new() })
    }

    /// The address in the file's own address space.
    fn address(&self, file_offset: u64) -> Option<u64> {
        let (segment, distance) = self.segments.iter().find_map(|segment| {
            let distance = file_offset.checked_sub(segment.file_offset)?;
            (distance < segment.file_size).then_some((segment, distance))
        })?;
        segment.address.checked_add(distance)
    }

    fn function(&self, address: u64) -> Option<Function> {
        let next = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = self.symbols[..next].last()?;
        let inside = address - symbol.address < symbol.size;
        inside.then(|| Function { name: demangle(&symbol.name), start: symbol.address })
    }

    fn loader(&self) -> Option<&Loader> {
        self.loader.get_or_init(|| Loader::new(&self.path).ok()).as_ref()
    }
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
    fn what_has_no_symbols_is_called_by_its_file() {
        let mut symbols = Symbols::default();
        for (path, name) in [
            ("[vdso]", "[vdso]"),
            ("//anon", "[anonymous memory]"),
            ("", "[anonymous memory]"),
            ("/nowhere/libx.so.1", "[libx.so.1]"),
        ] {
            let (function, distance) = symbols.function(Path::new(path), 0x123);
            assert_eq!((function.name.as_str(), distance), (name, 0x123), "{path}");
        }
    }

    #[test]
    fn this_test_is_found_in_its_own_executable_and_in_this_file() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let here = this_test_is_found_in_its_own_executable_and_in_this_file as *const () as u64;
        let mapping = super::super::maps::executable(&maps)
            .into_iter()
            .find(|mapping| mapping.start <= here && here < mapping.end())
            .unwrap();
        let file_offset = here - mapping.start + mapping.file_offset;
        let mut symbols = Symbols::default();
        let (function, distance) = symbols.function(&mapping.path, file_offset + 4);
        assert!(
            function.name.ends_with("this_test_is_found_in_its_own_executable_and_in_this_file")
        );
        assert_eq!(distance, 4);
        assert!(symbols.line(&mapping.path, file_offset).unwrap().starts_with("symbols.rs:"));
    }

    #[test]
    fn a_place_beyond_a_functions_size_is_not_in_it() {
        let symbol = |address, size, name: &str| Symbol { address, size, name: name.into() };
        let file = File {
            path: "/nowhere".into(),
            segments: vec![Segment { file_offset: 0x1000, file_size: 0x1000, address: 0x40_1000 }],
            symbols: vec![symbol(0x40_1010, 0x10, "first"), symbol(0x40_1040, 0x100, "second")],
            loader: OnceCell::new(),
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
