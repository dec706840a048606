//! Profile objects: the interrupts on which an object acts, and its action.
//!
//! - `profile_object`: an object, its creation, and what it does on an interrupt
//! - `bucket`: the arithmetic of a basic object's buckets, and their counting
//! - `service`: the checks that Windows makes before it creates an object for a caller
//!
//! An object knows nothing of lists. The registry marks the object as started or stopped, and records the processors on
//! which the registry has started the object's source. This module may use `affinity` and the queries of `hardware`.
//! This module never starts or stops a source.

pub mod bucket;
pub(crate) mod error;
pub(crate) mod profile_object;
pub mod service;
