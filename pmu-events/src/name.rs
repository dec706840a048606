//! Names: how they are compared, hashed and matched.
//!
//! The generator compiles this file too, so that both agree on hashes.

use core::fmt;

/// The longest name of an event, in bytes.
pub const MAX_NAME: usize = 96;

/// The most bytes that a token of a compressed name stands for.
pub(crate) const MAX_TOKEN: usize = 16;

/// The name of an event, as its source spells it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EventName {
    bytes: [u8; MAX_NAME],
    len: u8,
}

impl EventName {
    pub(crate) const EMPTY: Self = Self { bytes: [0; MAX_NAME], len: 0 };

    /// Appends text; what is beyond [`MAX_NAME`] is left out.
    pub(crate) fn push(&mut self, text: &[u8]) {
        let len = usize::from(self.len);
        if let Some(room) = self.bytes.get_mut(len..len + text.len()) {
            room.copy_from_slice(text);
            self.len += text.len() as u8;
        }
    }

    /// The name.
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

/// A name in lower case, with zeros behind it, and its hash.
pub(crate) struct Folded {
    bytes: [u8; MAX_NAME + MAX_TOKEN],
    len: usize,
    hash: u64,
}

impl Folded {
    /// Folds a name. `None`: it is longer than any event's.
    #[inline]
    pub(crate) fn new(name: &str) -> Option<Self> {
        let mut bytes = [0; MAX_NAME + MAX_TOKEN];
        let (whole, tail) = name.as_bytes().as_chunks::<8>();
        let mut words = bytes[..MAX_NAME].as_chunks_mut::<8>().0.iter_mut();
        let mut hash = 0;
        for chunk in whole {
            let word = lower(u64::from_le_bytes(*chunk));
            *words.next()? = word.to_le_bytes();
            hash = mix(hash, word);
        }
        if !tail.is_empty() {
            let word = tail.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            let word = lower(word);
            *words.next()? = word.to_le_bytes();
            hash = mix(hash, word);
        }
        Some(Self { bytes, len: name.len(), hash: mix(hash, name.len() as u64) })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bytes of a token's length from `at` on.
    #[inline]
    pub(crate) fn window(&self, at: usize) -> Option<u128> {
        let (window, _) = self.bytes.get(at..)?.split_first_chunk()?;
        Some(u128::from_le_bytes(*window))
    }

    /// The name, in lower case.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The bucket of the name, of this many.
    #[inline]
    pub(crate) fn bucket(&self, buckets: usize) -> usize {
        reduce(self.hash, buckets)
    }

    /// The slot of the name, of this many, in a bucket with this seed.
    #[inline]
    pub(crate) fn slot(&self, seed: u8, slots: usize) -> usize {
        reduce(mix(self.hash, u64::from(seed) + 1), slots)
    }
}

/// Letters in lower case; other bytes as they are. All eight at once: a byte's high bit becomes the answer to
/// "at least A" and "beyond Z", which no carry reaches from its neighbor.
#[inline]
const fn lower(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let seven = word & (EACH * 0x7F);
    let from_a = seven + EACH * (0x80 - b'A' as u64);
    let beyond_z = seven + EACH * (0x7F - b'Z' as u64);
    let upper = (from_a ^ beyond_z) & !word & (EACH * 0x80);
    word | upper >> 2
}

/// A step of a multiplicative hash, by a constant near 2⁶⁴ divided by the golden ratio (Knuth, The Art of
/// Computer Programming, vol. 3, §6.4).
#[inline]
const fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    product ^ product >> 32
}

/// Maps a hash to a number below `count`.
#[inline]
const fn reduce(hash: u64, count: usize) -> usize {
    ((hash & 0xFFFF_FFFF) * count as u64 >> 32) as usize
}

/// Returns whether a pattern matches a whole text; both are in lower case. `*` is any text, `?` any character.
///
/// A `*` that fails is tried again one character on, and only the last one is: the time is at most the product
/// of both lengths.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                again = Some((p + 1, t));
                p += 1;
            }
            Some(c) if *c == b'?' || Some(c) == text.get(t) => {
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

/// The edit distance (Levenshtein) of two names in lower case.
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
            let changed = diagonal + usize::from(x != y);
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
    fn only_letters_are_folded() {
        for byte in 0..=u8::MAX {
            let word = u64::from_le_bytes([byte; 8]);
            assert_eq!(lower(word), u64::from_le_bytes([byte.to_ascii_lowercase(); 8]), "{byte}");
        }
    }

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
        assert_eq!(distance(b"same", b"same"), 0);
    }
}
