//! From a place in a file to the function and the line there.

use core::ops::Range;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::ahead::{Ahead, Read};
use super::kallsyms::{KERNEL, Kallsyms};
use super::kept::Kept;
use super::perf_map::{self, PerfMap};
use crate::elf::identity::Identity;
use crate::elf::lines::SourceFrame;
use crate::elf::parts::LARGEST;
use crate::elf::{File, Function};
use crate::untrusted::{self, Owner, visible};

/// The most bytes that the symbols of all files may take: files beyond are known as a whole.
const MOST_BYTES: usize = 1 << 30;

/// The symbols of files, read when first needed.
#[derive(Default)]
pub struct Symbols {
    files: Read,
    /// The bytes of the files' symbols.
    bytes: usize,
    /// Files that are not read, as all together have too many symbols.
    unread: BTreeSet<PathBuf>,
    maps: HashMap<PathBuf, Option<PerfMap>>,
    kept: Kept,
}

/// A frame of a call stack at a place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function's name.
    pub name: String,
    /// The source file and the line, where they are known.
    pub line: Option<(String, u32)>,
    /// Set if the function is inlined into the next frame's.
    pub inlined: bool,
}

/// A place in a file's address space.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The address.
    pub address: u64,
    /// The addresses of the function there, where it is known.
    pub function: Option<Range<u64>>,
}

impl Symbols {
    /// The symbols of files, of which some were kept.
    pub fn with(kept: Kept) -> Self {
        let files = kept.ahead.as_ref().map(Ahead::take).unwrap_or_default();
        let bytes = files.values().flatten().map(File::bytes).sum();
        Self { files, bytes, kept, ..Self::default() }
    }

    /// The frames at an offset in a file: first those of functions that are inlined there.
    pub fn frames(&mut self, path: &Path, file_offset: u64) -> Vec<Frame> {
        let (Function { name, .. }, _) = self.function(path, file_offset);
        let mut frames = self.inlined(path, file_offset).unwrap_or_default();
        match frames.last_mut() {
            // The symbol table is read for the function, as where there are no lines.
            Some(own) => (own.name, own.inlined) = (name, false),
            None => frames.push(Frame { name, line: None, inlined: false }),
        }
        frames
    }

    /// Returns where a place in a file is in the file's own address space, as other tools count it: from its first
    /// segment on. `None` of what is in no file.
    pub fn location(&mut self, path: &Path, file_offset: u64) -> Option<Location> {
        let file = self.file(path)?;
        let (address, base) = (file.address(file_offset)?, file.base());
        let from_base = |address: u64| address.wrapping_sub(base);
        let function = file.extent(address);
        let function = function.map(|extent| from_base(extent.start)..from_base(extent.end));
        Some(Location { address: from_base(address), function })
    }

    /// Returns the identity of a file.
    pub fn identity(&mut self, path: &Path) -> Option<Identity> {
        Some(self.file(path)?.identity.clone())
    }

    fn inlined(&mut self, path: &Path, file_offset: u64) -> Option<Vec<Frame>> {
        let file = self.file(path)?;
        let frames = file.source_frames(file.address(file_offset)?).into_iter();
        let frame = |SourceFrame { name, line }| {
            let line = line.and_then(|(path, line)| Some((visible(&path).into_owned(), line?)));
            let name = name.unwrap_or("[inlined]".into());
            Frame { name: visible(&name).into_owned(), line, inlined: true }
        };
        Some(frames.map(frame).collect())
    }

    /// The function at an offset in a file, and the distance from its start.
    pub fn function(&mut self, path: &Path, file_offset: u64) -> (Function, u64) {
        let (Function { name, start }, distance) = self.named(path, file_offset);
        (Function { name: visible(&name).into_owned(), start }, distance)
    }

    fn named(&mut self, path: &Path, file_offset: u64) -> (Function, u64) {
        if path.starts_with(KERNEL)
            && let Some(kernel) = Kallsyms::running()
            && let Some((start, name)) = kernel.function(path, file_offset)
        {
            return (Function { name: name.into(), start }, file_offset - start);
        }
        if perf_map::is_anonymous(path) {
            let users = &self.kept.users;
            let read = || PerfMap::of(path, |process| users.get(&process).copied());
            let map = self.maps.entry(path.into()).or_insert_with(read);
            if let Some((start, name)) = map.as_ref().and_then(|map| map.function(file_offset)) {
                return (Function { name: name.into(), start }, file_offset - start);
            }
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
        // The last frame is the function's own; those before it were inlined into it.
        let own = file.source_frames(file.address(file_offset)?).pop()?;
        let (path, line) = own.line?;
        let name = Path::new(&path).file_name()?.to_string_lossy();
        let name = visible(&name);
        Some(match line {
            Some(line) => format!("{name}:{line}"),
            None => name.into_owned(),
        })
    }

    fn file(&mut self, path: &Path) -> Option<&File> {
        if !self.files.contains_key(path) {
            let read = self.read(path);
            self.bytes += read.as_ref().map_or(0, File::bytes);
            self.files.insert(path.into(), read);
        }
        self.files.get(path)?.as_ref()
    }

    fn read(&mut self, path: &Path) -> Option<File> {
        let Kept { images, changed, .. } = &mut self.kept;
        let is_file =
            path.is_absolute() && !perf_map::is_anonymous(path) && !changed.contains(path);
        if is_file && self.bytes > MOST_BYTES {
            self.unread.insert(path.into());
            return None;
        }
        let found = || is_file.then(|| untrusted::open(path, Owner::Any, LARGEST).ok())?;
        File::read(images.remove(path).or_else(found)?, path).ok()
    }

    /// Tells which files have too many symbols.
    pub fn note(&self) -> Option<String> {
        let are_too_many =
            |file: &Option<File>| file.as_ref().is_some_and(File::has_too_many_symbols);
        let large = self.files.iter().filter(|(_, file)| are_too_many(file)).map(|(path, _)| path);
        let mut paths: Vec<_> = large.chain(&self.unread).collect();
        paths.sort();
        let first = paths.first()?.display();
        let others = match paths.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!("too many symbols in {first}{others}: shown as a whole"))
    }
}

/// A file's name in brackets, as what has no symbol is called.
pub fn module_name(path: &Path) -> String {
    let label = path.to_string_lossy();
    let label = visible(&label);
    match path.file_name() {
        // A module of the kernel.
        Some(name) if path.starts_with(KERNEL) && path != Path::new(KERNEL) => {
            format!("[{}]", visible(&name.to_string_lossy()))
        }
        // Memory of no file has a label: `[vdso]`, and `//anon` for memory of no file, or none.
        _ if label.starts_with('[') => label.into_owned(),
        Some(_) if label.starts_with("//anon") => "[anonymous memory]".into(),
        Some(name) => format!("[{}]", visible(&name.to_string_lossy())),
        None => "[anonymous memory]".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_symbols_is_called_by_its_file() {
        let mut symbols = Symbols::default();
        for (path, name) in [
            ("[vdso]", "[vdso]"),
            ("[kernel]/nowhere", "[nowhere]"),
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
}
