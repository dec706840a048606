//! The events that counters count.

use core::fmt;

use crate::configuration::{SELECT_GUEST_ONLY, SELECT_HOST_ONLY, Vendor, features};

/// Privilege at which an event happened: CPL 0 or CPL 1–3. The SDM calls CPL 0 OS, and CPL 1–3 USR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Privilege {
    /// CPL 1–3.
    User,
    /// CPL 0.
    Kernel,
}

/// Identifies an event that a counter can count. A key has the fields of an event select, except USR, OS, EN, INT, the
/// pin control and RDPMC user disable.
///
/// Edge, invert, counter mask and EQ are part of the key, because they change what a counter counts. With edge, for
/// instance, a counter counts how many times the event begins. This count cannot be computed from the count without
/// edge, so the embedder feeds the two counts separately. If the counter mask is 0 and EQ is clear, the processors of
/// both vendors ignore invert. The key then ignores invert as well. Unit mask 2 is part of the key, because a different
/// unit mask 2 selects a different event.
///
/// The key also has the bits `IN_TX` and `IN_TXCP` on Intel, and `GuestOnly` and `HostOnly` on AMD. The selects of the
/// two vendors use the same bits for different fields. So all keys of a [`FedEvents`](crate::FedEvents) must be for
/// processors of the same vendor.
///
/// ```
/// use pmu_virt::EventKey;
/// const RETIRED: EventKey = EventKey::general(0xC2, 0x02);
/// // Cycles in which exactly four of these events happened, of Intel's version 6.
/// const FOUR: EventKey = RETIRED.equal(4, false);
/// assert_ne!(FOUR, RETIRED.counter_mask(4, false));
/// assert_eq!((FOUR.event(), FOUR.unit_mask(), FOUR.unit_mask_2()), (0xC2, 0x02, 0));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventKey(
    /// The bits of an event select, except that the qualifiers are where a select has USR, OS and PC. Bit 22, EN
    /// there, marks a fixed counter.
    u64,
);

/// A key as a PMU looks for it: the bits of an event select, with the qualifiers where the vendor's selects have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct SelectKey(u64);

impl SelectKey {
    /// A key of no counter, the greatest.
    pub(crate) const NONE: Self = Self(u64::MAX);

    /// Returns the key of an event select.
    #[inline]
    pub(crate) const fn of(select: u64) -> Self {
        Self(EventKey(select & EventKey::OF_SELECT).normal().0)
    }

    /// Returns the event of a key without qualifiers.
    #[inline]
    pub(crate) const fn unqualified(self) -> EventKey {
        EventKey(self.0)
    }

    /// Continues FNV-1a over the key's bytes.
    pub(crate) const fn hash_into(self, mut hash: u32) -> u32 {
        let mut shift = 0;
        while shift < 64 {
            hash = (hash ^ (self.0 >> shift) as u32 & 0xFF).wrapping_mul(0x0100_0193);
            shift += 8;
        }
        hash
    }
}

// Intel's bits keep their places in a key, where they must not be read as AMD's, or as another field.
const _: () = assert!(EventKey::OF_INTEL & (EventKey::EVENT_HIGH | EventKey::OF_BOTH) == 0);

impl EventKey {
    /// Event and unit mask.
    const EVENT: u64 = 0xFFFF;
    /// AMD's high half of the event. APM vol. 2, figure "Core Performance Event-Select Register", EventSelect[11:8].
    const EVENT_HIGH: u64 = 0xF << 32;
    const IN_TX: u64 = 1 << 16;
    const IN_TX_CHECKPOINTED: u64 = 1 << 17;
    const EDGE: u64 = 1 << 18;
    const GUEST_ONLY: u64 = 1 << 19;
    const HOST_ONLY: u64 = 1 << 20;
    const ANY_THREAD: u64 = features::SELECT_ANY_THREAD;
    const FIXED: u64 = 1 << 22;
    const INVERT: u64 = 1 << 23;
    const COUNTER_MASK: u64 = 0xFF << 24;
    const EQUAL: u64 = features::SELECT_EQ;
    const UNIT_MASK_2: u64 = features::SELECT_UNIT_MASK_2;
    const COMPARISON: u64 = Self::COUNTER_MASK | Self::EQUAL;
    /// The bits of both vendors' selects that a key has.
    const OF_BOTH: u64 = Self::EVENT | Self::EDGE | Self::INVERT | Self::COUNTER_MASK;
    /// The bits of Intel's selects that a key has in the same place.
    const OF_INTEL: u64 = features::OF_KEY & !features::QUALIFIERS;
    /// Places of the qualifiers in a select of their vendor, and in a key.
    const IN_TX_AT: (u32, u32) =
        (features::SELECT_IN_TX.trailing_zeros(), Self::IN_TX.trailing_zeros());
    const GUEST_ONLY_AT: (u32, u32) =
        (SELECT_GUEST_ONLY.trailing_zeros(), Self::GUEST_ONLY.trailing_zeros());
    /// The bits of an event select that a key has, for a PMU of either vendor.
    const OF_SELECT: u64 =
        Self::OF_BOTH | Self::EVENT_HIGH | features::OF_KEY | SELECT_GUEST_ONLY | SELECT_HOST_ONLY;

