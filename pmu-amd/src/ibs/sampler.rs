//! The sampler: operations of a task on one unit of one processor.
//!
//! The interrupt may come between any two accesses, and looks at the memory's state first. So the state says that the
//! unit samples before the unit is enabled, and that the unit is being stopped before it is disabled.

use core::marker::PhantomData;

use pmu_core::{MsrAccess, MsrAddress, MsrBackend, MsrFault, Platform};

use crate::ibs::error::IbsError;
use crate::ibs::interrupt::Ibs;
use crate::ibs::memory::{IbsMemory, IbsState};
use crate::ibs::record::IbsRecord;
use crate::ibs::registers::{IBS_CTL, IbsCtl};
use crate::ibs::sampling::IbsSampling;
use crate::ibs::unit::IbsUnit;

/// Controls one sampling unit of a processor: starts and stops the unit.
///
/// The unit raises an interrupt after each sample. In the interrupt handler, the facility [`Ibs`] reports the sample.
/// The unit uses no performance counter. An extended entry of the local vector table (LVT) delivers the interrupt.
/// [`take`](Self::take) [unmasks](Platform::unmask_extended_interrupt) this entry.
///
/// The sampler cannot move to another thread. Before dropping the sampler, call [`shut_down`](Self::shut_down) on the
/// unit's processor. Dropping the sampler does not stop the unit. If the sampler is dropped without `shut_down`, the
/// unit continues to sample, and the unit's [`IbsMemory`](crate::ibs::IbsMemory) stays in use.
///
/// This example samples one op in 400,000, and reports the op's exact address:
///
/// ```
/// use pmu_amd::ibs::{Ibs, IbsError, IbsMemory, IbsRecord, IbsSampler, IbsSampling, IbsUnit};
/// use pmu_core::{Claim, CounterMemory, EventSource, MsrBackend, Platform, service_with};
/// static OPS: IbsMemory = IbsMemory::new(); // one per processor
///
/// fn begin<M: MsrBackend>(
///     unit: IbsUnit,
///     msr: M,
///     platform: &impl Platform,
/// ) -> Result<IbsSampler<'static, M>, IbsError> {
///     let mut ops = IbsSampler::take(unit, msr, platform, &OPS)?;
///     ops.start(&IbsSampling::ops(400_000))?;
///     Ok(ops)
/// }
///
/// /// The kernel's handler of NMIs. The processor's counters need not be taken.
/// fn handler<S: EventSource, M: MsrBackend, P: Platform>(
///     (source, msr, platform, counters): (&S, &M, &P, &CounterMemory),
///     unit: &IbsUnit,
///     mut push: impl FnMut(u64),
/// ) -> Claim {
///     let ops = Ibs::new(unit, &OPS, |record: &IbsRecord| {
///         if let Some(address) = record.address(unit) {
///             push(address);
///         }
///     });
///     service_with(source, msr, platform, counters, ops, |_, _| ())
///         .map_or(Claim::OursAndMore, |serviced| serviced.claim)
/// }
/// ```
///
/// # Context
/// All methods must be called from a task on the unit's processor. The unit's interrupt may come during each method.
///
/// ```compile_fail,E0277
/// fn needs_send<T: Send>() {}
/// needs_send::<pmu_amd::ibs::IbsSampler<'static, ()>>();
/// ```
#[derive(Debug)]
pub struct IbsSampler<'a, M> {
    pub(crate) unit: IbsUnit,
    pub(crate) msr: M,
    pub(crate) memory: &'a IbsMemory,
    lvt_entry: u8,
    is_open: bool,
    /// The unit is suspended beside lent counters; `true` if it sampled.
    pub(crate) lent: Option<bool>,
    not_send: PhantomData<*mut ()>,
}

impl<'a, M: MsrBackend> IbsSampler<'a, M> {
    /// Takes ownership of a sampling unit of the processor that executes the call. Only one sampler at a time may use a
    /// unit: a second call with another `memory` would stop the unit while the first sampler still uses it. An earlier
    /// owner may have left the unit enabled, or may have left a sample in the unit. The call stops the unit and
    /// discards the sample. If the discarded sample's interrupt comes later, [`Ibs`] [claims](pmu_core::Claim) the
    /// interrupt.
    ///
    /// # Errors
    /// - [`MemoryInUse`](IbsError::MemoryInUse): another sampler owns `memory`. No register was accessed.
    /// - [`NoInterrupt`](IbsError::NoInterrupt), [`Entry`](IbsError::Entry): firmware assigned no LVT entry to the
    ///   unit, or the platform cannot use the entry. The unit was not changed. `memory` is free again.
    /// - [`Access`](IbsError::Access): a register access failed. If the register was `IBS_CTL`, the unit was not
    ///   changed. Otherwise the unit does not sample. `memory` is free again.
    /// - [`Faulted`](IbsError::Faulted): the unit, which an earlier owner may have left enabled, could not be stopped.
    ///   `memory` is free again.
    pub fn take(
        unit: IbsUnit,
        msr: M,
        platform: &impl Platform,
        memory: &'a IbsMemory,
    ) -> Result<Self, IbsError> {
        if !memory.take() {
            return Err(IbsError::MemoryInUse);
        }
        let mut sampler = Self {
            unit,
            msr,
            memory,
            lvt_entry: 0,
            is_open: true,
            lent: None,
            not_send: PhantomData,
        };
        let taken = sampler.unmask_entry(platform).and_then(|()| sampler.end_left_over());
        taken.inspect_err(|_| memory.give_back())?;
        Ok(sampler)
    }

