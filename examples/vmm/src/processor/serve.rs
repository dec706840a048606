//! Answers to the guest's requests.

use kvm_bindings::{KVM_MP_STATE_HALTED, KVM_MP_STATE_RUNNABLE};

use crate::emulation::{offered, pvm};
use crate::error::Error;
use crate::guest::{self, Guest};
use crate::instruction;
use crate::processor::exit::Wants;
use crate::processor::msr_access::named;
use crate::processor::state::Processor;
use crate::shared::end::End;
use crate::stats::{Access, Exit};
use crate::trace::What;

const RFLAGS_IF: u64 = 1 << 9;

impl Processor {
    /// Serves the guest's request.
    pub(crate) fn serve(&mut self, phase: u8, wants: Wants) -> Result<Option<End>, Error> {
        match wants {
            Wants::Nothing(exit) => {
                self.stats.exit(phase, exit);
                if exit == Exit::Kick {
                    self.vcpu.set_kvm_immediate_exit(0);
                    self.find_handlers()?;
                    self.machine.report(self.number, self.is_parked()?);
                }
            }
            Wants::Rdmsr(address) => {
                self.stats.exit(phase, Exit::Rdmsr);
                let value = self.read(address);
                self.stats.access(phase, Access::Rdmsr(named(address)), value.is_none());
                self.trace_msr(What::Read, address, value);
                self.answer(value);
            }
            Wants::Wrmsr(address, value) => {
                self.stats.exit(phase, Exit::Wrmsr);
                let done = self.write(address, value);
                self.stats.access(phase, Access::Wrmsr(named(address)), done.is_none());
                self.trace_msr(What::Write, address, done.map(|()| value));
                self.answer(done.map(|()| value));
                // A guest that reads counters has its handler by now.
                self.find_handlers()?;
            }
            Wants::Debug(why) => self.debugged(phase, why)?,
            Wants::End(end) => return Ok(Some(end)),
            Wants::TripleFault => {
                return Err(self.triple_fault());
            }
            Wants::Emulation => {
                let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
                if !self.offers(guest) {
                    self.stats.exit(phase, Exit::Emulation);
                    guest::raise(&self.vcpu, offered::UNDEFINED)?;
                    return Ok(None);
                }
                let emulated = self.machine.kvm_pvm.then(|| pvm::emulate(guest)).flatten();
                let Some(pvm::Emulated { instruction, registers, exception }) = emulated else {
                    return Err(self.stuck("no emulation of the instruction".into()));
                };
                self.stats.exit(phase, Exit::Emulation);
                let system = guest.system();
                self.executed(instruction, guest::privilege(&system));
                guest::set_registers(&mut self.vcpu, registers, system)?;
                if let Some(vector) = exception {
                    guest::raise(&self.vcpu, vector)?;
                }
            }
            Wants::Stuck(why) => return Err(self.stuck(why)),
        }
        Ok(None)
    }

    /// Returns whether only an NMI or another processor can wake this processor.
    fn is_parked(&self) -> Result<bool, Error> {
        let state = self.vcpu.get_mp_state().map_err(Error::kvm("KVM_GET_MP_STATE"))?;
        Ok(match state.mp_state {
            KVM_MP_STATE_RUNNABLE => false,
            KVM_MP_STATE_HALTED => self.vcpu.sync_regs().regs.rflags & RFLAGS_IF == 0,
            // It was not started yet.
            _ => true,
        })
    }

    /// Returns whether the guest's CPUID offers the next instruction; also if the instruction cannot be read.
    fn offers(&self, guest: Guest<'_>) -> bool {
        let system = guest.system();
        let rip = guest.registers().rip;
        let instruction = instruction::decode(&guest, &system, rip);
        !instruction::is_readable(&guest, &system, rip)
            || offered::is_offered(&instruction, &self.seen, &system)
    }
}
