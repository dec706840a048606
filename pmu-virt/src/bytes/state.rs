//! States and configurations as bytes.
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

use crate::bytes::BytesError;
use crate::configuration::cpuid::{HiddenConfiguration, HiddenRdpmc, HiddenRegisters};
use crate::configuration::features::IntelFeatures;
use crate::configuration::{
    AmdConfiguration, AmdCounters, Configuration, IntelConfiguration, Vendor,
};
use crate::model::RegisterFile;
use crate::pmu::state::{PmuState, StateError};

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
    /// use pmu_virt::{BytesError, PmuState, StateError};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
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

const INTEL: u8 = 1;
const AMD: u8 = 2;
const HIDDEN: u8 = 3;

impl Configuration {
    /// Number of bytes that [`to_bytes`](Self::to_bytes) returns.
    pub const BYTES: usize = 24;
    /// Version of the layout that [`to_bytes`](Self::to_bytes) writes.
    pub const BYTES_VERSION: u16 = 1;

    /// Encodes the configuration as bytes. Every later release can decode the bytes.
    ///
    /// ```
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// assert_eq!(Configuration::from_bytes(&configuration.to_bytes()), Ok(configuration));
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let [low, high] = Self::BYTES_VERSION.to_le_bytes();
        let (described, flags) = match *self {
            Self::Intel(mut intel) => {
                let [a, b, c, d, e, f] = intel.numbers().map(|number| *number);
                ([INTEL, a, b, c, d, e, f], intel.features.0)
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
        let [of_low, of_high] = flags.to_le_bytes();
        let used = [low, high, kind, a, b, c, d, e, f, 0, 0, 0, of_low, of_high];
        for (byte, used) in bytes.iter_mut().zip(used) {
            *byte = used;
        }
        bytes
    }

    /// Decodes a configuration from bytes that this release or an earlier release has written. The first release that
    /// wrote configurations as bytes was 0.2.0.
    ///
    /// # Errors
    /// - [`Length`](BytesError::Length), [`Version`](BytesError::Version).
    /// - [`Malformed`](BytesError::Malformed): the bytes are not a configuration that this release knows.
    /// - [`Configuration`](BytesError::Configuration): the configuration contradicts itself.
    ///
    /// ```
    /// use pmu_virt::BytesError;
    /// use pmu_virt::configuration::{Configuration, Vendor};
    /// let mut bytes = Configuration::hidden(Vendor::Intel).to_bytes();
    /// bytes[0] = 2; // the version of a later layout
    /// assert_eq!(Configuration::from_bytes(&bytes), Err(BytesError::Version(2)));
    /// ```
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BytesError> {
        let bytes: &[u8; Self::BYTES] =
            bytes.try_into().map_err(|_| BytesError::Length(bytes.len()))?;
        let [low, high, kind, a, b, c, d, e, f, rest @ ..] = *bytes;
        let version = u16::from_le_bytes([low, high]);
        if version != Self::BYTES_VERSION {
            return Err(BytesError::Version(version));
        }
        let [0, 0, 0, low, high, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] = rest else {
            return Err(BytesError::Malformed { at: 9 });
        };
        let flags = u16::from_le_bytes([low, high]);
        let (configuration, known) = match (kind, [a, b, c, d, e, f]) {
            (INTEL, found) => {
                let mut intel = IntelConfiguration::new(0, 0, 0);
                let numbers = intel.numbers().into_iter().zip(found);
                numbers.for_each(|(number, found)| *number = found);
                intel.features = IntelFeatures(flags);
                (Self::Intel(intel), IntelFeatures::ALL.0)
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
