//! A processor's record of one sampled instruction, in vendor-neutral terms.
//!
//! This floor is plain data, and imports nothing from the other floors. The vendors' crates decode their registers and
//! records into the types of this floor.

pub(crate) mod request;
pub(crate) mod sample;

pub use request::{NotPrecise, Precision, SampleParts};
pub use sample::{
    AccessType, BranchOutcome, DataAccess, DataSource, InstructionFetch, LineState, PageSize,
    PreciseSample, Translation,
};
