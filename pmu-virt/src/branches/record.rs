//! Feeding branches: the filter, the call stack, and the position of a new record.

use crate::branches::configuration::{BranchConfiguration, MAX_RECORDS};
use crate::branches::fed::{FedBranch, FedBranchKind, FedPath, FedTransaction};
use crate::branches::format::Record;
use crate::branches::virtual_branches::{
    CONTROL, DEBUG, EXTENSION, LOGGED, STATUS, TOP, VirtualBranches,
};
use crate::events::key::Privilege;

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
    /// use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
    /// use pmu_virt::{Configuration, GuestFacility, IntelConfiguration, Privilege, Read, Writer};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let mut branches = VirtualBranches::new(&configuration, BranchConfiguration::ARCHITECTURAL)?;
    /// // IA32_LBR_CTL: enabled, user mode, conditional jumps.
    /// let _ = branches.write(Writer::Guest, 0x14CE, 1 << 16 | 1 << 2 | 1);
    /// let branch = FedBranch::new(0x40_1010, 0x40_1000, FedBranchKind::Conditional, Privilege::User);
    /// assert!(branches.record(&branch));
    /// assert!(!branches.record(&FedBranch { kind: FedBranchKind::Return, ..branch }));
    /// assert_eq!(branches.read(0x1500), Read::Value(0x40_1010)); // IA32_LBR_0_FROM_IP, the newest
    /// assert_eq!(branches.read(0x1501), Read::Value(0));
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
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
    /// use pmu_virt::branches::{BranchConfiguration, VirtualBranches};
    /// use pmu_virt::{Configuration, GuestFacility, IntelConfiguration, Writer};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let mut branches = VirtualBranches::new(&configuration, BranchConfiguration::ARCHITECTURAL)?;
    /// assert!(!branches.is_recording());
    /// let _ = branches.write(Writer::Guest, 0x14CE, 1);
    /// assert!(branches.is_recording());
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    pub fn is_recording(&self) -> bool {
        let enabled = match self.configuration {
            BranchConfiguration::Architectural(_) => self.words[CONTROL] & 1 != 0,
            BranchConfiguration::Legacy { .. } => self.words[DEBUG] & 1 != 0,
            BranchConfiguration::Amd(_) => self.words[EXTENSION] != 0,
        };
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
            self.words[TOP] = (self.words[TOP] + 1) % u64::from(self.depth);
            self.records[self.words[TOP] as usize % MAX_RECORDS] = record;
        } else if let Some(records) = self.records.get_mut(..depth) {
            records.rotate_right(1);
            self.records[0] = record;
        }
    }

    /// Removes the newest record.
    fn pop(&mut self) {
        let depth = usize::from(self.depth);
        if let BranchConfiguration::Legacy { .. } = self.configuration {
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
