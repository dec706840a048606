//! A processor's record of one sampled instruction, in vendor-neutral terms.
//!
//! This floor is plain data, and imports nothing from the other floors. The vendors' crates decode their registers and
//! records into the types of this floor.

pub(crate) mod access;
pub(crate) mod branch;
pub(crate) mod error;
pub(crate) mod fetch;
pub(crate) mod parts;
pub(crate) mod precision;
pub(crate) mod request;
pub(crate) mod sample;
pub(crate) mod tlb;

pub use access::{AccessType, DataAccess, DataSource, LineState};
pub use branch::BranchOutcome;
pub use error::NotPrecise;
pub use fetch::InstructionFetch;
pub use parts::SampleParts;
pub use precision::Precision;
pub use sample::PreciseSample;
pub use tlb::{PageSize, Translation};
