//! The configuration of a guest's PMU. A configuration can be checked, shown to the guest in CPUID, derived from a
//! host's CPUID, and reduced to the features that two hosts have in common.
//!
//! Uses no other module of this crate.

pub(crate) mod amd;
pub(crate) mod any_vendor;
pub(crate) mod bitmap;
pub(crate) mod cpuid;
pub(crate) mod error;
pub(crate) mod from_cpuid;
pub(crate) mod hidden;
pub(crate) mod host_error;
pub(crate) mod intel;
pub(crate) mod intersect;
pub(crate) mod vendor;
