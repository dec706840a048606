//! The configuration of a guest's PMU. A configuration can be checked, shown to the guest in CPUID, derived from a
//! host's CPUID, and reduced to the features that two hosts have in common.

pub(crate) mod cpuid;
pub(crate) mod error;
pub(crate) mod features;
pub(crate) mod host;

use crate::configuration::features::IntelFeatures;

pub use cpuid::{CpuidLeaf, CpuidRegisters, HiddenConfiguration, HiddenRdpmc, HiddenRegisters};
pub use error::ConfigurationError;
pub use features::IntelFeature;
pub use host::HostError;

/// Configuration of a virtual processor's PMU: the vendor, the counters, and the features that CPUID declares.
///
/// ```
/// use pmu_virt::configuration::{Configuration, HostError, Vendor};
/// /// The PMU that each guest gets: what this host's CPUID declares, or none where this model has no such PMU.
/// fn for_guests(cpuid: impl Fn(u32, u32) -> [u32; 4], capabilities: u64) -> Configuration {
///     match Configuration::from_cpuid(cpuid, capabilities) {
///         Ok(configuration) => configuration,
///         Err(HostError::Vendor) => Configuration::hidden(Vendor::Amd),
///         Err(_) => Configuration::hidden(Vendor::Intel),
///     }
/// }
/// assert_eq!(for_guests(|_, _| [0; 4], 0), Configuration::hidden(Vendor::Amd));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Configuration {
    /// Intel's architectural performance monitoring.
    Intel(IntelConfiguration),
    /// AMD's core counters.
    Amd(AmdConfiguration),
    /// No PMU: CPUID does not declare a PMU.
    Hidden(HiddenConfiguration),
}

impl Configuration {
    /// Creates the configuration of a processor without a PMU, on which [PMU accesses fault](HiddenConfiguration::new).
    pub const fn hidden(vendor: Vendor) -> Self {
        Self::Hidden(HiddenConfiguration::new(vendor))
    }

    /// Checks that the configuration does not contradict itself. Every constructor of a PMU makes this check.
    ///
    /// # Errors
    /// The configuration contradicts itself. The error is the first contradiction that the call finds.
    ///
    /// ```
    /// use pmu_virt::configuration::{Configuration, ConfigurationError, IntelConfiguration};
    /// // A number of fixed counters, which version 1 does not have.
    /// let first = Configuration::Intel(IntelConfiguration::new(1, 2, 3));
    /// assert_eq!(first.check(), Err(ConfigurationError::FixedInVersion1));
    /// ```
    pub const fn check(&self) -> Result<(), ConfigurationError> {
        match self {
            Self::Intel(intel) => intel.check(),
            Self::Amd(AmdConfiguration {
                counters: AmdCounters::PerfMonV2 { counters: counters @ (..=3 | 9..) },
                ..
            }) => Err(ConfigurationError::AmdCounters(*counters)),
            Self::Amd(_) | Self::Hidden(_) => Ok(()),
        }
    }

    /// Returns the vendor that defines the processor's registers and CPUID leaves.
    pub const fn vendor(&self) -> Vendor {
        match self {
            Self::Intel(_) => Vendor::Intel,
            Self::Amd(_) => Vendor::Amd,
            Self::Hidden(hidden) => hidden.vendor,
        }
    }
}

/// Vendor that defines a processor's registers and CPUID leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Vendor {
    /// Intel and compatible processors (Zhaoxin, Centaur).
    Intel,
    /// AMD and compatible processors (Hygon).
    Amd,
}

