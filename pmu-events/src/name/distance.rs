//! The edit distance of names.

use crate::name::hash::MAX_NAME;

/// Returns the edit distance (Levenshtein) of two names, ignoring letter case.
pub(crate) fn distance(a: &[u8], b: &[u8]) -> usize {
    // The row of distances from the text so far of `a` to each beginning of `b`.
    let mut row = [0; MAX_NAME + 1];
    for (place, cell) in row.iter_mut().enumerate() {
        *cell = place;
    }
    for (place, x) in a.iter().enumerate() {
        let mut diagonal = place;
        let mut left = place + 1;
        let Some((first, rest)) = row.split_first_mut() else { break };
        *first = left;
        for (cell, y) in rest.iter_mut().zip(b) {
            let changed = diagonal + usize::from(!x.eq_ignore_ascii_case(y));
            diagonal = *cell;
            left = changed.min(left + 1).min(*cell + 1);
            *cell = left;
        }
    }
    row.get(b.len()).copied().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn distances_are_those_of_textbooks() {
        assert_eq!(distance(b"kitten", b"sitting"), 3);
        assert_eq!(distance(b"", b"abc"), 3);
        assert_eq!(distance(b"abc", b""), 3);
        assert_eq!(distance(b"saturday", b"sunday"), 3);
        assert_eq!(distance(b"same", b"SAME"), 0);
    }
}
