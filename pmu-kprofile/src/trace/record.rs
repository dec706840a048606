//! Trace records: a header, extended data, and an event.

use pmu_core::windows::PointerWidth;

use crate::trace::bytes::{Reader, Writer};
use crate::trace::error::TraceError;
use crate::trace::event::table::Event;
use crate::trace::extended::{Extended, MAX_PMC_VALUES};
use crate::trace::header::{
    MARKER_32, MARKER_64, PEBS_INDEX_FLAG, PMC_COUNT_MASK, RECORD_VERSION, marker,
};

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
