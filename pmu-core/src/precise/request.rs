//! A request for precise samples, packed for the table of events.

use core::fmt;

use crate::precise::parts::SampleParts;
use crate::precise::precision::Precision;

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
