//! Errors of guests on real counters.

use core::fmt;

use pmu_core::CounterSet;
use pmu_core::msr::MsrFault;

use crate::configuration::error::ConfigurationError;
use crate::configuration::host_error::HostError;

/// Reason why [`HostCounters`](crate::mediated::HostCounters) cannot be created, why a guest was not loaded or saved,
/// or why a guest's access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum MediationError {
    /// The host's configuration is invalid.
    Configuration(ConfigurationError),
    /// No [`Configuration`](crate::Configuration) can describe the host's PMU, or CPUID declares no PMU.
    Host(HostError),
    /// The host lacks the register that sets bits of the global status. Intel's processors have this register from
    /// version 4 of architectural performance monitoring on. AMD's processors have the register with PerfMonV2.
    NoStatusSet,
    /// The host's counters lack full-width writes.
    NoFullWidthWrites,
    /// The host's event selects have no GuestOnly bit. The field
    /// [`AmdConfiguration::guest_host`](crate::AmdConfiguration::guest_host) declares this bit.
    NoGuestOnly,
    /// The guest's PMU does not have exactly the counters of the host.
    /// [`HostCounters::guest`](crate::mediated::HostCounters::guest) returns a configuration that a guest can have.
    NotTheHosts,
    /// A counter of the guest writes [precise records](crate::precise::VirtualPrecise). The host's counters cannot
    /// write precise records for a guest.
    PreciseRecords,
    /// The host has not [lent](pmu_core::CounterSession::lend) every counter of the guest. The value is the set of the
    /// counters that are not lent.
    NotLent(CounterSet),
    /// The [`Loaded`](crate::mediated::Loaded) value belongs to another guest, or the guest's PMU was restored after
    /// [`HostCounters::load`](crate::mediated::HostCounters::load).
    NotTheLoaded,
    /// An access to a register of the host failed.
    Access(MsrFault),
}

impl fmt::Display for MediationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration(error) => error.fmt(f),
            Self::Host(error) => error.fmt(f),
            Self::NoStatusSet => f.write_str("the host's status cannot be set"),
            Self::NoFullWidthWrites => f.write_str("the host's counters lack full-width writes"),
            Self::NoGuestOnly => f.write_str("the host's event selects have no GuestOnly"),
            Self::NotTheHosts => f.write_str("the guest's PMU is not the host's"),
            Self::PreciseRecords => f.write_str("a counter of the guest writes precise records"),
            Self::NotLent(set) => write!(f, "the counters {:#X} are not lent", set.bits()),
            Self::NotTheLoaded => f.write_str("another guest is loaded"),
            Self::Access(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for MediationError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Configuration(error) => Some(error),
            Self::Host(error) => Some(error),
            Self::Access(fault) => Some(fault),
            _ => None,
        }
    }
}
