//! Trace records: a header, extended data, and an event.

use core::fmt;

use heapless::Vec;
use pmu_core::windows::PointerWidth;

use crate::trace::TraceError;
use crate::trace::event::sample::SAMPLE_WORDS;
use crate::trace::event::table::Event;

/// A trace record of Windows' kernel logger: a header, extended data, and an event.
///
/// Encoding a decoded record yields the same bytes again.
///
/// ```
/// use pmu_kprofile::PointerWidth;
/// use pmu_kprofile::trace::{ContextSwitch, Event, Extended, Record, TraceError};
/// let switch = ContextSwitch { old_thread: 4, new_thread: 8, ..ContextSwitch::default() };
/// let record = Record {
///     extended: Extended { pebs_index: Some(0x60), ..Extended::default() },
///     ..Record::new(PointerWidth::Bits64, 1_000, switch)
/// };
/// let mut bytes = [0; 64];
/// let length = record.encode(&mut bytes)?;
/// let (read, behind) = Record::decode(&bytes)?;
/// assert_eq!((length, behind), (48, 48));
/// assert_eq!(read.event, Event::ContextSwitch(switch));
/// # Ok::<(), TraceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Record<'b> {
    /// Width of the traced kernel's pointers.
    pub width: PointerWidth,
    /// Version word of the header. The bits of the header that declare extended data
    /// ([`PEBS_INDEX_FLAG`](crate::trace::PEBS_INDEX_FLAG) and [`PMC_COUNT_MASK`](crate::trace::PMC_COUNT_MASK)) are 0
    /// in this field.
    pub version: u16,
    /// Time stamp, in the unit of the trace's clock.
    pub timestamp: u64,
    /// Extended data: an optional PEBS index, and the values of any number of counters up to [`MAX_PMC_VALUES`].
    pub extended: Extended,
    /// The event that the record describes.
    pub event: Event<'b>,
    /// Bytes of the record after the last known member of the event.
    pub rest: &'b [u8],
}

impl<'b> Record<'b> {
    /// Creates a record with the version [`RECORD_VERSION`](crate::trace::RECORD_VERSION), without extended data.
    pub fn new(width: PointerWidth, timestamp: u64, event: impl Into<Event<'b>>) -> Self {
        let (event, extended) = (event.into(), Extended::default());
        Self { width, version: RECORD_VERSION, timestamp, extended, event, rest: &[] }
    }

    /// Encodes the record into the beginning of `bytes`, and returns the length of the record in bytes.
    ///
    /// # Context
    /// Any.
    ///
    /// # Errors
    /// [`NoRoom`](TraceError::NoRoom): `bytes` is too small. Nothing is written to `bytes`.
    pub fn encode(&self, bytes: &mut [u8]) -> Result<usize, TraceError> {
        // A first pass without a buffer: the header holds the length of the whole record.
        let mut length = Writer::new(&mut []);
        self.write(0, &mut length);
        let needed = length.length();
        match u16::try_from(needed) {
            Ok(size) if needed <= bytes.len() => self.write(size, &mut Writer::new(bytes)),
            _ => return Err(TraceError::NoRoom { needed }),
        }
        Ok(needed)
    }

    fn write(&self, size: u16, to: &mut Writer<'_>) {
        let extended = &self.extended;
        let flag = if extended.pebs_index.is_some() { PEBS_INDEX_FLAG } else { 0 };
        let count = (extended.pmc_values.len() as u16) << PMC_COUNT_MASK.trailing_zeros();
        let version = self.version & !(PEBS_INDEX_FLAG | PMC_COUNT_MASK);
        for half in [version | flag | count, marker(self.width), size, self.event.hook()] {
            to.put(&half.to_le_bytes());
        }
        to.put(&self.timestamp.to_le_bytes());
        for word in extended.pebs_index.iter().chain(&extended.pmc_values) {
            to.put(&word.to_le_bytes());
        }
        self.event.encode(self.width, to);
        to.put(self.rest);
    }