    fn unmask_entry(&mut self, platform: &impl Platform) -> Result<(), IbsError> {
        // SAFETY: the register names an entry of the local vector table, and is only read.
        let register = unsafe { MsrAddress::new(IBS_CTL) };
        let read = self.msr.rdmsr_retrying(register).map_err(IbsError::Access)?;
        let control = IbsCtl::from_bits(read);
        if !control.lvt_offset_valid() {
            return Err(IbsError::NoInterrupt);
        }
        self.lvt_entry = control.lvt_offset();
        platform.unmask_extended_interrupt(self.lvt_entry).map_err(IbsError::Entry)
    }

    /// Ends what a predecessor left. Its last sample is remembered, so that a late interrupt does not report it.
    fn end_left_over(&self) -> Result<(), IbsError> {
        let found = self.unit.disable(&self.msr).map_err(IbsError::Faulted)?;
        if self.unit.is_left_over(found) {
            self.memory.expect_late();
            self.unit.clear(&self.msr, found).map_err(IbsError::Access)?;
        }
        let record = IbsRecord::read(&self.unit, &self.msr, None, false);
        self.memory.remember(record.map_err(IbsError::Access)?.identity());
        Ok(())
    }

    /// Returns the description of the sampling unit that this sampler controls.
    pub const fn unit(&self) -> &IbsUnit {
        &self.unit
    }

    /// Returns the number of the extended LVT entry that delivers the unit's interrupt, as read from `IBS_CTL`.
    /// Firmware chooses one entry for both sampling units of a processor. Other hardware may use this entry, too.
    pub const fn lvt_entry(&self) -> u8 {
        self.lvt_entry
    }

    /// Returns whether the sampling unit samples. The result is `false` after the interrupt handler failed to read the
    /// unit's registers, or failed to enable the unit again. In that case, [`Ibs`] tries to restart the unit at the
    /// next interrupt. To restart the unit earlier, call [`start`](Self::start).
    pub fn is_sampling(&self) -> bool {
        let state = self.memory.state();
        self.is_open && state.is_sampling() && !state.is_waiting() && !state.is_unread()
    }

    /// Starts the sampling unit, as `sampling` requests. If the unit already samples, the call stops the unit first.
    ///
    /// After a stop, the interrupt of the last sample may still be pending. In that case, this call leaves the unit
    /// stopped. The handler starts the unit when the pending interrupt comes. A masked LVT entry holds the interrupt
    /// back, and the unit stays stopped. So do not mask the unit's entry between a stop and a start.
    ///
    /// # Errors
    /// - [`Sampling`](IbsError::Sampling): the unit does not support `sampling`. Nothing was changed.
    /// - [`Access`](IbsError::Access): an access to a register of the unit failed. The unit does not sample.
    /// - [`Faulted`](IbsError::Faulted): the unit was sampling, and could not be stopped: see [`stop`](Self::stop).
    /// - [`ShutDown`](IbsError::ShutDown), [`Lent`](IbsError::Lent): the sampler was shut down, or the unit is
    ///   suspended while the counters are [lent](pmu_core::CounterSession::lend_with). Nothing was changed.
    pub fn start(&mut self, sampling: &IbsSampling) -> Result<(), IbsError> {
        self.check()?;
        let values = self.unit.control_values(sampling)?;
        self.halt().map_err(IbsError::Faulted)?;
        let found = match self.memory.state().is_late() {
            true => self.unit.read_control(&self.msr).map_err(IbsError::Access)?,
            false => 0,
        };
        let before = self.memory.publish(sampling, values);
        if before.is_late() && self.unit.is_valid(found) {
            if !before.is_unread() {
                // The interrupt of this sample is under way: it reports the sample, and enables the unit.
                return Ok(());
            }
            self.memory.count_lost();
        }
        self.enable(before).map_err(IbsError::Access)
    }

    /// Lets the unit sample again, with the values of before.
    pub(crate) fn go_on(&self) -> Result<(), MsrFault> {
        let before = self.memory.publish_again();
        self.enable(before)
    }

    /// Enables the unit with the published values. On a fault the unit stays stopped: the last write enables it.
    /// `before` is the state before the values were published.
    pub(crate) fn enable(&self, before: IbsState) -> Result<(), MsrFault> {
        let enabled = self.unit.enable(&self.msr, self.memory.values(), 0);
        enabled.inspect_err(|_| self.memory.withdraw(before))
    }

