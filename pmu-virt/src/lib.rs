#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

mod branches;
mod bytes;
mod configuration;
mod events;
mod ibs;
mod mediated;
pub mod mock;
mod model;
mod pmu;
mod policy;
mod precise;
mod registers;
mod reload;
mod topdown;

/// Re-export of the crate that defines some types in this crate's signatures, such as
/// [`MsrBackend`](pmu_core::msr::MsrBackend).
pub use pmu_core;

pub use branches::configuration::{AmdBranches, ArchitecturalBranches, BranchConfiguration};
pub use branches::error::BranchConfigurationError;
pub use branches::fed::{FedBranch, FedBranchKind, FedPath, FedTransaction};
pub use branches::virtual_branches::VirtualBranches;
pub use bytes::error::BytesError;
pub use configuration::amd::{AmdConfiguration, AmdCounters};
pub use configuration::any_vendor::Configuration;
pub use configuration::cpuid::{CpuidLeaf, CpuidRegisters};
pub use configuration::error::ConfigurationError;
pub use configuration::hidden::{HiddenConfiguration, HiddenRdpmc, HiddenRegisters};
pub use configuration::host_error::HostError;
pub use configuration::intel::IntelConfiguration;
pub use configuration::vendor::Vendor;
pub use events::error::{ExchangeError, FedEventsError, OtherEvents};
pub use events::fed::FedEvents;
pub use events::feed::Feed;
pub use events::key::{EventKey, Privilege};
pub use events::slot::FedEvent;
pub use ibs::configuration::IbsConfiguration;
pub use ibs::fed::{FedFetch, FedOp};
pub use ibs::next_sample::NextSample;
pub use ibs::virtual_ibs::VirtualIbs;
pub use mediated::error::MediationError;
pub use mediated::host_counters::HostCounters;
pub use mediated::interrupts::GuestInterrupts;
pub use mediated::loaded::{Loaded, Put};
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
pub use precise::configuration::{
    ArchitecturalRecords, DebugStoreRecords, PreciseConfiguration, PreciseRecords,
};
pub use precise::error::PreciseConfigurationError;
pub use precise::fed::{FedRecord, FedRegisters, FedVectors};
pub use precise::memory::{GuestFault, GuestMemory};
pub use precise::record::Recorded;
pub use precise::virtual_precise::VirtualPrecise;
pub use registers::list::{RegisterInfo, RegisterKind};
pub use reload::configuration::{ReloadConfiguration, ReloadConfigurationError};
pub use reload::virtual_reload::VirtualReload;
pub use topdown::mix::TopDownMix;
pub use topdown::virtual_top_down::{SlotsError, VirtualTopDown};

#[cfg(all(test, feature = "defmt"))]
#[test]
fn a_virtual_pmu_has_a_defmt_format() {
    fn has<T: defmt::Format>() {}
    has::<VirtualPmu>();
    has::<VirtualPmu<EventFilter<4>>>();
    has::<VirtualBranches>();
    has::<VirtualPrecise>();
}
