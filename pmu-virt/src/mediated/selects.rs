//! The controls of each counter, without the events that the policy forbids.

use pmu_core::msr::MsrBackend;

use crate::mediated::error::MediationError;
use crate::mediated::host_counters::HostCounters;
use crate::mediated::loaded::Loaded;
use crate::mediated::registers::Access;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;
use crate::registers::counters::{Counters, MAX_PER_KIND};
use crate::registers::family::Family;

/// An event select's enable bit, of both vendors.
const ENABLE: u64 = 1 << 22;
/// AMD's select bit: counts in guests only.
const GUEST_ONLY: u64 = 1 << 40;

impl HostCounters {
    pub(super) fn write_select<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        guest: &VirtualPmu<P>,
        counter: usize,
        msr: &Access<'_, M>,
    ) -> Result<(), MediationError> {
        let mut select = guest.model.registers.select(counter);
        if guest.model.enabled() >> counter & 1 == 0 {
            select &= !ENABLE;
        } else if self.is_amd() {
            select |= GUEST_ONLY;
        }
        loaded.programmed |= Counters::from(select != 0) << counter;
        msr.write(self.registers.select(counter), select)
    }

    pub(super) fn write_fixed_control<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        guest: &VirtualPmu<P>,
        msr: &Access<'_, M>,
    ) -> Result<(), MediationError> {
        if guest.model.layout.counters() >> MAX_PER_KIND == 0 {
            return Ok(());
        }
        let mut control = guest.model.registers.of(Family::FixedControl);
        for counter in 0..MAX_PER_KIND {
            if guest.model.enabled() >> (MAX_PER_KIND + counter) & 1 == 0 {
                control &= !(0b11 << (4 * counter));
            }
        }
        loaded.programmed |= Counters::from(control != 0) << MAX_PER_KIND;
        msr.write(self.registers.fixed_control, control)
    }
}
