//! The PMU of a guest as its hypervisor configures it: checked, in CPUID, from a host's CPUID, and common to two hosts.
//!
//! The lowest floor: uses nothing of this crate.

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
