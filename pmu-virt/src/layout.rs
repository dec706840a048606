//! What follows from a configuration: the bits that each register has.

use crate::configuration::first;
use crate::{AmdConfiguration, Configuration, IntelConfiguration};

/// A bit a counter: general counter *n* is bit *n*, fixed counter *n* is bit 8 + *n*.
pub(crate) type Counters = u16;

/// The counters in the layout of the global registers: general from bit 0, fixed from bit 32.
#[inline]
pub(crate) const fn to_global(counters: Counters) -> u64 {
    counters as u64 & 0xFF | (counters as u64 & 0xFF00) << 24
}

/// The other way round; other bits are dropped.
#[inline]
pub(crate) const fn from_global(bits: u64) -> Counters {
    (bits & 0xFF | bits >> 24 & 0xFF00) as Counters
}

/// The registers' bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Which counters there are.
    pub(crate) counters: Counters,
    /// The values that general (0) and fixed (1) counters can hold.
    pub(crate) masks: [u64; 2],
    /// The bits of an event select.
    pub(crate) select: u64,
    /// The bits of `IA32_FIXED_CTR_CTRL`.
    pub(crate) fixed_control: u64,
    /// The bits of the global control register; 0 where there is none.
    pub(crate) global: u64,
    /// The bits of the global status that can be cleared, beside the counters'.
    pub(crate) status: u64,
    /// The bits of `IA32_DEBUGCTL`.
    pub(crate) debug_control: u64,
    /// Whether overflow freezes through `GLOBAL_STATUS.CTR_FRZ` (Intel, version 4 on).
    pub(crate) freezes_by_status: bool,
}

impl Layout {
    const HIDDEN: Self = Self {
        counters: 0,
        masks: [0; 2],
        select: 0,
        fixed_control: 0,
        global: 0,
        status: 0,
        debug_control: 0,
        freezes_by_status: false,
    };

    /// Of a configuration that has passed its check.
    pub(crate) const fn of(configuration: &Configuration) -> Self {
        match configuration {
            Configuration::Intel(intel) => Self::of_intel(intel),
            Configuration::Amd(amd) => Self::of_amd(*amd),
            Configuration::Hidden(_) => Self::HIDDEN,
        }
    }

    const fn of_intel(intel: &IntelConfiguration) -> Self {
        use crate::intel::bits;
        let counters = intel.general as Counters | (intel.fixed as Counters) << 8;
        let (any_thread, any_thread_fixed) =
            if intel.any_thread { (bits::SELECT_ANY_THREAD, 0b0100) } else { (0, 0) };
        let mut select = bits::SELECT | any_thread;
        let mut of_fixed = 0b1011 | any_thread_fixed;
        if intel.unit_mask_2 {
            select |= bits::SELECT_UNIT_MASK_2;
        }
        if intel.equal {
            select |= bits::SELECT_EQUAL;
        }
        if intel.rdpmc_user_disable {
            select |= bits::SELECT_RDPMC_USER_DISABLE;
            of_fixed |= bits::FIXED_RDPMC_USER_DISABLE;
        }
        let mut fixed_control = 0;
        let mut counter = 0;
        while counter < 8 {
            if intel.fixed >> counter & 1 != 0 {
                fixed_control |= of_fixed << (4 * counter);
            }
            counter += 1;
        }
        let global = intel.version >= 2;
        let freezes_by_status = intel.version >= 4;
        Self {
            counters,
            masks: [mask(intel.general_width), mask(intel.fixed_width)],
            select,
            fixed_control,
            global: if global { to_global(counters) } else { 0 },
            status: match (global, freezes_by_status) {
                (false, _) => 0,
                (true, false) => bits::STATUS_CONDITION_CHANGED,
                (true, true) => bits::STATUS_FROM_VERSION_4,
            },
            debug_control: if global { bits::DEBUG_FREEZE_COUNTERS } else { 0 },
            freezes_by_status,
        }
    }

    const fn of_amd(amd: AmdConfiguration) -> Self {
        use crate::amd::bits;
        let (counters, global) = match amd {
            AmdConfiguration::Legacy => (4, false),
            AmdConfiguration::CoreExtension => (6, false),
            AmdConfiguration::PerfMonV2 { counters } => (counters, true),
        };
        let counters = first(counters) as Counters;
        Self {
            counters,
            masks: [mask(bits::WIDTH), 0],
            select: bits::SELECT,
            global: if global { to_global(counters) } else { 0 },
            ..Self::HIDDEN
        }
    }

    #[inline]
    pub(crate) const fn has(&self, counter: usize) -> bool {
        self.counters as usize >> counter & 1 != 0
    }

    /// What the counter with this place, 0–15, can hold.
    #[inline]
    pub(crate) const fn mask(&self, counter: usize) -> u64 {
        self.masks[counter >> 3 & 1]
    }
}

const fn mask(width: u8) -> u64 {
    match 64u32.checked_sub(width as u32) {
        Some(unused @ 0..=63) => u64::MAX >> unused,
        _ => 0,
    }
}
