#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod access;
mod advance;
mod amd;
mod configuration;
mod cpuid;
mod event;
mod feed;
mod filter;
mod intel;
mod layout;
mod model;
mod overflow;
mod pmi;
mod state;

pub mod mock;

pub use access::{Mode, Read, Write, Written};
pub use advance::Advanced;
pub use configuration::Vendor;
pub use configuration::{AmdConfiguration, Configuration, ConfigurationError, IntelConfiguration};
pub use event::{EventKey, Privilege};
pub use feed::{FedEvent, FedEvents, Feed, TooManyEvents};
pub use filter::{
    AllowAll, EventFilter, EventPolicy, FilterAction, FilterEntry, FilterError, FilterRow,
};
pub use model::{RunningEvent, VirtualPmu};
pub use overflow::OverflowBudget;
pub use pmi::{Delivery, PerformanceEntry, PmiOutcome};
pub use state::{PmuState, StateError};

#[cfg(all(test, feature = "defmt"))]
#[test]
fn a_virtual_pmu_has_a_defmt_format() {
    fn has<T: defmt::Format>() {}
    has::<VirtualPmu>();
    has::<VirtualPmu<EventFilter<'static>>>();
}
