//! Loading a guest's state onto the counters, and saving it from them.

use pmu_core::CounterSet;
use pmu_core::access::RegisterBackend;
use pmu_core::lending::LentCounters;

use crate::configuration::{Configuration, IntelConfiguration};
use crate::mediated::host_counters::{HostCounters, MediationError};
use crate::mediated::interrupts::GuestInterrupts;
use crate::mediated::registers::{Access, Registers, pmc_index};
use crate::pmu::virtual_pmu::{LoadNumber, VirtualPmu};
use crate::policy::EventPolicy;
use crate::registers::table::{Counters, Family, MAX_PER_KIND, places, to_global};

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
    pub fn load<'w, P: EventPolicy, M: RegisterBackend>(
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
        // Before the first write: if an error leaves registers programmed, the window's end clears them.
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
            // All of them: where an access fails, it is not known how many were written.
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

    fn write_state<P: EventPolicy, M: RegisterBackend>(
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
        // On Intel, VM entry loads the register. On AMD, this write starts the guest's counters, so it comes last.
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
                // A guest may lack features of the host, and has none beyond them: then the PMU in common is the
                // guest's. Counters and widths are the same, because the guest reads the real counters without an exit.
                let both = Configuration::Intel(host).intersect(&Configuration::Intel(same));
                guest.version >= 4 && *guest == same && both == Ok(Configuration::Intel(same))
            }
            (host, guest) => host == *guest,
        }
    }

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
    pub fn put<'w, P: EventPolicy, M: RegisterBackend>(
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
    fn read_back<P: EventPolicy, M: RegisterBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        saved: u64,
        guest: &mut VirtualPmu<P>,
        msr: &Access<'_, M>,
    ) -> Result<Put, MediationError> {
        // An earlier attempt has read the counters, and may have cleared some of them: they are not read again.
        if let Some((put, _)) = loaded.saved {
            return Ok(put);
        }
        let Registers { control, status, .. } = self.registers;
        // A copy: if an access fails, the guest keeps its old state until the next attempt.
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
            let value = msr.read_counter(pmc_index(counter))? & layout.mask(counter);
            *registers.counter_mut(counter) = value;
            // A counter that is 0 needs no write to be cleared.
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

    /// Disarms and clears the counters, acknowledges their overflows, and restores the host's bits of the status.
    pub(super) fn take_away<M: RegisterBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        msr: &Access<'_, M>,
    ) -> Result<(), MediationError> {
        let Registers { status, status_clear, status_set, fixed_control, .. } = self.registers;
        // Controls before values and status, so that nothing counts or overflows after it was cleared.
        for counter in places(loaded.programmed & 0xFF) {
            msr.write_retrying(self.registers.select(counter), 0)?;
        }
        if loaded.programmed >> MAX_PER_KIND != 0 {
            msr.write_retrying(fixed_control, 0)?;
        }
        for counter in places(loaded.dirty) {
            msr.write_retrying(self.registers.counter(counter), 0)?;
        }
        let found = match loaded.saved {
            Some((_, found)) => found,
            None => msr.read(status)?,
        };
        let [hosts, guests] = loaded.others;
        let left = found & (self.counter_bits() | guests & !hosts);
        if left != 0 {
            msr.write_retrying(status_clear, left)?;
        }
        if hosts & !found != 0 {
            msr.write_retrying(status_set, hosts & !found)?;
        }
        Ok(())
    }

    pub(super) fn write_select<P: EventPolicy, M: RegisterBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        guest: &VirtualPmu<P>,
        counter: usize,
        msr: &Access<'_, M>,
    ) -> Result<(), MediationError> {
        let mut select = guest.model.registers.select(counter);
        if guest.model.enabled() >> counter & 1 == 0 {
            // The policy refuses the event, or the guest has it disabled. The guest's own value still has the bit.
            select &= !ENABLE;
        } else if self.is_amd() {
            // The counter stands still while the host handles the guest's exits.
            select |= GUEST_ONLY;
        }
        loaded.programmed |= Counters::from(select != 0) << counter;
        msr.write(self.registers.select(counter), select)
    }

    pub(super) fn write_fixed_control<P: EventPolicy, M: RegisterBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        guest: &VirtualPmu<P>,
        msr: &Access<'_, M>,
    ) -> Result<(), MediationError> {
        // AMD has no fixed counters and no such register; without fixed counters, Intel's is 0.
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

/// Proof that a guest's state is in the real counters. [`HostCounters::put`](crate::mediated::HostCounters::put) saves
/// the state, and consumes this value. The value borrows the lent counters, so the host cannot take the counters back
/// while the value exists.
///
/// If the value is dropped without a call of `put`, the state in the real counters is lost, and the guest keeps the
/// state from before the load. The end of the host's [window](pmu_core::lending::CounterWindow) then disarms the
/// counters.
#[derive(Debug)]
#[must_use = "the guest's state is on the counters until it is put back"]
pub struct Loaded<'w> {
    pub(super) lent: &'w mut LentCounters,
    pub(super) interrupts: &'w GuestInterrupts,
    /// Number of the load, which the guest has, too.
    pub(super) number: u64,
    pub(super) global_control: u64,
    pub(super) debug_control: u64,
    /// The general counters whose selects were written with a bit set. The first fixed counter's bit stands for the
    /// fixed counters' control.
    pub(super) programmed: Counters,
    /// Status bits that are no counter's: the host's, as they were found, and the guest's.
    pub(super) others: [u64; 2],
    /// Counters whose values may be the guest's.
    pub(super) dirty: Counters,
    /// A put has stopped the counters.
    pub(super) stopped: bool,
    /// Result of a put that has saved the guest and then failed at an access, and the status that it found.
    pub(super) saved: Option<(Put, u64)>,
}

impl Loaded<'_> {
    /// Returns the guest's value of `IA32_PERF_GLOBAL_CTRL`. The hypervisor writes the value to the VMCS before the
    /// first entry, and after each intercepted write of the register.
    pub const fn global_control(&self) -> u64 {
        self.global_control
    }

    /// Returns FREEZE_PERFMON_ON_PMI, bit 12 of the guest's `IA32_DEBUGCTL`. No other bit of this register belongs to
    /// the PMU. The hypervisor writes this bit to the VMCS.
    pub const fn debug_control(&self) -> u64 {
        self.debug_control
    }

    /// Tells the lender of the counters which status bits are the guest's alone.
    pub(super) const fn note_status(&mut self) {
        let [hosts, guests] = self.others;
        self.lent.set_status(guests & !hosts);
    }

    /// Checks that this is the load that the guest is in.
    pub(super) fn check<P>(&self, guest: &VirtualPmu<P>) -> Result<(), MediationError> {
        if guest.load.number == self.number { Ok(()) } else { Err(MediationError::NotTheLoaded) }
    }
}

/// Result of [`HostCounters::put`](crate::mediated::HostCounters::put).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Put {
    /// A counter has overflowed, and the processor's interrupt for the overflow has not come yet. `put` has already
    /// made an interrupt for the overflow [pending](VirtualPmu::pmi_pending) in the guest. When the processor's
    /// interrupt comes, [`HostCounters::interrupted`](crate::mediated::HostCounters::interrupted) returns `true`, but
    /// the guest gets no second interrupt.
    pub interrupt_is_coming: bool,
}

/// An event select's enable bit, of both vendors.
const ENABLE: u64 = 1 << 22;
/// AMD's select bit: counts in guests only.
const GUEST_ONLY: u64 = 1 << 40;
