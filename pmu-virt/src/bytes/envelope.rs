//! The form that the bytes of all facilities share: a magic number, the version of the layout, and words after a
//! header.

use crate::bytes::error::BytesError;

/// Returns the header of a facility's bytes. Bytes behind the fields are 0.
pub(super) fn header<const FIELDS: usize, const HEADER: usize>(
    magic: [u8; 4],
    version: u16,
    fields: [u8; FIELDS],
) -> [u8; HEADER] {
    joined(magic, version.to_le_bytes().into_iter().chain(fields))
}

/// Returns the bytes after the header, if the number of bytes is `length`, and they begin with this header.
pub(super) fn body<const HEADER: usize>(
    bytes: &[u8],
    header: [u8; HEADER],
    length: usize,
) -> Result<&[u8], BytesError> {
    let [_, _, _, _, low, high, ..] = *bytes else { return Err(BytesError::Length(bytes.len())) };
    if bytes.len() != length {
        return Err(BytesError::Length(bytes.len()));
    }
    match bytes.iter().zip(&header).position(|(found, expected)| found != expected) {
        None => Ok(bytes.get(HEADER..).unwrap_or_default()),
        Some(0..4) => Err(BytesError::Malformed { at: 0 }),
        Some(4..6) => Err(BytesError::Version(u16::from_le_bytes([low, high]))),
        Some(_) => Err(BytesError::Malformed { at: 6 }),
    }
}

/// Returns flags as a byte: the first one is bit 0.
pub(super) fn flags<const N: usize>(flags: [bool; N]) -> u8 {
    flags.into_iter().rev().fold(0, |flags, flag| flags << 1 | u8::from(flag))
}

/// Returns a header and what follows it as an array. Bytes behind the body are 0.
pub(super) fn joined<const HEADER: usize, const LENGTH: usize>(
    header: [u8; HEADER],
    body: impl Iterator<Item = u8>,
) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    for (place, byte) in bytes.iter_mut().zip(header.into_iter().chain(body)) {
        *place = byte;
    }
    bytes
}

/// Returns the words of a body, and 0 behind its end.
pub(super) fn words(body: &[u8]) -> impl FnMut() -> u64 {
    let mut words = body.chunks_exact(8);
    move || words.next().and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}
