//! The vendors' drivers on the software PMU, in strict mode, on every configuration that they claim; and Arm's on its
//! model.

mod configurations;
mod faults;
mod guide;
mod mock;
mod support;