/// Configuration of Intel's architectural performance monitoring. SDM vol. 3B, "Architectural Performance Monitoring".
///
/// ```
/// use pmu_virt::configuration::{Configuration, IntelConfiguration, IntelFeature};
/// let mut narrow = IntelConfiguration::new(2, 4, 3);
/// narrow.general_width = 40;
/// narrow.set(IntelFeature::FullWidthWrites, false);
/// assert!(Configuration::Intel(narrow).check().is_ok());
///
/// let sixth = IntelConfiguration::new(6, 8, 4).with(|sixth| {
///     sixth.set(IntelFeature::UnitMask2, true);
///     sixth.set(IntelFeature::RdpmcUserDisable, true);
/// });
/// assert!(Configuration::Intel(sixth).check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct IntelConfiguration {
    /// Version, 1–6 (leaf 0x0A, EAX bits 7:0). In version 6, each register of a counter has two addresses: the address
    /// of older versions, and a second address from 0x1900 upward.
    pub version: u8,
    /// Bitmap of the general counters: bit *n* stands for `IA32_PMCn`. At least one bit must be set. A bitmap with gaps
    /// needs [leaf 0x23](IntelFeature::ExtendedLeaf).
    pub general: u8,
    /// Width of the general counters in bits, 32–64.
    pub general_width: u8,
    /// Bitmap of the fixed counters: bit *n* stands for `IA32_FIXED_CTRn`. Version 1 has no fixed counters. From
    /// version 5 on, the bitmap may have gaps.
    pub fixed: u8,
    /// Width of the fixed counters in bits, 32–64. If the PMU has no fixed counters, this field is ignored.
    pub fixed_width: u8,
    /// Bitmap of the first eight architectural events: if bit *n* is set, CPUID declares event *n* (leaf 0x0A, EBX). A
    /// guest may also program events that CPUID does not declare.
    pub events: u8,
    pub(crate) features: IntelFeatures,
}

impl IntelConfiguration {
    /// Creates the configuration of a PMU whose counters are 48 bits wide. `general` is the number of general counters,
    /// and `fixed` is the number of fixed counters.
    ///
    /// The counters are numbered from 0 without gaps. The general counters can be written in full width. CPUID declares
    /// the first seven architectural events. In version 6, CPUID has leaf 0x23. The leaf declares no optional feature.
    pub const fn new(version: u8, general: u8, fixed: u8) -> Self {
        let mut features = IntelFeatures::NONE;
        features.set(IntelFeature::FullWidthWrites, true);
        features.set(IntelFeature::ExtendedLeaf, version >= 6);
        Self {
            version,
            general: first(general),
            general_width: 48,
            fixed: first(fixed),
            fixed_width: 48,
            events: 0x7F,
            features,
        }
    }

    /// Returns whether the guest has this feature.
    pub const fn has(&self, feature: IntelFeature) -> bool {
        self.features.has(feature)
    }

    /// Gives the guest this feature, or takes it away.
    pub const fn set(&mut self, feature: IntelFeature, present: bool) {
        self.features.set(feature, present);
    }

    /// Applies `change` to the configuration, and returns the result.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns the version, the bitmaps and the widths in the order of their bytes.
    pub(crate) const fn numbers(&mut self) -> [&mut u8; 6] {
        // Every field by name, so that a new one is not forgotten.
        let Self { version, general, general_width, fixed, fixed_width, events, features: _ } =
            self;
        [version, general, general_width, fixed, fixed_width, events]
    }

    pub(crate) const fn check(&self) -> Result<(), ConfigurationError> {
        use ConfigurationError as E;
        let extended = self.has(IntelFeature::ExtendedLeaf);
        Err(match (*self, self.features.beyond(self.version)) {
            (Self { version: version @ (0 | 7..), .. }, _) => E::Version(version),
            (Self { general: 0, .. }, _) => E::NoGeneralCounter,
            (Self { version: version @ 6.., .. }, _) if !extended => E::NoExtendedLeaf { version },
            (Self { version, .. }, Some(feature)) => E::FeatureVersion { feature, version },
            (Self { general, .. }, _) if !extended && has_gaps(general) => {
                E::GeneralGaps { general }
            }
            (Self { version: 1, fixed: 1.., .. }, _) => E::FixedInVersion1,
            (Self { version: ..=4, fixed, .. }, _) if has_gaps(fixed) => E::FixedGaps { fixed },
            (Self { general_width: width @ (..32 | 65..), .. }, _) => E::Width(width),
            (Self { fixed: 1.., fixed_width: width @ (..32 | 65..), .. }, _) => E::Width(width),
            _ => return Ok(()),
        })
    }
}

