//! The parts of an ELF file, read one by one.

use std::borrow::Cow;
use std::fs;

use object::read::ReadCache;
use object::{Object, ObjectSection};

/// The largest file that is read: programs of browsers have a third of that.
pub const LARGEST: u64 = 1 << 30;

/// Bytes that zlib's densest stream has for each of its own. What a compressed section declares beyond that would be
/// allocated, and be wrong.
const DENSEST: u64 = 1032;

/// An ELF file's parts.
pub(super) type Parts<'f> = object::File<'f, &'f ReadCache<fs::File>>;

/// The contents of a section, decompressed; nothing where there is none, or it declares a size that its bytes cannot
/// have.
pub(super) fn contents<'f>(file: &Parts<'f>, name: &str) -> Cow<'f, [u8]> {
    let Some(section) = file.section_by_name(name) else { return Cow::default() };
    match section.compressed_data() {
        Ok(data) if may_be_decompressed(data.uncompressed_size, data.data.len()) => {
            data.decompress().unwrap_or_default()
        }
        _ => Cow::default(),
    }
}

/// Returns whether a section's bytes can have the size that it declares.
fn may_be_decompressed(declared: u64, bytes: usize) -> bool {
    declared <= (bytes as u64).saturating_mul(DENSEST).min(LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files that the fuzzer keeps, after its byte that says that they are whole.
    #[test]
    fn a_section_that_declares_more_than_its_bytes_can_have_is_not_decompressed() {
        let plain = include_bytes!("../../../fuzz/seeds/profile_symbols/program-with-lines");
        let vast =
            include_bytes!("../../../fuzz/seeds/profile_symbols/section-that-declares-4-gib");
        let is_read = |kept: &[u8]| {
            let file = object::File::parse(&kept[1..]).unwrap();
            let compressed = file.sections().filter_map(|section| section.compressed_data().ok());
            compressed
                .into_iter()
                .all(|data| may_be_decompressed(data.uncompressed_size, data.data.len()))
        };
        assert!(is_read(plain));
        assert!(!is_read(vast));
    }
}
