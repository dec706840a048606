//! The vendor whose architecture a processor follows.

/// Vendor that defines a processor's registers and CPUID leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Vendor {
    /// Intel and compatible processors (Zhaoxin, Centaur).
    Intel,
    /// AMD and compatible processors (Hygon).
    Amd,
}