    /// Stops the sampling unit. The unit can raise at most one more interrupt after this call. [`Ibs`]
    /// [claims](pmu_core::Claim) this interrupt and reports its sample. The interrupt may come while the counters are
    /// [lent](pmu_core::CounterSession::lend_with). In that case, `lend_with` has already reported the sample, and
    /// [`Ibs`] only claims the interrupt.
    ///
    /// No register tells whether an interrupt of the unit is still pending. So [`Ibs`] claims the first interrupt after
    /// this call, even if a different device raised it much later.
    ///
    /// # Errors
    /// - [`Faulted`](IbsError::Faulted): the unit could not be stopped. The handler of the unit's next interrupt stops
    ///   the unit. The kernel can also repeat this call.
    /// - [`ShutDown`](IbsError::ShutDown), [`Lent`](IbsError::Lent): the sampler was shut down, or the unit is
    ///   suspended while the counters are [lent](pmu_core::CounterSession::lend_with). Nothing was changed.
    pub fn stop(&mut self) -> Result<(), IbsError> {
        self.check()?;
        self.halt().map_err(IbsError::Faulted)
    }

    /// Stops the unit, if it runs.
    pub(crate) fn halt(&self) -> Result<(), MsrFault> {
        let state = self.memory.state();
        if !state.is_sampling() && !state.is_stopping() && !state.is_waiting() {
            return Ok(());
        }
        self.memory.begin_stop();
        let disabled = self.unit.disable(&self.msr);
        let found = disabled.inspect_err(|_| self.memory.fail_stop())?;
        let served = self.memory.end_stop();
        if served && self.unit.is_valid(found) {
            // An interrupt reported this sample. The stop may have written the valid bit back.
            let cleared = self.unit.clear(&self.msr, found & !self.unit.registers().enable);
            cleared.inspect_err(|_| self.memory.note_waiting())?;
        }
        Ok(())
    }

    /// Programs the sampling unit again after a suspend. In the suspend, the unit's registers and the unit's LVT entry
    /// lost their contents. If the unit was sampling, it samples again, as the last [`start`](Self::start) requested. A
    /// sample whose interrupt was pending at the suspend is lost.
    ///
    /// ```
    /// use pmu_amd::ibs::{IbsError, IbsSampler};
    /// use pmu_core::{MsrBackend, Platform};
    /// /// On each processor, after the kernel has programmed the local APIC again.
    /// fn resume<M: MsrBackend>(ops: &mut IbsSampler<'_, M>, apic: &impl Platform) -> Result<(), IbsError> {
    ///     ops.reprogram(apic)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`NoInterrupt`](IbsError::NoInterrupt), [`Entry`](IbsError::Entry): firmware assigned no LVT entry to the
    ///   unit, or the platform cannot use the entry. The unit does not sample.
    /// - [`Access`](IbsError::Access), [`Faulted`](IbsError::Faulted): an access to a register of the unit failed, as
    ///   described at [`take`](Self::take). The unit does not sample. To start the unit again, call
    ///   [`start`](Self::start).
    /// - [`ShutDown`](IbsError::ShutDown), [`Lent`](IbsError::Lent): the sampler was shut down, or the unit is
    ///   suspended while the counters are [lent](pmu_core::CounterSession::lend_with). Nothing was changed.
    pub fn reprogram(&mut self, platform: &impl Platform) -> Result<(), IbsError> {
        self.check()?;
        let sampled = self.memory.forget().is_sampling();
        self.unmask_entry(platform)?;
        self.end_left_over()?;
        if sampled {
            self.go_on().map_err(IbsError::Access)?;
        }
        Ok(())
    }

    /// Stops the sampling unit, and releases the sampler's [`IbsMemory`](crate::ibs::IbsMemory). One more interrupt of
    /// the unit may come, and [`Ibs`] claims this interrupt: see [`stop`](Self::stop). Later operations of the sampler
    /// return [`ShutDown`](IbsError::ShutDown).
    ///
    /// # Errors
    /// - [`Faulted`](IbsError::Faulted): the unit could not be stopped. The sampler still owns its
    ///   [`IbsMemory`](crate::ibs::IbsMemory). The kernel can repeat this call.
    /// - [`ShutDown`](IbsError::ShutDown), [`Lent`](IbsError::Lent): the sampler was shut down, or the unit is
    ///   suspended while the counters are [lent](pmu_core::CounterSession::lend_with). Nothing was changed.
    pub fn shut_down(&mut self) -> Result<(), IbsError> {
        self.stop()?;
        self.is_open = false;
        self.memory.give_back();
        Ok(())
    }

    /// Returns the interrupt path of this unit.
    pub(crate) fn facility<'s, F: FnMut(&IbsRecord)>(&'s self, report: F) -> Ibs<'s, F> {
        Ibs::new(&self.unit, self.memory, report)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    fn check(&self) -> Result<(), IbsError> {
        match (self.is_open, self.lent) {
            (false, _) => Err(IbsError::ShutDown),
            (true, Some(_)) => Err(IbsError::Lent),
            (true, None) => Ok(()),
        }
    }
}
