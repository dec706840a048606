//! Branch records (LBR): the last branches that a processor took, kept by the processor itself.
//!
//! The samples of an event [with branches](crate::Event::with_branches) have them. A vendor's crate describes a
//! processor's records as data, [`BranchUnit`]; [`BranchMemory`] receives the records, and [`Branches`], a facility of
//! the session's event source, shows them.

pub(crate) mod access;
pub(crate) mod call_stack_frame;
pub(crate) mod filter;
pub(crate) mod kind;
pub(crate) mod memory;
pub(crate) mod record;
pub(crate) mod recording;
pub(crate) mod sampled;
pub(crate) mod saved;
pub(crate) mod unit;

pub use call_stack_frame::CallStackFrame;
pub use filter::BranchFilter;
pub use kind::{BranchKind, BranchKinds};
pub use memory::{BranchMemory, BranchSlot};
pub use record::{Branch, BranchPath, BranchTransaction, RawBranch};
pub use sampled::Branches;
pub use saved::SavedBranches;
pub use unit::{
    BranchEnable, BranchFormat, BranchFreeze, BranchOffers, BranchOrder, BranchRegisters,
    BranchUnit,
};
