//! Counters that other counters' overflows reload: placed, rotated and switched with their group, interrupted, failing.

mod groups;
mod model;
mod support;
mod with_precise;
