//! Profile objects: the interrupts on which an object acts, and its action.
//!
//! - `profile_object`: an object, with its `action`, its `state`, and the `key` by which an index finds it
//! - `request`, `service`: the creation of a basic object; Windows' checks of a creation request, for any `caller`
//! - `basic`, [`bucket`]: the counting of a basic object, and the arithmetic of its buckets
//! - `callback`: the callback of a callback object
//! - `object_ptr`: a pointer to a started object, as an index holds it
//! - `error`: the error of creating an object
//!
//! An object knows nothing of lists: the registry marks the object as started and as stopped, and records on which
//! processors the object's source runs for it. This module may use `affinity`, and `hardware` to query, never to start.

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
pub(crate) mod service;
pub(crate) mod state;

pub use callback::ProfileCallback;
pub use caller::{Caller, KernelCaller, UserCaller};
pub use error::CreateError;
pub use profile_object::ProfileObject;
pub use request::BasicProfile;
pub use service::{CreateRequest, GroupAffinity, RequestedAffinity, ValidRequest};
