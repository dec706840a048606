//! Profile objects: the interrupts on which an object acts, and its action.
//!
//! - `profile_object`: an object, with its `action`, its `state`, and the `key` by which an index finds the object
//! - `request`: the creation of a basic object
//! - `service`: the checks that Windows makes before it creates an object for a `caller`
//! - `basic`: the counting of interrupts in a basic object
//! - `bucket`: the arithmetic of a basic object's buckets
//! - `callback`: the callback of a callback object
//! - `object_ptr`: a pointer to a started object, as an index holds it
//! - `error`: the error of creating an object
//!
//! An object knows nothing of lists. The registry marks the object as started or stopped, and records the processors on
//! which the registry has started the object's source. This module may use `affinity` and the queries of `hardware`.
//! This module never starts or stops a source.

pub(crate) mod action;
pub(crate) mod basic;
pub mod bucket;
pub(crate) mod callback;
pub(crate) mod caller;
pub(crate) mod error;
pub(crate) mod key;
pub(crate) mod object_ptr;
pub(crate) mod profile_object;
pub(crate) mod request;
pub mod service;
pub(crate) mod state;
