//! Guest PMU configuration and its validation.

use core::fmt;

/// Vendor whose architecture a processor follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Vendor {
    /// Intel, and compatible.
    Intel,
    /// AMD, and Hygon.
    Amd,
}

/// The PMU of a virtual processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Configuration {
    /// Intel's architectural performance monitoring.
    Intel(IntelConfiguration),
    /// AMD's core counters.
    Amd(AmdConfiguration),
    /// No PMU; CPUID says so.
    Hidden(HiddenConfiguration),
}

/// A processor without a PMU. CPUID says so; the answer to a guest that accesses its registers nevertheless differs
/// among platforms.
///
/// ```
/// use pmu_virt::{Configuration, FedEvents, HiddenConfiguration, HiddenRegisters, Read, Vendor};
/// use pmu_virt::VirtualPmu;
/// let mut hidden = HiddenConfiguration::new(Vendor::Intel);
/// let pmu = VirtualPmu::new(Configuration::Hidden(hidden), FedEvents::NONE)?;
/// assert_eq!(pmu.read(0x186), Read::GeneralProtection);
/// hidden.registers = HiddenRegisters::Kvm;
/// let pmu = VirtualPmu::new(Configuration::Hidden(hidden), FedEvents::NONE)?;
/// assert_eq!(pmu.read(0x186), Read::Value(0));
/// # Ok::<(), pmu_virt::ConfigurationError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct HiddenConfiguration {
    /// Vendor of the processor.
    pub vendor: Vendor,
    /// Answer to RDMSR and WRMSR of its registers.
    pub registers: HiddenRegisters,
    /// Answer to RDPMC, where the privilege allows it.
    pub rdpmc: HiddenRdpmc,
}

/// Answer to RDMSR and WRMSR of the registers of an absent PMU. AMD's four selects and counters at
/// C001_0000–7, which guests take to be on every processor, read 0 and ignore writes in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HiddenRegisters {
    /// #GP, as on hardware.
    Fault,
    /// As in KVM: 0xC1, 0xC2, 0x186 and 0x187 read 0 and ignore writes; the others are #GP.
    Kvm,
}

/// Answer to RDPMC without a PMU, where the privilege allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum HiddenRdpmc {
    /// #GP.
    Fault,
    /// With 0–3 in ECX, 0, as some paravisors of SVM guests answer; anything else is #GP.
    Zero,
}

impl HiddenConfiguration {
    /// Creates a processor whose every PMU access faults, except of AMD's legacy registers.
    pub const fn new(vendor: Vendor) -> Self {
        Self { vendor, registers: HiddenRegisters::Fault, rdpmc: HiddenRdpmc::Fault }
    }
}

