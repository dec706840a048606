//! AMD's instruction-based sampling.

mod decode;
mod model;
mod naive;
mod passing;
mod registers;
mod resuming;
mod samples;
mod stopping;
mod support;
mod together;
mod windows;