    /// Returns the key of an event that a general counter counts. `event` has 8 bits on Intel, and 12 bits on AMD.
    /// Higher bits are ignored.
    pub const fn general(event: u16, unit_mask: u8) -> Self {
        let (low, high) = (event as u64 & 0xFF, event as u64 >> 8 & 0xF);
        Self(low | (unit_mask as u64) << 8 | high << 32)
    }

    /// Returns the key of the event that the fixed counter with this number counts. Returns `None` if the number is 8
    /// or above.
    ///
    /// General counters can also count the events of three fixed counters:
    ///
    /// - fixed counter 0: retired instructions, event 0xC0 with unit mask 0;
    /// - fixed counter 1: core cycles, event 0x3C with unit mask 0;
    /// - fixed counter 3: top-down slots, event 0xA4 with unit mask 1.
    ///
    /// For each of these events, [`general`](Self::general) and `fixed` return equal keys. A count that the embedder
    /// feeds with this key advances the fixed counter, and each general counter that counts the event. SDM vol. 3B,
    /// "Fixed-function Performance Counters".
    ///
    /// ```
    /// use pmu_virt::EventKey;
    /// assert_eq!(EventKey::fixed(0), Some(EventKey::general(0xC0, 0)));
    /// assert_eq!(EventKey::fixed(2).and_then(EventKey::fixed_counter), Some(2));
    /// assert_eq!(EventKey::fixed(8), None);
    /// ```
    pub const fn fixed(counter: u8) -> Option<Self> {
        if counter < 8 { Some(Self::of_fixed(counter as usize)) } else { None }
    }

    #[inline]
    pub(crate) const fn of_fixed(counter: usize) -> Self {
        match counter {
            // The events that general counters count, too, have one key for both kinds of counters.
            0 => Self::general(0xC0, 0x00),
            1 => Self::general(0x3C, 0x00),
            3 => Self::general(0xA4, 0x01),
            _ => Self(Self::FIXED | (counter as u64) & 7),
        }
    }

    /// Returns the key with this unit mask 2, bits 47:40 of an Intel event select in version 6. If the argument is 0,
    /// the returned key has no unit mask 2.
    ///
    /// ```
    /// use pmu_virt::EventKey;
    /// use pmu_virt::configuration::Vendor;
    /// let key = EventKey::general(0xD1, 0x01).with_unit_mask_2(0x20);
    /// assert_eq!(key, EventKey::of_select(Vendor::Intel, 0x2000_0053_01D1));
    /// assert_eq!(key.unit_mask_2(), 0x20);
    /// ```
    pub const fn with_unit_mask_2(self, unit_mask_2: u8) -> Self {
        Self(self.0 & !Self::UNIT_MASK_2 | (unit_mask_2 as u64) << 40)
    }

    /// Returns the key with edge detect, bit 18 of a select: a counter with this key counts how often the event begins.
    ///
    /// ```
    /// use pmu_virt::EventKey;
    /// use pmu_virt::configuration::Vendor;
    /// // Stalls that begin, where the plain key is of cycles of stalls (CYCLE_ACTIVITY.STALLS_TOTAL).
    /// let stalls = EventKey::general(0xA3, 0x04).counter_mask(4, false).edge();
    /// assert_eq!(stalls, EventKey::of_select(Vendor::Intel, 0x0457_04A3));
    /// ```
    pub const fn edge(self) -> Self {
        Self(self.0 | Self::EDGE)
    }

