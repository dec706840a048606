//! The meaning of the Amd64 sources on each generation.
//!
//! Sources: libpfm4's tables of families 0Fh to 19h; Linux' tables of Zen 1 to Zen 6. An event that neither libpfm4 nor
//! Linux describes has an unknown meaning.

use pmu_core::profile::KProfileSource;

use crate::generation::Generation;

/// Relation between the name of a source in [`SOURCES`](crate::SOURCES) and the event that the source counts on a
/// processor generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Meaning {
    /// The source counts the event in its name.
    Same,
    /// The source counts a different event from the event in its name.
    Other,
    /// The source counts nothing: the event needs a bit of the unit mask, and the source sets no such bit.
    Nothing,
    /// The meaning is unknown: no available table describes the event number on this generation.
    Unknown,
}

impl Meaning {
    /// Returns this variant's name in lower case: `same`, `other`, `nothing` or `unknown`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Other => "other",
            Self::Nothing => "nothing",
            Self::Unknown => "unknown",
        }
    }
}

impl Generation {
    /// Returns how the name of `source` relates to the event that `source` counts on this generation. Returns `None` if
    /// `source` is not in [`SOURCES`](crate::SOURCES).
    ///
    /// If the result is not [`Same`](Meaning::Same), the source's name is misleading on this generation. The result
    /// applies only to the interface [`Amd64`](crate::Amd64). In the interface [`Zen`](crate::Zen), every source counts
    /// the event in its name.
    ///
    /// # Examples
    ///
    /// ```
    /// use pmu_amd::{Generation, Meaning};
    /// use pmu_core::profile::KProfileSource;
    /// let meaning = |source| Generation::Zen4.meaning(source);
    /// assert_eq!(meaning(KProfileSource::TOTAL_ISSUES), Some(Meaning::Same));
    /// assert_eq!(meaning(KProfileSource::DCACHE_MISSES), Some(Meaning::Nothing));
    /// ```
    ///
    /// # Limitations
    /// The meanings were not tried on processors, but judged by published tables. Where the tables are silent, the
    /// meaning is unknown.
    pub fn meaning(self, source: KProfileSource) -> Option<Meaning> {
        let place = MEANINGS.binary_search_by_key(&source.value(), |row| row >> 24).ok()?;
        // The sources were defined for the Hammer, so the rows leave it out.
        if let Self::Hammer = self {
            return Some(Meaning::Same);
        }
        let row = MEANINGS.get(place)?;
        Some(match row >> (2 * self as u32) & 3 {
            0 => Meaning::Same,
            1 => Meaning::Other,
            2 => Meaning::Nothing,
            _ => Meaning::Unknown,
        })
    }
}

/// Returns a row: the source's value in bits 31:24, and two bits per generation below.
const fn row(value: u8, meanings: &[u8; 12]) -> u32 {
    let (mut row, mut place) = ((value as u32) << 24, 0);
    while place < meanings.len() {
        let meaning = match meanings[place] {
            b's' => 0,
            b'o' => 1,
            b'n' => 2,
            b'u' => 3,
            _ => panic!("same, other, nothing or unknown"),
        };
        row |= meaning << (2 * place);
        place += 1;
    }
    row
}

macro_rules! meanings {
    ($($value:literal $meanings:literal;)*) => {
        /// The rows, ascending by value.
        static MEANINGS: [u32; 176] = [$(row($value, $meanings)),*];
    };
}

