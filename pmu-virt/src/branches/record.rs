//! Feeding branches: the filter, the call stack, and the position of a new record.

use crate::branches::configuration::{ArchitecturalBranches, BranchConfiguration, MAX_RECORDS};
use crate::branches::virtual_branches::{
    CONTROL, DEBUG, EXTENSION, LOGGED, STATUS, TOP, VirtualBranches,
};
use crate::events::key::Privilege;
use crate::registers::table::when;

impl VirtualBranches {
    /// Records a taken branch of the guest. The branch is recorded only if the guest has enabled the branch records,
    /// the guest's filter selects the branch, and the records are not frozen. Returns whether the branch changed the
    /// branch records.
    ///
    /// Pass the branches in the order of their execution. Pass each branch before
    /// [`VirtualPmu::advance`](crate::VirtualPmu::advance) counts the branch's events. Otherwise an overflow by these
    /// events could freeze the records before the branch is recorded.
    ///
    /// ```
    /// use pmu_virt::{GuestFacility, Privilege, Read, Writer};
    /// use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let mut branches = VirtualBranches::new(&configuration, BranchConfiguration::ARCHITECTURAL)?;
    /// // IA32_LBR_CTL: enabled, user mode, conditional jumps.
    /// let _ = branches.write(Writer::Guest, 0x14CE, 1 << 16 | 1 << 2 | 1);
    /// let branch = FedBranch::new(0x40_1010, 0x40_1000, FedBranchKind::Conditional, Privilege::User);
    /// assert!(branches.record(&branch));
    /// assert!(!branches.record(&FedBranch { kind: FedBranchKind::Return, ..branch }));
    /// assert_eq!(branches.read(0x1500), Read::Value(0x40_1010)); // IA32_LBR_0_FROM_IP, the newest
    /// assert_eq!(branches.read(0x1501), Read::Value(0));
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn record(&mut self, branch: &FedBranch) -> bool {
        if !self.is_recording() || !self.takes(branch) {
            return false;
        }
        match branch.kind {
            _ if !self.is_call_stack() => self.push(self.encode(branch)),
            FedBranchKind::RelativeCall | FedBranchKind::IndirectCall => {
                self.push(self.encode(branch));
            }
            FedBranchKind::Return => self.pop(),
            _ => return false,
        }
        true
    }

    /// Records a branch with the wrong content that an erratum of real processors causes:
    ///
    /// - AMD: the recorded target has the reserved bit 61 set (erratum 1452 of family 19h).
    /// - Legacy format 4 (Haswell): the abort of a transaction is recorded twice. The abort bit is clear in the second
    ///   record.
    /// - Any other branch is recorded correctly.
    pub fn record_erroneous(&mut self, branch: &FedBranch) {
        if !self.is_recording() || !self.takes(branch) || self.is_call_stack() {
            return;
        }
        let record = self.encode(branch);
        match self.configuration {
            BranchConfiguration::Amd(_) => self.push(record.with_reserved_bit()),
            BranchConfiguration::Legacy { format: 4 }
                if branch.transaction == FedTransaction::Abort =>
            {
                self.push(record);
                self.push(record.without_abort());
            }
            _ => self.push(record),
        }
    }

    /// Returns the record with this age, 0 for the newest.
    pub(crate) fn newest(&self, age: usize) -> Option<Record> {
        let depth = usize::from(self.depth);
        let number = match self.configuration {
            BranchConfiguration::Legacy { .. } => {
                // A legacy stack has 16 or 32 records: the mask leads from record 0 back to the last one.
                (self.words[TOP] as usize).wrapping_sub(age) & (depth - 1)
            }
            _ => age,
        };
        if age < depth { self.records.get(number).copied() } else { None }
    }

    /// Clears the guest's branch records, as a deep sleep (C-state) of a real processor can do. The control registers
    /// keep their values.
    pub fn lose_records(&mut self) {
        self.records = [Record::EMPTY; MAX_RECORDS];
    }

    /// Returns `true` if the guest has enabled the branch records, and the records are not frozen.
    ///
    /// ```
    /// use pmu_virt::{GuestFacility, Writer};
    /// use pmu_virt::branches::{BranchConfiguration, VirtualBranches};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let mut branches = VirtualBranches::new(&configuration, BranchConfiguration::ARCHITECTURAL)?;
    /// assert!(!branches.is_recording());
    /// let _ = branches.write(Writer::Guest, 0x14CE, 1);
    /// assert!(branches.is_recording());
    /// # Ok::<(), pmu_virt::configuration::ConfigurationError>(())
    /// ```
    pub fn is_recording(&self) -> bool {
        let enabled = match self.configuration {
            BranchConfiguration::Architectural(_) => self.words[CONTROL] & 1 != 0,
            BranchConfiguration::Legacy { .. } => self.words[DEBUG] & 1 != 0,
            // LBRV2EN is the only bit that the word can hold.
            BranchConfiguration::Amd(_) => self.words[EXTENSION] != 0,
        };
        // From version 4 on, a freeze leaves the enable bit set.
        enabled && self.words[STATUS] == 0
    }

    /// Returns whether calls push a record and returns pop one.
    pub(crate) fn is_call_stack(&self) -> bool {
        match self.configuration {
            BranchConfiguration::Architectural(_) => self.words[CONTROL] >> 3 & 1 != 0,
            BranchConfiguration::Legacy { .. } => self.words[CONTROL] >> 9 & 1 != 0,
            BranchConfiguration::Amd(_) => false,
        }
    }

    fn encode(&self, branch: &FedBranch) -> Record {
        Record::encode(&self.configuration, branch, self.transactional, self.words[LOGGED] as u8)
    }

