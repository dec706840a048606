//! Call stacks in the formats of other tools.

pub mod firefox;
pub mod flame_graph;
pub mod folded;
pub mod pprof;
