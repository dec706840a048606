#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

mod bytes;
pub mod configuration;
pub mod mediated;
#[cfg(feature = "mock")]
#[cfg_attr(docsrs, doc(cfg(feature = "mock")))]
pub mod mock;
mod model;
mod pmu;
pub mod policy;
pub mod precise;
pub mod registers;
pub mod reload;
pub mod topdown;

/// Re-export of the crate that defines some types in this crate's signatures, such as
/// [`RegisterBackend`](pmu_core::access::RegisterBackend).
pub use pmu_core;

pub use bytes::BytesError;
pub use events::feed::{FedEvent, FedEvents, FedEventsError, Feed};
pub use events::key::{EventKey, Privilege};
pub use model::{Advanced, OverflowBudget};
pub use pmu::advance::RunningEvent;
pub use pmu::facility::{GuestFacility, Writer};
pub use pmu::msr::{Mode, Read, Write, Written};
pub use pmu::state::{PmuState, StateError};
pub use pmu::virtual_pmu::{Delivery, PerformanceEntry, PmiOutcome, VirtualPmu};

#[cfg(all(test, feature = "defmt"))]
#[test]
fn a_virtual_pmu_has_a_defmt_format() {
    fn has<T: defmt::Format>() {}
    has::<VirtualPmu>();
    has::<VirtualPmu<policy::EventFilter<4>>>();
    has::<branches::VirtualBranches>();
    has::<precise::VirtualPrecise>();
}

/// Branch records of one virtual processor: Intel's architectural and legacy last-branch records, and AMD's LBR
/// version 2. The embedder feeds the branches to [`VirtualBranches`](branches::VirtualBranches).
pub mod branches {
    pub(crate) mod configuration;
    pub(crate) mod record;
    pub(crate) mod virtual_branches;

    pub use configuration::{AmdBranches, ArchitecturalBranches, BranchConfiguration};
    pub use record::{FedBranch, FedBranchKind, FedPath, FedTransaction};
    pub use virtual_branches::VirtualBranches;
}

/// The events that counters count: keys of events, the set of events that the embedder can count, and feeds of counted
/// events.
///
/// Uses [`configuration`](crate::configuration).
mod events {
    pub(crate) mod feed;
    pub(crate) mod key;

    #[cfg(test)]
    mod tests;
}

/// Instruction-based sampling (IBS) of a virtual AMD processor, as a facility beside the PMU. The embedder feeds the
/// fetches and the ops to [`VirtualIbs`](ibs::VirtualIbs).
///
/// Read first: AMD APM vol. 2, "Instruction-Based Sampling".
pub mod ibs {
    pub(crate) mod sample;
    pub(crate) mod virtual_ibs;

    pub use sample::{FedFetch, FedOp};
    pub use virtual_ibs::{IbsConfiguration, NextSample, VirtualIbs};
}
