//! The record that names the counters of a trace.

use pmu_core::windows::PointerWidth;

use crate::trace::bytes::{Reader, Utf16, Writer};
use crate::trace::error::TraceError;

/// Hook id of a record with counter names: `PERFINFO_LOG_TYPE_PMC_CONFIG`.
pub const PMC_CONFIG_HOOK: u16 = 0x0F30;

/// The names of the counters whose [values](crate::trace::Extended::pmc_values) are in the records of a trace. The
/// names are in the same order as the values.
///
/// ```
/// use pmu_kprofile::PointerWidth;
/// use pmu_kprofile::trace::{CounterNames, Record, TraceError};
/// let mut buffer = [0; 64];
/// let names = CounterNames::new(&["TotalCycles", "CacheMisses"], &mut buffer)?;
/// let record = Record::new(PointerWidth::Bits64, 0, names);
/// let mut file = [0; 80];
/// assert_eq!(record.encode(&mut file)?, 16 + 4 + 2 * 24);
/// # Ok::<(), TraceError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterNames<'b> {
    count: u32,
    /// The strings, each with its terminating zero.
    names: &'b [u8],
}

impl<'b> CounterNames<'b> {
    /// Converts the names of counters to UTF-16 in `buffer`.
    ///
    /// The buffer needs two bytes for each UTF-16 unit of the names, and two bytes for the terminating zero of each
    /// name. A zero in a name ends the name.
    ///
    /// # Errors
    /// [`NoRoom`](TraceError::NoRoom): the buffer is too small.
    pub fn new(names: &[&str], buffer: &'b mut [u8]) -> Result<Self, TraceError> {
        let mut writer = Writer::new(&mut *buffer);
        for name in names {
            writer.utf16(name.encode_utf16().take_while(|unit| *unit != 0));
        }
        let length = writer.length();
        let names_in_utf16 = buffer.get(..length).ok_or(TraceError::NoRoom { needed: length })?;
        Ok(Self { count: names.len() as u32, names: names_in_utf16 })
    }

    /// Returns the names of the counters.
    pub fn names(&self) -> impl Iterator<Item = Utf16<'b>> + use<'b> {
        let mut reader = Reader::new(self.names);
        core::iter::from_fn(move || reader.utf16())
    }

    pub(super) fn hook(&self) -> u16 {
        PMC_CONFIG_HOOK
    }

    pub(super) fn encode(&self, _: PointerWidth, to: &mut Writer<'_>) {
        to.put(&self.count.to_le_bytes());
        to.put(self.names);
    }

    pub(super) fn decode(
        _: u16,
        _: PointerWidth,
        from: &mut Reader<'b>,
    ) -> Result<Self, TraceError> {
        let count = from.u32()?;
        let mut behind = from.clone();
        for _ in 0..count {
            behind.utf16().ok_or(TraceError::TooShort)?;
        }
        Ok(Self { count, names: from.bytes(from.len() - behind.len())? })
    }
}
