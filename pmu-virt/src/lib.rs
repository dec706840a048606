#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod branches;
mod bytes;
mod configuration;
mod events;
pub mod ibs;
pub mod mediated;
pub mod mock;
mod model;
mod pmu;
mod policy;
pub mod precise;
mod registers;
mod reload;
mod topdown;

/// Re-export of the crate that defines some types in this crate's signatures, such as
/// [`MsrBackend`](pmu_core::msr::MsrBackend).
pub use pmu_core;

pub use bytes::error::BytesError;
pub use configuration::amd::{AmdConfiguration, AmdCounters};
pub use configuration::any_vendor::Configuration;
pub use configuration::cpuid::{CpuidLeaf, CpuidRegisters};
pub use configuration::error::ConfigurationError;
pub use configuration::hidden::{HiddenConfiguration, HiddenRdpmc, HiddenRegisters};
pub use configuration::host_error::HostError;
pub use configuration::intel::IntelConfiguration;
pub use configuration::vendor::Vendor;
pub use events::error::FedEventsError;
pub use events::fed::FedEvents;
pub use events::feed::Feed;
pub use events::key::{EventKey, Privilege};
pub use events::slot::FedEvent;
pub use model::advanced::Advanced;
pub use model::budget::OverflowBudget;
pub use pmu::access::{Mode, Read, Write, Written};
pub use pmu::facility::{GuestFacility, Writer};
pub use pmu::pmi::{Delivery, PerformanceEntry, PmiOutcome};
pub use pmu::running::RunningEvent;
pub use pmu::state::PmuState;
pub use pmu::state_error::StateError;
pub use pmu::virtual_pmu::VirtualPmu;
pub use policy::entry::FilterEntry;
pub use policy::error::{FilterError, MAX_FILTER_ENTRIES};
pub use policy::event_policy::{AllowAll, EventPolicy};
pub use policy::filter::{EventFilter, FilterAction};
pub use registers::list::{RegisterInfo, RegisterKind};
pub use reload::configuration::ReloadConfiguration;
pub use reload::virtual_reload::VirtualReload;
pub use topdown::mix::TopDownMix;
pub use topdown::virtual_top_down::VirtualTopDown;

#[cfg(all(test, feature = "defmt"))]
#[test]
fn a_virtual_pmu_has_a_defmt_format() {
    fn has<T: defmt::Format>() {}
    has::<VirtualPmu>();
    has::<VirtualPmu<EventFilter<4>>>();
    has::<branches::VirtualBranches>();
    has::<precise::VirtualPrecise>();
}
