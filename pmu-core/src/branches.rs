//! Branch records (LBR): the last branches that a processor took, kept by the processor itself.
//!
//! The samples of an event [with branches](crate::Event::with_branches) have them. A vendor's crate describes a
//! processor's records as data, [`BranchUnit`]; [`BranchMemory`] receives the records, and [`Branches`], a facility of
//! the session's event source, shows them.

pub(crate) mod filter;
pub(crate) mod memory;
pub(crate) mod record;
pub(crate) mod recording;
pub(crate) mod sampled;
pub(crate) mod unit;

pub use filter::BranchFilter;
pub use memory::{BranchMemory, BranchSlot, CallStackOf, SavedBranches};
pub use record::{Branch, BranchKind, BranchKinds, BranchPath, BranchTransaction, RawBranch};
pub use sampled::{Branches, CallStackFrame};
pub use unit::{
    BranchEnable, BranchFormat, BranchFreeze, BranchOffers, BranchOrder, BranchRegisters,
    BranchUnit,
};
