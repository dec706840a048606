//! The sweep over a group's ranges, which builds the intervals and the hit lists for its stabbing queries.

use core::ops::Range;

use crate::index::entry::{Entry, NONE};
use crate::index::hit_lists::HitLists;
use crate::index::intervals::{ElementaryIntervals, Part};

/// Divides the addresses of a group's entries into elementary intervals, and builds their hit lists. `ends` are the
/// group's places in order of the ranges' last addresses.
pub(super) fn sweep<const N: usize>(
    entries: &[Entry; N],
    places: Range<u32>,
    ends: &[u32],
    intervals: &mut ElementaryIntervals<N>,
    hit_lists: &mut HitLists<N>,
) -> Part {
    if places.end - places.start == 1 {
        return Part::only(places.start);
    }
    let mut intervals = intervals.open();
    let range = |place: u32| {
        let entry = entries.get(place as usize).filter(|_| place < places.end)?;
        (entry.has_range && entry.base <= entry.last).then_some(entry)
    };
    let mut begins = places.clone().filter_map(|place| Some((place, range(place)?)));
    let mut ends = ends.iter().filter_map(|place| {
        let end = range(*place)?.last.checked_add(1)?;
        Some((*place, end))
    });
    let (mut begin, mut end) = (None, None);
    let mut head = NONE;
    loop {
        begin = begin.or_else(|| begins.next());
        end = end.or_else(|| ends.next());
        let at = match (begin, end) {
            (Some((place, entry)), next_end)
                if next_end.is_none_or(|(_, end)| entry.base <= end) =>
            {
                begin = None;
                head = hit_lists.begin(place, entry, head);
                entry.base
            }
            (_, Some((place, at))) => {
                end = None;
                head = hit_lists.end(place, at, head);
                at
            }
            _ => return intervals.close(),
        };
        intervals.push(at, hit_lists.node_of(head));
    }
}
