//! An event's record in a table.

/// Precise sampling of an event by Intel's PEBS: impossible, possible or required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Precise {
    /// The event cannot be sampled precisely.
    No,
    /// The event can be sampled precisely.
    Possible,
    /// The event must be sampled precisely. Without precise sampling, the count of the event has no meaning.
    Only,
}

/// The properties that many events share.
#[derive(Debug)]
pub(crate) struct Shape {
    /// Bits 63:16 of the select.
    pub(crate) select: u64,
    /// A [`CounterSet`](pmu_core::CounterSet)'s bits.
    pub(crate) counters: u64,
    /// Bits 15:0 in which the select of each further encoding differs from the first one's.
    pub(crate) others: &'static [u16],
    /// The MSR of each encoding, if any.
    pub(crate) registers: &'static [u16],
    pub(crate) precise: Precise,
    /// Set if the record refers to [`ERRATA`](crate::tables::ERRATA).
    pub(crate) has_erratum: bool,
    pub(crate) needs_pair: bool,
}

/// An event of a table, in its encoded form:
///
/// | bytes | |
/// |---|---|
/// | 1 | place of its shape |
/// | 2 | event, unit mask |
/// | 1 | where the shape has errata: their place |
/// | 1, n | where the shape has registers: the number of bytes of the MSR's value, and those |
/// | 1, n | the number of bytes of its name's tokens, and those |
#[derive(Clone, Copy)]
pub(crate) struct Record {
    pub(crate) select: u64,
    pub(crate) shape: &'static Shape,
    /// Value of the MSR, without leading zeros.
    pub(crate) value: &'static [u8],
    /// Index in [`ERRATA`](crate::tables::ERRATA).
    pub(crate) erratum: Option<u8>,
    pub(crate) name: &'static [u8],
}

impl Record {
    /// Reads the record at the beginning of `bytes`, and returns it with the rest.
    #[inline]
    pub(crate) fn read(
        bytes: &'static [u8],
        shapes: &'static [Shape],
    ) -> Option<(Self, &'static [u8])> {
        let ([shape, event, unit_mask], mut rest) = bytes.split_first_chunk()?;
        let shape = shapes.get(usize::from(*shape))?;
        let mut erratum = None;
        if shape.has_erratum {
            let (place, behind) = rest.split_first()?;
            (erratum, rest) = (Some(*place), behind);
        }
        let mut value: &[u8] = &[];
        if !shape.registers.is_empty() {
            let (len, behind) = rest.split_first()?;
            let (bytes, behind) = behind.split_at_checked(usize::from(*len))?;
            (value, rest) = (bytes, behind);
        }
        let (len, behind) = rest.split_first()?;
        let (name, behind) = behind.split_at_checked(usize::from(*len))?;
        let select = shape.select | u64::from(*unit_mask) << 8 | u64::from(*event);
        Some((Self { select, shape, value, erratum, name }, behind))
    }
}
