//! The effect of a write on a register, by the rule of the register's row.

use crate::pmu::access::{Write, Written};
use crate::registers::row::WriteAs;

/// Bits of a register: those that it holds, that a write may set, that belong to the PMU or facility, and that fault
/// (#GP) if they are illegal.
#[derive(Clone, Copy)]
pub(crate) struct Bits {
    pub(crate) held: u64,
    pub(crate) legal: u64,
    pub(crate) owned: u64,
    pub(crate) faults: u64,
}

impl Bits {
    /// Returns the answer to a write of an existing register, and what the register then holds.
    #[inline(always)]
    pub(crate) const fn judge(self, write: WriteAs, value: u64) -> (Written, u64) {
        let Self { held, legal, owned, faults } = self;
        let (illegal, stored) = match write {
            WriteAs::Stored => (value & !legal, value & legal),
            WriteAs::SignExtended => {
                let extended = value as u32 as i32 as i64 as u64;
                let high = value >> 32;
                let plausible =
                    high == 0 || high == extended >> 32 || high == (extended & legal) >> 32;
                let illegal = if plausible { 0 } else { (value ^ extended) & !0xFFFF_FFFF };
                (illegal, extended & legal)
            }
            WriteAs::StoredWhole => (value & !legal, value),
            WriteAs::Cleared => (value & !legal, held & !value),
            WriteAs::Set => (value & !legal, held | value & legal),
            WriteAs::Kept => (value ^ held, held),
            WriteAs::Ignored => return (Written::IGNORED, held),
            WriteAs::Refused => return (Written::REFUSED, held),
        };
        let illegal = illegal & owned;
        let answer = match owned {
            _ if illegal & faults != 0 => Write::GeneralProtection,
            0 => Write::Unhandled,
            u64::MAX => Write::Done,
            mask => Write::Shared { mask },
        };
        (Written { answer, illegal }, stored)
    }
}
