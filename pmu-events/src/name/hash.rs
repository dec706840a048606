//! A name to look up, and the hash by which it is found.
//!
//! The generator compiles this file too: it places each event by the hash that a lookup computes.

/// Maximum length of an event name in bytes. No event has a longer name.
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

/// Finds the first byte that no event's name has.
#[cold]
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
        // By words of eight bytes, since a lookup is to take at most 400 instructions. The zeros behind the name
        // complete its last word.
        let words = words.get(..len.div_ceil(8))?.iter();
        let hash = words.fold(len as u64, |hash, word| {
            hash.wrapping_add(u64::from_le_bytes(*word) | LETTER_CASE).wrapping_mul(FACTOR)
        });
        // `reduce` uses the low half, which a product mixes worst: its lowest bit depends on the factors' lowest bits
        // alone.
        Some(Self { bytes: padded, len, hash: hash ^ hash >> 32 })
    }

    #[inline]
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
        // The names of a bucket agree in the bits that `reduce` puts first, and the seed changes the last ones: the
        // product carries the change upwards.
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
    // A remainder would cost a division, the slowest instruction of a lookup.
    (((hash & 0xFFFF_FFFF) * count as u64) >> 32) as usize
}
