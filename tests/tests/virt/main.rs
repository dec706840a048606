//! The software PMU: the manuals' rules, one test each, and a naive model on random programs.

mod amd;
mod branches;
mod bytes;
mod hidden;
mod host;
mod intel;
mod intel_counting;
mod mock;
mod model;
mod naive;
mod naive_branches;
mod naive_precise;
mod overflow;
mod precise;
mod random;
mod running;
mod version_6;
