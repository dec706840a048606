//! Group masks: which kernel events a logger records.

/// `PERF_PROFILE`: sampled profiles.
pub const PERF_PROFILE: u32 = 0x2000_0002;

/// `PERF_PMC_PROFILE`: PMC interrupts.
pub const PERF_PMC_PROFILE: u32 = 0x2000_0400;

/// `PERF_CONTEXT_SWITCH`: switches from one thread to another.
pub const PERF_CONTEXT_SWITCH: u32 = 0x2000_0004;

/// `EVENT_TRACE_FLAG_PROFILE` of `EVENT_TRACE_PROPERTIES.EnableFlags`: the documented name of
/// [`PERF_PROFILE`].
pub const EVENT_TRACE_FLAG_PROFILE: u32 = 0x0100_0000;

/// `PERFINFO_GROUPMASK`: eight words of flags. The top three bits of a flag say which word it is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GroupMask {
    /// `Masks`.
    pub masks: [u32; 8],
}

impl GroupMask {
    /// No event.
    pub const EMPTY: Self = Self { masks: [0; 8] };

    /// What `EnableFlags` means: the first word, except for flags that stand for one of another
    /// word. There is none for [`PERF_PMC_PROFILE`].
    pub const fn from_enable_flags(flags: u32) -> Self {
        let mut mask = Self::EMPTY;
        mask.masks[0] = flags & !EVENT_TRACE_FLAG_PROFILE;
        if flags & EVENT_TRACE_FLAG_PROFILE != 0 { mask.with(PERF_PROFILE) } else { mask }
    }

    /// The mask with a flag set.
    pub const fn with(mut self, flag: u32) -> Self {
        self.masks[(flag >> 29) as usize] |= flag & 0x1FFF_FFFF;
        self
    }

    /// Returns whether all bits of a flag are set.
    pub const fn contains(&self, flag: u32) -> bool {
        let bits = flag & 0x1FFF_FFFF;
        self.masks[(flag >> 29) as usize] & bits == bits
    }
}
