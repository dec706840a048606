//! Group masks: the kernel events that a logger records. The flags have the names of Windows' `ntwmi.h`.

/// `PERF_PROFILE`: flag of a [`GroupMask`] that selects sampled profiles.
pub const PERF_PROFILE: u32 = 0x2000_0002;

/// `PERF_PMC_PROFILE`: flag of a [`GroupMask`] that selects PMC interrupts.
pub const PERF_PMC_PROFILE: u32 = 0x2000_0400;

/// `PERF_PROFILING`: the flags [`PERF_PROFILE`] and [`PERF_PMC_PROFILE`] of a [`GroupMask`]. A logger with these flags
/// records sampled profiles and PMC interrupts.
pub const PERF_PROFILING: u32 = PERF_PROFILE | PERF_PMC_PROFILE;

/// `PERF_CONTEXT_SWITCH`: flag of a [`GroupMask`] that selects context switches.
pub const PERF_CONTEXT_SWITCH: u32 = 0x2000_0004;

/// `PERF_COMPACT_CSWITCH`: flag of a [`GroupMask`] that selects compact records of context switches. The form of
/// compact records is not documented.
pub const PERF_COMPACT_CSWITCH: u32 = 0x2000_0100;

/// `PERF_HV_PROFILE`: flag of a [`GroupMask`] that selects sampled profiles of the hypervisor.
pub const PERF_HV_PROFILE: u32 = 0x8080_0000;

/// `EVENT_TRACE_FLAG_PROFILE`: flag of `EVENT_TRACE_PROPERTIES.EnableFlags` that selects sampled profiles. A
/// [`GroupMask`] does not use this flag: there [`PERF_PROFILE`] selects sampled profiles.
pub const EVENT_TRACE_FLAG_PROFILE: u32 = 0x0100_0000;

/// `PERF_MASK_INDEX`: mask of a flag's top three bits. A [`GroupMask`] has eight words. The top three bits of a flag
/// select a word, and the flag's other bits are bits of this word.
pub const PERF_MASK_INDEX: u32 = 0xE000_0000;

/// `PERF_NUM_MASKS`: number of 32-bit words in a group mask.
pub const PERF_NUM_MASKS: usize = 8;

/// A set of kernel events that a logger records, as eight 32-bit words of flags. Windows calls this structure
/// `PERFINFO_GROUPMASK`.
///
/// The top three bits of a flag are the index of a word. The lower bits of the flag are the bits to set in that word.
///
/// ```
/// use pmu_kprofile::trace::{EVENT_TRACE_FLAG_PROFILE, GroupMask, PERF_PMC_PROFILE, PERF_PROFILE};
/// let mask = GroupMask::from_enable_flags(EVENT_TRACE_FLAG_PROFILE).with(PERF_PMC_PROFILE);
/// assert!(mask.contains(PERF_PROFILE) && mask.contains(PERF_PMC_PROFILE));
/// assert_eq!(mask.masks[1], 0x402);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GroupMask {
    /// `Masks`: the words of the group mask.
    pub masks: [u32; PERF_NUM_MASKS],
}

impl GroupMask {
    /// The group mask that contains no events.
    pub const EMPTY: Self = Self { masks: [0; PERF_NUM_MASKS] };

    /// Converts the `EnableFlags` of a logger to a group mask.
    ///
    /// The first word of the mask is `flags` without [`EVENT_TRACE_FLAG_PROFILE`]. The flag `EVENT_TRACE_FLAG_PROFILE`
    /// becomes [`PERF_PROFILE`], which is in another word. No flag of `EnableFlags` becomes [`PERF_PMC_PROFILE`].
    pub const fn from_enable_flags(flags: u32) -> Self {
        let mut mask = Self::EMPTY;
        mask.masks[0] = flags & !EVENT_TRACE_FLAG_PROFILE;
        if flags & EVENT_TRACE_FLAG_PROFILE != 0 { mask.with(PERF_PROFILE) } else { mask }
    }

    /// Returns a copy of this group mask with a flag added.
    pub const fn with(mut self, flag: u32) -> Self {
        self.masks[(flag >> PERF_MASK_INDEX.trailing_zeros()) as usize] |= flag & !PERF_MASK_INDEX;
        self
    }

    /// Returns whether all bits of a flag are set in this group mask.
    pub const fn contains(&self, flag: u32) -> bool {
        let bits = flag & !PERF_MASK_INDEX;
        self.masks[(flag >> PERF_MASK_INDEX.trailing_zeros()) as usize] & bits == bits
    }
}