    /// Returns the key with AnyThread, bit 21 of Intel's selects: a counter with this key counts the event on all
    /// threads of the core. A guest can select this event only if the guest's configuration has
    /// [`IntelFeature::AnyThread`](crate::configuration::IntelFeature::AnyThread).
    ///
    /// ```
    /// use pmu_virt::EventKey;
    /// use pmu_virt::configuration::Vendor;
    /// let of_core = EventKey::general(0x3C, 0).any_thread();
    /// assert_eq!(of_core, EventKey::of_select(Vendor::Intel, 0x73_003C));
    /// ```
    pub const fn any_thread(self) -> Self {
        Self(self.0 | Self::ANY_THREAD)
    }

    /// Returns the key with `IN_TX`, bit 32 of Intel's selects: a counter with this key counts the event only within
    /// transactions. A guest can select this event only if the guest's configuration has
    /// [`IntelFeature::Transactional`](crate::configuration::IntelFeature::Transactional).
    ///
    /// ```
    /// use pmu_virt::EventKey;
    /// use pmu_virt::configuration::Vendor;
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// assert_eq!(CYCLES.in_tx(), EventKey::of_select(Vendor::Intel, 0x1_0053_003C));
    /// ```
    pub const fn in_tx(self) -> Self {
        Self(self.0 | Self::IN_TX)
    }

    /// Returns the key with `IN_TXCP`: a counter with this key does not count the event in aborted transactions. On
    /// Intel, only the select of counter 2 has `IN_TXCP`, in bit 33. A guest can select this event only if the guest's
    /// configuration has [`IntelFeature::Transactional`](crate::configuration::IntelFeature::Transactional).
    ///
    /// ```
    /// use pmu_virt::EventKey;
    /// use pmu_virt::configuration::Vendor;
    /// // Linux' cycles-t and cycles-ct, whose difference is the cycles of aborted transactions.
    /// const CYCLES: EventKey = EventKey::general(0x3C, 0);
    /// assert_eq!(CYCLES.in_tx().in_tx_checkpointed(), EventKey::of_select(Vendor::Intel, 0x3_0053_003C));
    /// ```
    pub const fn in_tx_checkpointed(self) -> Self {
        Self(self.0 | Self::IN_TX_CHECKPOINTED)
    }

    /// Returns the key with `GuestOnly`, bit 40 of AMD's selects: a counter with this key counts the event only while a
    /// nested guest runs. A nested guest is a guest of the virtual processor. A guest can select this event only if the
    /// guest's configuration has [`guest_host`](crate::configuration::AmdConfiguration::guest_host).
    ///
    /// ```
    /// use pmu_virt::EventKey;
    /// use pmu_virt::configuration::Vendor;
    /// const CYCLES: EventKey = EventKey::general(0x76, 0);
    /// assert_eq!(CYCLES.guest_only(), EventKey::of_select(Vendor::Amd, 0x100_0053_0076));
    /// assert_eq!(format!("{:?}", CYCLES.host_only()), "event 0x076/0x00 host only");
    /// ```
    pub const fn guest_only(self) -> Self {
        Self(self.0 | Self::GUEST_ONLY)
    }

    /// Returns the key with `HostOnly`, bit 41 of AMD's selects: a counter with this key counts the event only while no
    /// nested guest runs. For a select with both bits, use `key.guest_only().host_only()`.
    pub const fn host_only(self) -> Self {
        Self(self.0 | Self::HOST_ONLY)
    }

    /// Returns the key with the counter mask `threshold`: a counter with this key counts the cycles in which the event
    /// happened at least `threshold` times. If `invert` is set, the counter counts the cycles with fewer than
    /// `threshold` events. If `threshold` is 0, the returned key has no counter mask, and the call ignores `invert`.
    ///
    /// ```
    /// use pmu_virt::EventKey;
    /// use pmu_virt::configuration::Vendor;
    /// const RETIRED: EventKey = EventKey::general(0xC2, 0x02);
    /// // Cycles in which nothing retired: a counter mask of 1, inverted.
    /// let stalled = RETIRED.counter_mask(1, true);
    /// assert_eq!(stalled, EventKey::of_select(Vendor::Intel, 0x01D3_02C2));
    /// assert_eq!(RETIRED.counter_mask(0, true), RETIRED);
    /// ```
    pub const fn counter_mask(self, threshold: u8, invert: bool) -> Self {
        self.compared(threshold, invert, 0)
    }

