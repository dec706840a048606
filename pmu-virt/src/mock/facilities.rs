//! The facilities of a mock processor: branch records, sampling units, top-down metrics, counter reload.

use core::cell::Cell;

use crate::branches::record::FedBranch;
use crate::branches::virtual_branches::VirtualBranches;
use crate::events::feed::{FedEventsError, Feed};
use crate::ibs::sample::{FedFetch, FedOp};
use crate::ibs::virtual_ibs::VirtualIbs;
use crate::mock::backend::PmiFault;
use crate::mock::deviation::Deviation;
use crate::mock::interrupts::Entry;
use crate::mock::processor::{MASKED, MockMsr};
use crate::model::Advanced;
use crate::pmu::virtual_pmu::{PmiOutcome, VirtualPmu};
use crate::registers::table::{Counters, MAX_COUNTERS, from_global, places};
use crate::reload::VirtualReload;
use crate::topdown::{TopDownMix, VirtualTopDown};

/// A branch in this many is recorded with an error, where the processor's records have errors.
const ERRONEOUS: u32 = 4;

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Adds branch records to the processor. The CPUID leaves that [`snapshot`](Self::snapshot) returns declare the
    /// records.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, Privilege, VirtualPmu};
    /// use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
    /// use pmu_virt::configuration::{AmdConfiguration, Configuration};
    /// use pmu_virt::mock::MockMsr;
    /// let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    /// let branches = VirtualBranches::new(&configuration, BranchConfiguration::AMD)?;
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let mock = MockMsr::<8>::strict(pmu).with_branches(branches);
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
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

    /// Adds instruction-based sampling to the processor. [`snapshot`](Self::snapshot) declares this feature.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// # use pmu_core::Platform;
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{AmdConfiguration, Configuration};
    /// use pmu_virt::ibs::{FedOp, IbsConfiguration, VirtualIbs};
    /// use pmu_virt::mock::MockMsr;
    /// let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let mock = MockMsr::<8>::strict(pmu).with_sampling(VirtualIbs::new(IbsConfiguration::ZEN_4));
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { RegisterAddress::new(address) };
    /// mock.unmask_facility_interrupt(0)?;
    /// mock.write(msr(0xC001_1033), 1 << 19 | 1 << 17 | 144 >> 4).unwrap();
    /// for instruction in 1..=144 {
    ///     mock.execute(&FedOp::new(instruction));
    /// }
    /// assert_eq!((mock.interrupts(), mock.read(msr(0xC001_1034))), (1, Ok(144)));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn with_sampling(mut self, sampling: VirtualIbs) -> Self {
        self.beside.get_mut().0.1.0 = Some(sampling);
        self
    }

    /// Executes an op on the processor. The processor's instruction-based sampling counts the op. If the op is sampled,
    /// the processor raises an interrupt. Returns whether the op was sampled. The test's interrupt handler and the
    /// function of [`on_access`](Self::on_access) may also call this method.
    ///
    /// On a platform with [`LateIbs`](Deviation::LateIbs), the interrupt comes only after the driver has disabled
    /// instruction-based sampling.
    pub fn execute(&self, op: &FedOp) -> bool {
        let sampled = self.with_sampling_unit(|sampling| sampling.execute(op));
        self.sampled(sampled == Some(true))
    }

    /// Executes a fetch on the processor, in the same way as [`execute`](Self::execute) executes an op.
    pub fn fetch(&self, fetch: &FedFetch) -> bool {
        let sampled = self.with_sampling_unit(|sampling| sampling.fetch(fetch));
        self.sampled(sampled == Some(true))
    }

    /// Calls `act` with the state of the instruction-based sampling. `act` reads and changes the state directly. The
    /// mock does not count this as an access. Returns `None` if the processor has no instruction-based sampling.
    ///
    /// # Panics
    /// The call panics if `act` accesses a register through the mock.
    pub fn with_sampling_unit<R>(&self, act: impl FnOnce(&mut VirtualIbs) -> R) -> Option<R> {
        self.beside.borrow_mut().0.1.0.as_mut().map(act)
    }

    /// Returns the value of the extended LVT entry with the number `entry`, from 0 to 3.
    ///
    /// # Panics
    /// The call panics if `entry` is above 3.
    pub fn extended_entry(&self, entry: u8) -> u32 {
        self.extended_entries[usize::from(entry)].get()
    }

    /// Sets the value of the extended LVT entry with the number `entry`, from 0 to 3.
    ///
    /// # Panics
    /// The call panics if `entry` is above 3.
    pub fn set_extended_entry(&self, entry: u8, value: u32) {
        self.extended_entries[usize::from(entry)].set(value);
    }

    /// Delivers the pending interrupt of [instruction-based sampling](Self::with_sampling). The interrupt goes through
    /// the extended LVT entry that instruction-based sampling uses. If no interrupt is pending, the call does nothing.
    pub fn deliver_sample(&self) {
        let mut raised = false;
        let _ = self.with_sampling_unit(|sampling| {
            let entry = sampling.configuration().lvt_entry.map_or(0, usize::from);
            // An entry that the local APIC lacks delivers nothing.
            let absent = Cell::new(MASKED);
            let mut entry = Entry(self.extended_entries.get(entry).unwrap_or(&absent));
            raised = matches!(sampling.deliver(&mut entry), PmiOutcome::Raised(_));
        });
        if raised {
            self.interrupt_from_elsewhere();
        }
    }

    fn sampled(&self, sampled: bool) -> bool {
        if sampled && !self.deviations.contains(Deviation::LateIbs) {
            match self.plan.pmi.get() {
                PmiFault::None => self.deliver_sample(),
                PmiFault::Lost => {
                    let _ = self.with_sampling_unit(|unit| unit.set_interrupt_pending(false));
                }
                PmiFault::Late(accesses) => {
                    self.plan.deliver_sample_in.set(accesses.saturating_add(1));
                }
            }
        }
        sampled
    }

    /// Delivers a late interrupt after a write that disabled the unit.
    pub(super) fn stopped_sampling(&self) {
        let late = self.deviations.contains(Deviation::LateIbs)
            && self.with_sampling_unit(|unit| unit.interrupt_pending() && !unit.is_enabled())
                == Some(true);
        if late {
            self.deliver_sample();
        }
    }

    /// Adds top-down metrics to the processor. `IA32_PERF_CAPABILITIES` declares the metrics.
    /// [`snapshot`](Self::snapshot) returns CPUID of a processor model whose metrics have level 2 only if `metrics` has
    /// level 2. The test feeds issue slots like any other event. Fixed counter 3 counts these slots.
    ///
    /// Do not call this method for an E-core, which counts the parts of level 1 as ordinary events. The PMU of an
    /// E-core has version 5 or 6. Its [`fixed`](crate::configuration::IntelConfiguration::fixed) counters are 0 to 2
    /// and 4 to 6, that is `0b111_0111`. The test feeds the events of fixed counters 4 (bad speculation), 5 (front-end
    /// bound) and 6 (retiring). For back-end bound, the test feeds the general event 0xA4 with unit mask 2.
    ///
    /// ```
    /// # use pmu_core::access::{RegisterAddress, RegisterBackend};
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::MockMsr;
    /// use pmu_virt::topdown::VirtualTopDown;
    /// let configuration = Configuration::Intel(IntelConfiguration::new(5, 8, 4));
    /// let metrics = VirtualTopDown::new(&configuration, false)?;
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let mock = MockMsr::<8>::strict(pmu).with_top_down(metrics);
    /// # // SAFETY: IA32_PERF_CAPABILITIES, which is read.
    /// # let capabilities = unsafe { RegisterAddress::new(0x345) };
    /// assert_eq!(mock.read(capabilities).map(|bits| bits >> 15 & 1), Ok(1));
    /// assert_eq!(mock.snapshot().model(), 0x7E); // Ice Lake: level 1 alone
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn with_top_down(mut self, metrics: VirtualTopDown) -> Self {
        self.beside.get_mut().1.0 = Some(metrics);
        self
    }

    /// Sets the [mix](TopDownMix) of the issue slots that the test feeds after this call. Before the first call, every
    /// slot retires.
    pub fn set_mix(&self, mix: TopDownMix) {
        self.mix.set(mix);
    }

    /// Calls `act` with the state of the top-down metrics. `act` reads and changes the metrics directly. The mock does
    /// not count this as an access. Returns `None` if the processor has no top-down metrics.
    ///
    /// # Panics
    /// The call panics if `act` accesses a register through the mock.
    pub fn with_metrics<R>(&self, act: impl FnOnce(&mut VirtualTopDown) -> R) -> Option<R> {
        self.beside.borrow_mut().1.0.as_mut().map(act)
    }

    /// Adds auto counter reload to the processor. [`snapshot`](Self::snapshot) declares this feature.
    ///
    /// Between two interrupts, the mock reloads counters at most 1,024 times. After that, overflows reload no counter
    /// until the next interrupt or the end of the feed. So a test must feed events in small steps, with fewer than
    /// 1,024 reloads in each call of [`advance`](Self::advance).
    ///
    /// ```
    /// use pmu_virt::{FedEvents, VirtualPmu};
    /// use pmu_virt::configuration::{Configuration, IntelConfiguration};
    /// use pmu_virt::mock::MockMsr;
    /// use pmu_virt::reload::{ReloadConfiguration, VirtualReload};
    /// let configuration = Configuration::Intel(IntelConfiguration::new(6, 8, 4));
    /// let reload = VirtualReload::new(&configuration, ReloadConfiguration::of(0xFF, 0xF))?;
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let mock = MockMsr::<8>::strict(pmu).with_reload(reload);
    /// assert_eq!(mock.snapshot().leaf(0x23, 2).eax, 0xFF);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn with_reload(mut self, reload: VirtualReload) -> Self {
        let ((_, (_, precise)), (_, present)) = self.beside.get_mut();
        // Whichever of the two a test adds last: `with_precise` does the same.
        *present = Some(match precise {
            Some(precise) => reload.sharing(precise),
            None => reload,
        });
        self
    }

    /// Calls `act` with the state of auto counter reload. `act` reads and changes the state directly. The mock does not
    /// count this as an access. Returns `None` if the processor has no auto counter reload.
    ///
    /// # Panics
    /// The call panics if `act` accesses a register through the mock.
    pub fn with_reloads<R>(&self, act: impl FnOnce(&mut VirtualReload) -> R) -> Option<R> {
        self.beside.borrow_mut().1.1.as_mut().map(act)
    }

    /// Lets the PMU count a feed, with what the top-down metrics and the counter reload make of it.
    pub(super) fn count(&self, feed: &mut Feed) -> Result<Advanced, FedEventsError> {
        let pmu = &mut *self.pmu.borrow_mut();
        let (metrics, reload) = &mut self.beside.borrow_mut().1;
        let mut pass = |pmu: &mut VirtualPmu, feed: &mut Feed| match metrics {
            Some(metrics) => metrics.observe(pmu, &self.mix.get(), |pmu| pmu.advance(feed)),
            None => pmu.advance(feed),
        };
        match reload {
            // The metrics within the reload: a reload of the slots' counter in the midst of a span would hide how far
            // it went.
            Some(reload) => reload.advance_by(pmu, feed, pass),
            None => pass(pmu, feed),
        }
    }

    /// Counts the slots up to the overflow of the slots' counter, before every counter overflows.
    pub(super) fn slots_overflow(&self, pmu: &VirtualPmu) {
        let _ = self.with_metrics(|metrics| metrics.pass_to_overflow(pmu, &self.mix.get()));
    }
}

