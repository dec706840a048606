//! Extended data: the PEBS index and the counters that a record of any event may have.

use heapless::Vec;

/// Maximum number of PMC values in a record: the largest value of three bits.
pub const MAX_PMC_VALUES: usize = 7;

/// Extended data, which a record of any event may have: the PEBS index, and counters' values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Extended {
    /// PEBS index of the processor. Windows stamps only context switches.
    pub pebs_index: Option<u64>,
    /// Values of counters, in the order of [`CounterNames`](super::CounterNames); zeros if the processor has no such
    /// counters.
    #[cfg_attr(feature = "defmt", defmt(Debug2Format))]
    pub pmc_values: Vec<u64, MAX_PMC_VALUES>,
}
