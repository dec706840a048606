//! Event-select registers: the part on which all vendors agree.

use core::fmt;

/// Value of an event-select register: the event that the counter counts, and the conditions under which it counts.
///
/// The vendors' layouts agree in bits 31:0, except for a few reserved bits. AMD's event numbers continue in bits 35:32.
/// Each vendor crate has a register type that names each bit and converts into `EventSelect`. Source: SDM vol. 3B,
/// "Layout of IA32_PERFEVTSELx MSRs"; APM vol. 2, "Core Performance Event-Select Register".
///
/// ```
/// use pmu_core::EventSelect;
/// let cycles = EventSelect::from_bits(0x3_003C); // event 0x3C, at every privilege
/// assert_eq!(cycles.running().select_bits(), 0x53_003C);
/// assert_eq!(EventSelect::from_bits(0xF_0000_02D0).event_number(), 0xFD0);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EventSelect(u64);

impl EventSelect {
    /// Bit 16: counts at privilege levels above 0.
    pub(crate) const USER: u64 = 1 << 16;

    /// Bit 17: counts at privilege level 0.
    pub(crate) const KERNEL: u64 = 1 << 17;

    /// Event and unit mask that stand for part 0 of another event's occurrences, as in Linux perf.
    pub(crate) const PART: u16 = 0x8000;

    /// Both mode bits.
    pub(crate) const MODES: u64 = Self::USER | Self::KERNEL;

    /// Bit 20: interrupts through the local APIC when the counter overflows.
    pub(crate) const INTERRUPT: u64 = 1 << 20;

    /// Bit 37: denies RDPMC of the counter above privilege level 0, where the bit exists.
    pub(crate) const NO_USER_RDPMC: u64 = 1 << 37;

    /// Bit 22: counts.
    const ENABLE: u64 = 1 << 22;

    /// Event, unit mask, edge, inversion and threshold, of every vendor: the bits that say what is counted, and not
    /// where.
    pub(crate) const EVENT: u64 = 0xF_FF84_FFFF;

    /// Bit 19, which stands for pin control and is legal in no event: the select is for a
    /// [sampling unit](crate::facility::EventFacility::UNITS), and bits 15:0 and 31:24 are the unit's.
    pub const OF_UNIT: u64 = 1 << 19;

    /// Creates a select from the value of an event-select register.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the value of the event-select register.
    pub const fn select_bits(self) -> u64 {
        self.0
    }

    /// Returns whether the select is for a [sampling unit](Self::OF_UNIT).
    pub const fn is_of_unit(self) -> bool {
        self.0 & Self::OF_UNIT != 0
    }

    /// Returns whether the enable bit (22) is set. A counter counts only while this bit is set.
    pub const fn is_enabled(self) -> bool {
        self.0 & Self::ENABLE != 0
    }

    /// Returns the event number, which has 8 bits on Intel and 12 bits on AMD.
    ///
    /// ```
    /// # use pmu_core::EventSelect;
    /// // An AMD event whose number uses bits 35:32, too.
    /// let select = EventSelect::from_bits(0x1_0000_0164);
    /// assert_eq!((select.event_number(), select.event_unit_mask()), (0x164, 0x01));
    /// ```
    pub const fn event_number(self) -> u16 {
        (self.0 & 0xFF | self.0 >> 24 & 0xF00) as u16
    }

    /// Returns the event's unit mask (bits 15:8).
    pub const fn event_unit_mask(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Returns this select with the enable bit (22) and the interrupt bit (20) set.
    ///
    /// ```
    /// # use pmu_core::EventSelect;
    /// let cycles = EventSelect::from_bits(0x3_003C);
    /// assert!(!cycles.is_enabled());
    /// // Enabled (bit 22), with an interrupt (bit 20).
    /// assert_eq!(cycles.running().select_bits(), 0x53_003C);
    /// ```
    pub const fn running(self) -> Self {
        Self(self.0 | Self::INTERRUPT | Self::ENABLE)
    }
}

impl fmt::Debug for EventSelect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventSelect({:#X})", self.0)
    }
}
