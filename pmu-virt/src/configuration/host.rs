//! The configuration of a host, derived from the host's CPUID, and what two hosts have in common.

use crate::configuration::cpuid::CpuidRegisters;
use crate::configuration::error::ConfigurationError;
use crate::configuration::features::{IntelFeature, IntelFeatures};
use crate::configuration::{
    AmdConfiguration, AmdCounters, Configuration, IntelConfiguration, first,
};

impl Configuration {
    /// Derives a configuration from a host's CPUID: the largest PMU that a guest on this host can have.
    ///
    /// The function calls `cpuid` with a leaf and a sub-leaf. `capabilities` is the host's value of
    /// `IA32_PERF_CAPABILITIES`. Pass 0 on AMD, and on an Intel processor without this register. An Intel processor has
    /// the register if bit 15 of ECX is set in CPUID leaf 1.
    ///
    /// The configuration does not include these features of the host:
    ///
    /// - PMU features that are not counters, such as PEBS and LBR;
    /// - AnyThread, because another guest may run on the core's other thread;
    /// - the ninth and later architectural events.
    ///
    /// A host may have more counters than a [`VirtualPmu`](crate::VirtualPmu) can have. The function then returns an
    /// error, not a configuration with fewer counters.
    ///
    /// # Errors
    /// The host has no PMU, or a [`VirtualPmu`](crate::VirtualPmu) cannot implement the host's PMU.
    ///
    /// ```
    /// use pmu_virt::configuration::{AmdConfiguration, Configuration};
    /// let zen4 = |leaf, _subleaf| match leaf {
    ///     0 => [0x10, 0x6874_7541, 0x444D_4163, 0x6974_6E65],
    ///     0x8000_0000 => [0x8000_0028, 0, 0, 0],
    ///     0x8000_0001 => [0, 0, 1 << 23, 0],
    ///     0x8000_0022 => [1, 6, 0, 0],
    ///     _ => [0; 4],
    /// };
    /// let six = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    /// assert_eq!(Configuration::from_cpuid(zen4, 0), Ok(six));
    /// ```
    pub fn from_cpuid(
        cpuid: impl Fn(u32, u32) -> CpuidRegisters,
        capabilities: u64,
    ) -> Result<Self, HostError> {
        Self::read(&cpuid, capabilities, &mut More::Refused)
    }

    /// Reads the configuration with at most eight counters of a kind. Returns whether some were left out.
    pub(crate) fn first_from_cpuid(
        cpuid: impl Fn(u32, u32) -> CpuidRegisters,
        capabilities: u64,
    ) -> Result<(Self, bool), HostError> {
        let mut more = More::LeftOut(false);
        let configuration = Self::read(&cpuid, capabilities, &mut more)?;
        Ok((configuration, more == More::LeftOut(true)))
    }

    fn read(
        cpuid: &impl Fn(u32, u32) -> CpuidRegisters,
        capabilities: u64,
        more: &mut More,
    ) -> Result<Self, HostError> {
        let [last, b, c, d] = cpuid(0, 0);
        let vendor = [b, d, c].map(u32::to_le_bytes);
        let vendor = vendor.as_flattened();
        let configuration = match vendor {
            b"GenuineIntel" | b"CentaurHauls" | b"  Shanghai  " => {
                Self::Intel(intel(cpuid, last, capabilities, more)?)
            }
            b"AuthenticAMD" | b"HygonGenuine" => Self::Amd(amd(cpuid, more)?),
            _ => return Err(HostError::Vendor),
        };
        configuration.check().map_err(HostError::Configuration)?;
        Ok(configuration)
    }