    /// Decodes the record at the beginning of `bytes`, and returns the record and the record's length in bytes.
    ///
    /// The record may have parts that this crate does not know. The function keeps an unknown event in
    /// [`Event::Other`], unknown flags in [`version`](Self::version), and unknown members of an event in
    /// [`rest`](Self::rest).
    ///
    /// # Context
    /// Any.
    ///
    /// # Errors
    /// - [`Marker`](TraceError::Marker): the header does not have the marker of a performance record.
    /// - [`TooShort`](TraceError::TooShort): `bytes` ends before the end of the record, or the record ends before the
    ///   last member of its event.
    ///
    /// # Examples
    /// ```
    /// use pmu_kprofile::PointerWidth;
    /// use pmu_kprofile::trace::{ContextSwitch, Event, Record, TraceError};
    ///
    /// /// Counts the context switches in the buffer of a trace.
    /// fn switches(mut bytes: &[u8]) -> Result<usize, TraceError> {
    ///     let mut count = 0;
    ///     while !bytes.is_empty() {
    ///         let (record, length) = Record::decode(bytes)?;
    ///         count += usize::from(matches!(record.event, Event::ContextSwitch(_)));
    ///         bytes = &bytes[length..];
    ///     }
    ///     Ok(count)
    /// }
    ///
    /// let record = Record::new(PointerWidth::Bits64, 1_000, ContextSwitch::default());
    /// let mut bytes = [0; 80];
    /// record.encode(&mut bytes)?;
    /// record.encode(&mut bytes[40..])?;
    /// assert_eq!(switches(&bytes), Ok(2));
    /// # Ok::<(), TraceError>(())
    /// ```
    pub fn decode(bytes: &'b [u8]) -> Result<(Self, usize), TraceError> {
        let mut reader = Reader::new(bytes);
        let (version, marker) = (reader.u16()?, reader.u16()?);
        let width = match marker {
            MARKER_32 => PointerWidth::Bits32,
            MARKER_64 => PointerWidth::Bits64,
            _ => return Err(TraceError::Marker(u32::from(version) | u32::from(marker) << 16)),
        };
        let (size, hook) = (usize::from(reader.u16()?), reader.u16()?);
        // A size below 8 is no range here, and so is refused as a record that is cut off.
        let mut reader = Reader::new(bytes.get(8..size).ok_or(TraceError::TooShort)?);
        let timestamp = reader.u64()?;
        let mut extended = Extended::default();
        if version & PEBS_INDEX_FLAG != 0 {
            extended.pebs_index = Some(reader.u64()?);
        }
        for _ in 0..(version & PMC_COUNT_MASK) >> PMC_COUNT_MASK.trailing_zeros() {
            let value = reader.u64()?;
            extended.pmc_values.push(value).map_err(|_| TraceError::TooMany(MAX_PMC_VALUES))?;
        }
        let event = Event::decode(hook, width, &mut reader)?;
        let version = version & !(PEBS_INDEX_FLAG | PMC_COUNT_MASK);
        Ok((Self { width, version, timestamp, extended, event, rest: reader.rest() }, size))
    }
}

/// The bytes of a record that was read from a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RecordBytes<const W: usize = SAMPLE_WORDS>(pub(super) [[u8; 8]; W]);

impl<const W: usize> RecordBytes<W> {
    /// Returns the bytes of the record, as they are written to a trace file.
    pub fn as_slice(&self) -> &[u8] {
        let bytes = self.0.as_flattened();
        let size = match bytes {
            [_, _, _, _, low, high, ..] => u16::from_le_bytes([*low, *high]),
            _ => 0,
        };
        bytes.get(..size.into()).unwrap_or(bytes)
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// See [`Record::decode`]. If a method of [`TraceRing`](crate::trace::TraceRing) pushed the record, decoding cannot
    /// fail.
    pub fn decode(&self) -> Result<Record<'_>, TraceError> {
        Record::decode(self.as_slice()).map(|(record, _)| record)
    }
}

impl<const W: usize> fmt::Debug for RecordBytes<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordBytes({:02x?})", self.as_slice())
    }
}

#[cfg(feature = "defmt")]
impl<const W: usize> defmt::Format for RecordBytes<W> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "RecordBytes({=[u8]:02x})", self.as_slice());
    }
}

/// Size of a header in bytes.
pub(super) const HEADER: usize = 0x10;

/// `PERFINFO_TRACE_MARKER32` and `PERFINFO_TRACE_MARKER64`, the high halves of a marker by the width of pointers.
pub(super) const MARKER_32: u16 = 0xC010;

pub(super) const MARKER_64: u16 = 0xC011;

/// Version in the header of the records that this crate writes.
pub const RECORD_VERSION: u16 = 2;

/// Flag in a record's header that is set if a PEBS index follows the header.
pub const PEBS_INDEX_FLAG: u16 = 0x8000;

/// Bits of a record's header that hold the number of PMC values after the header.
pub const PMC_COUNT_MASK: u16 = 0x0700;

/// Returns the high half of a marker.
pub(super) const fn marker(width: PointerWidth) -> u16 {
    match width {
        PointerWidth::Bits32 => MARKER_32,
        PointerWidth::Bits64 => MARKER_64,
    }
}

/// Returns the first word of a record without extended data.
#[inline]
pub(super) const fn header_word(width: PointerWidth, size: usize, hook: u16) -> u64 {
    let marker = marker(width) as u64;
    RECORD_VERSION as u64 | marker << 16 | (size as u64) << 32 | (hook as u64) << 48
}

/// Maximum number of counter values in a record. The record's header stores the number of values in three bits.
pub const MAX_PMC_VALUES: usize = 7;

/// `ETW_MAX_PROFILING_SOURCES`: maximum number of sources whose PMC interrupts can be traced at a time.
pub const MAX_PMC_SOURCES: usize = 4;

