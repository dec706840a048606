//! The report: an allow-list of what leaves the machine, by its fields. Whatever is not a field is not in the report.
//!
//! The lowest floor, which needs no Linux: reads reports from anywhere, and makes pages of them.

pub(crate) mod bounds;
pub(crate) mod claim;
pub mod claims;
pub(crate) mod count;
pub mod decode;
pub(crate) mod disagreement;
pub(crate) mod hex;
pub mod summary;
pub mod table;
pub(crate) mod whole;

pub use bounds::{MAX_BYTES, MAX_ENTRIES, MAX_TEXT, ReportError, SCHEMA};
pub use claim::{Claim, Evidence, MAX_DISAGREEMENTS, Outcome, Reason};
pub use count::{Count, WorkloadName};
pub use disagreement::{Access, Answer, Disagreement};
pub use hex::Hex;
pub use whole::{MachineKind, Processor, Register, Report, Restored};
