//! A core type's table of events.

use crate::format::dictionary::Dictionary;
use crate::format::record::Shape;

/// Table of events from the generator: consecutive records, ascending by name, and a perfect hash of the names. A
/// name's hash selects a bucket, the bucket a seed, and hash and seed a slot, which holds the record's offset.
pub(crate) struct Table {
    pub(crate) seeds: &'static [u8],
    pub(crate) slots: &'static [[u8; 2]],
    pub(crate) records: &'static [u8],
    pub(crate) events: usize,
    pub(crate) shapes: &'static [Shape],
    pub(crate) dictionary: &'static Dictionary,
}

impl Table {
    /// Returns the table with these numbers of events, of buckets, and of slots.
    pub(crate) const fn new(
        bytes: &'static [u8],
        [events, buckets, slots]: [usize; 3],
        shapes: &'static [Shape],
        dictionary: &'static Dictionary,
    ) -> Self {
        let (seeds, rest) = bytes.split_at(buckets);
        let (places, records) = rest.split_at(2 * slots);
        let (slots, _) = places.as_chunks();
        Self { seeds, slots, records, events, shapes, dictionary }
    }
}
