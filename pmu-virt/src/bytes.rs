//! The byte form of states and configurations, for storage and migration.
//!
//! All numbers are little-endian. Bytes that the tables do not name are 0.
//!
//! | configuration, 24 bytes | at |
//! |---|---|
//! | version of this layout, 1 | 0, 2 bytes |
//! | kind: 1 Intel, 2 AMD, 3 hidden | 2 |
//! | Intel: version, general counters, their width, fixed counters, their width, events | 3–8 |
//! | AMD: 0 legacy, 1 core extension, 2 PerfMonV2; its number of counters | 3, 4 |
//! | hidden: vendor (1 Intel, 2 AMD), registers as in KVM, RDPMC as 0 | 3–5 |
//! | flags: Intel's features in their order; AMD's `guest_host` | 12, 2 bytes |
//!
//! | state | at |
//! |---|---|
//! | `vPMU` | 0, 4 bytes |
//! | version of this layout, 1 | 4, 2 bytes |
//! | flags: 0 an interrupt is pending | 6 |
//! | number of registers | 7 |
//! | configuration | 8 |
//! | registers: address (4 bytes), value (8 bytes) | 32, 12 bytes each |
//!
//! | top-down metrics, 160 bytes | at |
//! |---|---|
//! | `vTDM` | 0, 4 bytes |
//! | version of this layout, 1 | 4, 2 bytes |
//! | level 2; width of the slots' counter; bit 48 of the control, and of the status | 6–9 |
//! | slots since the metrics were written; the metrics that were written | 16, 8 bytes each |
//! | parts, in 255ths of slots | 32, 16 bytes each |
//!
//! | counter reload, 208 bytes | at |
//! |---|---|
//! | `vACR` | 0, 4 bytes |
//! | version of this layout, 1 | 4, 2 bytes |
//! | counters that can be reloaded, general and fixed; that reload others | 6–9 |
//! | CFG_B of eight general and eight fixed counters | 16, 8 bytes each |
//! | CFG_C 31:0 of these | 144, 4 bytes each |
//!
//! | branch records, 832 bytes | at |
//! |---|---|
//! | `vLBR` | 0, 4 bytes |
//! | version of this layout, 1 | 4, 2 bytes |
//! | kind: 1 architectural, 2 legacy, 3 AMD | 6 |
//! | present number of records | 7 |
//! | architectural: depths, counters, flags in the order of the fields | 8–10 |
//! | legacy: format. AMD: number of records, whether they can freeze | 8, 9 |
//! | DEBUGCTL, status, logged counters, control or filter, `DBG_EXTN_CFG`, top of the stack | 16, 8 bytes each |
//! | records: FROM, TO, INFO | 64, 24 bytes each |
//!
//! | instruction-based sampling, 152 bytes | at |
//! |---|---|
//! | `vIBS` | 0, 4 bytes |
//! | version of this layout, 1 | 4, 2 bytes |
//! | extended entry of the local vector table; 0xFF: none | 7 |
//! | leaf 0x8000001B, EAX | 8, 4 bytes |
//! | deviations: 0 the count of fetches is kept, 1 the period is 0 before a stop | 12 |
//! | an interrupt is pending | 13 |
//! | low four bits of the count of fetches | 14 |
//! | state of the random bits | 16, 4 bytes |
//! | registers, in the order of their addresses from 0xC0011030 | 24, 8 bytes each |
//!
//! | precise records, 240 bytes | at |
//! |---|---|
//! | `vPBS` | 0, 4 bytes |
//! | version of this layout, 1 | 4, 2 bytes |
//! | kind: 0 none, 1 Debug Store, 2 architectural; whether there is a branch trace store | 6, 7 |
//! | Debug Store: format, general counters, fixed counters, flags in the order of the fields | 8–11 |
//! | architectural: general counters, fixed counters, fragments; groups; counters that are exact | 9–17 |
//! | version of the PMU; its counters that can write records, general and fixed | 18–20 |
//! | counters whose records are due, status, DEBUGCTL | 24, 8 bytes each |
//! | registers 0x600, 0x3F1, 0x3F2, 0x3F6, 0x3F7 | 48, 8 bytes each |
//! | adaptive counters, registers 0x3F4, 0x3F5, `CFG_C` of 8 general and 8 fixed counters | 88, 8 bytes each |
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

// The form that the bytes of all facilities share: a magic number, the version of the layout, and words after a
// header.

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
