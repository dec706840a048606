//! The separate file with the symbols and lines of a stripped one (GDB, "Debugging Information in Separate
//! Files").

use core::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use object::Object;

/// The folder of separate files.
const GLOBAL: &str = "/usr/lib/debug";

/// Finds the separate file of a stripped one, by its build ID or its link, and reads it.
pub(super) fn find(path: &Path, stripped: &object::File<'_>) -> Option<(PathBuf, Vec<u8>)> {
    let id = stripped.build_id().ok().flatten();
    let of_id = id.and_then(by_build_id).and_then(|path| Some((fs::read(&path).ok()?, path)));
    if let Some((data, path)) = of_id {
        return Some((path, data));
    }
    let (name, checksum) = stripped.gnu_debuglink().ok()??;
    let folder = path.parent()?;
    let name = core::str::from_utf8(name).ok()?;
    let global = Path::new(GLOBAL).join(folder.strip_prefix("/").ok()?);
    let candidates = [folder.join(name), folder.join(".debug").join(name), global.join(name)];
    candidates.into_iter().filter(|candidate| candidate != path).find_map(|candidate| {
        let data = fs::read(&candidate).ok()?;
        let matches = match (id, object::File::parse(&*data).ok()?.build_id()) {
            (Some(id), Ok(Some(other))) => id == other,
            _ => crc32(&data) == checksum,
        };
        matches.then_some((candidate, data))
    })
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
fn crc32(data: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ (0xEDB8_8320 * (crc & 1));
    let byte = |crc, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
    !data.iter().fold(!0, byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_has_its_path_and_the_checksum_is_the_standards() {
        let path = by_build_id(&[0xAB, 0xCD, 0x01]).unwrap();
        assert_eq!(path, Path::new("/usr/lib/debug/.build-id/ab/cd01.debug"));
        // The check value of CRC-32/ISO-HDLC.
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }
}
