//! States and configurations as bytes, to be stored or sent.
//!
//! All numbers are little-endian; unnamed bytes are 0.
//!
//! | configuration, 24 bytes | at |
//! |---|---|
//! | version of this layout, 1 | 0, 2 bytes |
//! | kind: 1 Intel, 2 AMD, 3 hidden | 2 |
//! | Intel: version, general counters, their width, fixed counters, their width, events | 3–8 |
//! | AMD: 0 legacy, 1 core extension, 2 PerfMonV2; its number of counters | 3, 4 |
//! | hidden: vendor (1 Intel, 2 AMD), registers as in KVM, RDPMC as 0 | 3–5 |
//! | flags, in the order of the configuration's fields | 12, 4 bytes |
//!
//! | state | at |
//! |---|---|
//! | `vPMU` | 0, 4 bytes |
//! | version of this layout, 1 | 4, 2 bytes |
//! | flags: 0 an interrupt is pending | 6 |
//! | number of registers | 7 |
//! | configuration | 8 |
//! | registers: address (4 bytes), value (8 bytes) | 32, 12 bytes each |

use core::fmt;

use crate::model::RegisterFile;
use crate::{
    AmdConfiguration, AmdCounters, Configuration, ConfigurationError, HiddenConfiguration,
    HiddenRdpmc, HiddenRegisters, IntelConfiguration, PmuState, StateError, Vendor,
};

const INTEL: u8 = 1;
const AMD: u8 = 2;
const HIDDEN: u8 = 3;

const MAGIC: [u8; 4] = *b"vPMU";
const HEADER: usize = 8;
const PREFIX: usize = HEADER + Configuration::BYTES;
const REGISTER: usize = 12;
// Every register that is state has its place.
const _: () = assert!(PREFIX + REGISTER * RegisterFile::SIZE <= PmuState::BYTES);

/// Returns the boolean fields, in the order of their flags.
fn intel_flags(intel: &mut IntelConfiguration) -> [&mut bool; 7] {
    [
        &mut intel.full_width_writes,
        &mut intel.any_thread,
        &mut intel.extended_leaf,
        &mut intel.transactional,
        &mut intel.unit_mask_2,
        &mut intel.equal,
        &mut intel.rdpmc_user_disable,
    ]
}

impl Configuration {
    /// The number of bytes of a configuration.
    pub const BYTES: usize = 24;
    /// The version of the layout that [`to_bytes`](Self::to_bytes) writes.
    pub const BYTES_VERSION: u16 = 1;

    /// Returns the configuration as bytes. Every later release reads them.
    ///
    /// ```
    /// use pmu_virt::{Configuration, IntelConfiguration};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// assert_eq!(Configuration::from_bytes(&configuration.to_bytes()), Ok(configuration));
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let [low, high] = Self::BYTES_VERSION.to_le_bytes();
        let (described, flags) = match *self {
            Self::Intel(mut intel) => {
                let flags = intel_flags(&mut intel)
                    .into_iter()
                    .enumerate()
                    .fold(0, |flags, (bit, flag)| flags | u8::from(*flag) << bit);
                // Every field by name, so that a new one is not forgotten.
                let IntelConfiguration {
                    version,
                    general,
                    general_width,
                    fixed,
                    fixed_width,
                    events,
                    full_width_writes: _,
                    any_thread: _,
                    extended_leaf: _,
                    transactional: _,
                    unit_mask_2: _,
                    equal: _,
                    rdpmc_user_disable: _,
                } = intel;
                ([INTEL, version, general, general_width, fixed, fixed_width, events], flags)
            }
            Self::Amd(amd) => {
                let (generation, counters) = match amd.counters {
                    AmdCounters::Legacy => (0, 0),
                    AmdCounters::CoreExtension => (1, 0),
                    AmdCounters::PerfMonV2 { counters } => (2, counters),
                };
                ([AMD, generation, counters, 0, 0, 0, 0], amd.guest_host.into())
            }
            Self::Hidden(hidden) => {
                let vendor = match hidden.vendor {
                    Vendor::Intel => INTEL,
                    Vendor::Amd => AMD,
                };
                let kvm = u8::from(hidden.registers == HiddenRegisters::Kvm);
                let zero = u8::from(hidden.rdpmc == HiddenRdpmc::Zero);
                ([HIDDEN, vendor, kvm, zero, 0, 0, 0], 0)
            }
        };
        let [kind, a, b, c, d, e, f] = described;
        let mut bytes = [0; Self::BYTES];
        let used = [low, high, kind, a, b, c, d, e, f, 0, 0, 0, flags];
        for (byte, used) in bytes.iter_mut().zip(used) {
            *byte = used;
        }
        bytes
    }

    /// Reads a configuration from the bytes of this release, or of an earlier one from 0.2.0 on.
    ///
    /// # Errors
    /// The bytes are not a configuration, have a later layout, or name an impossible PMU.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BytesError> {
        let bytes: &[u8; Self::BYTES] =
            bytes.try_into().map_err(|_| BytesError::Length(bytes.len()))?;
        let [low, high, kind, a, b, c, d, e, f, rest @ ..] = *bytes;
        let version = u16::from_le_bytes([low, high]);
        if version != Self::BYTES_VERSION {
            return Err(BytesError::Version(version));
        }
        let [0, 0, 0, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] = rest else {
            return Err(BytesError::Malformed { at: 9 });
        };
        let (configuration, known) = match (kind, [a, b, c, d, e, f]) {
            (INTEL, [version, general, general_width, fixed, fixed_width, events]) => {
                let mut intel = IntelConfiguration::new(version, 0, 0);
                intel.general = general;
                intel.general_width = general_width;
                intel.fixed = fixed;
                intel.fixed_width = fixed_width;
                intel.events = events;
                for (bit, flag) in intel_flags(&mut intel).into_iter().enumerate() {
                    *flag = flags >> bit & 1 != 0;
                }
                (Self::Intel(intel), 0x7F)
            }
            (AMD, [generation, counters, 0, 0, 0, 0]) => {
                let counters = match (generation, counters) {
                    (0, 0) => AmdCounters::Legacy,
                    (1, 0) => AmdCounters::CoreExtension,
                    (2, counters) => AmdCounters::PerfMonV2 { counters },
                    _ => return Err(BytesError::Malformed { at: 3 }),
                };
                (Self::Amd(AmdConfiguration { counters, guest_host: flags & 1 != 0 }), 1)
            }
            (HIDDEN, [vendor @ (INTEL | AMD), kvm @ ..=1, zero @ ..=1, 0, 0, 0]) => {
                let vendor = if vendor == INTEL { Vendor::Intel } else { Vendor::Amd };
                let mut hidden = HiddenConfiguration::new(vendor);
                if kvm != 0 {
                    hidden.registers = HiddenRegisters::Kvm;
                }
                if zero != 0 {
                    hidden.rdpmc = HiddenRdpmc::Zero;
                }
                (Self::Hidden(hidden), 0)
            }
            _ => return Err(BytesError::Malformed { at: 2 }),
        };
        if flags & !known != 0 {
            return Err(BytesError::Malformed { at: 12 });
        }
        configuration.check().map_err(BytesError::Configuration)?;
        Ok(configuration)
    }
}

