//! The build IDs of the files that a recording's processes mapped, by which a reader knows whether it has the same.
//!
//! Source: Linux, tools/perf/Documentation/perf.data-file-format.txt, `HEADER_BUILD_ID`.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::elf::identity::Identity;
use crate::elf::parts::LARGEST;
use crate::profiler::perf_map;
use crate::untrusted::{Owner, open};

/// The kind of a record (`PERF_RECORD_HEADER_BUILD_ID`), and its flags: user mode, and that the size is told.
const BUILD_ID: u32 = 67;
const USER_MODE: u16 = 2;
const HAS_SIZE: u16 = 1 << 15;

/// The room for a build ID: its bytes, its size, and what is reserved.
const ID_BYTES: usize = 20;
const ID_ROOM: usize = 24;

/// Names have room for a multiple of this (`NAME_ALIGN`).
const NAME_ROOM: usize = 64;

/// Returns a record for each of the files that is there and has a build ID.
pub(super) fn section(files: &BTreeSet<PathBuf>) -> Vec<u8> {
    let of_files = files.iter().filter(|path| !perf_map::is_anonymous(path));
    of_files.filter_map(|path| record(path)).flatten().collect()
}

fn record(path: &Path) -> Option<Vec<u8>> {
    let build_id = Identity::read(&open(path, Owner::Any, LARGEST).ok()?)?.build_id;
    let id = build_id.get(..ID_BYTES).unwrap_or(&build_id);
    if id.is_empty() {
        return None;
    }
    let name = path.as_os_str().as_bytes();
    let room = (name.len() + 1).next_multiple_of(NAME_ROOM);
    let size = u16::try_from(8 + 4 + ID_ROOM + room).ok()?;
    let mut bytes = BUILD_ID.to_ne_bytes().to_vec();
    bytes.extend((USER_MODE | HAS_SIZE).to_ne_bytes());
    bytes.extend(size.to_ne_bytes());
    // Of any process.
    bytes.extend((-1_i32).to_ne_bytes());
    bytes.extend(id);
    bytes.resize(8 + 4 + ID_BYTES, 0);
    bytes.push(id.len() as u8);
    bytes.resize(8 + 4 + ID_ROOM, 0);
    bytes.extend(name);
    bytes.resize(size.into(), 0);
    Some(bytes)
}