    /// Returns the configuration that two processors have in common. A guest with this configuration can move between
    /// the two processors. Each counter width in the result is the smaller of the two processors' widths. If one of the
    /// two processors hides its PMU, the result hides the PMU.
    ///
    /// # Errors
    /// The processors have different [vendors](Self::vendor), or have no valid configuration in common. It is also an
    /// error if two processors without a PMU differ in the result of an access to a PMU register.
    ///
    /// ```
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let old = IntelConfiguration::new(4, 4, 3);
    /// let new = IntelConfiguration::new(5, 8, 4);
    /// let both = Configuration::Intel(old).intersect(&Configuration::Intel(new))?;
    /// assert_eq!(both, Configuration::Intel(old));
    /// # Ok::<(), pmu_virt::configuration::HostError>(())
    /// ```
    pub fn intersect(&self, other: &Self) -> Result<Self, HostError> {
        let common = match (*self, *other) {
            (Self::Intel(one), Self::Intel(other)) => Self::Intel(intersect_intel(one, other)),
            (Self::Amd(one), Self::Amd(other)) => Self::Amd(intersect_amd(one, other)),
            (Self::Hidden(one), Self::Hidden(other)) if one != other => {
                return Err(HostError::NothingInCommon);
            }
            (Self::Hidden(hidden), _) | (_, Self::Hidden(hidden))
                if self.vendor() == other.vendor() =>
            {
                Self::Hidden(hidden)
            }
            _ => return Err(HostError::NothingInCommon),
        };
        common.check().map_err(HostError::Configuration)?;
        Ok(common)
    }
}

/// Reads Intel's PMU. SDM vol. 2A, CPUID, leaves 0x0A and 0x23.
fn intel(
    cpuid: &impl Fn(u32, u32) -> CpuidRegisters,
    last: u32,
    capabilities: u64,
    more: &mut More,
) -> Result<IntelConfiguration, HostError> {
    // A leaf above the last one answers as the last one does.
    let leaf = |leaf, subleaf| {
        let exists = leaf <= last && (leaf != 7 || subleaf == 0 || cpuid(7, 0)[0] >= subleaf);
        if exists { cpuid(leaf, subleaf) } else { [0; 4] }
    };
    let [a, unavailable, fixed, d] = leaf(0x0A, 0);
    let version = a as u8;
    if version == 0 {
        return Err(HostError::NoPmu);
    }
    let mut intel = IntelConfiguration::new(version, 0, 0);
    intel.general = more.lowest(a >> 8 & 0xFF)?;
    intel.general_width = (a >> 16) as u8;
    if version >= 2 {
        intel.fixed = more.lowest(d & 0x1F)?;
    }
    if version >= 5 {
        intel.fixed |= more.bitmap(fixed)?;
    }
    let length = a >> 24;
    // Bit 7 came with version 5; the model has no counterpart of later additions, which have no register.
    intel.events = !(unavailable as u8) & first(length.min(8) as u8);
    intel.features = IntelFeatures::of_host(version, capabilities, leaf);
    let extended = intel.has(IntelFeature::ExtendedLeaf) && last >= 0x23;
    intel.set(IntelFeature::ExtendedLeaf, extended);
    if extended {
        let [subleaves, ..] = cpuid(0x23, 0);
        if subleaves >> 1 & 1 != 0 {
            let [general, fixed, ..] = cpuid(0x23, 1);
            intel.general = more.bitmap(general)?;
            intel.fixed = more.bitmap(fixed)?;
        }
        if subleaves >> 3 & 1 != 0 {
            intel.events = cpuid(0x23, 3)[0] as u8;
        }
    }
    if intel.fixed != 0 {
        intel.fixed_width = (d >> 5) as u8;
    }
    Ok(intel)
}

/// Reads AMD's PMU. APM vol. 3, appendix E.
fn amd(
    cpuid: &impl Fn(u32, u32) -> CpuidRegisters,
    more: &mut More,
) -> Result<AmdConfiguration, HostError> {
    let [last, ..] = cpuid(0x8000_0000, 0);
    let leaf = |leaf| if leaf <= last && last >= 0x8000_0000 { cpuid(leaf, 0) } else { [0; 4] };
    let [_, _, features, _] = leaf(0x8000_0001);
    let [version_2, counters, ..] = leaf(0x8000_0022);
    let counters = if version_2 & 1 != 0 {
        AmdCounters::PerfMonV2 { counters: more.of_amd((counters & 0xF) as u8) }
    } else if features >> 23 & 1 != 0 {
        AmdCounters::CoreExtension
    } else {
        AmdCounters::Legacy
    };
    Ok(AmdConfiguration { counters, guest_host: features >> 2 & 1 != 0 })
}

