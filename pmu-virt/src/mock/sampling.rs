//! Instruction-based sampling of a mock processor, and the extended LVT entries for its interrupt.

use core::cell::Cell;

use crate::ibs::fed::{FedFetch, FedOp};
use crate::ibs::virtual_ibs::VirtualIbs;
use crate::mock::deviation::Deviation;
use crate::mock::interrupts::Entry;
use crate::mock::plan::PmiFault;
use crate::mock::processor::{MASKED, MockMsr};
use crate::pmu::pmi::PmiOutcome;

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Adds instruction-based sampling to the processor. [`snapshot`](Self::snapshot) declares this feature.
    ///
    /// ```
    /// # use pmu_core::msr::{MsrAddress, MsrBackend};
    /// # use pmu_core::Platform;
    /// use pmu_virt::mock::MockMsr;
    /// use pmu_virt::ibs::{FedOp, IbsConfiguration, VirtualIbs};
    /// use pmu_virt::{AmdConfiguration, Configuration, FedEvents, VirtualPmu};
    /// let configuration = Configuration::Amd(AmdConfiguration::perf_mon_v2(6));
    /// let pmu = VirtualPmu::new(configuration, FedEvents::NONE)?;
    /// let mock = MockMsr::<8>::strict(pmu).with_sampling(VirtualIbs::new(IbsConfiguration::ZEN_4));
    /// # // SAFETY: the mock's registers are numbers.
    /// # let msr = |address| unsafe { MsrAddress::new(address) };
    /// mock.unmask_extended_interrupt(0)?;
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
}
