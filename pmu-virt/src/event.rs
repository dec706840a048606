//! What a counter counts.

use core::fmt;

/// The privilege in which an event happened. SDM: USR is CPL 1–3, OS is CPL 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Privilege {
    /// CPL 1–3.
    User,
    /// CPL 0.
    Kernel,
}

/// What a counter is programmed to count: everything in its control but when it counts.
///
/// Edge, invert and counter mask make another quantity of the same event, which cannot be derived
/// from totals; so they are part of the key, and a guest that uses them counts nothing unless the
/// embedder feeds just that key. Invert without a counter mask is ignored by both vendors: that key is
/// the plain event's.
///
/// Bits: 7:0 and 19:16 event, 15:8 unit mask, 20 edge, 21 AnyThread, 22 fixed counter, 23 invert, 31:24
/// counter mask. Those from 21 on, but 22, are where an event select has them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventKey(u32);

impl EventKey {
    const EDGE: u32 = 1 << 20;
    const ANY_THREAD: u32 = 1 << 21;
    const FIXED: u32 = 1 << 22;
    const INVERT: u32 = 1 << 23;
    const COUNTER_MASK: u32 = 0xFF << 24;
    /// No counter's key.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// An event of a general counter: 8 bits of event on Intel, 12 bits on AMD (the rest of `event`
    /// is not looked at).
    pub const fn general(event: u16, unit_mask: u8) -> Self {
        let (low, high) = (event as u32 & 0xFF, (event as u32 >> 8) & 0xF);
        Self(low | (unit_mask as u32) << 8 | high << 16)
    }

    /// What the fixed counter with this number, 0–7, counts. Which event that is says the SDM,
    /// vol. 3B, "Fixed-function Performance Counters"; a general counter for the same event has a
    /// key of its own, and an embedder that feeds one is expected to feed the other: fixed counter 0
    /// counts retired instructions, as event 0xC0 with unit mask 0 does.
    pub const fn fixed(counter: u8) -> Self {
        Self(Self::FIXED | (counter & 7) as u32)
    }

    /// The number of times that the event begins.
    pub const fn edge(self) -> Self {
        Self(self.0 | Self::EDGE)
    }

    /// The event on all threads of the core.
    pub const fn any_thread(self) -> Self {
        Self(self.0 | Self::ANY_THREAD)
    }

    /// The cycles with at least `threshold` of the event in them, or with fewer if `invert`. A
    /// threshold of 0 is none: the plain event, whatever `invert` is.
    pub const fn counter_mask(self, threshold: u8, invert: bool) -> Self {
        let invert = if invert { Self::INVERT } else { 0 };
        let plain = self.0 & !(Self::COUNTER_MASK | Self::INVERT);
        Self(plain | (threshold as u32) << 24 | invert).normal()
    }

    /// SDM vol. 3B, figure "Layout of IA32_PERFEVTSELx MSRs", INV; APM vol. 2, "Core Performance
    /// Event-Select", table of CntMask and Inv.
    #[inline]
    const fn normal(self) -> Self {
        if self.0 & Self::COUNTER_MASK == 0 { Self(self.0 & !Self::INVERT) } else { self }
    }

    /// What a counter with this event select counts. Both vendors agree on these bits, but for 35:32,
    /// of which Intel has none.
    #[inline]
    pub const fn of_select(select: u64) -> Self {
        let select_high = (select >> 32) as u32 & 0xF;
        let select = select as u32;
        Self(select & 0xFFA0_FFFF | select_high << 16 | (select >> 18 & 1) << 20).normal()
    }

    /// The event's number; 0 for a fixed counter.
    pub const fn event(self) -> u16 {
        if self.0 & Self::FIXED != 0 { 0 } else { (self.0 & 0xFF | self.0 >> 8 & 0xF00) as u16 }
    }

    /// The unit mask.
    pub const fn unit_mask(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// The number of the fixed counter whose event this is.
    pub const fn fixed_counter(self) -> Option<u8> {
        if self.0 & Self::FIXED != 0 { Some(self.0 as u8 & 7) } else { None }
    }
}

impl fmt::Debug for EventKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fixed_counter() {
            Some(counter) => write!(f, "fixed counter {counter}")?,
            None => write!(f, "event {:#05X}/{:#04X}", self.event(), self.unit_mask())?,
        }
        for (bit, name) in
            [(Self::EDGE, " edge"), (Self::ANY_THREAD, " any thread"), (Self::INVERT, " inverted")]
        {
            if self.0 & bit != 0 {
                f.write_str(name)?;
            }
        }
        match self.0 >> 24 {
            0 => Ok(()),
            threshold => write!(f, " threshold {threshold}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_holds_all_that_a_select_says_of_the_event() {
        // Expected values: SDM vol. 3B, figure "Layout of IA32_PERFEVTSELx MSRs".
        assert_eq!(EventKey::of_select(0x53_003C), EventKey::general(0x3C, 0));
        assert_eq!(EventKey::of_select(0xF_0053_FFD0), EventKey::general(0xFD0, 0xFF));
        assert_eq!(EventKey::of_select(0x57_01C0), EventKey::general(0xC0, 1).edge());
        assert_eq!(EventKey::of_select(0x73_01C0), EventKey::general(0xC0, 1).any_thread());
        assert_eq!(
            EventKey::of_select(0x05D3_01C0),
            EventKey::general(0xC0, 1).counter_mask(5, true)
        );
    }

    #[test]
    fn when_a_counter_counts_is_not_part_of_the_key() {
        for bit in [16, 17, 19, 20, 22] {
            assert_eq!(EventKey::of_select(0x3C | 1 << bit), EventKey::general(0x3C, 0));
        }
    }
}
