//! The groups of adaptive and architectural records.

use crate::precise::decode::words::Words;

/// A group of data in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Basic,
    Memory,
    Registers,
    Vectors,
    Branches,
    Counters,
}

/// The value of the counters' header by which the metrics and their slots follow the counters; 0: they do not.
const METRICS: u64 = 3;

/// Returns the size in words of the counters' group at the beginning of these words: two words of masks, then the
/// values. Returns `None` if the masks cannot be read or name metrics that are not known.
pub(crate) fn counters_words(group: Words<'_>) -> Option<usize> {
    let (masks, metrics) = (group.get(0)?, group.get(1)? & 0xFFFF_FFFF);
    let metrics = match metrics {
        0 => 0,
        METRICS => 2,
        _ => return None,
    };
    Some(2 + masks.count_ones() as usize + metrics)
}