impl PmuState {
    /// The number of bytes of a state.
    pub const BYTES: usize = 512;
    /// The version of the layout that [`to_bytes`](Self::to_bytes) writes.
    pub const BYTES_VERSION: u16 = 1;

    /// Returns the state as bytes, zeros at the end. Every later release reads them.
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

    /// Reads a state from the bytes of this release, or of an earlier one from 0.2.0 on. They need not be trusted,
    /// and may have more or fewer zeros at their end.
    ///
    /// # Errors
    /// The bytes are not a state, have a later layout, or hold a state that no guest could have reached.
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

/// Reason for which bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum BytesError {
    /// Too few bytes, or too many: their number.
    Length(usize),
    /// A layout of a later release, or of none.
    Version(u16),
    /// An impossible byte, at or after this place.
    Malformed {
        /// The place from 0.
        at: usize,
    },
    /// There is no such PMU.
    Configuration(ConfigurationError),
    /// No guest could have reached this state.
    State(StateError),
    /// A register's value is missing.
    Missing(u32),
}

impl fmt::Display for BytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => write!(f, "{length} bytes are not the length of this"),
            Self::Version(version) => write!(f, "bytes of version {version}, not 1"),
            Self::Malformed { at } => write!(f, "a byte at {at} or after cannot be"),
            Self::Configuration(error) => error.fmt(f),
            Self::State(error) => error.fmt(f),
            Self::Missing(address) => write!(f, "no value of register {address:#X}"),
        }
    }
}

impl core::error::Error for BytesError {}

/// Serializes the bytes, so that the promise of [`to_bytes`](PmuState::to_bytes) holds for every format.
#[cfg(feature = "serde")]
mod with_serde {
    use core::fmt;

    use serde::de::{Error, SeqAccess, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Configuration, PREFIX, PmuState, REGISTER};

    /// Reads up to `N` bytes, from formats with bytes and from those with sequences.
    struct Bytes<const N: usize>;

    impl<'de, const N: usize> Visitor<'de> for Bytes<N> {
        type Value = ([u8; N], usize);

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {N} bytes")
        }

        fn visit_bytes<E: Error>(self, found: &[u8]) -> Result<Self::Value, E> {
            let mut bytes = [0; N];
            let places = bytes.get_mut(..found.len());
            places.ok_or_else(|| E::invalid_length(found.len(), &self))?.copy_from_slice(found);
            Ok((bytes, found.len()))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut found: A) -> Result<Self::Value, A::Error> {
            let (mut bytes, mut length) = ([0; N], 0);
            while let Some(byte) = found.next_element()? {
                let place = bytes.get_mut(length);
                *place.ok_or_else(|| A::Error::invalid_length(length + 1, &self))? = byte;
                length += 1;
            }
            Ok((bytes, length))
        }
    }

    impl Serialize for Configuration {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&self.to_bytes())
        }
    }

    impl<'de> Deserialize<'de> for Configuration {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let (bytes, length) = deserializer.deserialize_bytes(Bytes::<{ Self::BYTES }>)?;
            Self::from_bytes(bytes.get(..length).unwrap_or_default()).map_err(D::Error::custom)
        }
    }

    impl Serialize for PmuState {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let bytes = self.to_bytes();
            let used = PREFIX + REGISTER * self.registers().count();
            serializer.serialize_bytes(bytes.get(..used).unwrap_or(&bytes))
        }
    }

    impl<'de> Deserialize<'de> for PmuState {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let (bytes, length) = deserializer.deserialize_bytes(Bytes::<{ Self::BYTES }>)?;
            Self::from_bytes(bytes.get(..length).unwrap_or_default()).map_err(D::Error::custom)
        }
    }
}
