//! The state that the processors of a machine share: memory, devices, and the means to stop each other.
//!
//! It knows no processor: it [kicks](crate::vcpu::kick) threads.

pub(crate) mod end;
pub(crate) mod machine;
pub(crate) mod ports;
pub(crate) mod rendezvous;
pub(crate) mod report;
pub(crate) mod resets;