    /// Returns the key with the counter mask `count` and the EQ flag. Event selects have this flag from version 6 of
    /// Intel's architectural performance monitoring on. A counter with this key counts the cycles in which the event
    /// happened exactly `count` times. If `invert` is set, the counter counts the cycles in which the number of events
    /// differs from `count`. `count` may be 0.
    pub const fn equal(self, count: u8, invert: bool) -> Self {
        self.compared(count, invert, Self::EQUAL)
    }

    const fn compared(self, counter_mask: u8, invert: bool, equal: u64) -> Self {
        let invert = if invert { Self::INVERT } else { 0 };
        let plain = self.0 & !(Self::COMPARISON | Self::INVERT);
        Self(plain | (counter_mask as u64) << 24 | invert | equal).normal()
    }

    /// Clears invert where there is no comparison. SDM vol. 3B, figure "Layout of IA32_PERFEVTSELx MSRs", INV; APM
    /// vol. 2, "Core Performance Event-Select", table of CntMask and Inv.
    #[inline]
    const fn normal(self) -> Self {
        // Both vendors ignore the invert bit without a counter mask: one event, one key.
        if self.0 & Self::COMPARISON == 0 { Self(self.0 & !Self::INVERT) } else { self }
    }

    /// Returns the key of the event that a counter with this event select counts. The call ignores USR, OS, EN, INT,
    /// the pin control and RDPMC user disable.
    ///
    /// Some events have no select, because only a fixed counter can count them. [`fixed`](Self::fixed) returns the keys
    /// of these events.
    ///
    /// ```
    /// use pmu_virt::EventKey;
    /// use pmu_virt::configuration::Vendor;
    /// let retired = EventKey::of_select(Vendor::Intel, 0x53_01C0);
    /// assert_eq!(retired, EventKey::general(0xC0, 1));
    /// // Bit 32 is Intel's IN_TX, and a part of AMD's event.
    /// assert_eq!(EventKey::of_select(Vendor::Intel, 0x1_0053_01C0), retired.in_tx());
    /// assert_eq!(EventKey::of_select(Vendor::Amd, 0x1_0053_01C0), EventKey::general(0x1C0, 1));
    /// ```
    pub const fn of_select(vendor: Vendor, select: u64) -> Self {
        // The vendors use bits 35:32 and 47:40 for different fields, which follow by vendor.
        let (event, (in_select, in_key)) = match vendor {
            Vendor::Intel => (Self::OF_INTEL, Self::IN_TX_AT),
            Vendor::Amd => (Self::EVENT_HIGH, Self::GUEST_ONLY_AT),
        };
        let qualifiers = (select >> in_select & 0b11) << in_key;
        Self(select & (Self::OF_BOTH | event) | qualifiers).normal()
    }

    /// Returns the key as a PMU looks for it, with the qualifiers where its vendor's selects have them.
    #[inline]
    pub(crate) const fn in_select(self) -> SelectKey {
        let mut select = self.0 & (Self::OF_BOTH | Self::EVENT_HIGH | Self::OF_INTEL | Self::FIXED);
        let (in_select, in_key) = Self::IN_TX_AT;
        select |= (self.0 >> in_key & 0b11) << in_select;
        let (in_select, in_key) = Self::GUEST_ONLY_AT;
        SelectKey(select | (self.0 >> in_key & 0b11) << in_select)
    }

    /// Returns the event's number: 8 bits on Intel, 12 bits on AMD. The number is 0 if only a fixed counter can count
    /// the event.
    pub const fn event(self) -> u16 {
        if self.0 & Self::FIXED != 0 { 0 } else { (self.0 & 0xFF | self.0 >> 24 & 0xF00) as u16 }
    }

