//! The words of a record, in each format.

use crate::branches::configuration::{ArchitecturalBranches, BranchConfiguration};
use crate::branches::fed::{FedBranch, FedBranchKind, FedPath, FedTransaction};
use crate::registers::row::when;

/// Words of a record: FROM, TO and INFO. A format without INFO has 0 there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Record {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) info: u64,
}

impl Record {
    /// A record that was cleared.
    pub(crate) const EMPTY: Self = Self { from: 0, to: 0, info: 0 };

    /// Encodes a branch. `transactional`: the guest has TSX. `logged`: the counters whose events are logged.
    pub(crate) fn encode(
        configuration: &BranchConfiguration,
        branch: &FedBranch,
        transactional: bool,
        logged: u8,
    ) -> Self {
        let FedBranch { from, to, .. } = *branch;
        let mispredicted = u64::from(branch.mispredicted) << 63;
        let transaction = match branch.transaction {
            FedTransaction::Outside => 0,
            FedTransaction::Inside => IN_TX,
            FedTransaction::Abort => ABORT,
        };
        let transaction = if transactional { transaction } else { 0 };
        let cycles = u64::from(branch.cycles.unwrap_or(0));
        match configuration {
            BranchConfiguration::Architectural(branches) => {
                Self { from, to, info: architectural(branches, branch, logged) | transaction }
            }
            // SDM vol. 3B, "LBR Format": bit 63 of FROM takes the place of an address bit.
            BranchConfiguration::Legacy { format: 3 } => {
                Self { from: from & !MISPREDICTED | mispredicted, to, info: 0 }
            }
            // The hardware does not extend the sign to bits 62:61, with or without TSX.
            BranchConfiguration::Legacy { format: 4 } => {
                let address = from & !(MISPREDICTED | IN_TX | ABORT);
                Self { from: address | mispredicted | transaction, to, info: 0 }
            }
            BranchConfiguration::Legacy { format: 6 } => Self {
                from: from & !MISPREDICTED | mispredicted,
                to: to & LOW_48 | cycles << 48,
                info: 0,
            },
            BranchConfiguration::Legacy { format } => {
                let transaction = if *format == 5 { transaction } else { 0 };
                Self { from, to, info: mispredicted | transaction | cycles }
            }
            // APM vol. 2, "LastBranchStackFromIp", "LastBranchStackToIp".
            BranchConfiguration::Amd(_) => {
                let path = match branch.path {
                    FedPath::Retired => VALID,
                    FedPath::Speculative => VALID | SPECULATIVE,
                    FedPath::Wrong => SPECULATIVE,
                };
                Self {
                    from: from & !MISPREDICTED | mispredicted,
                    to: to & !(VALID | SPECULATIVE | RESERVED) | path,
                    info: 0,
                }
            }
        }
    }

    /// Returns the record as erratum 1452 of AMD's family 19h has it: the reserved bit of TO is 1.
    pub(crate) const fn with_reserved_bit(self) -> Self {
        Self { to: self.to | RESERVED, ..self }
    }

    /// Returns the record of format 4 without the bit that tells of an abort.
    pub(crate) const fn without_abort(self) -> Self {
        Self { from: self.from & !ABORT, ..self }
    }
}

const MISPREDICTED: u64 = 1 << 63;
const IN_TX: u64 = 1 << 62;
const ABORT: u64 = 1 << 61;
const LOW_48: u64 = (1 << 48) - 1;
/// AMD's TO: 63 valid, 62 speculative, 61 reserved.
const VALID: u64 = 1 << 63;
const SPECULATIVE: u64 = 1 << 62;
pub(crate) const RESERVED: u64 = 1 << 61;

/// Numbers of a kind of branches: the bits of `LBR_SELECT` and `IA32_LBR_CTL`, and BR_TYPE of `IA32_LBR_x_INFO`.
pub(crate) struct KindNumbers {
    pub(crate) select: u32,
    pub(crate) control: u32,
    info: u64,
}

impl FedBranchKind {
    pub(crate) const fn numbers(self) -> KindNumbers {
        let (select, control, info) = match self {
            Self::Conditional => (2, 16, 0),
            Self::IndirectJump => (6, 18, 1),
            Self::RelativeJump => (7, 17, 2),
            Self::IndirectCall => (4, 20, 3),
            Self::RelativeCall => (3, 19, 4),
            Self::Return => (5, 21, 5),
            Self::Far => (8, 22, 8),
        };
        KindNumbers { select, control, info }
    }
}

/// Returns `IA32_LBR_x_INFO` but for the transaction: 15:0 cycles, 33:32 to 39:38 events of counters 0–3, 59:56 kind,
/// 60 cycles valid, 63 mispredicted. SDM vol. 3B, "IA32_LBR_x_INFO".
fn architectural(branches: &ArchitecturalBranches, branch: &FedBranch, logged: u8) -> u64 {
    let mut info = 0;
    if branches.mispredictions && branch.mispredicted {
        info |= MISPREDICTED;
    }
    if let Some(cycles) = branch.cycles
        && branches.cycles
    {
        info |= u64::from(cycles) | 1 << 60;
    }
    if branches.kinds {
        info |= branch.kind.numbers().info << 56;
    }
    for (counter, count) in branch.counts.into_iter().enumerate() {
        if logged >> counter & 1 != 0 {
            info |= u64::from(count.min(3)) << (32 + 2 * counter);
        }
    }
    info
}

/// Returns the bits of an architectural INFO that a processor with these records has.
pub(crate) fn info_bits(branches: &ArchitecturalBranches) -> u64 {
    let logged = u64::from(branches.counters & 0xF);
    IN_TX
        | ABORT
        | when(branches.mispredictions, MISPREDICTED)
        | when(branches.cycles, 1 << 60 | 0xFFFF)
        | when(branches.kinds, 0xF << 56)
        | (0..4).fold(0, |bits, counter| {
            bits | when(logged >> counter & 1 != 0, 0b11 << (32 + 2 * counter))
        })
}
