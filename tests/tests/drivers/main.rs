//! The vendors' drivers on the software PMU, in strict mode, on every configuration that they claim.

mod configurations;
mod faults;
mod guide;
mod support;
