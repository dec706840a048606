//! Names of events: compared, hashed and matched in letters of either case.
//!
//! The lowest floor: uses nothing else of the crate.

pub(crate) mod hash;

use core::fmt;

use crate::name::hash::MAX_NAME;

/// Name of an event, as the vendor's list spells it: at most [`MAX_NAME`] bytes of text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EventName {
    bytes: [u8; MAX_NAME],
    len: u8,
}

impl EventName {
    pub(crate) const EMPTY: Self = Self { bytes: [0; MAX_NAME], len: 0 };

    /// Appends text; the part beyond [`MAX_NAME`] is dropped.
    pub(crate) fn push(&mut self, text: &[u8]) {
        let len = usize::from(self.len);
        // Nothing of a listed name is dropped: the generator refuses names that are longer.
        if let Some(room) = self.bytes.get_mut(len..len + text.len()) {
            room.copy_from_slice(text);
            self.len += text.len() as u8;
        }
    }

    /// Returns the name as a string slice.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        // Never the default: the generator lets only some ASCII characters into a name.
        core::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl AsRef<str> for EventName {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq<str> for EventName {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for EventName {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for EventName {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{=str}", self.as_str());
    }
}

/// Returns whether a pattern matches a whole text, in letters of either case: `*` is any text, `?` any character.
///
/// If the text behind a `*` fails to match, only the last `*` is retried, one character further. So the time is at most
/// the product of both lengths.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Only the last star is ever extended: an earlier one has matched as little as it can, so there is no recursion.
    let mut again: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                again = Some((p + 1, t));
                p += 1;
            }
            Some(c) if *c == b'?' || text.get(t).is_some_and(|of| c.eq_ignore_ascii_case(of)) => {
                p += 1;
                t += 1;
            }
            _ => match again {
                Some((after, from)) => {
                    again = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|c| *c == b'*')
}

/// Returns the edit distance (Levenshtein) of two names, ignoring letter case.
pub(crate) fn distance(a: &[u8], b: &[u8]) -> usize {
    // Of the matrix of distances, only the row of the text so far of `a` is ever read: all of it would take 75 KB of
    // stack.
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
    use super::{distance, matches};
    use crate::name::hash::MAX_NAME;

    #[test]
    fn patterns_match_as_a_naive_matcher_has_it() {
        fn naive(pattern: &[u8], text: &[u8]) -> bool {
            match pattern.split_first() {
                None => text.is_empty(),
                Some((b'*', rest)) => (0..=text.len()).any(|from| naive(rest, &text[from..])),
                Some((c, rest)) => text.split_first().is_some_and(|(first, others)| {
                    (*c == b'?' || c == first) && naive(rest, others)
                }),
            }
        }
        // Every pattern of up to four of these, and every text of up to five of two.
        let words = |alphabet: &'static [u8], longest: u32| {
            (0..=longest).flat_map(move |len| {
                (0..alphabet.len().pow(len)).map(move |mut number| {
                    let mut word = std::vec![];
                    for _ in 0..len {
                        word.push(alphabet[number % alphabet.len()]);
                        number /= alphabet.len();
                    }
                    word
                })
            })
        };
        for pattern in words(b"ab*?", 4) {
            for text in words(b"ab", 5) {
                assert_eq!(
                    matches(&pattern, &text),
                    naive(&pattern, &text),
                    "{pattern:?} {text:?}"
                );
            }
        }
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_longer_than_the_product_of_the_lengths() {
        // By trying every star again, this would take 2^40 steps and more.
        let text = [b'a'; MAX_NAME];
        let mut pattern = [b'*'; 80];
        pattern.iter_mut().step_by(2).for_each(|c| *c = b'a');
        pattern[79] = b'b';
        assert!(!matches(&pattern, &text));
    }

    #[test]
    fn distances_are_those_of_textbooks() {
        assert_eq!(distance(b"kitten", b"sitting"), 3);
        assert_eq!(distance(b"", b"abc"), 3);
        assert_eq!(distance(b"abc", b""), 3);
        assert_eq!(distance(b"saturday", b"sunday"), 3);
        assert_eq!(distance(b"same", b"SAME"), 0);
    }
}
