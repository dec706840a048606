//! Capabilities of a processor's instruction-based sampling.

use pmu_core::Snapshot;

use crate::counters::{AMD, HYGON};

/// The capabilities of a processor's instruction-based sampling: CPUID leaf 0x8000001B, EAX. Sources: APM vol. 3,
/// appendix E, for bits 11:0; PPR of family 1Ah and later for the higher bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct IbsCapabilities(u32);

/// The leaf is valid.
const VALID: u32 = 1 << 0;

/// Capabilities of a processor of family 10h whose leaf is not valid: fetch and op sampling.
const FAMILY_10H: u32 = 0b111;

impl IbsCapabilities {
    /// Returns the capabilities of instruction-based sampling that CPUID declares; `None` if the processor has no
    /// instruction-based sampling (leaf 0x80000001 ECX bit 10).
    ///
    /// ```
    /// use pmu_amd::ibs::IbsCapabilities;
    /// # use pmu_core::dump::CpuidDump;
    /// # use pmu_core::Snapshot;
    /// let dump = CpuidDump::parse(
    ///     "   0x00000000 0x00: eax=0x00000001 ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    ///         0x00000001 0x00: eax=0x00a20f12 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
    ///         0x80000000 0x00: eax=0x8000001b ebx=0x68747541 ecx=0x444d4163 edx=0x69746e65
    ///         0x80000001 0x00: eax=0x00000000 ebx=0x00000000 ecx=0x00000400 edx=0x00000000
    ///         0x8000001b 0x00: eax=0x000003ff ebx=0x00000000 ecx=0x00000000 edx=0x00000000",
    /// )?;
    /// let capabilities = IbsCapabilities::of(&Snapshot::capture(&dump)).ok_or("no IBS")?;
    /// assert!(capabilities.op() && capabilities.wide_period() && !capabilities.l3_miss_only());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(processor: &Snapshot) -> Option<Self> {
        let is_vendor = [AMD, HYGON].contains(&processor.vendor());
        if !is_vendor || processor.leaf(0x8000_0001, 0).ecx >> 10 & 1 == 0 {
            return None;
        }
        let declared = processor.leaf(0x8000_001B, 0).eax;
        if declared & VALID != 0 {
            Some(Self(declared))
        } else {
            (processor.family() == 0x10).then_some(Self(FAMILY_10H))
        }
    }

    const fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 != 0
    }

    /// Returns the value of EAX of CPUID leaf 0x8000001B.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether the processor can sample fetches.
    pub const fn fetch(self) -> bool {
        self.has(1)
    }

    /// Returns whether the processor can sample ops.
    pub const fn op(self) -> bool {
        self.has(2)
    }

    /// Returns whether a driver can write the current count of ops or cycles in `IBS_OP_CTL`.
    pub const fn count_writable(self) -> bool {
        self.has(3)
    }

    /// Returns whether the period of op sampling can be a number of dispatched ops. If not, the period is always a
    /// number of cycles.
    pub const fn counts_ops(self) -> bool {
        self.has(4)
    }

    /// Returns whether the sample of a branch has the branch's target.
    pub const fn branch_target(self) -> bool {
        self.has(5)
    }

    /// Returns whether the period of op sampling has 27 bits. Otherwise the period has 20 bits.
    pub const fn wide_period(self) -> bool {
        self.has(6)
    }

    /// Returns whether an op's sample has a validity bit for the address of the op's instruction.
    pub const fn rip_invalid(self) -> bool {
        self.has(7)
    }

    /// Returns whether the sample of a branch has a bit that tells if the branch was fused with the preceding
    /// instruction.
    pub const fn fused(self) -> bool {
        self.has(8)
    }

    /// Returns whether a fetch's sample has the time that the processor needed to refill the instruction TLB.
    pub const fn fetch_tlb_latency(self) -> bool {
        self.has(9)
    }

    /// Returns whether `IBS_OP_DATA4` exists.
    pub const fn op_data4(self) -> bool {
        self.has(10)
    }

    /// Returns whether sampling can be restricted to ops and fetches that miss the third-level cache (from Zen 4 on).
    /// If so, the code for an op's data source has five bits. Otherwise, the code has three bits.
    pub const fn l3_miss_only(self) -> bool {
        self.has(11)
    }

    /// Returns whether op sampling can be restricted to loads of at least a given latency (from Zen 5 on).
    pub const fn load_latency_filter(self) -> bool {
        self.has(12)
    }

    /// Returns whether `IBS_OP_CTL2` and `IBS_FETCH_CTL2` exist. Each register has a disable bit. By this bit, a driver
    /// can stop the sampling without overwriting the status bits in `IBS_OP_CTL` or `IBS_FETCH_CTL`.
    pub const fn control2(self) -> bool {
        self.has(13)
    }

    /// Returns whether fetch sampling can be restricted to fetches of at least a given latency.
    pub const fn fetch_latency_filter(self) -> bool {
        self.has(14)
    }

    /// Returns whether the processor can exclude samples of the kernel or of user mode by bit 63 of the sampled
    /// address. The bit is 1 in addresses of the kernel.
    pub const fn half_filter(self) -> bool {
        self.has(15)
    }

    /// Returns whether op sampling can be restricted to streaming stores. If so, an op's sample also tells whether the
    /// data came from another socket.
    pub const fn streaming_stores(self) -> bool {
        self.has(16)
    }

    /// Returns whether the processor has the memory profiler, a second unit that samples ops (from Zen 6 on). This
    /// crate does not drive the memory profiler, because the addresses of its registers are not published.
    pub const fn memory_profiler(self) -> bool {
        self.has(18)
    }

    /// Returns whether an op's sample has the size of the accessed page, in place of the bits that tell which TLB had
    /// a large page (from Zen 5 on). If so, the sample's bits about data TLBs are valid only together with the physical
    /// address.
    pub const fn data_page_size(self) -> bool {
        self.has(19)
    }
}
