//! The source of an address's translation, and the page size.

/// The TLB or page walk that translated the linear address of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Translation {
    /// The first-level TLB had the translation.
    L1Tlb,
    /// The second-level TLB had the translation, after a miss in the first-level TLB.
    L2Tlb,
    /// The processor walked the page tables.
    PageWalk,
}

/// Size of a page, as recorded in a TLB entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Large,
    /// 1 GiB.
    Huge,
    /// 16 KiB: four neighboring pages of 4 KiB in one TLB entry.
    Coalesced,
}
