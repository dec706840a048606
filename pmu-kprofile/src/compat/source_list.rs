//! The list of profile sources that Windows' kernel returns: a chain of `PROFILE_SOURCE_INFO`.
//!
//! `NtQuerySystemInformation` returns the list for the information class 0x1F (`SystemPerformanceTraceInformation`), if
//! the first word of the buffer is 0x0D (`EventTraceProfileSourceListInformation`).

use pmu_core::EventSource;
use pmu_core::interval::IntervalLimits;
use pmu_core::profile::{AddedSource, KProfileSource, classes};

use crate::compat::LayoutError;

/// Information class of a query for the source list: `EventTraceProfileSourceListInformation`. The query's buffer
/// begins with this number.
pub const SOURCE_LIST_CLASS: u32 = classes::EVENT_TRACE_PROFILE_SOURCE_LIST;

/// Bytes before the first entry: the class and a spare word.
const HEADER: usize = 8;

/// Bytes of an entry before its name.
const ENTRY: usize = 0x18;

/// Writes the list of the sources that an interface supports into `buffer`, and returns the number of bytes written.
///
/// The sources in [`EventSource::sources`] come first. The sources in [`EventSource::added`] follow. The caller must
/// set the first word of `buffer` to [`SOURCE_LIST_CLASS`] before the call.
///
/// # Context
/// Task.
///
/// # Errors
/// - [`WrongClass`](LayoutError::WrongClass): the first word of `buffer` is not `SOURCE_LIST_CLASS`. The function
///   checks this word before it checks the buffer's size.
/// - [`BufferTooSmall`](LayoutError::BufferTooSmall): the list does not fit; the error has the needed size.
///
/// # Examples
/// ```
/// use pmu_core::profile::DefaultInterface;
/// use pmu_kprofile::compat::LayoutError;
/// use pmu_kprofile::compat::source_list::{SOURCE_LIST_CLASS, read_source_list, write_source_list};
///
/// let mut buffer = [0; 256];
/// buffer[..4].copy_from_slice(&SOURCE_LIST_CLASS.to_le_bytes());
/// let length = write_source_list(&DefaultInterface::new(), &mut buffer)?; // or the machine's interface
/// let names: Result<Vec<String>, LayoutError> =
///     read_source_list(&buffer[..length]).map(|entry| Ok(entry?.name().collect())).collect();
/// assert_eq!(names?, ["Timer"]);
/// # Ok::<(), LayoutError>(())
/// ```
pub fn write_source_list<I: EventSource>(
    interface: &I,
    buffer: &mut [u8],
) -> Result<usize, LayoutError> {
    let supported = || {
        let added = interface.added().iter().map(AddedSource::row);
        let rows = interface.sources().iter().chain(added);
        rows.filter(|row| interface.query(row.source()).is_supported())
    };
    if let Some(class) = word(buffer, 0).filter(|class| *class != SOURCE_LIST_CLASS) {
        return Err(LayoutError::WrongClass(class));
    }
    let needed = HEADER + supported().map(|row| entry_size(row.windows_name())).sum::<usize>();
    if buffer.len() < needed {
        return Err(LayoutError::BufferTooSmall { needed });
    }
    let (header, mut rest) = buffer.split_at_mut(HEADER);
    put(header, 4, &[0; 4]);
    let mut rows = supported().peekable();
    while let Some(row) = rows.next() {
        let size = entry_size(row.windows_name());
        let (entry, after) = rest.split_at_mut(size);
        rest = after;
        let limits: IntervalLimits = interface.query(row.source()).limits;
        let next = if rows.peek().is_some() { size as u32 } else { 0 };
        entry.fill(0);
        put(entry, 0x00, &next.to_le_bytes());
        put(entry, 0x04, &row.source().value().to_le_bytes());
        put(entry, 0x08, &limits.min.to_le_bytes());
        put(entry, 0x0C, &limits.max.to_le_bytes());
        for (index, unit) in row.windows_name().encode_utf16().enumerate() {
            put(entry, ENTRY + 2 * index, &unit.to_le_bytes());
        }
    }
    Ok(needed)
}

/// Returns the size of an entry with its name and the terminating zero, a multiple of 8.
fn entry_size(name: &str) -> usize {
    (ENTRY + 2 * (name.encode_utf16().count() + 1)).next_multiple_of(8)
}

fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes.iter_mut().skip(offset).zip(value).for_each(|(to, from)| *to = *from);
}

fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// A source in the source list, as in Windows' structure `PROFILE_SOURCE_INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SourceListEntry<'b> {
    /// Profile source.
    pub source: KProfileSource,
    /// Shortest interval of the source, in the unit of the source.
    pub min_interval: u32,
    /// Longest interval of the source, in the unit of the source.
    pub max_interval: u32,
    /// Name in UTF-16, little-endian, without the terminating zero.
    name: &'b [u8],
}

impl SourceListEntry<'_> {
    /// Returns the characters of the source's name. Each invalid UTF-16 unit is replaced by U+FFFD.
    pub fn name(&self) -> impl Iterator<Item = char> {
        let units = self.name.chunks_exact(2).map(|unit| match unit {
            [low, high] => u16::from_le_bytes([*low, *high]),
            _ => 0,
        });
        char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
    }
}

/// Returns an iterator over a source list that this crate or Windows wrote. A list without a source is 8 bytes long.
///
/// If an entry cannot be read, the error is the last item of the iterator.
pub fn read_source_list(
    buffer: &[u8],
) -> impl Iterator<Item = Result<SourceListEntry<'_>, LayoutError>> {
    let mut next = (buffer.len() != HEADER).then_some(HEADER);
    core::iter::from_fn(move || {
        let offset = next.take()?;
        let malformed = LayoutError::Malformed { offset };
        Some(read_entry(buffer, offset).ok_or(malformed).map(|(entry, following)| {
            next = following;
            entry
        }))
    })
}

/// Reads the entry at an offset and returns it with the offset of the next one.
fn read_entry(buffer: &[u8], offset: usize) -> Option<(SourceListEntry<'_>, Option<usize>)> {
    let next = word(buffer, offset)? as usize;
    // The walk ends, because an entry does not reach into the next one and links only lead forward.
    let end = if next == 0 { buffer.len() } else { offset.checked_add(next)? };
    let entry = buffer.get(offset..end)?;
    let name = entry.get(ENTRY..)?;
    let length = name.chunks_exact(2).position(|unit| unit == [0, 0])?;
    Some((
        SourceListEntry {
            source: KProfileSource::new(word(entry, 4)?)?,
            min_interval: word(entry, 8)?,
            max_interval: word(entry, 0xC)?,
            name: name.get(..2 * length)?,
        },
        (next != 0).then_some(end),
    ))
}
