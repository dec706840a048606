//! A request for precise samples, packed for the table of events.

use core::fmt;
use core::ops::BitOr;

/// The allowed skid: the distance of the sampled instruction from the instruction that caused the overflow. Each
/// variant has the number of the same level in perf's `precise_ip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Precision {
    /// Level 1: constant skid. A record may have only the address of the next instruction.
    ConstantSkid = 1,
    /// Level 2: zero skid is requested. A record has the address of an instruction that caused the event. This
    /// instruction may come after the instruction that made the counter overflow.
    ZeroSkidRequested = 2,
    /// Level 3: zero skid is required. A record describes exactly the instruction that made the counter overflow (PDIR,
    /// PDIST).
    ZeroSkidRequired = 3,
}

impl Precision {
    /// Returns the precision for a level of perf's `precise_ip`. Returns `None` for level 0 and for levels above 3.
    ///
    /// ```
    /// use pmu_core::precise::Precision;
    /// assert_eq!(Precision::of_level(2), Some(Precision::ZeroSkidRequested)); // `cycles:pp`
    /// assert_eq!(Precision::of_level(0), None); // an event without records
    /// ```
    pub const fn of_level(level: u8) -> Option<Self> {
        match level {
            1 => Some(Self::ConstantSkid),
            2 => Some(Self::ZeroSkidRequested),
            3 => Some(Self::ZeroSkidRequired),
            _ => None,
        }
    }
}

/// Parts that each sample of a [precise](crate::Event::precise) event has in addition to the instruction's address and
/// the time: groups of data in the processor's record. In PEBS formats 0 to 3, all records have the same groups.
///
/// ```
/// use pmu_core::precise::SampleParts;
/// let parts = SampleParts::ACCESS | SampleParts::branches(16);
/// assert!(parts.contains(SampleParts::ACCESS) && !parts.contains(SampleParts::REGISTERS));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SampleParts(u16);

impl SampleParts {
    /// No additional part.
    pub const NONE: Self = Self(0);
    /// The instruction's access to memory.
    pub const ACCESS: Self = Self(1 << 0);
    /// The general registers.
    pub const REGISTERS: Self = Self(1 << 1);
    /// The registers XMM0 to XMM15.
    pub const VECTORS: Self = Self(1 << 2);
    /// The values of all counters.
    pub const COUNTERS: Self = Self(1 << 3);
    /// The top-down metrics.
    pub const METRICS: Self = Self(1 << 4);

    const COUNT: u32 = 5;
    const KINDS: u16 = (1 << Self::COUNT) - 1;
    /// Number of bits of a set of parts.
    pub(crate) const BITS: u32 = Self::COUNT + 6;

    /// Returns the part of the last `count` branches, at most 32. If `count` is 0, returns [`NONE`](Self::NONE).
    /// Architectural PEBS copies 8, 16 or all branch records, so a record can have more than `count` branches.
    ///
    /// The processor copies its branch records as they are. This part does not make the processor record branches:
    /// while nothing records, a precise record has no branches of its sample. A
    /// [`BranchRecorder`](crate::branch_recording::BranchRecorder) or a running event [with
    /// branches](crate::Event::with_branches) makes the processor record, by its own filter. If the precise event
    /// itself has branches, the processor interrupts for each record.
    ///
    /// `Pebs::record` of `pmu-intel` returns the copied branches. [`Sample::branches`](crate::Sample::branches) does
    /// not.
    ///
    /// ```
    /// use pmu_core::precise::SampleParts;
    /// assert_eq!(SampleParts::branches(16).branch_count(), 16);
    /// assert_eq!(SampleParts::branches(100).branch_count(), 32);
    /// assert_eq!(SampleParts::branches(0), SampleParts::NONE);
    /// ```
    pub const fn branches(count: u8) -> Self {
        let count = if count > 32 { 32 } else { count };
        Self((count as u16) << Self::COUNT)
    }

    /// Returns the number of last branches that these parts request for each record, or 0 if they request no branches.
    pub const fn branch_count(self) -> u8 {
        (self.0 >> Self::COUNT) as u8
    }

    /// Returns whether `self` has all parts in `parts`, and requests at least as many branches as `parts`.
    ///
    /// ```
    /// use pmu_core::precise::SampleParts;
    /// let parts = SampleParts::REGISTERS | SampleParts::branches(8);
    /// assert!(parts.contains(SampleParts::branches(4)) && !parts.contains(SampleParts::branches(16)));
    /// ```
    pub const fn contains(self, parts: Self) -> bool {
        self.kinds() & parts.kinds() == parts.kinds() && self.branch_count() >= parts.branch_count()
    }

    /// Returns whether this set has no parts.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the parts in either set, with the greater number of branches.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        let (own, others) = (self.branch_count(), other.branch_count());
        let branches = Self::branches(if own > others { own } else { others });
        Self(self.kinds() | other.kinds() | branches.0)
    }

    /// Returns the parts that `others` does not have.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        let has_all = others.branch_count() >= self.branch_count();
        let branches = if has_all { 0 } else { self.0 & !Self::KINDS };
        Self(self.kinds() & !others.kinds() | branches)
    }

    const fn kinds(self) -> u16 {
        self.0 & Self::KINDS
    }

    /// Returns the set as the low 11 bits of a number, for [`from_bits`](Self::from_bits).
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the set whose [`bits`](Self::bits) these are. Other bits are ignored.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }
}