    /// Returns the event's unit mask.
    pub const fn unit_mask(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Returns the unit mask 2, or 0 if the key has no unit mask 2. Only event selects of Intel's architectural
    /// performance monitoring version 6 have a unit mask 2.
    pub const fn unit_mask_2(self) -> u8 {
        (self.0 >> 40) as u8
    }

    /// Returns the number of the fixed counter for an event that no general counter can count. Returns `None` if a
    /// general counter can count the event.
    pub const fn fixed_counter(self) -> Option<u8> {
        if self.0 & Self::FIXED != 0 { Some(self.0 as u8 & 7) } else { None }
    }
}

impl fmt::Debug for EventKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.fixed_counter(), self.unit_mask_2()) {
            (Some(counter), _) => write!(f, "fixed counter {counter}")?,
            (None, 0) => write!(f, "event {:#05X}/{:#04X}", self.event(), self.unit_mask())?,
            (None, high) => {
                write!(f, "event {:#05X}/{high:#04X}_{:02X}", self.event(), self.unit_mask())?;
            }
        }
        for (bit, name) in [
            (Self::EDGE, " edge"),
            (Self::ANY_THREAD, " any thread"),
            (Self::IN_TX, " in transactions"),
            (Self::IN_TX_CHECKPOINTED, " without aborted transactions"),
            (Self::GUEST_ONLY, " guest only"),
            (Self::HOST_ONLY, " host only"),
            (Self::INVERT, " inverted"),
        ] {
            if self.0 & bit != 0 {
                f.write_str(name)?;
            }
        }
        match (self.0 >> 24 & 0xFF, self.0 & Self::EQUAL != 0) {
            (0, false) => Ok(()),
            (threshold, false) => write!(f, " threshold {threshold}"),
            (count, true) => write!(f, " equal {count}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTEL: Vendor = Vendor::Intel;
    const AMD: Vendor = Vendor::Amd;

    #[test]
    fn a_key_holds_all_that_a_select_says_of_the_event() {
        // Expected values: SDM vol. 3B, figure "Layout of IA32_PERFEVTSELx MSRs".
        assert_eq!(EventKey::of_select(INTEL, 0x53_003C), EventKey::general(0x3C, 0));
        assert_eq!(EventKey::of_select(AMD, 0xF_0053_FFD0), EventKey::general(0xFD0, 0xFF));
        assert_eq!(EventKey::of_select(INTEL, 0x57_01C0), EventKey::general(0xC0, 1).edge());
        assert_eq!(EventKey::of_select(INTEL, 0x73_01C0), EventKey::general(0xC0, 1).any_thread());
        assert_eq!(
            EventKey::of_select(INTEL, 0x05D3_01C0),
            EventKey::general(0xC0, 1).counter_mask(5, true)
        );
        assert_eq!(
            EventKey::of_select(INTEL, 0x0210_0453_01D1),
            EventKey::general(0xD1, 1).with_unit_mask_2(2).equal(4, false)
        );
    }

    #[test]
    fn when_a_counter_counts_is_not_part_of_the_key() {
        for vendor in [INTEL, AMD] {
            for bit in [16, 17, 19, 20, 22] {
                let key = EventKey::of_select(vendor, 0x3C | 1 << bit);
                assert_eq!(key, EventKey::general(0x3C, 0));
            }
        }
    }

    /// Names of the bits: SDM vol. 3B, figure "Layout of IA32_PERFEVTSELx MSRs Supporting Intel TSX"; APM vol. 2,
    /// "Core Performance Event-Select Registers", HG_ONLY.
    #[test]
    fn a_qualifier_is_not_printed_as_the_other_vendors_part_of_the_event() {
        for (vendor, select, printed) in [
            (AMD, 0x100_0053_0076, "event 0x076/0x00 guest only"),
            (AMD, 0x200_0053_0076, "event 0x076/0x00 host only"),
            (AMD, 0x300_0053_0076, "event 0x076/0x00 guest only host only"),
            (AMD, 0x00F_0053_0076, "event 0xF76/0x00"),
            (INTEL, 0x100_0053_0076, "event 0x076/0x01_00"),
            (INTEL, 0x200_0053_0076, "event 0x076/0x02_00"),
            (INTEL, 0x001_0053_00C0, "event 0x0C0/0x00 in transactions"),
            (INTEL, 0x002_0053_00C0, "event 0x0C0/0x00 without aborted transactions"),
        ] {
            let key = EventKey::of_select(vendor, select);
            assert_eq!(std::format!("{key:?}"), printed, "{vendor:?} {select:#X}");
            assert_eq!(key.in_select(), SelectKey::of(select), "{vendor:?} {select:#X}");
        }
    }
}
