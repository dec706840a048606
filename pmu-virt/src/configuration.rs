//! The configuration of a guest's PMU. A configuration can be checked, shown to the guest in CPUID, derived from a
//! host's CPUID, and reduced to the features that two hosts have in common.
//!
//! Uses no other module of this crate.

pub(crate) mod cpuid;
pub(crate) mod error;
pub(crate) mod host;

use crate::configuration::cpuid::HiddenConfiguration;
use crate::configuration::error::ConfigurationError;

/// Configuration of a virtual processor's PMU: the vendor, the counters, and the features that CPUID declares.
///
/// ```
/// use pmu_virt::{Configuration, HostError, Vendor};
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
    /// use pmu_virt::{Configuration, ConfigurationError, IntelConfiguration};
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
/// use pmu_virt::{Configuration, IntelConfiguration};
/// let mut narrow = IntelConfiguration::new(2, 4, 3);
/// narrow.general_width = 40;
/// narrow.full_width_writes = false;
/// assert!(Configuration::Intel(narrow).check().is_ok());
///
/// let sixth = IntelConfiguration::new(6, 8, 4).with(|sixth| {
///     sixth.unit_mask_2 = true;
///     sixth.rdpmc_user_disable = true;
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
    /// needs [`extended_leaf`](Self::extended_leaf).
    pub general: u8,
    /// Width of the general counters in bits, 32–64.
    pub general_width: u8,
    /// Bitmap of the fixed counters: bit *n* stands for `IA32_FIXED_CTRn`. Version 1 has no fixed counters. From
    /// version 5 on, the bitmap may have gaps.
    pub fixed: u8,
    /// Width of the fixed counters in bits, 32–64. If the PMU has no fixed counters, this field is ignored.
    pub fixed_width: u8,
    /// The guest can write all bits of a general counter, at addresses from 0x4C1 upward
    /// (`IA32_PERF_CAPABILITIES[13]`).
    pub full_width_writes: bool,
    /// Bitmap of the first eight architectural events: if bit *n* is set, CPUID declares event *n* (leaf 0x0A, EBX). A
    /// guest may also program events that CPUID does not declare.
    pub events: u8,
    /// Event selects have the AnyThread bit. This feature needs version 3 or later. If the field is `true`, CPUID leaf
    /// 0x0A has EDX bit 15 clear: AnyThread is not deprecated. The [`EventKey`](crate::EventKey) of an event contains
    /// the AnyThread bit. On a real counter, AnyThread also counts the core's other thread, which may run another
    /// guest.
    pub any_thread: bool,
    /// CPUID has leaf 0x23, which declares the bitmaps of counters (leaf 7.1, EAX bit 8). Leaf 0x23 is optional in
    /// version 5, and required in version 6.
    pub extended_leaf: bool,
    /// Event selects have `IN_TX` (bit 32). The select of counter 2 also has `IN_TXCP` (bit 33). The
    /// [`EventKey`](crate::EventKey) of an event contains both bits.
    ///
    /// If the field is `true`, the embedder decides whether CPUID declares TSX (leaf 7, EBX bit 4 for HLE and EBX bit
    /// 11 for RTM). If the field is `false`, CPUID hides TSX, and `IN_TX` and `IN_TXCP` are reserved.
    pub transactional: bool,
    /// Event selects have a second unit mask, UMASK2, in bits 47:40 (leaf 0x23, EBX bit 0). This feature needs version
    /// 6.
    pub unit_mask_2: bool,
    /// Event selects have the flag EQ in bit 36 (leaf 0x23, EBX bit 1). With EQ, a counter counts the cycles in which
    /// the number of events equals the counter mask. This feature needs version 6.
    pub equal: bool,
    /// The guest's kernel can hide each counter from RDPMC at CPL 1–3 (leaf 0x23, EBX bit 2). Bit 37 of an event select
    /// hides a general counter. Bit 33 + 4*n* of `IA32_FIXED_CTR_CTRL` hides fixed counter *n*. This feature needs
    /// version 6.
    pub rdpmc_user_disable: bool,
}

impl IntelConfiguration {
    /// Creates the configuration of a PMU whose counters are 48 bits wide. `general` is the number of general counters,
    /// and `fixed` is the number of fixed counters.
    ///
    /// The counters are numbered from 0 without gaps. The general counters can be written in full width. CPUID declares
    /// the first seven architectural events. In version 6, CPUID has leaf 0x23. The leaf declares no optional feature.
    pub const fn new(version: u8, general: u8, fixed: u8) -> Self {
        Self {
            version,
            general: first(general),
            general_width: 48,
            fixed: first(fixed),
            fixed_width: 48,
            full_width_writes: true,
            events: 0x7F,
            any_thread: false,
            extended_leaf: version >= 6,
            transactional: false,
            unit_mask_2: false,
            equal: false,
            rdpmc_user_disable: false,
        }
    }

    /// Applies `change` to the configuration, and returns the result.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns the version, the bitmaps and the widths in the order of their bytes, and the features in the order of
    /// their flags.
    pub(crate) const fn parts(&mut self) -> ([&mut u8; 6], [&mut bool; 7]) {
        // Every field by name, so that a new one is not forgotten.
        let Self {
            version,
            general,
            general_width,
            fixed,
            fixed_width,
            full_width_writes,
            events,
            any_thread,
            extended_leaf,
            transactional,
            unit_mask_2,
            equal,
            rdpmc_user_disable,
        } = self;
        let numbers = [version, general, general_width, fixed, fixed_width, events];
        let of_version_6 = [unit_mask_2, equal, rdpmc_user_disable];
        let [a, b, c] = of_version_6;
        (numbers, [full_width_writes, any_thread, extended_leaf, transactional, a, b, c])
    }

    pub(crate) const fn check(&self) -> Result<(), ConfigurationError> {
        use ConfigurationError as E;
        let selects = self.unit_mask_2 || self.equal || self.rdpmc_user_disable;
        Err(match *self {
            Self { version: version @ (0 | 7..), .. } => E::Version(version),
            Self { general: 0, .. } => E::NoGeneralCounter,
            Self { version: version @ ..5, extended_leaf: true, .. } => E::ExtendedLeaf { version },
            Self { version: version @ 6.., extended_leaf: false, .. } => {
                E::NoExtendedLeaf { version }
            }
            Self { version: version @ ..6, .. } if selects => E::SelectFeature { version },
            Self { general, extended_leaf: false, .. } if has_gaps(general) => {
                E::GeneralGaps { general }
            }
            Self { version: 1, fixed: 1.., .. } => E::FixedInVersion1,
            Self { version: ..5, fixed, .. } if has_gaps(fixed) => E::FixedGaps { fixed },
            Self { general_width: width @ (..32 | 65..), .. } => E::Width(width),
            Self { fixed: 1.., fixed_width: width @ (..32 | 65..), .. } => E::Width(width),
            Self { version: version @ ..3, any_thread: true, .. } => E::AnyThread { version },
            _ => return Ok(()),
        })
    }
}

/// Configuration of AMD's core performance counters, which are 48 bits wide. APM vol. 2, "Performance Monitoring
/// Counters".
///
/// ```
/// use pmu_virt::{AmdConfiguration, Configuration};
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
