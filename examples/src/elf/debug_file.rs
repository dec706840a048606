//! The separate file with the symbols and lines of a stripped one (GDB, "Debugging Information in Separate
//! Files").

use core::fmt::Write as _;
use std::fs::{File, Metadata};
use std::io::{self, BufReader, Read, Seek};
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

/// The checksum of a link: CRC-32 of IEEE 802.3, bit by bit.
fn crc32(file: &File) -> io::Result<u32> {
    let mut file = file;
    file.rewind()?;
    let mut crc = !0;
    for byte in BufReader::with_capacity(1 << 16, file).bytes() {
        crc = checksum(crc, byte?);
    }
    Ok(!crc)
}

const fn checksum(crc: u32, byte: u8) -> u32 {
    let (mut crc, mut bit) = (crc ^ byte as u32, 0);
    while bit < 8 {
        crc = (crc >> 1) ^ (0xEDB8_8320 * (crc & 1));
        bit += 1;
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_has_its_path_and_the_checksum_is_the_standards() {
        let path = by_build_id(&[0xAB, 0xCD, 0x01]).unwrap();
        assert_eq!(path, Path::new("/usr/lib/debug/.build-id/ab/cd01.debug"));
        // The check value of CRC-32/ISO-HDLC.
        assert_eq!(!b"123456789".iter().fold(!0, |crc, byte| checksum(crc, *byte)), 0xCBF4_3926);
    }
}
