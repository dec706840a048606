//! Facts on processes that are kept until the end: the processes may be gone by then, and their files deleted.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::ahead::Ahead;
use super::maps::Mapping;
use super::{owner, perf_map, vdso};
use crate::elf::identity::Identity;
use crate::elf::parts::LARGEST;
use crate::untrusted::{Owner, open, open_link};

/// The files that processes map, and the processes' users.
#[derive(Debug, Default)]
pub struct Kept {
    /// The files, by the paths that the processes had them under.
    pub images: HashMap<PathBuf, File>,
    /// The users of processes with memory of no file.
    pub users: HashMap<u32, u32>,
    /// Set if the processes were a recording's: other ones may have their numbers.
    pub is_replayed: bool,
    /// The build IDs of a recording's files, as far as it tells them.
    pub build_ids: HashMap<PathBuf, Vec<u8>>,
    /// Files that have other build IDs now, and are not read.
    pub changed: BTreeSet<PathBuf>,
    /// The reader of the files' symbols, once there is a file.
    pub ahead: Option<Ahead>,
}

impl Kept {
    /// Keeps what can be had of a mapping while the process that maps it is there.
    pub(super) fn keep(&mut self, process: u32, mapping: &Mapping) {
        if perf_map::is_anonymous(&mapping.path) {
            if !self.is_replayed
                && let (Entry::Vacant(unknown), Some(user)) =
                    (self.users.entry(process), owner::user(process))
            {
                unknown.insert(user);
            }
        } else if !self.images.contains_key(&mapping.path) {
            let file = match mapping.path.is_absolute() {
                true if self.is_replayed => self.recorded(&mapping.path),
                true => image(process, mapping),
                false => (mapping.path == Path::new(vdso::PATH)).then(vdso::image).flatten(),
            };
            let Some(file) = file else { return };
            if !self.is_replayed {
                self.ahead.get_or_insert_with(Ahead::start).want(&mapping.path, &file);
            }
            self.images.insert(mapping.path.clone(), file);
        }
    }

    /// Opens a file of a recording, if it is the one that was recorded.
    fn recorded(&mut self, path: &Path) -> Option<File> {
        let file = open(path, Owner::Any, LARGEST).ok()?;
        if let Some(recorded) = self.build_ids.get(path)
            && Identity::read(&file).is_none_or(|here| here.build_id != *recorded)
        {
            self.changed.insert(path.into());
            return None;
        }
        Some(file)
    }

    /// Tells which files were changed since the recording.
    pub(super) fn note(&self) -> Option<String> {
        let first = self.changed.first()?.display();
        let others = match self.changed.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "{first}{others} changed since the recording, by its build ID: not read for names"
        ))
    }
}

/// Opens the file of a mapping.
fn image(process: u32, mapping: &Mapping) -> Option<File> {
    let Mapping { path, start, .. } = mapping;
    // The kernel tells of a file that was deleted before by its path and this.
    let known = path.to_str()?.trim_end_matches(" (deleted)");
    let inside = format!("/proc/{process}/root{known}");
    let mapped = format!("/proc/{process}/map_files/{start:x}-{:x}", mapping.end());
    let executable = format!("/proc/{process}/exe");
    let link = fs::read_link(&executable).unwrap_or_default();
    let is_executable =
        link.to_str().is_some_and(|link| link.trim_end_matches(" (deleted)") == known);
    let linked = |path: &str| open_link(Path::new(path), Owner::Any, LARGEST);
    // The second shows what is deleted to root alone, the third to its owner.
    let file = open(Path::new(&inside), Owner::Any, LARGEST).or_else(|_| linked(&mapped));
    let file = file.or_else(|error| if is_executable { linked(&executable) } else { Err(error) });
    file.ok()
}
