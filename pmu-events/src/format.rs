//! The form of the generated tables: what they consist of, and how it is read.
//!
//! Uses [names](crate::name) alone, and looks nothing up.

pub(crate) mod core_type;
pub(crate) mod dictionary;
pub(crate) mod formula;
pub(crate) mod model;
pub(crate) mod record;
pub(crate) mod table;
