//! Branch records of a mock processor.

use crate::branches::fed::FedBranch;
use crate::branches::virtual_branches::VirtualBranches;
use crate::mock::deviation::Deviation;
use crate::mock::processor::MockMsr;

/// A branch in this many is recorded with an error, where the processor's records have errors.
const ERRONEOUS: u32 = 4;

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Adds branch records to the processor. The CPUID leaves that [`snapshot`](Self::snapshot) returns declare the
    /// records.
    ///
    /// ```
    /// # use pmu_core::msr::{MsrAddress, MsrBackend};
    /// use pmu_virt::mock::MockMsr;
    /// use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
    /// use pmu_virt::{AmdConfiguration, Configuration, FedEvents, Privilege, VirtualPmu};
    /// let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    /// let branches = VirtualBranches::new(&configuration, BranchConfiguration::AMD)?;
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let mock = MockMsr::<8>::strict(pmu).with_branches(branches);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { MsrAddress::new(address) };
    /// mock.write(msr(0xC000_010F), 1 << 6).unwrap();
    /// mock.branch(&FedBranch::new(0x40_1000, 0x40_2000, FedBranchKind::RelativeCall, Privilege::User));
    /// assert_eq!(mock.read(msr(0xC001_0300)), Ok(0x40_1000));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn with_branches(mut self, branches: VirtualBranches) -> Self {
        self.beside.get_mut().0.0 = Some(branches);
        self
    }

    /// Executes a taken branch on the processor. If the driver has enabled the branch records, the branch is recorded.
    /// For a branch in the driver's own code, call this function in the test's interrupt handler, or in the function
    /// that the test passes to [`on_access`](Self::on_access).
    ///
    /// On a platform with [`ErroneousBranches`](Deviation::ErroneousBranches), the mock records every fourth branch by
    /// [`VirtualBranches::record_erroneous`].
    pub fn branch(&self, branch: &FedBranch) {
        let ((Some(branches), _), _) = &mut *self.beside.borrow_mut() else { return };
        let executed = self.executed_branches.get().wrapping_add(1);
        self.executed_branches.set(executed);
        let erroneous = executed.is_multiple_of(ERRONEOUS);
        if erroneous && self.deviations.contains(Deviation::ErroneousBranches) {
            branches.record_erroneous(branch);
        } else {
            branches.record(branch);
        }
    }

    /// Calls `act` with the state of the branch records. `act` reads and changes the records directly. The mock does
    /// not count this as an access. Returns `None` if the processor has no branch records.
    ///
    /// # Panics
    /// The call panics if `act` accesses a register through the mock.
    pub fn with_branch_records<R>(&self, act: impl FnOnce(&mut VirtualBranches) -> R) -> Option<R> {
        self.beside.borrow_mut().0.0.as_mut().map(act)
    }

    /// Puts the processor into a deep sleep (C-state), and wakes the processor. On a platform with
    /// [`BranchesLostInDeepSleep`](Deviation::BranchesLostInDeepSleep), the sleep clears the branch records.
    pub fn sleep(&self) {
        if self.deviations.contains(Deviation::BranchesLostInDeepSleep) {
            let _ = self.with_branch_records(VirtualBranches::lose_records);
        }
    }
}
