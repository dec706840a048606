//! Answers of a platform that deviates from the manuals.

use pmu_core::msr::MsrErrorKind;

use crate::configuration::any_vendor::Configuration;
use crate::configuration::vendor::Vendor;
use crate::mock::deviation::{Deviation, Deviations};
use crate::mock::processor::{FROZEN, MockMsr};
use crate::pmu::access::Read;
use crate::pmu::facility::{GuestFacility, Writer};
use crate::policy::event_policy::AllowAll;
use crate::precise::virtual_precise::ENABLE;
use crate::registers::counters::MAX_PER_KIND;
use crate::registers::family::Family;
use crate::registers::layout::Freeze;

/// `IA32_MISC_ENABLE`, its bit "PEBS unavailable", and `IA32_PEBS_ENABLE`.
const MISC_ENABLE: u32 = 0x1A0;
const PEBS_UNAVAILABLE: u64 = 1 << 12;
const PEBS_ENABLE: u32 = 0x3F1;
/// `IA32_DEBUGCTL`, and its bit that freezes the counters.
const DEBUGCTL: u32 = 0x1D9;
const FREEZE_COUNTERS: u64 = 1 << 12;
/// Registers that acknowledge overflows, of each vendor.
const ACKNOWLEDGE: [u32; 2] = [0x390, 0xC000_0302];

impl<'h, const T: usize> MockMsr<'h, T> {
    /// Makes the processor deviate from the manuals in the given ways. Before this call, create the PMU with the
    /// configuration that [`Deviations::configuration`] returns. [`snapshot`](Self::snapshot) returns CPUID with these
    /// deviations.
    ///
    /// ```
    /// # use pmu_core::msr::{MsrAddress, MsrBackend};
    /// use pmu_virt::mock::{Deviation, Deviations, MockMsr};
    /// use pmu_virt::{Configuration, FedEvents, IntelConfiguration, VirtualPmu};
    /// let platform = Deviations::of(&[Deviation::DeadCounter, Deviation::FewerCounters]);
    /// let boot = Configuration::Intel(IntelConfiguration::new(4, 4, 3));
    /// let pmu = VirtualPmu::new(platform.configuration(boot), FedEvents::NONE)?;
    /// let mock = MockMsr::<8>::new(pmu).deviating(platform);
    /// # // SAFETY: counters.
    /// # let msr = |address| unsafe { MsrAddress::new(address) };
    /// // The second counter does not answer, and the boot processor's fourth is not there.
    /// mock.write(msr(0x4C2), 7).unwrap();
    /// assert_eq!(mock.read(msr(0x4C2)), Ok(0));
    /// assert!(mock.read(msr(0x4C4)).is_err());
    /// # Ok::<(), pmu_virt::ConfigurationError>(())
    /// ```
    pub fn deviating(mut self, deviations: Deviations) -> Self {
        self.deviations = deviations;
        let left = |deviation| deviations.contains(deviation);
        let pmu = self.pmu.get_mut();
        let amd = pmu.vendor() == Vendor::Amd;
        let layout = pmu.model.layout;
        let own = layout.global() & 0xFF;
        if left(Deviation::LeftRunning) {
            // Cycles, at every privilege, interrupting; a few short of the overflow.
            let event = if amd { 0x76 } else { 0x3C };
            for counter in (0..MAX_PER_KIND).filter(|counter| layout.has(*counter)) {
                let select = Family::EventSelect.first() + counter;
                pmu.model.registers.set(select, 0x53_0000 | event);
                *pmu.model.registers.counter_mut(counter) = layout.mask(counter) - 10;
            }
            *pmu.model.registers.of_mut(Family::GlobalControl) |= own;
        }
        let registers = &mut pmu.model.registers;
        if left(Deviation::LeftOverflowed) {
            *registers.of_mut(Family::GlobalStatus) |= own;
        }
        if left(Deviation::LeftFrozen) && layout.global() != 0 {
            if !amd && !left(Deviation::NarrowAcknowledge) {
                *registers.of_mut(Family::DebugControl) |= FREEZE_COUNTERS;
            }
            if amd || layout.freeze == Freeze::SetsStatus {
                *registers.of_mut(Family::GlobalStatus) |= FROZEN;
            } else {
                *registers.of_mut(Family::GlobalControl) = 0;
            }
        }
        pmu.model.derive(&AllowAll);
        if left(Deviation::LeftPrecise) && !amd {
            match self.beside.get_mut().0.1.1.as_mut().filter(|own| own.debug_store().is_some()) {
                Some(own) => {
                    own.words[ENABLE] = own.counters();
                    pmu.attach(own);
                }
                None => self.precise.set(0xFF),
            }
        }
        self
    }

    /// Returns whether PEBS was left enabled on a processor whose [precise records](Self::with_precise) the test does
    /// not play.
    fn has_bare_precise(&self) -> bool {
        let (_, (_, precise)) = &self.beside.borrow().0;
        let played = precise.as_ref().is_some_and(|own| own.debug_store().is_some());
        !played && self.deviations.contains(Deviation::LeftPrecise)
    }

    /// Returns the platform's answer to an access where it differs from the manual's. `value` is what WRMSR writes;
    /// RDMSR has none.
    pub(super) fn deviate(
        &self,
        register: u32,
        value: Option<u64>,
    ) -> Option<Result<u64, MsrErrorKind>> {
        let deviates = |deviation| self.deviations.contains(deviation);
        let refused = Some(Err(MsrErrorKind::GeneralProtection));
        match (register, value) {
            // The second counter, by each of its addresses.
            (0xC2 | 0x4C2 | 0x1904 | 0xC001_0005 | 0xC001_0203, _)
                if deviates(Deviation::DeadCounter) =>
            {
                Some(Ok(value.unwrap_or(0)))
            }
            (DEBUGCTL, Some(value)) if deviates(Deviation::IgnoresDebugControl) => Some(Ok(value)),
            (DEBUGCTL, _) if deviates(Deviation::NarrowAcknowledge) => {
                let [_, kept] = self.shared.get();
                if let Some(value) = value {
                    self.set_other_bits(register, value);
                    let _ = self.beside.borrow_mut().write(Writer::Guest, register, value);
                }
                Some(Ok(value.unwrap_or(kept)))
            }
            (MISC_ENABLE, None) if self.has_bare_precise() => {
                match self.pmu.borrow().read(register) {
                    Read::Shared { value, .. } => Some(Ok(value & !PEBS_UNAVAILABLE)),
                    _ => None,
                }
            }
            (PEBS_ENABLE, _) if self.has_bare_precise() => {
                if let Some(value) = value {
                    self.precise.set(value);
                }
                Some(Ok(value.unwrap_or(self.precise.get())))
            }
            (register, Some(value)) if ACKNOWLEDGE.contains(&register) => {
                let control = self.pmu.borrow().model.registers.of(Family::GlobalControl);
                if control == 0 && deviates(Deviation::AcknowledgesWhileEnabled) {
                    return Some(Ok(value));
                }
                if value & FROZEN != 0 && deviates(Deviation::NarrowAcknowledge) {
                    return refused;
                }
                let mut pmu = self.pmu.borrow_mut();
                if matches!(pmu.configuration(), Configuration::Amd(_)) && value & FROZEN != 0 {
                    // The model does not freeze AMD's counters: they were left frozen.
                    *pmu.model.registers.of_mut(Family::GlobalStatus) &= !value;
                    let _ = self.beside.borrow_mut().0.0.write(Writer::Guest, register, value);
                    return Some(Ok(value));
                }
                None
            }
            _ => None,
        }
    }
}
