//! The words of a record, in each format.

use crate::branches::configuration::{ArchitecturalBranches, BranchConfiguration};
use crate::branches::fed::{FedBranch, FedBranchKind, FedPath, FedTransaction};

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
        let kind = match branch.kind {
            FedBranchKind::Conditional => 0,
            FedBranchKind::IndirectJump => 1,
            FedBranchKind::RelativeJump => 2,
            FedBranchKind::IndirectCall => 3,
            FedBranchKind::RelativeCall => 4,
            FedBranchKind::Return => 5,
            FedBranchKind::Far => 8,
        };
        info |= kind << 56;
    }
    for (counter, count) in branch.counts.into_iter().enumerate() {
        if logged >> counter & 1 != 0 {
            info |= u64::from(count.min(3)) << (32 + 2 * counter);
        }
    }
    info
}

/// Returns the bits of an architectural INFO that a processor with these records has.
pub(crate) const fn info_bits(branches: &ArchitecturalBranches) -> u64 {
    let mut legal = IN_TX | ABORT;
    if branches.mispredictions {
        legal |= MISPREDICTED;
    }
    if branches.cycles {
        legal |= 1 << 60 | 0xFFFF;
    }
    if branches.kinds {
        legal |= 0xF << 56;
    }
    let mut counter = 0;
    while counter < 4 {
        if branches.counters >> counter & 1 != 0 {
            legal |= 0b11 << (32 + 2 * counter);
        }
        counter += 1;
    }
    legal
}
