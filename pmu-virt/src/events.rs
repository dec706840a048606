//! The events that counters count: keys of events, the set of events that the embedder can count, and feeds of counted
//! events.
//!
//! Uses [`configuration`](crate::configuration).

pub(crate) mod feed;
pub(crate) mod key;

#[cfg(test)]
mod tests;
