//! The virtual machine: created in KVM, run on one thread per processor, and ended.
//!
//! `run` is the way through: it creates the machine and its [processors](crate::processor), starts their threads, and
//! waits for one of them to end the machine.

pub(crate) mod announced;
pub(crate) mod create;
pub(crate) mod run;
pub(crate) mod start;
pub(crate) mod thread;
