//! Mediated PMU: loads a guest's state onto the host's counters before the guest runs, and saves the state afterward.
//! Read first: SDM vol. 3C, "Loading Guest State" and "VM-Exit Controls", `IA32_PERF_GLOBAL_CTRL`; APM vol. 2, "Core
//! Performance Event-Select Register", GuestOnly.

pub(crate) mod access;
pub(crate) mod host_counters;
pub(crate) mod interrupts;
pub(crate) mod load;
pub(crate) mod registers;

pub use host_counters::{HostCounters, MediationError};
pub use interrupts::GuestInterrupts;
pub use load::{Loaded, Put};
