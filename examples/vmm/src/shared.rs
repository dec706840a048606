//! The state that the processors of a machine share: memory, devices, and the means to stop each other.
//!
//! Knows no processor, but [kicks](crate::vcpu::kick) their threads.

pub(crate) mod end;
pub(crate) mod machine;
pub(crate) mod ports;
pub(crate) mod rendezvous;
pub(crate) mod report;
pub(crate) mod resets;
pub(crate) mod rtc;
