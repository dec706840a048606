//! The bits of x86's event selects, of the control register of its fixed counters, and of its overflow status. The
//! backend of another architecture translates them.

use crate::counters::names::CounterSet;
use crate::counters::registers::counter::{CounterControl, EventSelect};

/// The bits of the status that raise the interrupt: those of the counters, and of Intel's (SDM vol. 4, table 2-2)
/// `PERF_METRICS` (48), architectural PEBS (54), a trace's table (55), the uncore (61) and the Debug Store's buffer
/// (62).
pub(crate) const INTERRUPTING: u64 =
    CounterSet::ALL.bits() | 1 << 48 | 1 << 54 | 1 << 55 | 1 << 61 | 1 << 62;

/// Bits of fixed counter 0 in `IA32_FIXED_CTR_CTRL`, adaptive records and RDPMC user disable; those of counter *n* are
/// 4*n* bits higher (SDM vol. 3B, "Adaptive PEBS"; "Architectural Performance Monitoring Version 6").
const FIXED_ADAPTIVE: u64 = 1 << 32;
const FIXED_NO_USER_RDPMC: u64 = 1 << 33;

impl CounterControl {
    /// Returns the bits of the register that are the counter's.
    pub(crate) const fn mask(self) -> u64 {
        match self {
            Self::Select(_) => u64::MAX,
            Self::Shared { counter, .. } => {
                (0b1111 | FIXED_ADAPTIVE | FIXED_NO_USER_RDPMC) << (4 * (counter % 8))
            }
        }
    }

    /// Returns the bit that makes an overflow interrupt.
    pub(crate) const fn interrupt(self) -> u64 {
        match self {
            Self::Select(_) => EventSelect::INTERRUPT,
            Self::Shared { counter, .. } => 1 << 3 << (4 * (counter % 8)),
        }
    }

    /// Returns the value of these bits with which the counter counts `select`, and interrupts.
    pub(crate) const fn running(self, select: EventSelect) -> u64 {
        match self {
            Self::Select(_) => select.running().select_bits(),
            Self::Shared { counter, .. } => {
                let bits = select.select_bits();
                let modes = bits >> 17 & 1 | (bits >> 16 & 1) << 1;
                let (interrupts, any_thread) = (1 << 3, (bits >> 21 & 1) << 2);
                const MOVED: u32 = EventSelect::NO_USER_RDPMC.trailing_zeros()
                    - FIXED_NO_USER_RDPMC.trailing_zeros();
                let no_user_rdpmc = (bits & EventSelect::NO_USER_RDPMC) >> MOVED;
                (modes | any_thread | interrupts | no_user_rdpmc) << (4 * (counter % 8))
            }
        }
    }

    /// Returns bits of a running counter, changed as facilities need them.
    pub(crate) const fn with(self, running: u64, silent: bool, adaptive: bool) -> u64 {
        let is_adaptive = match self {
            Self::Select(_) => EventSelect::ADAPTIVE,
            Self::Shared { counter, .. } => FIXED_ADAPTIVE << (4 * (counter % 8)),
        };
        let interrupts = if silent { running & !self.interrupt() } else { running };
        interrupts | if adaptive { is_adaptive } else { 0 }
    }
}

impl EventSelect {
    /// Bit 16: counts at privilege levels above 0.
    pub(crate) const USER: u64 = 1 << 16;

    /// Bit 17: counts at privilege level 0.
    pub(crate) const KERNEL: u64 = 1 << 17;

    /// Both mode bits.
    pub(crate) const MODES: u64 = Self::USER | Self::KERNEL;

    /// Bit 20: interrupts through the local APIC when the counter overflows.
    pub(crate) const INTERRUPT: u64 = 1 << 20;

    /// Intel's bit 33, IN_TXCP: excludes the events of aborted transactions. Only `IA32_PERFEVTSEL2` has the bit (SDM
    /// vol. 3B, "Performance Monitoring and Intel TSX").
    pub(crate) const IN_TXCP: u64 = 1 << 33;

    /// Intel's bit 34: records of the counter are adaptive (SDM vol. 3B, "Adaptive PEBS").
    const ADAPTIVE: u64 = 1 << 34;