/// Architectural performance monitoring. SDM vol. 3B, "Architectural Performance Monitoring".
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
    /// Version, 1–6 (leaf 0x0A, EAX bits 7:0). Version 6 has its own addresses of each counter's registers,
    /// from 0x1900 on, beside the older ones.
    pub version: u8,
    /// The general counters: bit *n* for `IA32_PMCn`, at least one. Gaps need
    /// [`extended_leaf`](Self::extended_leaf).
    pub general: u8,
    /// Their width in bits, 32–64.
    pub general_width: u8,
    /// The fixed counters: bit *n* for `IA32_FIXED_CTRn`. None in version 1; gaps from version 5 on.
    pub fixed: u8,
    /// Their width in bits, 32–64; of no meaning without fixed counters.
    pub fixed_width: u8,
    /// `IA32_PERF_CAPABILITIES[13]`: the counters can be written in full width at 0x4C1.
    pub full_width_writes: bool,
    /// The architectural events that the processor has: bit *n* for bit *n* of leaf 0x0A's EBX. The model declares the
    /// first eight, whatever the guest may program.
    pub events: u8,
    /// The AnyThread bits exist (version 3 on): leaf 0x0A, EDX bit 15 is then clear. They are part of the event's
    /// key. A real counter with such a bit counts what the core's other thread does, which may be another guest.
    pub any_thread: bool,
    /// Leaf 0x23 gives the counters' bitmaps, announced by leaf 7.1, EAX bit 8. Version 5 may have it; version 6
    /// must.
    pub extended_leaf: bool,
    /// Event selects have `IN_TX` (32), and that of counter 2 `IN_TXCP` (33); the guest sees TSX: leaf 7, EBX bits 4
    /// (HLE) and 11 (RTM), as the embedder gives them. Otherwise CPUID hides TSX, and the bits are reserved. They are
    /// part of the event's key.
    pub transactional: bool,
    /// Event selects have the field UMASK2 (47:40): leaf 0x23, EBX bit 0. Version 6 only.
    pub unit_mask_2: bool,
    /// Event selects have the flag EQ (36), which compares for equality with the counter mask: leaf 0x23, EBX
    /// bit 1. Version 6 only.
    pub equal: bool,
    /// Each counter can be hidden from RDPMC above CPL 0, by bit 37 of its event select or bit 33 + 4*n* of
    /// `IA32_FIXED_CTR_CTRL`: leaf 0x23, EBX bit 2. Version 6 only.
    pub rdpmc_user_disable: bool,
}

impl IntelConfiguration {
    /// Creates a configuration of `general` and `fixed` counters of 48 bits from number 0 on, with full-width writes
    /// and the first seven architectural events. Version 6 has leaf 0x23, and none of the optional features that it
    /// declares.
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

    /// Returns the configuration as changed by `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    const fn check(&self) -> Result<(), ConfigurationError> {
        use ConfigurationError as E;
        if self.version == 0 || self.version > 6 {
            return Err(E::Version(self.version));
        }
        if self.general == 0 {
            return Err(E::NoGeneralCounter);
        }
        if self.extended_leaf && self.version < 5 {
            return Err(E::ExtendedLeaf { version: self.version });
        }
        if !self.extended_leaf && self.version >= 6 {
            return Err(E::NoExtendedLeaf { version: self.version });
        }
        if (self.unit_mask_2 || self.equal || self.rdpmc_user_disable) && self.version < 6 {
            return Err(E::SelectFeature { version: self.version });
        }
        if has_gaps(self.general) && !self.extended_leaf {
            return Err(E::GeneralGaps { general: self.general });
        }
        if self.fixed != 0 && self.version == 1 {
            return Err(E::FixedInVersion1);
        }
        if has_gaps(self.fixed) && self.version < 5 {
            return Err(E::FixedGaps { fixed: self.fixed });
        }
        if self.general_width < 32 || self.general_width > 64 {
            return Err(E::Width(self.general_width));
        }
        if self.fixed != 0 && (self.fixed_width < 32 || self.fixed_width > 64) {
            return Err(E::Width(self.fixed_width));
        }
        if self.any_thread && self.version < 3 {
            return Err(E::AnyThread { version: self.version });
        }
        Ok(())
    }
}

/// AMD's core performance counters, of 48 bits. APM vol. 2, "Performance Monitoring Counters".
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
    /// Generation of the counters, which decides their number and addresses.
    pub counters: AmdCounters,
    /// Event selects have `GuestOnly` and `HostOnly` (40 and 41), and the guest sees SVM: leaf 0x80000001, ECX bit
    /// 2, as the embedder gives it. Otherwise CPUID hides SVM, and the bits are dropped. They are part of the event's
    /// key.
    pub guest_host: bool,
}

