//! Checks of the parts of a recording beside its records, before they are used: the library allocates as much as their
//! counts say.
//!
//! Source: Linux, tools/perf/Documentation/perf.data-file-format.txt.

use std::io;

use super::source::Parts;
use super::{COMMAND_LINE, EVENT_DESCRIPTIONS, HEADER_BYTES, MAGIC, SECTION_BYTES};

/// The most bytes that the parts of a file beside its records may have together, and the most events.
const MOST_BYTES: u64 = 64 << 20;
const MOST_EVENTS: u64 = 1 << 16;

/// The fewest and the most bytes of an event's attributes: `PERF_ATTR_SIZE_VER0`, and the kernel's limit, a page.
const FEWEST_ATTRIBUTES: u64 = 64;
const MOST_ATTRIBUTES: u64 = 4096;

/// The bytes of each version, `PERF_ATTR_SIZE_VER0` and so on. Of another size below the last one, the library reads as
/// many bytes as the version before has, and continues at a wrong place.
const ATTRIBUTES: [usize; 8] = [64, 72, 80, 96, 104, 112, 120, 128];

/// Checks that a file is a recording of this byte order, that its sections lie in the file, and that each count in a
/// section is of what the section has room for. Returns the records' section.
///
/// # Errors
/// It is none, or damaged, or of a kind that is not read.
pub(super) fn check(file: &mut Parts) -> io::Result<Section> {
    let size = file.size;
    let mut header = [0; HEADER_BYTES as usize];
    if file.read_at(&mut header, 0).is_err() || header[..8] != MAGIC {
        return wrong("no recording: it does not begin as perf.data does");
    }
    let word = |place: usize| word(&header, 8 * place).unwrap_or(0);
    // The size of the header and of an event's attributes with their place; places and sizes of attributes, records
    // and the names of events; the features.
    let [attributes, records, types] =
        [3, 5, 7].map(|first| Section { place: word(first), size: word(first + 1) });
    if word(1) < HEADER_BYTES || ![attributes, records, types].iter().all(|one| one.is_in(size)) {
        return wrong(
            "a damaged recording: a section is not in the file; was it ended before its end?",
        );
    }
    if records.size == 0 {
        return wrong("a recording without records: was it ended before its end?");
    }
    let with_place = word(2);
    if !(FEWEST_ATTRIBUTES..=MOST_ATTRIBUTES + SECTION_BYTES).contains(&with_place) {
        return wrong(NO_ATTRIBUTES);
    }
    // Names of events are those of old files, whose events have the place of their numbers beside their attributes.
    check_events(file, attributes, with_place, size)?;
    check_events(file, types, with_place + SECTION_BYTES, size)?;
    check_features(file, [9, 10, 11, 12].map(word), records.end(), size)?;
    Ok(records)
}

/// A part of the file.
#[derive(Clone, Copy)]
pub(super) struct Section {
    pub(super) place: u64,
    pub(super) size: u64,
}

impl Section {
    /// Reads the place and the size, 16 bytes.
    fn at(bytes: &[u8], place: usize) -> Option<Self> {
        Some(Self { place: word(bytes, place)?, size: word(bytes, place + 8)? })
    }

    fn end(self) -> u64 {
        self.place.saturating_add(self.size)
    }

    fn is_in(self, file: u64) -> bool {
        self.place.checked_add(self.size).is_some_and(|end| end <= file)
    }

    /// Reads a section that is in the file, and is not large.
    fn read(self, file: &mut Parts) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.size as usize];
        file.read_at(&mut bytes, self.place)?;
        Ok(bytes)
    }
}

/// Checks a list of events, each of which ends in the place of its numbers.
fn check_events(file: &mut Parts, events: Section, each: u64, size: u64) -> io::Result<()> {
    if events.size / each > MOST_EVENTS {
        return wrong("a damaged recording: it declares more events than there are");
    }
    let mut left = MOST_BYTES;
    for number in 0..events.size / each {
        let event = Section { place: events.place + number * each, size: each }.read(file)?;
        let (attributes, numbers) = event.split_at(event.len() - SECTION_BYTES as usize);
        if !are_attributes(attributes) {
            return wrong(NO_ATTRIBUTES);
        }
        let numbers = Section::at(numbers, 0).filter(|numbers| numbers.is_in(size));
        match numbers.and_then(|numbers| left.checked_sub(numbers.size)) {
            Some(rest) => left = rest,
            None => return wrong("a damaged recording: an event's numbers are not in the file"),
        }
    }
    Ok(())
}

/// Checks the features, whose places follow the records.
fn check_features(file: &mut Parts, bits: [u64; 4], table: u64, size: u64) -> io::Result<()> {
    let set = (0..256).filter(|bit| bits[*bit as usize / 64] >> (bit % 64) & 1 != 0);
    let mut left = MOST_BYTES;
    for (number, feature) in (0..).zip(set) {
        let row = Section { place: table + number * SECTION_BYTES, size: SECTION_BYTES };
        if !row.is_in(size) {
            return wrong("a damaged recording: its features are not in the file");
        }
        let section = Section::at(&row.read(file)?, 0).filter(|section| section.is_in(size));
        let rest = section.and_then(|section| left.checked_sub(section.size));
        let (Some(section), Some(rest)) = (section, rest) else {
            return wrong("a damaged recording: a feature is not in the file");
        };
        left = rest;
        let is_whole = match feature {
            EVENT_DESCRIPTIONS => are_descriptions(&section.read(file)?),
            COMMAND_LINE => are_words(&section.read(file)?),
            _ => Some(()),
        };
        if is_whole.is_none() {
            return wrong("a damaged recording: a feature declares more than it has");
        }
    }
    Ok(())
}

/// Checks the section of the events' names: their number, the size of attributes, and of each its attributes, how many
/// numbers it has, its name and the numbers.
fn are_descriptions(bytes: &[u8]) -> Option<()> {
    let (events, rest) = number(bytes)?;
    let (attributes, mut rest) = number(rest)?;
    if events > MOST_EVENTS as usize || attributes < FEWEST_ATTRIBUTES as usize {
        return None;
    }
    for _ in 0..events {
        let (numbers, name) = number(rest.get(attributes..)?)?;
        if !are_attributes(&rest[..attributes]) {
            return None;
        }
        rest = skip_text(name)?.get(numbers.checked_mul(8)?..)?;
    }
    Some(())
}

/// Returns whether attributes tell a size that they can have, in their second word, and have room for it.
fn are_attributes(bytes: &[u8]) -> bool {
    let told = bytes.get(4..).and_then(number).map_or(0, |(told, _)| told);
    told <= bytes.len() && (told > ATTRIBUTES[7] || ATTRIBUTES.contains(&told))
}

/// Checks the section of a list of texts: their number, and each.
fn are_words(bytes: &[u8]) -> Option<()> {
    let (words, mut rest) = number(bytes)?;
    // Each has its length.
    if words > rest.len() / 4 {
        return None;
    }
    for _ in 0..words {
        rest = skip_text(rest)?;
    }
    Some(())
}

/// Returns what follows a text with its length.
fn skip_text(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = number(bytes)?;
    rest.get(length..)
}

fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*number) as usize, rest))
}

fn word(bytes: &[u8], place: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(place..)?.first_chunk()?))
}

const NO_ATTRIBUTES: &str =
    "a damaged recording: an event's attributes have a size that none can have";

pub(super) fn wrong<T>(reason: &str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, reason.to_owned()))
}
