//! The skid that an event's samples may have.

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