impl BitOr for SampleParts {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

impl fmt::Debug for SampleParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::ACCESS, "access"),
            (Self::REGISTERS, "registers"),
            (Self::VECTORS, "vectors"),
            (Self::COUNTERS, "counters"),
            (Self::METRICS, "metrics"),
        ];
        let mut set = f.debug_set();
        for (_, name) in names.iter().filter(|(part, _)| self.contains(*part)) {
            set.entry(&format_args!("{name}"));
        }
        if self.branch_count() != 0 {
            set.entry(&format_args!("{} branches", self.branch_count()));
        }
        set.finish()
    }
}

/// The precision, the parts, and whether the event has a threshold of latency: the upper 14 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedPrecise(u16);

impl PackedPrecise {
    pub(crate) const NONE: Self = Self(0);

    /// Number of the low bits, which are left to others.
    pub(crate) const FREE: u32 = 2;
    const PRECISION: u32 = Self::FREE + SampleParts::BITS;
    const LATENCY: u16 = 1 << (Self::PRECISION + 2);

    pub(crate) const fn with_precision(self, precision: Precision) -> Self {
        Self(self.0 & !(0b11 << Self::PRECISION) | (precision as u16) << Self::PRECISION)
    }

    pub(crate) const fn with_parts(self, parts: SampleParts) -> Self {
        let others = self.0 & !(SampleParts::from_bits(u16::MAX).bits() << Self::FREE);
        Self(others | self.parts().and(parts).bits() << Self::FREE)
    }

    pub(crate) const fn with_latency(self) -> Self {
        Self(self.0 | Self::LATENCY)
    }

    pub(crate) const fn precision(self) -> Option<Precision> {
        Precision::of_level((self.0 >> Self::PRECISION & 0b11) as u8)
    }

    pub(crate) const fn parts(self) -> SampleParts {
        SampleParts::from_bits(self.0 >> Self::FREE)
    }

    pub(crate) const fn has_latency(self) -> bool {
        self.0 & Self::LATENCY != 0
    }

    #[inline]
    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the request in these bits, whose low ones are others'.
    pub(crate) const fn of_bits(bits: u16) -> Self {
        Self(bits & !((1 << Self::FREE) - 1))
    }
}

impl fmt::Debug for PackedPrecise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.precision(), self.parts(), self.has_latency()).fmt(f)
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for PackedPrecise {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{} {} {}", self.precision(), self.parts(), self.has_latency());
    }
}

/// Reason why a processor cannot sample an event as [precisely](crate::Event::precise) as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NotPrecise {
    /// The session's event source has no facility that samples precisely, or the processor has none. The
    /// vendor's crate and `Pmu` say why.
    #[error("the source of the events has no precise records, or the processor has none")]
    NoFacility,
    /// The event has no [period](crate::Event::every), so it has no samples.
    #[error("precise samples need a period")]
    NoPeriod,
    /// The processor cannot write records of the event.
    #[error("the processor writes no records of this event")]
    Event,
    /// The requested precision needs the address of the sampled instruction. Records of this processor have only the
    /// address of the next instruction.
    #[error("records have only the address of the next instruction")]
    NextAddressOnly,
    /// Zero skid is [required](crate::precise::Precision::ZeroSkidRequired), but no counter that can count this event
    /// supports zero skid.
    #[error("no counter records the very instruction that overflows")]
    NoExactCounter,
    /// Samples of this processor cannot have these parts, or the event is not [precise](crate::Event::precise).
    #[error("samples cannot have {0:?}")]
    Parts(SampleParts),
    /// A [latency](crate::Event::latency_at_least) was requested for an event that is not the processor's load-latency
    /// event. Some processors have no load-latency event.
    #[error("the processor samples only its event of load latencies by latency")]
    NotLatencyEvent,
    /// The event is the processor's load-latency event, but no [latency](crate::Event::latency_at_least) was requested.
    #[error("the event of load latencies needs a latency")]
    NoLatency,
    /// The processor counts the event only beside the event with this number and unit mask (bits 15:0 of a select),
    /// which comes before it in the same group.
    #[error("the event {0:#x} is to come before it in its group")]
    NeedsBeside(u16),
    /// The processor lacks a filter of the sampled fetches or ops, or its latency is none that the processor has. The
    /// check of the vendor's crate says which.
    #[error("the processor lacks a filter of the samples")]
    Filter,
    /// Firmware assigned no interrupt to the sampling units, or the platform could not unmask its entry of the local
    /// vector table.
    #[error("the sampling units have no interrupt")]
    NoInterrupt,
    /// The event counts in guests only, or the processor cannot write records of an event with this [extra
    /// register](crate::Event::with_extra) and value.
    #[error("an event of guests only, or with this extra register, cannot be sampled precisely")]
    Unsupported,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_there_again() {
        let parts = SampleParts::ACCESS.and(SampleParts::METRICS).and(SampleParts::branches(32));
        for level in 1..=3 {
            let precision = Precision::of_level(level).unwrap();
            let packed = PackedPrecise::NONE.with_parts(parts).with_precision(precision);
            assert_eq!((packed.precision(), packed.parts()), (Some(precision), parts));
            assert!(!packed.has_latency() && packed.with_latency().has_latency());
            assert_eq!(packed.with_latency().parts(), parts);
            assert_eq!(packed.with_latency().bits() & 0b11, 0);
            assert_eq!(PackedPrecise::of_bits(packed.bits() | 0b11), packed);
        }
        assert!(PackedPrecise::NONE.is_none());
        assert_eq!(PackedPrecise::NONE.precision(), None);
    }
}
