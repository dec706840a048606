//! The hardware beside the counters of a guest's processor.

use pmu_virt::{VirtualBranches, VirtualIbs, VirtualPrecise};

/// Branch records and precise records, and instruction-based sampling. `None`: the guest lacks the facility.
pub(crate) type Facilities = (Records, Option<VirtualIbs>);

/// The records of branches, and of the instructions at which counters overflow.
pub(crate) type Records = (Option<VirtualBranches>, Option<VirtualPrecise>);