/// Data that a record of any event may have: the PEBS index, and the values of counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Extended {
    /// PEBS index of the processor. In Windows, only records of context switches have a PEBS index.
    pub pebs_index: Option<u64>,
    /// Values of counters, in the order of [`CounterNames`](super::CounterNames). If no counters are allocated on the
    /// processor, the values are 0.
    #[cfg_attr(feature = "defmt", defmt(Debug2Format))]
    pub pmc_values: Vec<u64, MAX_PMC_VALUES>,
}

/// The bytes that are left to read.
#[derive(Clone, Debug)]
pub(super) struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'b [u8], TraceError> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(TraceError::TooShort)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TraceError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(TraceError::TooShort)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, TraceError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn i8(&mut self) -> Result<i8, TraceError> {
        self.array().map(i8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, TraceError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, TraceError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, TraceError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn address(&mut self, width: PointerWidth) -> Result<u64, TraceError> {
        match width {
            PointerWidth::Bits32 => self.u32().map(u64::from),
            PointerWidth::Bits64 => self.u64(),
        }
    }

    /// Reads a string and its terminating zero; `None` if no zero is left.
    pub(super) fn utf16(&mut self) -> Option<Utf16<'b>> {
        let length = self.0.chunks_exact(2).position(|unit| unit == [0, 0])?;
        let (string, rest) = self.0.split_at_checked(2 * length)?;
        self.0 = rest.get(2..)?;
        Some(Utf16(string))
    }

    pub(super) fn rest(self) -> &'b [u8] {
        self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The buffer of a writer. Bytes beyond its end are counted but not written.
#[derive(Debug)]
pub(super) struct Writer<'b> {
    bytes: &'b mut [u8],
    length: usize,
}

impl<'b> Writer<'b> {
    pub(super) fn new(bytes: &'b mut [u8]) -> Self {
        Self { bytes, length: 0 }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        let end = self.length.saturating_add(bytes.len());
        if let Some(place) = self.bytes.get_mut(self.length..end) {
            place.copy_from_slice(bytes);
        }
        self.length = end;
    }

    pub(super) fn address(&mut self, width: PointerWidth, address: u64) {
        let bytes = address.to_le_bytes();
        self.put(bytes.get(..width.bytes()).unwrap_or(&bytes));
    }

    /// Writes a string and its terminating zero.
    pub(super) fn utf16(&mut self, units: impl Iterator<Item = u16>) {
        units.chain([0]).for_each(|unit| self.put(&unit.to_le_bytes()));
    }

    /// Returns the number of bytes that a sufficient buffer would hold.
    pub(super) fn length(&self) -> usize {
        self.length
    }
}

/// A string of a trace record in UTF-16, little-endian, without the terminating zero.
///
/// # Examples
/// ```
/// use pmu_kprofile::PointerWidth;
/// use pmu_kprofile::trace::{IntervalHook, Record, SourceInterval, Utf16};
///
/// // The interval of a source as a trace begins, with the source's name: a record of version 3.
/// let mut buffer = [0; 32];
/// let name = Utf16::new("CacheMisses", &mut buffer)?;
/// let hook = IntervalHook::CollectionStart;
/// let event = SourceInterval { hook, source: 10, new: 65_536, old: 65_536, name: Some(name) };
/// let record = Record { version: 3, ..Record::new(PointerWidth::Bits64, 0, event) };
/// let mut bytes = [0; 64];
/// assert_eq!(record.encode(&mut bytes)?, 16 + 12 + 2 * 12);
/// assert_eq!(name.to_string(), "CacheMisses");
/// # Ok::<(), pmu_kprofile::trace::TraceError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Utf16<'b>(&'b [u8]);

impl<'b> Utf16<'b> {
    /// Converts `text` to UTF-16 and stores the result in `buffer`.
    ///
    /// The buffer needs two bytes for each UTF-16 unit of the text, and two bytes for the terminating zero. A zero in
    /// the text ends the string.
    ///
    /// # Errors
    /// [`NoRoom`](TraceError::NoRoom): the buffer is too small.
    pub fn new(text: &str, buffer: &'b mut [u8]) -> Result<Self, TraceError> {
        let mut writer = Writer::new(&mut *buffer);
        writer.utf16(text.encode_utf16().take_while(|unit| *unit != 0));
        let needed = writer.length();
        let bytes = buffer.get(..needed).ok_or(TraceError::NoRoom { needed })?;
        Reader::new(bytes).utf16().ok_or(TraceError::TooShort)
    }

    /// Returns the code units.
    pub(super) fn units(&self) -> impl Iterator<Item = u16> {
        self.0.chunks_exact(2).map(|unit| match unit {
            [low, high] => u16::from_le_bytes([*low, *high]),
            _ => 0,
        })
    }

    /// Returns the characters of the string. Each invalid UTF-16 unit is replaced by U+FFFD.
    pub fn chars(&self) -> impl Iterator<Item = char> {
        char::decode_utf16(self.units()).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
    }
}

impl fmt::Display for Utf16<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.chars().try_for_each(|character| fmt::Write::write_char(f, character))
    }
}
