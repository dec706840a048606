//! Loading a guest's state onto the counters.

use pmu_core::CounterSet;
use pmu_core::lending::LentCounters;
use pmu_core::msr::MsrBackend;

use crate::configuration::any_vendor::Configuration;
use crate::configuration::intel::IntelConfiguration;
use crate::mediated::error::MediationError;
use crate::mediated::host_counters::HostCounters;
use crate::mediated::interrupts::GuestInterrupts;
use crate::mediated::loaded::Loaded;
use crate::mediated::registers::{Access, Registers};
use crate::pmu::load_number::LoadNumber;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;
use crate::registers::counters::{MAX_PER_KIND, places, to_global};
use crate::registers::family::Family;

impl HostCounters {
    /// Loads a guest's state into the counters that the host has [lent](pmu_core::CounterSession::lend) on this
    /// processor. The counters start to count when the hypervisor enters the guest.
    ///
    /// `interrupts` is the state of this guest's interrupts. If an interrupt is noted in `interrupts`, the call makes
    /// the interrupt pending in the guest. If the [policy changes](VirtualPmu::set_policy) while the guest is loaded,
    /// the new policy takes effect at the next load.
    ///
    /// Accesses:
    /// - a write of each counter, and of each general counter's select;
    /// - one read and at most two writes of the status;
    /// - a write of `IA32_FIXED_CTR_CTRL` if the guest has fixed counters;
    /// - on AMD, a write of the global control.
    ///
    /// # Context
    /// Task. The caller stays on the processor until [`put`](Self::put).
    ///
    /// # Errors
    /// - The guest has a configuration that this host does not support. [`guest`](Self::guest) returns a supported
    ///   configuration.
    /// - A counter of the guest writes [precise records](crate::precise::VirtualPrecise).
    /// - The host has not lent every counter of the guest.
    /// - A register access failed.
    ///
    /// After an error, the guest's state is unchanged. The counters are disarmed: no counter counts or interrupts. If
    /// the call could not disarm a counter, the host disarms the counter at the end of the
    /// [window](pmu_core::lending::CounterWindow).
    pub fn load<'w, P: EventPolicy, M: MsrBackend>(
        &self,
        lent: &'w mut LentCounters,
        guest: &mut VirtualPmu<P>,
        interrupts: &'w GuestInterrupts,
        msr: &M,
    ) -> Result<Loaded<'w>, MediationError> {
        if !self.accepts(&guest.configuration) {
            return Err(MediationError::NotTheHosts);
        }
        if guest.model.recorded != 0 {
            return Err(MediationError::PreciseRecords);
        }
        let needed = CounterSet::from_bits(guest.model.layout.global());
        let missing = needed.without(lent.counters());
        if !missing.is_empty() {
            return Err(MediationError::NotLent(missing));
        }
        lent.set_programmed(true);
        interrupts.deliver_to(guest);
        let registers = &guest.model.registers;
        let mut loaded = Loaded {
            lent,
            interrupts,
            number: 0,
            global_control: registers.of(Family::GlobalControl),
            debug_control: registers.of(Family::DebugControl),
            programmed: 0,
            others: [0; 2],
            dirty: guest.model.layout.counters(),
            stopped: false,
            saved: None,
        };
        let access = Access(msr);
        if let Err(error) = self.write_state(&mut loaded, guest, &access) {
            if self.take_away(&mut loaded, &access).is_ok() {
                loaded.lent.set_programmed(false);
            }
            return Err(error);
        }
        guest.load = LoadNumber::new();
        loaded.number = guest.load.number;
        Ok(loaded)
    }

    fn write_state<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        guest: &VirtualPmu<P>,
        msr: &Access<'_, M>,
    ) -> Result<(), MediationError> {
        let Registers { status, status_clear, status_set, control, .. } = self.registers;
        let registers = &guest.model.registers;
        for counter in places(guest.model.layout.counters()) {
            msr.write(self.registers.counter(counter), registers.counter(counter))?;
            if counter < MAX_PER_KIND {
                self.write_select(loaded, guest, counter, msr)?;
            }
        }
        self.write_fixed_control(loaded, guest, msr)?;
        let (bits, counters) = (self.status_bits(), self.counter_bits());
        let wanted = registers.of(Family::GlobalStatus) & bits;
        let found = msr.read(status)? & bits;
        loaded.others = [found, wanted].map(|status| status & !counters);
        loaded.note_status();
        if found & !wanted != 0 {
            msr.write(status_clear, found & !wanted)?;
        }
        if wanted & !found != 0 {
            msr.write(status_set, wanted & !found)?;
        }
        // Before the first overflow that the guest can have.
        loaded.interrupts.load(wanted, to_global(guest.model.interrupting()));
        if self.is_amd() {
            let entered = loaded.lent.global_control() | loaded.global_control;
            msr.write(control, entered).inspect_err(|_| {
                loaded.interrupts.cancel_load();
            })?;
        }
        Ok(())
    }

    /// Returns whether a guest with this configuration can have these counters: all of them, in their widths.
    fn accepts(&self, guest: &Configuration) -> bool {
        match (self.guest(), guest) {
            (Configuration::Intel(host), Configuration::Intel(guest)) => {
                let same = IntelConfiguration {
                    general: host.general,
                    general_width: host.general_width,
                    fixed: host.fixed,
                    fixed_width: host.fixed_width,
                    ..*guest
                };
                let both = Configuration::Intel(host).intersect(&Configuration::Intel(same));
                guest.version >= 4 && *guest == same && both == Ok(Configuration::Intel(same))
            }
            (host, guest) => host == *guest,
        }
    }
}
