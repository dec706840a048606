//! A kernel's perf in small, by the public interface alone: what `perf_event_open`, the context switch, the timer tick,
//! the counters' interrupt, fork and exit, suspend and processors' coming and going do with events.
//!
//! Read first: `event`, then `processor`, then `perf`.

pub(crate) mod event;
pub(crate) mod perf;
pub(crate) mod processor;
