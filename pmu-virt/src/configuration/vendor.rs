//! The vendor whose architecture a processor follows.

/// Vendor whose registers and CPUID leaves a processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Vendor {
    /// Intel and compatible processors (Zhaoxin, Centaur).
    Intel,
    /// AMD, and Hygon, whose processors have the same counters as AMD's.
    Amd,
}