/// Counters that are armed: their overflow came while another counter's interrupt froze them, and their record is
/// written at the next event that they count. SDM vol. 3B, "Processor Event Based Sampling (PEBS)".
pub(super) struct Armed {
    counters: Counters,
    /// The value of each of them.
    values: [u64; MAX_COUNTERS],
}

impl Armed {
    /// Lets the next event of each armed counter overflow it, so that a feed ends there.
    pub(super) fn arm<const T: usize>(mock: &MockMsr<'_, T>, pmu: &mut VirtualPmu) -> Self {
        let due = mock.with_precise_records(|precise| precise.due() & precise.enabled());
        let counters = from_global(due.unwrap_or(0)) & pmu.model.running();
        let mut values = [0; MAX_COUNTERS];
        for counter in places(counters) {
            values[counter % MAX_COUNTERS] = pmu.model.registers.counter(counter);
            // One event before the overflow: the next one ends the pass, and is the one that is recorded.
            pmu.model.load(counter, u64::MAX);
        }
        Self { counters, values }
    }

    /// Gives each of the counters its value back, with the event that it counted, if it did. Auto counter reload may
    /// have loaded a counter meanwhile. `advanced` keeps the records of these counters, and not their overflows.
    pub(super) fn disarm(self, pmu: &mut VirtualPmu, advanced: &mut Advanced) {
        *advanced = advanced.without_overflows(self.counters);
        for counter in places(self.counters) {
            let value = self.values[counter % MAX_COUNTERS];
            match pmu.model.registers.counter(counter) {
                0 => pmu.model.load(counter, value.wrapping_add(1)),
                full if full == pmu.model.layout.mask(counter) => pmu.model.load(counter, value),
                _ => {}
            }
        }
    }
}
