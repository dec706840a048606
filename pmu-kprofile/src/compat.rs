//! Windows' own structures as bytes, for the tools and images of other systems.
//!
//! - [`layout`]: the offsets of the members of `KPROFILE`, by Windows version and pointer width
//! - [`kprofile`]: a `KPROFILE`, read from bytes and written as bytes
//! - `object_type`, `error`: the type in an object's first member; the errors of this module
//! - [`walk`]: the lists of profile objects in a foreign memory image
//! - [`source_list`]: the answer to a query for the profile sources
//! - `export`: an object of this crate, as Windows would lay it out
//!
//! The interrupt path does not use this module. The module reads addresses from structures, but never dereferences
//! them. This module may use `affinity`; `export` may also use `object`.

mod error;
mod export;
pub mod kprofile;
pub mod layout;
mod object_type;
pub mod source_list;
pub mod walk;
