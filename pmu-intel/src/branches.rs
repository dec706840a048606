//! Branch records: architectural last-branch records, and the legacy stacks of earlier processors.
//!
//! Read first: Intel SDM vol. 3B, "Last Branch Records" and "Last Branch, Interrupt, and Exception Recording
//! Overview"; vol. 4, table 2-2.

pub(crate) mod architectural;
pub(crate) mod detect;
pub(crate) mod format;
pub(crate) mod legacy;
pub(crate) mod model;
pub(crate) mod select;
