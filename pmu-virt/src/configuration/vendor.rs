//! The vendor whose architecture a processor follows.

/// Vendor whose architecture a processor follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Vendor {
    /// Intel, and compatible.
    Intel,
    /// AMD, and Hygon.
    Amd,
}
