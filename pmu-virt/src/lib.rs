#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

mod access;
mod advance;
mod budget;
mod bytes;
mod configuration;
mod cpuid;
mod event;
mod feed;
mod filter;
mod host;
mod layout;
mod mediated;
mod model;
mod overflow;
mod pmi;
mod pmu;
mod registers;
mod state;
mod table;
mod vendors;

pub mod mock;

/// Types of signatures here: [`HostCounters`] takes its [`MsrBackend`](pmu_core::MsrBackend).
pub use pmu_core;

pub use access::{Mode, Read, Write, Written};
pub use advance::Advanced;
pub use budget::OverflowBudget;
pub use bytes::BytesError;
pub use configuration::{
    AmdConfiguration, AmdCounters, Configuration, ConfigurationError, HiddenConfiguration,
    HiddenRdpmc, HiddenRegisters, IntelConfiguration, Vendor,
};
pub use cpuid::{CpuidLeaf, CpuidRegisters};
pub use event::{EventKey, Privilege};
pub use feed::{ExchangeError, FedEvent, FedEvents, FedEventsError, Feed, OtherEvents};
pub use filter::{
    AllowAll, EventFilter, EventPolicy, FilterAction, FilterEntry, FilterError, MAX_FILTER_ENTRIES,
};
pub use host::HostError;
pub use mediated::{GuestInterrupts, HostCounters, Loaded, MediationError, Put};
pub use pmi::{Delivery, PerformanceEntry, PmiOutcome};
pub use pmu::{RunningEvent, VirtualPmu};
pub use registers::{RegisterInfo, RegisterKind};
pub use state::{PmuState, StateError};

#[cfg(all(test, feature = "defmt"))]
#[test]
fn a_virtual_pmu_has_a_defmt_format() {
    fn has<T: defmt::Format>() {}
    has::<VirtualPmu>();
    has::<VirtualPmu<EventFilter<4>>>();
}
