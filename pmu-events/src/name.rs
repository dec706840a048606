//! Names of events: compared, hashed and matched in letters of either case.
//!
//! The lowest floor: uses nothing else of the crate.

pub(crate) mod distance;
pub(crate) mod event_name;
pub(crate) mod hash;
pub(crate) mod pattern;
