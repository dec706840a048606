//! Branch records of one virtual processor: Intel's architectural and legacy last-branch records, and AMD's LBR
//! version 2. The embedder feeds the branches to [`VirtualBranches`].

pub(crate) mod configuration;
pub(crate) mod record;
pub(crate) mod virtual_branches;

pub use configuration::{AmdBranches, ArchitecturalBranches, BranchConfiguration};
pub use record::{FedBranch, FedBranchKind, FedPath, FedTransaction};
pub use virtual_branches::VirtualBranches;