/// Configuration of AMD's core performance counters, which are 48 bits wide. APM vol. 2, "Performance Monitoring
/// Counters".
///
/// ```
/// use pmu_virt::configuration::{AmdConfiguration, Configuration};
/// assert!(Configuration::Amd(AmdConfiguration::perf_mon_v2(6)).check().is_ok());
/// assert!(Configuration::Amd(AmdConfiguration::perf_mon_v2(9)).check().is_err());
///
/// let with_svm = AmdConfiguration::CORE_EXTENSION.with(|amd| amd.guest_host = true);
/// assert!(Configuration::Amd(with_svm).check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct AmdConfiguration {
    /// Generation of the counters. The generation determines the number of counters and their addresses.
    pub counters: AmdCounters,
    /// Event selects have the bits `GuestOnly` (40) and `HostOnly` (41). The [`EventKey`](crate::EventKey) of an event
    /// contains both bits.
    ///
    /// If the field is `true`, the embedder decides whether CPUID declares SVM (leaf 0x80000001, ECX bit 2). If the
    /// field is `false`, CPUID hides SVM, and a write to a select ignores `GuestOnly` and `HostOnly`.
    pub guest_host: bool,
}

/// Select bits GuestOnly and HostOnly, of processors with SVM. APM vol. 2, figure "Core Performance Event-Select
/// Register", HG_ONLY.
pub(crate) const SELECT_GUEST_ONLY: u64 = 1 << 40;
pub(crate) const SELECT_HOST_ONLY: u64 = 1 << 41;

/// The generations of AMD's core counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum AmdCounters {
    /// Four counters: the selects at C001_0000–3, and the counters at C001_0004–7.
    Legacy,
    /// Six counters, with selects and counters at C001_0200 to C001_020B (leaf 0x80000001, ECX bit 23). The first four
    /// counters also have the [legacy](Self::Legacy) addresses.
    CoreExtension,
    /// 4–8 counters from C001_0200 on, as in the [core extension](Self::CoreExtension), and global registers at
    /// C000_0300 (leaf 0x80000022, EAX bit 0).
    PerfMonV2 {
        /// The number of counters, 4–8.
        counters: u8,
    },
}

impl AmdCounters {
    /// Returns the counters, one bit per counter.
    pub(crate) const fn bitmap(self) -> u8 {
        match self {
            Self::Legacy => first(4),
            Self::CoreExtension => first(6),
            Self::PerfMonV2 { counters } => first(counters),
        }
    }
}

impl AmdConfiguration {
    /// Four legacy counters, and no SVM in the guest.
    pub const LEGACY: Self = Self { counters: AmdCounters::Legacy, guest_host: false };
    /// Six counters of the core extension, and no SVM in the guest.
    pub const CORE_EXTENSION: Self =
        Self { counters: AmdCounters::CoreExtension, guest_host: false };

    /// Creates the configuration of a PerfMonV2 PMU with this number of counters, 4–8. The guest has no SVM.
    pub const fn perf_mon_v2(counters: u8) -> Self {
        Self { counters: AmdCounters::PerfMonV2 { counters }, guest_host: false }
    }

    /// Applies `change` to the configuration, and returns the result.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// Returns the lowest `count` bits of eight.
pub(crate) const fn first(count: u8) -> u8 {
    if count >= 8 { u8::MAX } else { (1 << count) - 1 }
}

pub(crate) const fn has_gaps(bitmap: u8) -> bool {
    bitmap & bitmap.wrapping_add(1) != 0
}
