//! Hardware: the profile sources of all processors, started and stopped.
//!
//! - `profile_hardware`: [`ProfileHardware`](crate::ProfileHardware), by which objects and lists use the hardware; and
//!   its implementations for one processor, and for the sources of one Windows version
//! - `mailbox`: several processors, by requests through a mailbox that has a `slot` per processor
//!
//! No other module starts or stops a source. This module may use `affinity` and `sync`.

pub(crate) mod mailbox;
pub(crate) mod profile_hardware;
mod slot;

pub use mailbox::{Mailbox, Remote, RemoteProcessors, SourceRequest};
pub use profile_hardware::{AsOfVersion, IntervalGuard, ThisProcessor};
