//! Counters that other counters' overflows reload: placed, rotated and switched with their group, interrupted, failing.

mod closed;
mod groups;
mod model;
mod support;
mod with_precise;
