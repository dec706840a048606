//! The events that Intel's and AMD's processors both have, under one name.

/// An event that both Intel's and AMD's processors have, under one name.
///
/// Source: SDM vol. 3B, "Pre-defined Architectural Performance Events"; AMD's processor programming references. AMD's
/// encodings of these events differ from Intel's.
///
/// ```
/// use pmu_core::{CounterUnit, GenericEvent};
/// // Lists a processor's generic events. `CounterUnit::NONE` stands for a unit that a vendor crate detects.
/// let unit = CounterUnit::NONE;
/// assert!(GenericEvent::ALL.iter().all(|event| unit.generic(*event).is_none()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum GenericEvent {
    /// Cycles of the core's clock, at the core's present frequency, counted while the core is not halted.
    Cycles,
    /// Instructions retired.
    Instructions,
    /// Cycles of a clock of constant frequency, counted while the core is not halted. The clock is the TSC's clock on
    /// AMD processors from Zen 4 on, and on Intel's fixed counter 2. If an Intel processor has no fixed counter 2, the
    /// processor's manual names the clock.
    ReferenceCycles,
    /// On Intel, accesses to the last-level cache. On AMD's Zen processors, accesses to the second-level cache.
    CacheReferences,
    /// Those [`CacheReferences`](Self::CacheReferences) that missed the cache.
    CacheMisses,
    /// Branch instructions retired.
    Branches,
    /// Mispredicted branch instructions retired.
    BranchMisses,
}

impl GenericEvent {
    /// The number of generic events.
    pub const COUNT: usize = 7;

    /// All generic events, in the order of their bits in EBX of CPUID leaf 0x0A.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Cycles,
        Self::Instructions,
        Self::ReferenceCycles,
        Self::CacheReferences,
        Self::CacheMisses,
        Self::Branches,
        Self::BranchMisses,
    ];

    /// Returns the architectural event of this number, its bit in EBX of CPUID leaf 0x0A.
    pub(crate) fn of_bit(bit: u8) -> Option<Self> {
        Self::ALL.get(usize::from(bit)).copied()
    }
}