    /// Returns whether the guest's filter lets the branch through.
    fn takes(&self, branch: &FedBranch) -> bool {
        let retired = branch.path != FedPath::Wrong;
        let user = branch.privilege == Privilege::User;
        let kind = branch.kind.numbers();
        let has = |bit: u32| self.words[CONTROL] >> bit & 1 != 0;
        // `LBR_SELECT`, of both vendors: bits suppress.
        let suppressed = has(u32::from(user)) || has(kind.select);
        match self.configuration {
            // `IA32_LBR_CTL`: bits enable.
            BranchConfiguration::Architectural(branches) => {
                retired
                    // Without a filter its bits are reserved, and nothing is left out.
                    && (has(1 + u32::from(user)) || !branches.privilege_filter)
                    && (has(kind.control) || !branches.kind_filter)
            }
            BranchConfiguration::Legacy { .. } => retired && !suppressed,
            BranchConfiguration::Amd(_) => !suppressed,
        }
    }

    /// Adds a record: at the top of a legacy stack, otherwise as record 0.
    fn push(&mut self, record: Record) {
        let depth = usize::from(self.depth);
        if let BranchConfiguration::Legacy { .. } = self.configuration {
            // The legacy stack is a ring: the index moves, and the records stay.
            self.words[TOP] = (self.words[TOP] + 1) % u64::from(self.depth);
            self.records[self.words[TOP] as usize % MAX_RECORDS] = record;
        } else if let Some(records) = self.records.get_mut(..depth) {
            // These records have no register that points to the newest: it is always number 0.
            records.rotate_right(1);
            self.records[0] = record;
        }
    }

    /// Removes the newest record.
    fn pop(&mut self) {
        let depth = usize::from(self.depth);
        if let BranchConfiguration::Legacy { .. } = self.configuration {
            // In the ring, the place that becomes free is the oldest one: without this, the call would be seen once
            // more there.
            self.records[self.words[TOP] as usize % MAX_RECORDS] = Record::EMPTY;
            self.words[TOP] = self.words[TOP].checked_sub(1).unwrap_or(u64::from(self.depth) - 1);
        } else if let Some(records) = self.records.get_mut(..depth) {
            records.rotate_left(1);
            if let Some(oldest) = records.last_mut() {
                *oldest = Record::EMPTY;
            }
        }
    }
}

/// Kind of a branch. The vendors' branch filters distinguish these kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FedBranchKind {
    /// Conditional jump that was taken.
    Conditional,
    /// Near relative jump.
    RelativeJump,
    /// Near indirect jump.
    IndirectJump,
    /// Near relative call.
    RelativeCall,
    /// Near indirect call.
    IndirectCall,
    /// Near return.
    Return,
    /// Far branch, interrupt, exception, system call, or return from one of these.
    Far,
}

/// Tells whether a branch was speculative, and whether the branch retired. Only AMD's branch records contain this
/// information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FedPath {
    /// The branch retired, and was not speculative.
    Retired,
    /// The branch was executed speculatively, and retired.
    Speculative,
    /// The branch was executed speculatively, and did not retire. Only AMD's branch records contain such a branch.
    Wrong,
}

/// Relation of a branch to a transaction (TSX). Only Intel's branch records contain this information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FedTransaction {
    /// Outside a transaction.
    Outside,
    /// Within a transaction.
    Inside,
    /// The branch is the abort of a transaction.
    Abort,
}

/// Taken branch of the guest. The embedder passes the branch to
/// [`VirtualBranches::record`](crate::branches::VirtualBranches::record).
///
/// ```
/// use pmu_virt::branches::{FedBranch, FedBranchKind};
/// use pmu_virt::Privilege;
/// let branch = FedBranch { mispredicted: true, cycles: Some(12), ..FedBranch::new(
///     0x40_1010, 0x40_1000, FedBranchKind::Conditional, Privilege::User,
/// ) };
/// assert_eq!(branch.counts, [0; 4]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FedBranch {
    /// Linear address of the branch.
    pub from: u64,
    /// Linear address of the target.
    pub to: u64,
    /// Kind of the branch.
    pub kind: FedBranchKind,
    /// Privilege level at which the target of the branch executes. The guest's filter by privilege uses this value.
    pub privilege: Privilege,
    /// The branch was mispredicted.
    pub mispredicted: bool,
    /// Cycles since the previous recorded branch; `None` if unknown.
    pub cycles: Option<u16>,
    /// Tells whether the branch was speculative, and whether the branch retired.
    pub path: FedPath,
    /// Relation of the branch to a transaction.
    pub transaction: FedTransaction,
    /// Number of events since the previous recorded branch, for each of counters 0–3. A branch record stores at most 3
    /// events per counter.
    pub counts: [u8; 4],
}

impl FedBranch {
    /// Describes a correctly predicted branch that retired outside a transaction. The number of cycles since the
    /// previous branch is unknown.
    pub const fn new(from: u64, to: u64, kind: FedBranchKind, privilege: Privilege) -> Self {
        Self {
            from,
            to,
            kind,
            privilege,
            mispredicted: false,
            cycles: None,
            path: FedPath::Retired,
            transaction: FedTransaction::Outside,
            counts: [0; 4],
        }
    }
}

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
                // Goldmont Plus, whose format is 7, has no TSX.
                let transaction = if *format == 5 { transaction } else { 0 };
                Self { from, to, info: mispredicted | transaction | cycles }
            }
            // Valid says that the path was right, and neither bit that the record is empty: so the wrong path is
            // speculative alone (APM vol. 2, "LastBranchStackToIp").
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
