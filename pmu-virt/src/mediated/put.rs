//! Saving a guest's state from the counters.

use pmu_core::msr::MsrBackend;

use crate::mediated::error::MediationError;
use crate::mediated::host_counters::HostCounters;
use crate::mediated::loaded::{Loaded, Put};
use crate::mediated::registers::{Access, Registers, pmc_index};
use crate::pmu::load_number::LoadNumber;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;
use crate::registers::counters::{Counters, places};
use crate::registers::family::Family;

impl HostCounters {
    /// Reads the loaded guest's state from the counters, and saves the state in `guest`. The call then disarms and
    /// clears the counters, and acknowledges their overflows.
    ///
    /// On Intel, `global_control` is the value of `IA32_PERF_GLOBAL_CTRL` that the processor saved at the VM exit. On
    /// AMD, the call ignores `global_control`, and reads the register. `put` clears the registers that
    /// [`load`](Self::load) has written, even if the guest's PMU was changed after the load. If the guest was
    /// [reset](VirtualPmu::reset) after the load, `put` does not overwrite the reset state.
    ///
    /// Each overflow of a guest's counter makes one interrupt pending in the guest. If the processor's interrupt comes
    /// before `put`, [`interrupted`](Self::interrupted) notes the overflow. Otherwise `put` notes the overflow, and the
    /// processor's interrupt [comes later](Put::interrupt_is_coming).
    ///
    /// The guest itself can clear the status bit of an overflow, and the same counter can then overflow again. `put`
    /// mistakes this second overflow for the first, and returns `interrupt_is_coming` as `false`. The interrupt of the
    /// second overflow may still come after `put`. `interrupted` then attributes this interrupt to the guest.
    ///
    /// Accesses:
    ///
    /// - a read of the status, and a write that acknowledges the set bits;
    /// - RDPMC of each counter;
    /// - a write of each counter and control register (event selects, `IA32_FIXED_CTR_CTRL`) that is not already 0;
    /// - on AMD, a read and a write of the global control.
    ///
    /// # Errors
    /// `loaded` belongs to another guest, or a register access failed. A failed call loses no state. The error gives
    /// `loaded` back, so that the caller can repeat the call.
    pub fn put<'w, P: EventPolicy, M: MsrBackend>(
        &self,
        mut loaded: Loaded<'w>,
        global_control: u64,
        guest: &mut VirtualPmu<P>,
        msr: &M,
    ) -> Result<Put, (Loaded<'w>, MediationError)> {
        if let Err(error) = loaded.check(guest) {
            return Err((loaded, error));
        }
        let msr = Access(msr);
        let saved = self.read_back(&mut loaded, global_control, guest, &msr);
        match saved.and_then(|put| self.take_away(&mut loaded, &msr).map(|()| put)) {
            Ok(put) => {
                loaded.lent.set_programmed(false);
                guest.load = LoadNumber::default();
                Ok(put)
            }
            Err(error) => Err((loaded, error)),
        }
    }

    /// Saves the guest's state, once.
    fn read_back<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        saved: u64,
        guest: &mut VirtualPmu<P>,
        msr: &Access<'_, M>,
    ) -> Result<Put, MediationError> {
        if let Some((put, _)) = loaded.saved {
            return Ok(put);
        }
        let Registers { control, status, .. } = self.registers;
        let (layout, mut registers) = (&guest.model.layout, guest.model.registers);
        if !self.is_amd() {
            loaded.global_control = saved & layout.global();
        } else if !loaded.stopped {
            loaded.global_control = msr.read(control)? & layout.global();
            msr.write(control, loaded.lent.global_control())?;
            loaded.stopped = true;
        }
        let found = msr.read(status)?;
        let mut dirty = 0;
        for counter in places(guest.model.layout.counters()) {
            let value = msr.read_pmc(pmc_index(counter))? & layout.mask(counter);
            *registers.counter_mut(counter) = value;
            dirty |= Counters::from(value != 0) << counter;
        }
        loaded.dirty = dirty;
        let [_, guests] = loaded.others;
        *registers.of_mut(Family::GlobalStatus) = found & (self.counter_bits() | guests);
        *registers.of_mut(Family::GlobalControl) = loaded.global_control;
        let put = Put { interrupt_is_coming: loaded.interrupts.put(found) };
        loaded.interrupts.deliver_to(guest);
        if guest.load.reset {
            guest.set_pmi_pending(false);
        } else {
            guest.model.registers = registers;
            guest.model.budget_is_stale = true;
            guest.model.pmi_pending |= put.interrupt_is_coming;
        }
        loaded.saved = Some((put, found));
        Ok(put)
    }
}
