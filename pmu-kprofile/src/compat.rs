//! What other systems' tools and images need: Windows' own structures, as bytes.
//!
//! - [`layout`]: where the members of `KPROFILE` are, a row for each Windows
//! - [`kprofile`]: a `KPROFILE`, read from bytes and written to them
//! - `object_type`, `error`: of an object's first member; of all of these
//! - [`walk`]: the lists of profile objects in a foreign memory image
//! - [`source_list`]: the answer to a query for the profile sources
//! - `export`: an object of this crate's, as Windows would lay it out
//!
//! Nothing here is on the way of an interrupt, and nothing dereferences an address that it reads. This folder may
//! use `affinity` and, to export, `object`.

mod error;
mod export;
pub mod kprofile;
pub mod layout;
mod object_type;
pub mod source_list;
pub mod walk;
