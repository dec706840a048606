//! The configuration of AMD's core counters.

use crate::configuration::bitmap::first;

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
