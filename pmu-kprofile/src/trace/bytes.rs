//! Readers and writers of consecutive little-endian members.

use core::fmt;

use pmu_core::windows::PointerWidth;

use crate::trace::error::TraceError;

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
