//! Windows' own structures as bytes, for instance in a crash dump or in the memory of a guest.
//!
//! - [`layout`]: the offsets of the members of `KPROFILE`, by Windows version and pointer width
//! - [`kprofile`]: a `KPROFILE`, read from bytes and written as bytes
//! - `object_type`: the object type, which is the first member of a `KPROFILE`
//! - `error`: the error of this module
//! - [`walk`]: the lists of profile objects in a foreign memory image
//! - [`source_list`]: the list that Windows returns to a query for its profile sources
//! - `export`: the conversion of a profile object of this crate to a `KPROFILE`
//!
//! The interrupt path does not use this module. The module reads addresses from structures, but never dereferences
//! them. Of the crate's other modules, this module may use `affinity`, and `export` may also use `object`.

mod error;
mod export;
pub mod kprofile;
pub mod layout;
mod object_type;
pub mod source_list;
pub mod walk;

pub use error::LayoutError;
