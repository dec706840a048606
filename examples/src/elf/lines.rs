//! The source frames at addresses of an ELF file, from its DWARF sections.

use std::fs;
use std::sync::Arc;

use addr2line::Context;
use gimli::{Dwarf, EndianArcSlice, Error, RunTimeEndian, SectionId};
use object::Object;
use object::read::ReadCache;

use super::parts::{Parts, contents};

type Slice = EndianArcSlice<RunTimeEndian>;

/// The DWARF sections of a file.
pub(super) struct Lines(Context<Slice>);

/// A function at an address as the source has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFrame {
    /// Its name, if it is told.
    pub name: Option<String>,
    /// The path of the source file, and the line, if they are told.
    pub line: Option<(String, Option<u32>)>,
}

impl Lines {
    /// Reads the sections of a file. Files that it refers to, as of split DWARF, are not read.
    pub(super) fn read(file: &fs::File) -> Option<Self> {
        let cache = ReadCache::new(file.try_clone().ok()?);
        let parts = Parts::parse(&cache).ok()?;
        let endian =
            if parts.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let section = |id: SectionId| {
            Ok::<_, Error>(Slice::new(Arc::from(&*contents(&parts, id.name())), endian))
        };
        Context::from_dwarf(Dwarf::load(section).ok()?).ok().map(Self)
    }

    /// Returns the frames at an address, the innermost first.
    pub(super) fn frames(&self, address: u64) -> Vec<SourceFrame> {
        let mut frames = Vec::new();
        let Ok(mut found) = self.0.find_frames(address).skip_all_loads() else { return frames };
        while let Ok(Some(frame)) = found.next() {
            let name = frame.function.and_then(|name| Some(name.demangle().ok()?.into_owned()));
            let line = frame.location.and_then(|place| Some((place.file?.into(), place.line)));
            frames.push(SourceFrame { name, line });
        }
        frames
    }
}
