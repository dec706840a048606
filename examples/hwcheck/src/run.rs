//! A run on this processor, in the user's consent: refused where it could disturb, supervised by a second process, and
//! restored.
//!
//! Uses [programs](crate::programs) and [counts](crate::counts), and what is below.

pub mod check;
pub mod consent;
pub mod refusal;
pub mod run_lock;
pub mod supervisor;