/// The generations of AMD's core counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum AmdCounters {
    /// Four counters at C001_0000 and C001_0004.
    Legacy,
    /// Six counters at C001_0200, the first four of them at the legacy addresses as well
    /// (leaf 0x80000001, ECX bit 23).
    CoreExtension,
    /// The core extension, with global registers at C000_0300 (leaf 0x80000022, EAX bit 0).
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
    /// The legacy counters, without SVM.
    pub const LEGACY: Self = Self { counters: AmdCounters::Legacy, guest_host: false };
    /// The core extension, without SVM.
    pub const CORE_EXTENSION: Self =
        Self { counters: AmdCounters::CoreExtension, guest_host: false };

    /// Creates PerfMonV2 with this number of counters, 4–8, without SVM.
    pub const fn perf_mon_v2(counters: u8) -> Self {
        Self { counters: AmdCounters::PerfMonV2 { counters }, guest_host: false }
    }

    /// Returns the configuration as changed by `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Configuration {
    /// Creates a processor of this vendor without a PMU: [every access faults](HiddenConfiguration::new).
    pub const fn hidden(vendor: Vendor) -> Self {
        Self::Hidden(HiddenConfiguration::new(vendor))
    }

    /// Checks that there can be such a PMU.
    ///
    /// # Errors
    /// The first contradiction.
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

    /// Returns the vendor whose architecture the processor follows.
    pub const fn vendor(&self) -> Vendor {
        match self {
            Self::Intel(_) => Vendor::Intel,
            Self::Amd(_) => Vendor::Amd,
            Self::Hidden(hidden) => hidden.vendor,
        }
    }
}

/// Returns the lowest `count` bits of eight.
pub(crate) const fn first(count: u8) -> u8 {
    if count >= 8 { u8::MAX } else { (1 << count) - 1 }
}

const fn has_gaps(bitmap: u8) -> bool {
    bitmap & bitmap.wrapping_add(1) != 0
}

/// Reason why a configuration is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ConfigurationError {
    /// A version other than 1–6.
    Version(u8),
    /// No general counter.
    NoGeneralCounter,
    /// The general counters have gaps, and there is no leaf 0x23 to declare them.
    GeneralGaps {
        /// The bitmap.
        general: u8,
    },
    /// Leaf 0x23 in a version below 5.
    ExtendedLeaf {
        /// The version.
        version: u8,
    },
    /// Version 6 without leaf 0x23.
    NoExtendedLeaf {
        /// The version.
        version: u8,
    },
    /// Unit mask 2, EQ or RDPMC user disable in a version below 6.
    SelectFeature {
        /// The version.
        version: u8,
    },
    /// Fixed counters in version 1.
    FixedInVersion1,
    /// The fixed counters have gaps in a version below 5, which has no bitmap of them.
    FixedGaps {
        /// The bitmap.
        fixed: u8,
    },
    /// A width outside 32–64.
    Width(u8),
    /// AnyThread in a version below 3.
    AnyThread {
        /// The version.
        version: u8,
    },
    /// PerfMonV2 with other than 4–8 counters.
    AmdCounters(u8),
}

impl fmt::Display for ConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => {
                write!(f, "no version {version} of architectural performance monitoring")
            }
            Self::NoGeneralCounter => f.write_str("no general counter"),
            Self::GeneralGaps { general } => {
                write!(f, "general counters {general:#010b} have gaps, without leaf 0x23")
            }
            Self::ExtendedLeaf { version } => write!(f, "leaf 0x23 in version {version}"),
            Self::NoExtendedLeaf { version } => write!(f, "version {version} without leaf 0x23"),
            Self::SelectFeature { version } => {
                write!(f, "unit mask 2, EQ or RDPMC user disable in version {version}")
            }
            Self::FixedInVersion1 => f.write_str("fixed counters in version 1"),
            Self::FixedGaps { fixed } => {
                write!(f, "fixed counters {fixed:#010b} have gaps in a version below 5")
            }
            Self::Width(width) => write!(f, "counters of {width} bits"),
            Self::AnyThread { version } => write!(f, "AnyThread in version {version}"),
            Self::AmdCounters(counters) => write!(f, "PerfMonV2 with {counters} counters"),
        }
    }
}

impl core::error::Error for ConfigurationError {}
