//! Instructions that the monitor executes or refuses in KVM's place.
//!
//! Works on the [guest](crate::guest)'s registers and memory.

pub(crate) mod offered;
pub(crate) mod pvm;
pub(crate) mod rdpmc;
