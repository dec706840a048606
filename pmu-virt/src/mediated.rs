//! Mediated PMU: loads a guest's state onto the host's counters before the guest runs, and saves the state afterward.
//! Read first: SDM vol. 3C, "Loading Guest State" and "VM-Exit Controls", `IA32_PERF_GLOBAL_CTRL`; APM vol. 2, "Core
//! Performance Event-Select Register", GuestOnly.
//!
//! Uses [`pmu`](crate::pmu) and the modules that `pmu` uses. Does not use [`mock`](crate::mock) and
//! [`bytes`](crate::bytes).

pub(crate) mod access;
pub(crate) mod disarm;
pub(crate) mod error;
pub(crate) mod host_counters;
pub(crate) mod interrupts;
pub(crate) mod load;
pub(crate) mod loaded;
pub(crate) mod put;
pub(crate) mod registers;
pub(crate) mod selects;
