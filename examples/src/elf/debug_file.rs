//! The separate file with the symbols and lines of a stripped one (GDB, "Debugging Information in Separate
//! Files").

use core::fmt::Write as _;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use object::Object;
use object::read::ReadCache;

use super::parts::{LARGEST, Parts};
use crate::untrusted::{Owner, open, open_link};

/// The folder of separate files.
const GLOBAL: &str = "/usr/lib/debug";

/// Finds and opens the separate file of a stripped one, by its build ID or its link. One that lies beside the stripped
/// file belongs to root or to that file's owner.
pub(super) fn find(path: &Path, stripped: &Parts<'_>, owner: &Metadata) -> Option<File> {
    let id = stripped.build_id().ok().flatten();
    // The folder is root's, and has links.
    let of_id = id.and_then(by_build_id);
    let of_id = of_id.and_then(|path| open_link(&path, Owner::RootOr(0), LARGEST).ok());
    if of_id.is_some() {
        return of_id;
    }
    let (name, checksum) = stripped.gnu_debuglink().ok()??;
    let folder = path.parent()?;
    let name = Path::new(core::str::from_utf8(name).ok()?);
    if name.file_name() != Some(name.as_os_str()) {
        return None;
    }
    let global = Path::new(GLOBAL).join(folder.strip_prefix("/").ok()?);
    let candidates = [folder.join(name), folder.join(".debug").join(name), global.join(name)];
    let owner = Owner::RootOr(user(owner));
    candidates.into_iter().filter(|candidate| candidate != path).find_map(|candidate| {
        let file = open(&candidate, owner, LARGEST).ok()?;
        let cache = ReadCache::new(file.try_clone().ok()?);
        let matches = match (id, Parts::parse(&cache).ok()?.build_id()) {
            (Some(id), Ok(Some(other))) => id == other,
            _ => crc32(&file).ok()? == checksum,
        };
        matches.then_some(file)
    })
}

#[cfg(unix)]
fn user(owner: &Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::uid(owner)
}

#[cfg(not(unix))]
fn user(_: &Metadata) -> u32 {
    0
}

/// Returns the path for a build ID: `.build-id/` and its first byte, then the others.
fn by_build_id(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let mut path = format!("{GLOBAL}/.build-id/{first:02x}/");
    for byte in rest {
        // A String takes whatever is written.
        let _ = write!(path, "{byte:02x}");
    }
    path += ".debug";
    Some(path.into())
}

/// Returns the checksum of a link, CRC-32 of IEEE 802.3.
fn crc32(mut file: &File) -> io::Result<u32> {
    file.rewind()?;
    let (mut checksum, mut chunk) = (crc32fast::Hasher::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(checksum.finalize()),
            read => checksum.update(&chunk[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_has_its_path() {
        let path = by_build_id(&[0xAB, 0xCD, 0x01]).unwrap();
        assert_eq!(path, Path::new("/usr/lib/debug/.build-id/ab/cd01.debug"));
    }

    #[test]
    fn the_checksum_of_a_link_is_the_standards() {
        let path = std::env::temp_dir().join(format!("pmu-crc32-{}", std::process::id()));
        std::fs::write(&path, b"123456789").unwrap();
        // The check value of CRC-32/ISO-HDLC.
        assert_eq!(crc32(&File::open(&path).unwrap()).unwrap(), 0xCBF4_3926);
        std::fs::remove_file(path).unwrap();
    }
}
