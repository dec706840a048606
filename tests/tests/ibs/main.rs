//! AMD's instruction-based sampling.

mod decode;
mod model;
mod naive;
mod profiles;
mod registers;
mod resuming;
mod samples;
mod sampling;
mod stopping;
mod support;
