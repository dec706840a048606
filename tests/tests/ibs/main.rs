//! AMD's instruction-based sampling.

mod as_plain;
mod both_vendors;
mod decode;
mod model;
mod naive;
mod passing;
mod periods;
mod profiles;
mod racing;
mod registers;
mod resuming;
mod rotation;
mod samples;
mod sampling;
mod sequences;
mod stopping;
mod support;
mod threads;
mod together;
mod windows;
