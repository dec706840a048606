//! Accesses of a loaded guest that the hypervisor intercepts.

use crate::mediated::error::MediationError;
use crate::mediated::host_counters::HostCounters;
use crate::mediated::loaded::Loaded;
use crate::mediated::registers::{Access, Registers, pmc_index};
use pmu_core::MsrBackend;

use crate::pmu::access::{Mode, Read, Write};
use crate::pmu::rdpmc::Pmc;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::event_policy::EventPolicy;
use crate::registers::counters::{MAX_PER_KIND, to_global};
use crate::registers::family::Family;
use crate::registers::row::{ReadAs, WriteAs};

impl HostCounters {
    /// Returns whether a guest's RDMSR and WRMSR of this register are to be intercepted while it is loaded: event
    /// selects and `IA32_FIXED_CTR_CTRL`, which the policy concerns; what sets the status, and
    /// `IA32_PERF_GLOBAL_INUSE`; every register that this guest's PMU lacks, and those that it shares with other
    /// facilities. Where the processor has [more](Self::from_cpuid) than the guest, the global registers are, too.
    ///
    /// [`write`](Self::write) and [`read`](Self::read) answer these, and any other of the PMU's that is intercepted.
    pub fn intercepts<P: EventPolicy>(&self, guest: &VirtualPmu<P>, address: u32) -> bool {
        let Some(located) = guest.model.layout.find(address) else { return true };
        match located.row.family {
            Family::GeneralCounter | Family::FixedCounter => false,
            Family::GlobalControl => self.has_more,
            Family::GlobalStatus => {
                let row = located.row;
                self.has_more || row.write == WriteAs::Set || row.read == ReadAs::InUse
            }
            _ => true,
        }
    }

    /// Returns whether a guest's RDPMC is to be intercepted while it is loaded, for [`read_pmc`](Self::read_pmc): the
    /// processor has counters, or PERF_METRICS (ECX 2000_0000h), that no guest has.
    pub const fn intercepts_rdpmc(&self) -> bool {
        self.has_more
    }

    /// Executes an intercepted WRMSR of the loaded guest: in its PMU, and on the real counters. An event that the
    /// [policy](EventPolicy) forbids does not count. Status bits that are set raise no interrupt.
    ///
    /// The answer is that of [`VirtualPmu::write`]. Afterwards [`Loaded::global_control`] and
    /// [`Loaded::debug_control`] are what the guest has. Accesses: one write, and a read of the status where a counter
    /// interrupts from now on.
    ///
    /// # Errors
    /// Another guest is loaded, or a register faulted: the guest's PMU has the value, and the counters may not.
    pub fn write<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &mut Loaded<'_>,
        guest: &mut VirtualPmu<P>,
        address: u32,
        value: u64,
        msr: &M,
    ) -> Result<Write, MediationError> {
        loaded.check(guest)?;
        let answer = guest.write(address, value).answer;
        let Some(located) = guest.model.layout.find(address) else { return Ok(answer) };
        // A put that is to be tried again has taken the guest's state off the counters, if it has saved the guest.
        if !matches!(answer, Write::Done | Write::Shared { .. }) || loaded.saved.is_some() {
            return Ok(answer);
        }
        let msr = Access(msr);
        let Registers { status, control, status_clear, status_set, .. } = self.registers;
        let registers = &guest.model.registers;
        match located.row.family {
            Family::EventSelect => self.write_select(loaded, guest, located.index, &msr)?,
            Family::FixedControl => self.write_fixed_control(loaded, guest, &msr)?,
            Family::GeneralCounter | Family::FixedCounter => {
                let counter = located.index - Family::GeneralCounter.first();
                msr.write(self.registers.counter(counter), registers.counter(counter))?;
            }
            Family::GlobalControl => {
                loaded.global_control = registers.of(Family::GlobalControl);
                if self.is_amd() {
                    // The next attempt of a put stops them again.
                    loaded.stopped = false;
                    msr.write(control, loaded.lent.global_control() | loaded.global_control)?;
                }
            }
            Family::GlobalStatus => {
                let value = value & self.status_bits();
                let others = value & !self.counter_bits();
                let [_, guests] = &mut loaded.others;
                match located.row.write {
                    WriteAs::Set => {
                        *guests |= others;
                        loaded.note_status();
                        loaded.interrupts.know(value);
                        msr.write(status_set, value)?;
                    }
                    WriteAs::Cleared => {
                        // A bit that is the host's alone is not the guest's to acknowledge.
                        let value = value & (self.counter_bits() | *guests);
                        *guests &= !others;
                        loaded.interrupts.acknowledged(value);
                        msr.write(status_clear, value)?;
                    }
                    _ => {}
                }
            }
            Family::DebugControl => loaded.debug_control = registers.of(Family::DebugControl),
            _ => {}
        }
        let new = loaded.interrupts.set_interrupting(to_global(guest.model.interrupting()));
        if new != 0 {
            // An earlier overflow did not interrupt.
            loaded.interrupts.know(msr.read(status)? & new);
        }
        Ok(answer)
    }

    /// Executes an intercepted RDMSR of the loaded guest. The answer is that of [`VirtualPmu::read`], with what the
    /// real counters hold now. Accesses: one read at most.
    ///
    /// # Errors
    /// Another guest is loaded, or the register faulted.
    pub fn read<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &Loaded<'_>,
        guest: &VirtualPmu<P>,
        address: u32,
        msr: &M,
    ) -> Result<Read, MediationError> {
        loaded.check(guest)?;
        let layout = &guest.model.layout;
        let located = layout.find(address).filter(|_| loaded.saved.is_none());
        let Some(located) = located else { return Ok(guest.read(address)) };
        let msr = Access(msr);
        let value = match (located.row.family, located.row.read) {
            (Family::GeneralCounter | Family::FixedCounter, _) => {
                let counter = located.index - Family::GeneralCounter.first();
                msr.read(self.registers.counter(counter))? & layout.mask(counter)
            }
            (Family::GlobalControl, _) if self.is_amd() => {
                msr.read(self.registers.control)? & layout.global()
            }
            (Family::GlobalControl, _) => loaded.global_control,
            (Family::GlobalStatus, ReadAs::Held) => {
                let [_, guests] = loaded.others;
                msr.read(self.registers.status)? & (self.counter_bits() | guests)
            }
            _ => return Ok(guest.read(address)),
        };
        Ok(Read::Value(value))
    }

    /// Executes an intercepted RDPMC of the loaded guest: of a counter of its own, or #GP.
    ///
    /// # Errors
    /// Another guest is loaded, or the counter faulted.
    pub fn read_pmc<P: EventPolicy, M: MsrBackend>(
        &self,
        loaded: &Loaded<'_>,
        guest: &VirtualPmu<P>,
        ecx: u32,
        mode: Mode,
        msr: &M,
    ) -> Result<Read, MediationError> {
        loaded.check(guest)?;
        match guest.locate_pmc(ecx, mode) {
            Pmc::Absent => Ok(Read::GeneralProtection),
            Pmc::Zero => Ok(Read::Value(0)),
            Pmc::Counter(_) if loaded.saved.is_some() => Ok(guest.read_pmc(ecx, mode)),
            Pmc::Counter(counter) => {
                let value = Access(msr).read_pmc(pmc_index(counter))?;
                Ok(Read::Value(value & guest.model.layout.mask(counter)))
            }
        }
    }
}

const _: () = assert!(Family::EventSelect.first() == 0 && MAX_PER_KIND == 8);
