//! The identity of a file: its build ID, and the ID by which symbol servers ask for it.
//!
//! Source: Breakpad, `common/linux/file_id.cc` and `symbol_files.md` ("MODULE records").

use core::fmt::Write as _;
use std::fs;

use object::read::{ReadCache, ReadRef};
use object::{Object, ObjectSection};

use super::parts::Parts;

/// The bytes of an ID of Breakpad's, and those of code that stand for a missing build ID.
const ID: usize = 16;
const CODE: u64 = 4096;

/// The identity of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The build ID; empty where the linker left none.
    pub build_id: Vec<u8>,
    /// The beginning of the build ID, or of the code folded onto itself.
    id: [u8; ID],
}

impl Identity {
    /// Reads that of a file that was opened; `None` if it is no ELF file.
    pub fn read(file: &fs::File) -> Option<Self> {
        let cache = ReadCache::new(file.try_clone().ok()?);
        Some(Self::of(&Parts::parse(&cache).ok()?, &cache))
    }

    /// Reads that of a file with these parts, which `cache` has.
    pub(super) fn of<'f>(parts: &Parts<'f>, cache: &'f ReadCache<fs::File>) -> Self {
        let build_id = parts.build_id().ok().flatten().unwrap_or_default().to_vec();
        let mut id = [0; ID];
        if build_id.is_empty() {
            let place = parts.section_by_name(".text").and_then(|section| section.file_range());
            let (offset, size) = place.unwrap_or_default();
            let code = cache.read_bytes_at(offset, size.min(CODE)).unwrap_or_default();
            code.iter().enumerate().for_each(|(place, byte)| id[place % ID] ^= byte);
        } else {
            id.iter_mut().zip(&build_id).for_each(|(byte, given)| *byte = *given);
        }
        Self { build_id, id }
    }

    /// Returns the build ID in hexadecimal digits, as symbol servers have it for the code.
    pub fn code_id(&self) -> Option<String> {
        (!self.build_id.is_empty()).then(|| hexadecimal(&self.build_id).to_lowercase())
    }

    /// Returns the ID of the symbols: a GUID, whose first three numbers are little-endian, and an age of 0.
    pub fn debug_id(&self) -> String {
        let mut guid = self.id;
        for number in [0..4, 4..6, 6..8] {
            guid[number].reverse();
        }
        hexadecimal(&guid) + "0"
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        // A String takes whatever is written.
        let _ = write!(text, "{byte:02X}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GUID's first three numbers are of four, two and two bytes.
    #[test]
    fn the_id_of_symbols_has_its_first_three_numbers_turned_around() {
        let build_id: Vec<u8> = (0x01..=0x14).collect();
        let mut identity = Identity { build_id: build_id.clone(), id: [0; ID] };
        identity.id.copy_from_slice(&build_id[..ID]);
        assert_eq!(identity.debug_id(), "0403020106050807090A0B0C0D0E0F100");
        assert_eq!(identity.code_id().unwrap(), "0102030405060708090a0b0c0d0e0f1011121314");
        let nothing = Identity::default();
        assert_eq!((nothing.code_id(), nothing.debug_id()), (None, "0".repeat(33)));
    }
}
