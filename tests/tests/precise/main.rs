//! Intel's precise records.

mod decode;
mod disturbed;
mod malformed;
mod samples;
mod support;