/// Treatment of counters beyond those that the model has.
#[derive(PartialEq, Eq)]
enum More {
    /// Further counters are an error.
    Refused,
    /// Further counters are left out; whether there were any.
    LeftOut(bool),
}

impl More {
    /// Converts to a bitmap of the counters that the model can have.
    fn bitmap(&mut self, counters: u32) -> Result<u8, HostError> {
        match (u8::try_from(counters), self) {
            (Ok(counters), _) => Ok(counters),
            (Err(_), Self::Refused) => Err(HostError::Counters(counters)),
            (Err(_), left_out) => {
                *left_out = Self::LeftOut(true);
                Ok(counters as u8)
            }
        }
    }

    /// Returns the number of counters of PerfMonV2, which the configuration's check may refuse.
    fn of_amd(&mut self, count: u8) -> u8 {
        match self {
            Self::LeftOut(any) if count > 8 => {
                *any = true;
                8
            }
            _ => count,
        }
    }

    fn lowest(&mut self, count: u32) -> Result<u8, HostError> {
        self.bitmap(1u32.checked_shl(count).map_or(u32::MAX, |end| end - 1))
    }
}

fn intersect_intel(
    mut one: IntelConfiguration,
    mut other: IntelConfiguration,
) -> IntelConfiguration {
    // The version, and the widths of general and fixed counters, are the least; the others are bitmaps.
    let is_least = [true, false, true, false, true, false];
    let numbers = one.numbers().into_iter().zip(other.numbers());
    for ((number, other), is_least) in numbers.zip(is_least) {
        *number = if is_least { (*number).min(*other) } else { *number & *other };
    }
    one.features.0 &= other.features.0;
    if one.version < 2 {
        one.fixed = 0;
    }
    one
}

fn intersect_amd(one: AmdConfiguration, other: AmdConfiguration) -> AmdConfiguration {
    use AmdCounters::{CoreExtension, Legacy, PerfMonV2};
    let counters = match (one.counters, other.counters) {
        (PerfMonV2 { counters: one }, PerfMonV2 { counters: other }) => {
            PerfMonV2 { counters: one.min(other) }
        }
        // The core extension is six counters: fewer are not it.
        (
            PerfMonV2 { counters: 6.. } | CoreExtension,
            PerfMonV2 { counters: 6.. } | CoreExtension,
        ) => CoreExtension,
        _ => Legacy,
    };
    AmdConfiguration { counters, guest_host: one.guest_host && other.guest_host }
}

/// Reason why [`Configuration::from_cpuid`](crate::configuration::Configuration::from_cpuid) or
/// [`Configuration::intersect`](crate::configuration::Configuration::intersect) returns no configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum HostError {
    /// The vendor in CPUID leaf 0 is unknown.
    #[error("neither Intel's kind of processor nor AMD's")]
    Vendor,
    /// CPUID declares no PMU.
    #[error("the processor has no PMU")]
    NoPmu,
    /// The host has a general counter or a fixed counter with the number 8 or above. The value is the bitmap of all the
    /// host's general counters, or of all the host's fixed counters.
    #[error("counters {0:#b}: the model has those from 0 to 7 of a kind")]
    Counters(u32),
    /// The host's PMU has a property that a [`VirtualPmu`](crate::VirtualPmu) cannot have.
    #[error("{0}")]
    Configuration(ConfigurationError),
    /// The two hosts have different vendors. Or neither host [has a PMU](crate::configuration::Configuration::Hidden),
    /// and the two hosts answer accesses to PMU registers differently.
    #[error("these processors have no PMU in common")]
    NothingInCommon,
}
