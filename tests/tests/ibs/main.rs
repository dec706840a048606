//! AMD's instruction-based sampling.

mod decode;
mod registers;
mod sampling;
