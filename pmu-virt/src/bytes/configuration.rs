//! Configurations as bytes.

use crate::bytes::envelope::flags;
use crate::bytes::error::BytesError;
use crate::configuration::amd::{AmdConfiguration, AmdCounters};
use crate::configuration::any_vendor::Configuration;
use crate::configuration::hidden::{HiddenConfiguration, HiddenRdpmc, HiddenRegisters};
use crate::configuration::intel::IntelConfiguration;
use crate::configuration::vendor::Vendor;

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
    /// use pmu_virt::{Configuration, IntelConfiguration};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// assert_eq!(Configuration::from_bytes(&configuration.to_bytes()), Ok(configuration));
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let [low, high] = Self::BYTES_VERSION.to_le_bytes();
        let (described, flags) = match *self {
            Self::Intel(mut intel) => {
                let ([a, b, c, d, e, f], features) = intel.parts();
                ([INTEL, *a, *b, *c, *d, *e, *f], flags(features.map(|feature| *feature)))
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

    /// Decodes a configuration from bytes that this release or an earlier release has written. The first release that
    /// wrote configurations as bytes was 0.2.0.
    ///
    /// # Errors
    /// - [`Length`](BytesError::Length): the number of bytes is not [`BYTES`](Self::BYTES).
    /// - [`Version`](BytesError::Version): the version of the layout is not [`BYTES_VERSION`](Self::BYTES_VERSION).
    /// - [`Malformed`](BytesError::Malformed): the bytes are not a configuration that this release knows.
    /// - [`Configuration`](BytesError::Configuration): the configuration contradicts itself.
    ///
    /// ```
    /// use pmu_virt::{BytesError, Configuration, Vendor};
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
        let [0, 0, 0, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] = rest else {
            return Err(BytesError::Malformed { at: 9 });
        };
        let (configuration, known) = match (kind, [a, b, c, d, e, f]) {
            (INTEL, found) => {
                let mut intel = IntelConfiguration::new(0, 0, 0);
                let (numbers, features) = intel.parts();
                numbers.into_iter().zip(found).for_each(|(number, found)| *number = found);
                for (bit, feature) in features.into_iter().enumerate() {
                    *feature = flags >> bit & 1 != 0;
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
