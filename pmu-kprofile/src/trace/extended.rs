//! Extended data: the PEBS index and the counters that a record of any event may have.

use heapless::Vec;

/// Maximum number of counter values in a record. The record's header stores the number of values in three bits.
pub const MAX_PMC_VALUES: usize = 7;

/// `ETW_MAX_PROFILING_SOURCES`: maximum number of sources whose PMC interrupts can be traced at a time.
pub const MAX_PMC_SOURCES: usize = 4;

/// Data that a record of any event may have: the PEBS index, and the values of counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Extended {
    /// PEBS index of the processor. In Windows, only records of context switches have a PEBS index.
    pub pebs_index: Option<u64>,
    /// Values of counters, in the order of [`CounterNames`](super::CounterNames). If no counters are allocated on the
    /// processor, the values are 0.
    #[cfg_attr(feature = "defmt", defmt(Debug2Format))]
    pub pmc_values: Vec<u64, MAX_PMC_VALUES>,
}
