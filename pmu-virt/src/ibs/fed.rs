//! Ops and fetches that the embedder feeds.

/// An op that a virtual processor executes. If the op is sampled, the fields of this struct become the values of the
/// IBS registers. A field is ignored if the processor lacks the field's register.
///
/// ```
/// use pmu_virt::ibs::FedOp;
/// // A load that missed the data cache: bits 0, 7 and 17 of IBS_OP_DATA3, and 200 cycles.
/// let op = FedOp { data3: 200 << 32 | 1 << 17 | 1 << 7 | 1, linear_address: 0x7000, ..FedOp::new(0x40_1000) };
/// assert_eq!(op.cycles, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FedOp {
    /// `IBS_OP_RIP`: the address of the op's instruction.
    pub rip: u64,
    /// `IBS_OP_DATA`: cycle counts of the op, and the outcome of a branch.
    pub data: u64,
    /// `IBS_OP_DATA2`: the source of a load's data.
    pub data2: u64,
    /// `IBS_OP_DATA3`: description of the op's access to memory, in the layout of the guest's processor: if leaf
    /// 0x8000001B EAX bit 19 is set, bits 5:4 are the page size, and bits 6 and 19 are reserved and are cleared.
    pub data3: u64,
    /// `IBS_DC_LINADDR`: the linear address of the op's access to memory.
    pub linear_address: u64,
    /// `IBS_DC_PHYSADDR`: the physical address of the op's access to memory.
    pub physical_address: u64,
    /// `BP_IBSTGT_RIP`: the target of a branch.
    pub target: u64,
    /// Number of cycles that the op takes.
    pub cycles: u32,
}

impl FedOp {
    /// Describes an op that takes one cycle, is not a branch, and does not access memory.
    pub const fn new(rip: u64) -> Self {
        Self {
            rip,
            data: 0,
            data2: 0,
            data3: 0,
            linear_address: 0,
            physical_address: 0,
            target: 0,
            cycles: 1,
        }
    }

    /// Returns whether the op is a load that missed the third-level cache, by `IBS_OP_DATA2` and `IBS_OP_DATA3`.
    pub(crate) const fn missed_l3(&self) -> bool {
        let missed = self.data3 & 1 != 0 && self.data3 >> 7 & 1 != 0 && self.data3 >> 20 & 1 != 0;
        // Sources 0–2 and 5: nothing, or a cache.
        missed && !matches!(self.data2 & 7 | self.data2 >> 3 & 0x18, 0..=2 | 5)
    }

    /// Returns the latency of a load that missed the data cache.
    pub(crate) const fn latency(&self) -> u64 {
        self.data3 >> 32 & 0xFFFF
    }
}

/// A fetch of a virtual processor. If the fetch is sampled, the fields of this struct become the values of the IBS
/// registers.
///
/// ```
/// use pmu_virt::ibs::FedFetch;
/// // Complete (bit 50), after 12 cycles.
/// let fetch = FedFetch { control: 1 << 50 | 12 << 32, ..FedFetch::new(0x40_1000) };
/// assert_eq!(fetch.linear_address, 0x40_1000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FedFetch {
    /// The bits of `IBS_FETCH_CTL` that describe the fetch: latency, caches and TLBs. Other bits are ignored.
    pub control: u64,
    /// `IBS_FETCH_LINADDR`: the linear address of the fetch.
    pub linear_address: u64,
    /// `IBS_FETCH_PHYSADDR`: the physical address of the fetch.
    pub physical_address: u64,
    /// `IC_IBS_EXTD_CTL`: the latency of the TLB refill.
    pub tlb_latency: u16,
}

impl FedFetch {
    /// Describes a fetch without latency that hits every cache.
    pub const fn new(linear_address: u64) -> Self {
        Self { control: 0, linear_address, physical_address: 0, tlb_latency: 0 }
    }

    pub(crate) const fn latency(&self) -> u64 {
        self.control >> 32 & 0xFFFF
    }
}
