//! Hardware: the profile sources of all processors, started and stopped.
//!
//! - `profile_hardware`: [`ProfileHardware`](crate::ProfileHardware), by which objects and lists use the hardware
//! - `this_processor`: a machine with one processor
//! - `remote`: several processors, by requests through a `mailbox`, which has a `slot` per processor and reaches the
//!   processors by the trait `processors`
//! - `as_of_version`: hardware that is restricted to the sources of a given Windows version
//! - `interval`: a guard that holds a source's interval
//!
//! No other module starts or stops a source. This module may use `affinity` and `sync`.

pub(crate) mod as_of_version;
pub(crate) mod interval;
pub(crate) mod mailbox;
pub(crate) mod processors;
pub(crate) mod profile_hardware;
pub(crate) mod remote;
pub(crate) mod request;
mod slot;
pub(crate) mod this_processor;

pub use as_of_version::AsOfVersion;
pub use interval::IntervalGuard;
pub use mailbox::Mailbox;
pub use processors::RemoteProcessors;
pub use remote::Remote;
pub use request::SourceRequest;
pub use this_processor::ThisProcessor;
