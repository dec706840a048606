//! Comparison, hashing and matching of names.
//!
//! The generator compiles this file too, so that both agree on hashes.

use core::fmt;

/// Length of the longest event name in bytes.
pub const MAX_NAME: usize = 96;

/// Maximum length in bytes of the text of a token.
pub(crate) const MAX_TOKEN: usize = 16;

/// Number of tokens that are encoded in one byte. The remaining byte values encode a token together with the byte that
/// follows.
pub(crate) const SHORT_TOKENS: usize = 252;

/// Number of tokens that can be encoded.
pub(crate) const TOKENS: usize = SHORT_TOKENS + (256 - SHORT_TOKENS) * 256;

/// Size of a name's buffer: a power of two, so that an index into it needs no check.
pub(crate) const ROOM: usize = 128;

/// The name of an event, as its source spells it.
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
        if let Some(room) = self.bytes.get_mut(len..len + text.len()) {
            room.copy_from_slice(text);
            self.len += text.len() as u8;
        }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
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

/// Finds the first byte that no event's name has.
pub(crate) fn odd_character(name: &str) -> Option<usize> {
    name.bytes().position(|c| !(c.is_ascii_alphanumeric() || b"_.:=".contains(&c)))
}

/// Room for a name that is padded with zeros.
pub(crate) type Padded = [u8; ROOM + MAX_TOKEN];

/// A name to look up, and its hash, which ignores letter case.
pub(crate) struct Wanted<'a> {
    bytes: &'a Padded,
    len: usize,
    hash: u64,
}

impl<'a> Wanted<'a> {
    /// Copies a name to `padded`, which is all zeros, and hashes it; `None` if it is longer than any event's.
    #[inline]
    pub(crate) fn new(name: &str, padded: &'a mut Padded) -> Option<Self> {
        let len = name.len();
        if len > MAX_NAME {
            return None;
        }
        padded.get_mut(..len)?.copy_from_slice(name.as_bytes());
        let (words, _) = padded.as_chunks();
        let words = words.get(..len.div_ceil(8))?.iter();
        let hash = words.fold(len as u64, |hash, word| {
            hash.wrapping_add(u64::from_le_bytes(*word) | LETTER_CASE).wrapping_mul(FACTOR)
        });
        Some(Self { bytes: padded, len, hash: hash ^ hash >> 32 })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of a token's length from `at` on, which is less than [`ROOM`].
    #[inline]
    pub(crate) fn window(&self, at: usize) -> u128 {
        let window = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        window.map_or(0, |window| u128::from_le_bytes(*window))
    }

    /// Returns the bucket of the name, out of this many.
    #[inline]
    pub(crate) fn bucket(&self, buckets: usize) -> usize {
        reduce(self.hash, buckets)
    }

    /// Returns the slot of the name, out of this many, in a bucket with this seed.
    #[inline]
    pub(crate) fn slot(&self, seed: u8, slots: usize) -> usize {
        let hash = (self.hash ^ (u64::from(seed) + 1)).wrapping_mul(FACTOR);
        reduce(hash ^ hash >> 32, slots)
    }
}

/// Bit of each byte that distinguishes a small letter from a capital. Other characters that differ only in this bit
/// merely share hashes.
const LETTER_CASE: u64 = 0x2020_2020_2020_2020;

/// Factor of a multiplicative hash, near 2⁶⁴ divided by the golden ratio (Knuth, The Art of Computer Programming,
/// vol. 3, §6.4).
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// Maps a hash to a number below `count`.
#[inline]
const fn reduce(hash: u64, count: usize) -> usize {
    (((hash & 0xFFFF_FFFF) * count as u64) >> 32) as usize
}

/// Returns whether a pattern matches a whole text, in letters of either case: `*` is any text, `?` any character.
///
/// A failed `*` is retried one character further, and only the last one is: the time is at most the product of both
/// lengths.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
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
    use super::*;

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