// Same, other, nothing, unknown: families 10h, 11h, 12h, 14h, 15h, 16h; Zen 1 to Zen 6.
meanings! {
    0x00 b"ssssssssssss";
    0x02 b"ssssssssssss";
    0x06 b"ssssssssssss";
    0x08 b"ssssnsnnnnnn";
    0x09 b"sssssssssuuu";
    0x0B b"ssssssssssss";
    0x0D b"sssssssssssu";
    0x14 b"sssssssssuuu";
    0x15 b"sssssssssuuu";
    0x19 b"ssssosooouuu";
    0x1A b"sssoooooouuu";
    0x1B b"sssoooooouuu";
    0x1C b"sssuouooouuu";
    0x1D b"sssuouooouuu";
    0x1E b"sssuououuuuu";
    0x1F b"sssuououuuuu";
    0x20 b"ssssooouuuuu";
    0x21 b"ssssusnuunnn";
    0x22 b"ssssssuuuuuu";
    0x23 b"ssssssuuuuuu";
    0x24 b"ssssssuuuuuu";
    0x25 b"ssssssuuuuuu";
    0x26 b"ssssssuuuuuu";
    0x27 b"ssssssuuuuuu";
    0x28 b"ssssssuuuuuu";
    0x29 b"ssssssuuuuuu";
    0x2A b"ssssssuuuuuu";
    0x2B b"sssssnuuuuuu";
    0x2C b"sssonuuuuuuu";
    0x2D b"nnnnnnunnnnn";
    0x2E b"uuuuuunnnnnn";
    0x2F b"ssssssusssss";
    0x30 b"ssssssusssss";
    0x31 b"sssssssssuuu";
    0x32 b"ssssnsnnnnnn";
    0x33 b"ssssosuuuuuu";
    0x34 b"sssooouuuuuu";
    0x35 b"sssooouuuuuu";
    0x36 b"sssooouuuuuu";
    0x37 b"sssooouuuuuu";
    0x38 b"sssououuuuuu";
    0x39 b"ssssssuooooo";
    0x3A b"sssooouooooo";
    0x3B b"ssssosuooooo";
    0x3C b"ssssosuuoooo";
    0x3D b"ssssosuooooo";
    0x3E b"ssssosuooooo";
    0x3F b"ssssusuuoooo";
    0x40 b"sssououuoooo";
    0x41 b"ssssusuuoooo";
    0x42 b"ssssusuuoooo";
    0x43 b"ssssusuuoooo";
    0x44 b"ssssusuuoooo";
    0x45 b"ssssssssssss";
    0x46 b"sssosoooouuu";
    0x47 b"sssssnssnnnn";
    0x48 b"sssuuuuuuuuu";
    0x49 b"sssuuuuuuuuu";
    0x4A b"ssuuuuuuuuuu";
    0x4B b"ssuuuuuuuuuu";
    0x4C b"ssuuuuuuuuuu";
    0x4D b"ssssssssssss";
    0x4E b"ssssssssssss";
    0x4F b"ssssssssssss";
    0x50 b"ssssssssssss";
    0x51 b"sssssuuuuuuu";
    0x52 b"sssssuuuuuuu";
    0x53 b"sssssuuuuuuu";
    0x54 b"sssusuuuuuuu";
    0x55 b"sssssuuuuuuu";
    0x56 b"sssusuuuuuuu";
    0x57 b"sssssuuuuuuu";
    0x58 b"sssssuuuuuuu";
    0x59 b"sssssuuuuuuu";
    0x5A b"sssusuuuuuuu";
    0x5B b"sssssuuuuuuu";
    0x5C b"sssssuuuuuuu";
    0x5D b"sssssuuuuuuu";
    0x5E b"sssssssssuuu";
    0x5F b"sssssssssuuu";
    0x60 b"ssssssssssss";
    0x61 b"ssssssssssss";
    0x62 b"sssussssssss";
    0x63 b"ssssssssssss";
    0x64 b"sssususssuuu";
    0x65 b"ssssssnnnuuu";
    0x66 b"ssssssuuuuuu";
    0x67 b"ssssssuuuuuu";
    0x68 b"ssssssssssss";
    0x69 b"ssssssssoooo";
    0x6A b"ssssssssssss";
    0x6B b"ssssssssssss";
    0x6C b"ssssssssssss";
    0x6D b"ssssssssssss";
    0x6E b"ssssssssssss";
    0x6F b"sssssssssuuu";
    0x70 b"ssssssssssss";
    0x71 b"ssssssssssss";
    0x72 b"sssssossssss";
    0x73 b"sssssssssssu";
    0x74 b"sssssssssssu";
    0x75 b"sssososssssu";
    0x76 b"ssououooooou";
    0x77 b"usuuuuuuuuuu";
    0x78 b"ssuuuuuuoooo";
    0x79 b"ssuuuuuuoooo";
    0x7A b"ssuuuuuuoooo";
    0x7B b"ssuuuuuuoooo";
    0x7C b"ssssssuuuuuu";
    0x7D b"ssssssuuuuuu";
    0x7E b"ssssssuuuuuu";
    0x7F b"sssusuuuuuuu";
    0x80 b"sssusuoooooo";
    0x81 b"sssuuuoouuuu";
    0x82 b"sssusuoooooo";
    0x83 b"sssuuuoooooo";
    0x84 b"sssusuuuuuuu";
    0x85 b"sssuouuuunnn";
    0x86 b"sssusuuuuuuu";
    0x87 b"sssuouuuuuuu";
    0x88 b"sssuouuuuuuu";
    0x89 b"sssuuuuuuuuu";
    0x8A b"ssssosuuuuuu";
    0x8B b"ssssosuuuuuu";
    0x8C b"ssssosuuuuuu";
    0x8D b"ssssosuuuuuu";
    0x8E b"ssssosuuuuuu";
    0x8F b"ssssssuuuuuu";
    0x90 b"ssssssuuuuuu";
    0x91 b"ssssssuuuuuu";
    0x92 b"ssssssuuuuuu";
    0x93 b"ssssuuuuuuuu";
    0x94 b"ssssuuuuuuuu";
    0x95 b"ssssuuuuuuuu";
    0x96 b"ssssuuuuuuuu";
    0x97 b"nnnnuuuuuuuu";
    0x98 b"nunnuuuuuuuu";
    0x99 b"soouuuuuuuuu";
    0x9A b"soouuuuuuuuu";
    0x9B b"soouuuuuuuuu";
    0x9C b"souuuuuuuuuu";
    0x9D b"sooouuuuuuuu";
    0x9E b"suuuuuuuuuuu";
    0x9F b"suuuuuuuuuuu";
    0xA0 b"sooouuuuuuuu";
    0xA1 b"suoouuuuuuuu";
    0xA2 b"ssssuuuuuuuu";
    0xA3 b"ssssuuuuuuuu";
    0xA4 b"ssssuuuuuuuu";
    0xA5 b"ssssuuuuuuuu";
    0xA6 b"ssssuuuuuuuu";
    0xA7 b"ssssuuuuuuuu";
    0xA8 b"ssssuuuuuuuu";
    0xA9 b"uuuuuuuuuuuu";
    0xAA b"ssssuuuuuuuu";
    0xAB b"ssssuuuuuuuu";
    0xAC b"ssssuuuuuuuu";
    0xAD b"ssssuuuuuuuu";
    0xAE b"ssssuuuuuuuu";
    0xAF b"souuuuuuuuuu";
    0xB0 b"ssuuuuuuuuuu";
    0xB1 b"souuuuuuuuuu";
    0xB2 b"souuuuuuuuuu";
    0xB3 b"souuuuuuuuuu";
    0xB4 b"suuuuuuuuuuu";
    0xB5 b"suuuuuuuuuuu";
    0xB6 b"suuuuuuuuuuu";
    0xB7 b"suuuuuuuuuuu";
    0xB8 b"suuuuuuuuuuu";
    0xB9 b"suuuuuuuuuuu";
    0xBA b"suuuuuuuuuuu";
    0xBB b"suuuuuuuuuuu";
    0xBC b"suuuuuuuuuuu";
    0xBD b"suuuuuuuuuuu";
    0xBE b"uuuuuuouuuuu";
    0xBF b"uuuuuuooouoo";
}
