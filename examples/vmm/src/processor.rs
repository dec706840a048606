//! One virtual processor: a thread that runs the guest and serves its exits.
//!
//! The way is `run`, the loop; `exit`, the guest's request; `serve`, the answer; which is an access to a model-specific
//! register (`msr_access`), or one of those that need `debugging`. `traced` writes accesses down.

pub(crate) mod apic;
pub(crate) mod debugging;
pub(crate) mod exit;
pub(crate) mod extended_entries;
pub(crate) mod failure;
pub(crate) mod msr_access;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod state;
pub(crate) mod traced;
