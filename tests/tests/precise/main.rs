//! Intel's precise records.

mod decode;
mod malformed;
