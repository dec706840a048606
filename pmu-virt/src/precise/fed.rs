//! An instruction that the embedder feeds for a precise record.

use crate::branches::virtual_branches::VirtualBranches;

/// An instruction of the guest, as the embedder describes it for a precise record. A counter writes the record, and the
/// instruction causes the event that this counter counts. A record contains only the data that its format has.
///
/// ```
/// use pmu_virt::precise::{FedRecord, FedRegisters};
/// let record = FedRecord {
///     registers: FedRegisters { ip: 0x40_1003, ..FedRegisters::ZERO },
///     data_address: 0x7000,
///     latency: 12,
///     ..FedRecord::new(0x40_1000)
/// };
/// assert_eq!(record.cache_latency, 0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FedRecord<'a> {
    /// Linear address of the instruction.
    pub ip: u64,
    /// The registers after the instruction.
    pub registers: FedRegisters,
    /// The processor is in 64-bit mode.
    pub long_mode: bool,
    /// The time-stamp counter.
    pub tsc: u64,
    /// Linear address of the instruction's access to memory.
    pub data_address: u64,
    /// Source of the data, in the encoding of the processor model that the guest sees.
    pub data_source: u64,
    /// Latency of the access to memory, in cycles. In adaptive records and architectural PEBS, this field is the
    /// latency of the whole instruction.
    pub latency: u16,
    /// Latency of the access to the caches, in cycles. Only adaptive records and architectural PEBS have this value.
    pub cache_latency: u16,
    /// Value of the record's TSX field. Bits 31:0 are the cycles of the last transaction. Bits 39:32 are the reasons
    /// for an abort.
    pub transaction: u64,
    /// Cycles from the retirement of the previous instruction to the retirement of this instruction.
    pub retire_latency: u16,
    /// Values of fixed counter 3 and of `MSR_PERF_METRICS`.
    pub metrics: [u64; 2],
    /// Vector registers. `None` stands for registers that are all 0.
    pub vectors: Option<&'a FedVectors>,
    /// Branch records. `None` stands for empty branch records.
    pub branches: Option<&'a VirtualBranches>,
}

/// Registers of the guest after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FedRegisters {
    /// RFLAGS.
    pub flags: u64,
    /// RIP: the address of the next instruction.
    pub ip: u64,
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, and R8–R15, in this order.
    pub general: [u64; 16],
    /// SSP, the shadow-stack pointer. Only records of architectural PEBS have this value.
    pub ssp: u64,
}

/// Vector registers of the guest after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FedVectors {
    /// XMM0–15.
    pub xmm: [u128; 16],
    /// Bits 255:128 of YMM0–15.
    pub ymm_high: [u128; 16],
    /// K0–7.
    pub opmask: [u64; 8],
    /// Bits 511:256 of ZMM0–15.
    pub zmm_high: [[u128; 2]; 16],
    /// ZMM16–31.
    pub zmm_16_to_31: [[u128; 4]; 16],
}

impl FedRegisters {
    /// Registers that are all 0.
    pub const ZERO: Self = Self { flags: 0, ip: 0, general: [0; 16], ssp: 0 };
}

impl FedVectors {
    /// Registers that are all 0.
    pub const ZERO: Self = Self {
        xmm: [0; 16],
        ymm_high: [0; 16],
        opmask: [0; 8],
        zmm_high: [[0; 2]; 16],
        zmm_16_to_31: [[0; 4]; 16],
    };
}

impl FedRecord<'_> {
    /// Describes an instruction in 64-bit mode that does not access memory. All fields except `ip` and `long_mode` are
    /// 0 or `None`.
    pub const fn new(ip: u64) -> Self {
        Self {
            ip,
            registers: FedRegisters::ZERO,
            long_mode: true,
            tsc: 0,
            data_address: 0,
            data_source: 0,
            latency: 0,
            cache_latency: 0,
            transaction: 0,
            retire_latency: 0,
            metrics: [0; 2],
            vectors: None,
            branches: None,
        }
    }

    pub(crate) const fn latencies(&self) -> u64 {
        self.latency as u64 | (self.cache_latency as u64) << 32
    }

    pub(crate) fn vectors(&self) -> &FedVectors {
        const NONE: &FedVectors = &FedVectors::ZERO;
        self.vectors.unwrap_or(NONE)
    }
}
