//! Sources of events for the guest's counters: time, single steps, or the host's counters.
//!
//! A source sees the [guest](crate::guest), and on kvm-pvm what the [emulation](crate::emulation) does for it.

pub(crate) mod branch;
pub(crate) mod choice;
pub(crate) mod clock;
pub(crate) mod fed;
pub(crate) mod handler;
pub(crate) mod op;
pub(crate) mod perf;
pub(crate) mod quantity;
pub(crate) mod record;
pub(crate) mod retired;
pub(crate) mod source;
pub(crate) mod step;
pub(crate) mod stretch;
pub(crate) mod tagging;
pub(crate) mod time;
pub(crate) mod walk;
