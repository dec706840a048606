//! The policy for the events that a guest may count. The rules are the same as for KVM's `KVM_SET_PMU_EVENT_FILTER`
//! (Linux, Documentation/virt/kvm/api.rst), so that KVM and this crate can use the same policy.
//!
//! Uses no other module of this crate.

pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod event_policy;
pub(crate) mod filter;
