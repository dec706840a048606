//! The byte form of states and configurations, for storage and migration.
//!
//! All numbers are little-endian. The layouts are tables at the heads of the files; bytes that they do not name are 0.
//!
//! Uses [`branches`](crate::branches), [`ibs`](crate::ibs), [`precise`](crate::precise), [`reload`](crate::reload),
//! [`topdown`](crate::topdown), [`pmu`](crate::pmu) and the modules that these use. Does not use [`mock`](crate::mock)
//! and [`mediated`](crate::mediated).

pub(crate) mod branches;
pub(crate) mod ibs;
pub(crate) mod precise;
pub(crate) mod reload;
pub(crate) mod state;
pub(crate) mod top_down;
#[cfg(feature = "serde")]
mod with_serde;

use crate::configuration::error::ConfigurationError;
use crate::pmu::state::StateError;

/// Returns the header of a facility's bytes. Bytes behind the fields are 0.
fn header<const FIELDS: usize, const HEADER: usize>(
    magic: [u8; 4],
    version: u16,
    fields: [u8; FIELDS],
) -> [u8; HEADER] {
    joined(magic, version.to_le_bytes().into_iter().chain(fields))
}

/// Returns the bytes after the header, if the number of bytes is `length`, and they begin with this header.
fn body<const HEADER: usize>(
    bytes: &[u8],
    header: [u8; HEADER],
    length: usize,
) -> Result<&[u8], BytesError> {
    let [_, _, _, _, low, high, ..] = *bytes else { return Err(BytesError::Length(bytes.len())) };
    if bytes.len() != length {
        return Err(BytesError::Length(bytes.len()));
    }
    // A later layout has an error of its own, by which an embedder tells a newer release from damage.
    match bytes.iter().zip(&header).position(|(found, expected)| found != expected) {
        None => Ok(bytes.get(HEADER..).unwrap_or_default()),
        Some(0..4) => Err(BytesError::Malformed { at: 0 }),
        Some(4..6) => Err(BytesError::Version(u16::from_le_bytes([low, high]))),
        Some(_) => Err(BytesError::Malformed { at: 6 }),
    }
}

/// Returns flags as a byte: the first one is bit 0.
fn flags<const N: usize>(flags: [bool; N]) -> u8 {
    flags.into_iter().rev().fold(0, |flags, flag| flags << 1 | u8::from(flag))
}

/// Returns a header and what follows it as an array. Bytes behind the body are 0.
fn joined<const HEADER: usize, const LENGTH: usize>(
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
fn words(body: &[u8]) -> impl FnMut() -> u64 {
    let mut words = body.chunks_exact(8);
    move || words.next().and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Reason why bytes cannot be decoded as a state or a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum BytesError {
    /// The number of bytes is wrong. The value is the number of bytes that were given.
    #[error("{0} bytes are not the length of this")]
    Length(usize),
    /// The bytes have a layout version that this release does not know. The value is the version.
    #[error("bytes of version {0}, not 1")]
    Version(u16),
    /// A byte has an impossible value. The index of this byte is `at` or higher.
    #[error("a byte at {at} or after cannot be")]
    Malformed {
        /// Lowest index at which the impossible byte can be. The first byte has index 0.
        at: usize,
    },
    /// The configuration contradicts itself.
    #[error("{0}")]
    Configuration(ConfigurationError),
    /// The bytes hold a state that no guest could have reached.
    #[error("{0}")]
    State(StateError),
    /// The bytes lack the value of a register. The value is the register's address.
    #[error("no value of register {0:#X}")]
    Missing(u32),
}
