//! AMD's instruction-based sampling.

mod decode;
mod naive;
mod registers;
mod samples;
mod sampling;
mod stopping;
mod support;
