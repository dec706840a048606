//! The guest's PMU as the command line describes it, and its deviations.

pub(crate) mod deviating;
pub(crate) mod facilities;
pub(crate) mod inverted;
pub(crate) mod spec;
