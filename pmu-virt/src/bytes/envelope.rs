//! The form that the bytes of all facilities share: a magic number, the version of the layout, and words after a
//! header.

use crate::bytes::error::BytesError;

/// Returns the bytes as an array if length, magic number and version are those of a facility.
pub(super) fn checked<const LENGTH: usize>(
    bytes: &[u8],
    magic: [u8; 4],
    known: u16,
) -> Result<&[u8; LENGTH], BytesError> {
    let array = bytes.try_into().map_err(|_| BytesError::Length(bytes.len()))?;
    let [a, b, c, d, low, high, ..] = *bytes else {
        return Err(BytesError::Length(bytes.len()));
    };
    if [a, b, c, d] != magic {
        return Err(BytesError::Malformed { at: 0 });
    }
    match u16::from_le_bytes([low, high]) {
        version if version == known => Ok(array),
        other => Err(BytesError::Version(other)),
    }
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
