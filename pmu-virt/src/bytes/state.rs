//! States as bytes.

use crate::bytes::error::BytesError;
use crate::configuration::any_vendor::Configuration;
use crate::model::register_file::RegisterFile;
use crate::pmu::state::PmuState;
use crate::pmu::state_error::StateError;

const MAGIC: [u8; 4] = *b"vPMU";
const HEADER: usize = 8;
pub(crate) const PREFIX: usize = HEADER + Configuration::BYTES;
pub(crate) const REGISTER: usize = 12;
// Every register that is state has its place.
const _: () = assert!(PREFIX + REGISTER * RegisterFile::SIZE <= PmuState::BYTES);

impl PmuState {
    /// Number of bytes that [`to_bytes`](Self::to_bytes) returns.
    pub const BYTES: usize = 512;
    /// Version of the layout that [`to_bytes`](Self::to_bytes) writes.
    pub const BYTES_VERSION: u16 = 1;

    /// Encodes the state as bytes, padded with zeros at the end. Every later release can decode these bytes.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let [low, high] = Self::BYTES_VERSION.to_le_bytes();
        let [a, b, c, d] = MAGIC;
        let mut bytes = [0; Self::BYTES];
        let mut number = 0;
        let cells = bytes.get_mut(PREFIX..).unwrap_or_default().chunks_exact_mut(REGISTER);
        for (cell, (address, value)) in cells.zip(self.registers()) {
            if let Some((of_address, of_value)) = cell.split_first_chunk_mut() {
                *of_address = address.to_le_bytes();
                if let Some(of_value) = of_value.first_chunk_mut() {
                    *of_value = value.to_le_bytes();
                }
            }
            number += 1;
        }
        let header = [a, b, c, d, low, high, self.pmi_pending().into(), number];
        let prefix = header.into_iter().chain(self.configuration().to_bytes());
        for (byte, prefix) in bytes.iter_mut().zip(prefix) {
            *byte = prefix;
        }
        bytes
    }

    /// Decodes a state from bytes that this release or an earlier release has written. The first release that wrote
    /// states as bytes was 0.2.0.
    ///
    /// Untrusted bytes are safe to decode. The bytes may end with any number of zeros.
    ///
    /// # Errors
    /// - The bytes are not the state of a PMU.
    /// - A later release wrote the bytes, in a layout that this release does not know.
    /// - The bytes hold a state that no guest could have reached.
    ///
    /// ```
    /// use pmu_virt::{BytesError, Configuration, IntelConfiguration, PmuState, StateError};
    /// let state = PmuState::new(Configuration::Intel(IntelConfiguration::new(2, 4, 3)))?;
    /// let mut forged = state.to_bytes();
    /// assert_eq!(PmuState::from_bytes(&forged)?, state);
    /// // Bit 63 of the first register, which is a counter of 48 bits.
    /// let first = 32; // four bytes of address, eight of value
    /// forged[first + 4 + 7] |= 0x80;
    /// let error = PmuState::from_bytes(&forged).unwrap_err();
    /// assert!(matches!(error, BytesError::State(StateError::Impossible { .. })), "{error}");
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BytesError> {
        let length = BytesError::Length(bytes.len());
        let (header, rest) = bytes.split_first_chunk::<HEADER>().ok_or(length)?;
        let (configuration, rest) =
            rest.split_first_chunk::<{ Configuration::BYTES }>().ok_or(length)?;
        let [a, b, c, d, low, high, flags, number] = *header;
        if [a, b, c, d] != MAGIC {
            return Err(BytesError::Malformed { at: 0 });
        }
        let version = u16::from_le_bytes([low, high]);
        if version != Self::BYTES_VERSION {
            return Err(BytesError::Version(version));
        }
        if flags > 1 {
            return Err(BytesError::Malformed { at: 6 });
        }
        let configuration = Configuration::from_bytes(configuration)?;
        let mut state = Self::new(configuration).map_err(BytesError::Configuration)?;
        let (registers, padding) =
            rest.split_at_checked(usize::from(number) * REGISTER).ok_or(length)?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err(BytesError::Malformed { at: bytes.len() - padding.len() });
        }
        let mut cells = registers.chunks_exact(REGISTER).filter_map(|cell| {
            let (address, value) = cell.split_first_chunk::<4>()?;
            let value = value.try_into().map_or(0, u64::from_le_bytes);
            Some((u32::from_le_bytes(*address), value))
        });
        let value_of = |address| match cells.next() {
            Some((found, value)) if found == address => Ok(value),
            Some((other, _)) => Err(BytesError::State(StateError::NoRegister(other))),
            None => Err(BytesError::Missing(address)),
        };
        state.set_all(value_of, BytesError::State)?;
        if let Some((more, _)) = cells.next() {
            return Err(BytesError::State(StateError::NoRegister(more)));
        }
        state.set_pmi_pending(flags & 1 != 0).map_err(BytesError::State)?;
        Ok(state)
    }
}