    /// Intel's bit 37: denies RDPMC of the counter above privilege level 0, where the bit exists (SDM vol. 3B,
    /// "Architectural Performance Monitoring Version 6", `IA32_PERFEVTSELx`).
    pub(crate) const NO_USER_RDPMC: u64 = 1 << 37;

    /// Bit 22: counts.
    const ENABLE: u64 = 1 << 22;

    /// Event, unit mask, edge, inversion and threshold, of every vendor: the bits that say what is counted, and not
    /// where.
    pub(crate) const EVENT: u64 = 0xF_FF84_FFFF;

    /// Returns the select that denies user mode's RDPMC of the counter, if the processor can.
    pub(crate) const fn without_user_reads(self, can_deny: bool) -> Self {
        let bit = if can_deny { Self::NO_USER_RDPMC } else { 0 };
        Self::from_bits(self.select_bits() | bit)
    }

    /// Returns whether the event counts in user mode, or in the kernel.
    pub(crate) const fn counts_in(self, user: bool) -> bool {
        self.select_bits() & if user { Self::USER } else { Self::KERNEL } != 0
    }

    /// Returns whether the enable bit (22) is set. A counter counts only while this bit is set.
    pub const fn is_enabled(self) -> bool {
        self.select_bits() & Self::ENABLE != 0
    }

    /// Returns the event number, which has 8 bits on Intel and 12 bits on AMD.
    ///
    /// ```
    /// # use pmu_core::registers::EventSelect;
    /// // An AMD event whose number uses bits 35:32, too.
    /// let select = EventSelect::from_bits(0x1_0000_0164);
    /// assert_eq!((select.event_number(), select.event_unit_mask()), (0x164, 0x01));
    /// ```
    pub const fn event_number(self) -> u16 {
        (self.select_bits() & 0xFF | self.select_bits() >> 24 & 0xF00) as u16
    }

    /// Returns the event's unit mask (bits 15:8).
    pub const fn event_unit_mask(self) -> u8 {
        (self.select_bits() >> 8) as u8
    }

    /// Returns this select with the enable bit (22) and the interrupt bit (20) set.
    ///
    /// ```
    /// # use pmu_core::registers::EventSelect;
    /// let cycles = EventSelect::from_bits(0x3_003C);
    /// assert!(!cycles.is_enabled());
    /// // Enabled (bit 22), with an interrupt (bit 20).
    /// assert_eq!(cycles.running().select_bits(), 0x53_003C);
    /// ```
    pub const fn running(self) -> Self {
        Self::from_bits(self.select_bits() | Self::INTERRUPT | Self::ENABLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::address::RegisterAddress;

    /// SDM vol. 3B, "IA32_FIXED_CTR_CTRL": EN of two bits (OS, then user), AnyThread, PMI; RDPMC user
    /// disable at bit 33 + 4n.
    #[test]
    fn a_fixed_counters_bits_say_what_the_select_says() {
        // SAFETY: nothing accesses it.
        let register = unsafe { RegisterAddress::new(0x38D) };
        let of = |counter| CounterControl::Shared { register, counter };
        let select = |bits| EventSelect::from_bits(bits);
        assert_eq!(of(0).running(select(0x3_00C0)), 0b1011);
        assert_eq!(of(1).running(select(0x1_003C)), 0b1010_0000);
        assert_eq!(of(2).running(select(0x2_0300)), 0b1001_0000_0000);
        assert_eq!(of(2).running(select(0x23_0300)), 0b1111_0000_0000);
        assert_eq!(of(3).running(select(1 << 37 | 0x1_0400)), 1 << 45 | 0b1010 << 12);
        assert_eq!(of(3).mask(), 0b11 << 44 | 0b1111 << 12);
        // Bit 32 + 4n: adaptive records. Without PMI, no overflow interrupts.
        let silent = |bits, adaptive| of(1).with(of(1).running(select(bits)), true, adaptive);
        assert_eq!(silent(0x3_003C, true), 1 << 36 | 0b0011_0000);
        assert_eq!(silent(0x1_003C, false), 0b0010_0000);
    }
}
