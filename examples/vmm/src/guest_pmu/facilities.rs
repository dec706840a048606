//! The hardware beside the counters of a guest's processor.

use pmu_virt::{VirtualBranches, VirtualIbs};

/// Branch records, and instruction-based sampling. `None`: the guest lacks the facility.
pub(crate) type Facilities = (Option<VirtualBranches>, Option<VirtualIbs>);
