//! The interval records: which interval a source has, so that a reader can weigh samples.

use pmu_core::{KProfileSource, PointerWidth};

use super::record::{FLAG_PEBS_INDEX, MARKER_32, MARKER_64, RecordError, VERSION};

/// Why an interval is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum IntervalHook {
    /// It was set: `PERFINFO_LOG_TYPE_SET_INTERVAL`.
    Set,
    /// The trace begins: `PERFINFO_LOG_TYPE_COLLECTION_START`.
    CollectionStart,
    /// The trace ends: `PERFINFO_LOG_TYPE_COLLECTION_END`.
    CollectionEnd,
}

impl IntervalHook {
    const ALL: [Self; 3] = [Self::Set, Self::CollectionStart, Self::CollectionEnd];

    /// Returns the hook id.
    pub const fn id(self) -> u16 {
        match self {
            Self::Set => 0x0F48,
            Self::CollectionStart => 0x0F49,
            Self::CollectionEnd => 0x0F4A,
        }
    }
}

/// The interval of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct IntervalRecord {
    /// Why it is recorded.
    pub hook: IntervalHook,
    /// When, in the trace's units.
    pub timestamp: u64,
    /// The source.
    pub source: KProfileSource,
    /// The interval from then on, in the source's unit.
    pub new: u32,
    /// The interval until then; 0: tracing was off.
    pub old: u32,
}

impl IntervalRecord {
    /// The size of a record: header and payload.
    pub const SIZE: usize = 0x10 + 12;

    /// Writes the record. Any context.
    pub fn encode(&self, width: PointerWidth) -> [u8; Self::SIZE] {
        let marker = match width {
            PointerWidth::Bits32 => MARKER_32,
            PointerWidth::Bits64 => MARKER_64,
        };
        let stamp = self.timestamp;
        let words = [
            marker | VERSION,
            Self::SIZE as u32 | u32::from(self.hook.id()) << 16,
            stamp as u32,
            (stamp >> 32) as u32,
            self.source.value(),
            self.new,
            self.old,
        ];
        let mut bytes = [0; Self::SIZE];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads the record at the beginning of `bytes`: the width of the traced kernel's pointers, the record, and how
    /// long it is. What follows the twelve bytes, as the source's name in later versions, is skipped.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn decode(bytes: &[u8]) -> Result<(PointerWidth, Self, usize), RecordError> {
        let word = |at: usize| {
            let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
            bytes.copied().map(u32::from_le_bytes).ok_or(RecordError::TooShort)
        };
        let (marker, second) = (word(0)?, word(4)?);
        let width = match marker & 0xFFFF_0000 {
            MARKER_32 => PointerWidth::Bits32,
            MARKER_64 => PointerWidth::Bits64,
            _ => return Err(RecordError::Marker(marker)),
        };
        let (size, id) = (second as u16, (second >> 16) as u16);
        let hook = IntervalHook::ALL.into_iter().find(|hook| hook.id() == id);
        let hook = hook.ok_or(RecordError::Hook(id))?;
        let index = if marker & FLAG_PEBS_INDEX != 0 { 8 } else { 0 };
        let at = 0x10 + index + 8 * (marker >> 8 & 7) as usize;
        if usize::from(size) < at + 12 || bytes.len() < size.into() {
            return Err(RecordError::TooShort);
        }
        let value = word(at)?;
        let record = Self {
            hook,
            timestamp: u64::from(word(8)?) | u64::from(word(12)?) << 32,
            source: KProfileSource::new(value).ok_or(RecordError::Source(value))?,
            new: word(at + 4)?,
            old: word(at + 8)?,
        };
        Ok((width, record, size.into()))
    }
}
