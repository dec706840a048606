//! Events of threads: switches between processors and cores, and the shares of events that rotate.

mod changed;
mod core_types;
mod hybrid_cores;
mod shares;
mod switches;
mod unplaced;
