//! Single steps, and breakpoints at the guest's handlers of exceptions: the monitor's way to execute what KVM does not.

use kvm_bindings::{
    KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_HW_BP, KVM_MP_STATE_HALTED,
    KVM_VCPUEVENT_VALID_SHADOW, kvm_debug_exit_arch, kvm_guest_debug, kvm_mp_state,
};
use pmu_virt::Read;

use crate::emulation::{pvm, rdpmc};
use crate::error::Error;
use crate::guest::{self, Guest, Memory};
use crate::messages::say;
use crate::processor::exit::Wants;
use crate::processor::state::{Debugging, Processor};
use crate::stats::{Access, Exit, Register};
use crate::trace::What;

/// DR6: breakpoints 0 to 3, single step. DR7: breakpoints 0 to 3, on execution.
const DR6_B: u64 = 0b1111;
pub(crate) const DR6_BS: u64 = 1 << 14;
const DR7_EXECUTE: [u64; 4] =
    [1 << 1 | 1 << 10, 1 << 3 | 1 << 10, 1 << 5 | 1 << 10, 1 << 7 | 1 << 10];

impl Processor {
    /// Executes a HLT in KVM's place: kvm-pvm does not halt while it single-steps.
    pub(crate) fn halt(&mut self) -> Result<(), Error> {
        if !self.machine.kvm_pvm || !self.source.steps(&self.facilities) {
            return Ok(());
        }
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let system = guest.system();
        let Some(pvm::Emulated { instruction, registers, .. }) = pvm::halt(guest) else {
            return Ok(());
        };
        self.executed(instruction, guest::privilege(&system));
        guest::set_registers(&mut self.vcpu, registers, system)?;
        // Ends the shadow of an STI before HLT.
        let mut events = self.vcpu.get_vcpu_events().map_err(Error::kvm("KVM_GET_VCPU_EVENTS"))?;
        events.flags = KVM_VCPUEVENT_VALID_SHADOW;
        events.interrupt.shadow = 0;
        self.vcpu.set_vcpu_events(&events).map_err(Error::kvm("KVM_SET_VCPU_EVENTS"))?;
        let halted = kvm_mp_state { mp_state: KVM_MP_STATE_HALTED };
        self.vcpu.set_mp_state(halted).map_err(Error::kvm("KVM_SET_MP_STATE"))
    }

    /// Takes a guest that is at its handler of #DB after a step back to the end of the step.
    pub(crate) fn take_back_step(&mut self, wants: &Wants) -> Result<bool, Error> {
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let may_be = matches!(wants, Wants::Debug(_) | Wants::Nothing(Exit::Kick));
        if !may_be || Some(guest.registers().rip) != self.debugging.trap {
            return Ok(false);
        }
        let stepping = self.debugging.step || self.debugging.owes_trap;
        let Some((registers, system)) = pvm::step_to_handler(guest, stepping) else {
            return Ok(false);
        };
        guest::set_registers(&mut self.vcpu, registers, system)?;
        Ok(true)
    }

    /// Notes whether the #DB of the last step is still to come.
    pub(crate) fn note_trap(&mut self, taken_back: bool, wants: &Wants) {
        let stepped = taken_back || matches!(wants, Wants::Debug(why) if why.dr6 & DR6_BS != 0);
        if stepped {
            self.debugging.owes_trap = false;
        } else if self.debugging.step {
            let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
            let in_ring_3 = guest::privilege_level(&guest.system()) == 3;
            self.debugging.owes_trap |= self.machine.kvm_pvm && in_ring_3;
        }
    }

    /// Serves a stop after a single step, or at one of the guest's handlers.
    pub(crate) fn debugged(&mut self, phase: u8, why: kvm_debug_exit_arch) -> Result<(), Error> {
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let passed = Debugging { passing: false, ..self.debugging };
        if why.dr6 & DR6_BS != 0 && self.debugging.passing {
            self.stats.exit(phase, Exit::Breakpoint);
            return self.debug(passed);
        }
        if why.dr6 & DR6_B == 0 {
            self.stats.exit(phase, Exit::SingleStep);
            return Ok(());
        }
        self.stats.exit(phase, Exit::Breakpoint);
        let general_protection = Some(why.pc) == self.debugging.breakpoint;
        if let Some(fault) = rdpmc::fault(guest).filter(|_| general_protection) {
            let counter = Access::Rdpmc(named_counter(fault.counter));
            let read = self.pmu.read_pmc_beside(&self.facilities, fault.counter, fault.mode);
            self.stats.access(phase, counter, !matches!(read, Read::Value(_)));
            let value = if let Read::Value(value) = read { Some(value) } else { None };
            self.trace(What::ReadCounter, fault.counter, value, fault.address());
            if !self.told_overwritten
                && let Some(message) = fault.overwritten(guest)
            {
                say(&message);
                self.told_overwritten = true;
            }
            if let Read::Value(value) = read {
                let instruction = fault.instruction;
                let (registers, system) = fault.finish(guest, value);
                self.executed(instruction, guest::privilege(&system));
                return guest::set_registers(&mut self.vcpu, registers, system);
            }
        }
        if Some(why.pc) == self.debugging.page_fault
            && let Some(call) = pvm::SystemCall::of(&self.vcpu)
            && let Some((registers, system)) =
                call.finish(&guest, guest.registers(), guest.system())
        {
            return guest::set_registers(&mut self.vcpu, registers, system);
        }
        if Some(why.pc) == self.debugging.apic_writer {
            self.trace_apic_write();
        }
        self.debug(Debugging { passing: true, ..self.debugging })
    }

    /// Passes the debugging state to KVM, if it changed. A single step is requested each time: KVM sets the trap flag
    /// at the request, and the guest's next flags may lack it.
    pub(crate) fn debug(&mut self, debugging: Debugging) -> Result<(), Error> {
        if debugging == self.debugging && !debugging.step {
            return Ok(());
        }
        let mut control = kvm_guest_debug::default();
        let Debugging { breakpoint, trap, page_fault, apic_writer, .. } = debugging;
        let handlers = [breakpoint, trap, page_fault, apic_writer];
        for (number, (handler, execute)) in handlers.into_iter().zip(DR7_EXECUTE).enumerate() {
            if let Some(handler) = handler.filter(|_| !debugging.passing) {
                control.control |= KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP;
                control.arch.debugreg[number] = handler;
                control.arch.debugreg[7] |= execute;
            }
        }
        if debugging.step || debugging.passing {
            control.control |= KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP;
        }
        self.debugging = debugging;
        self.vcpu.set_guest_debug(&control).map_err(Error::kvm("KVM_SET_GUEST_DEBUG"))
    }

    /// Finds the guest's present handlers of the exceptions that the monitor intercepts.
    pub(crate) fn find_handlers(&mut self) -> Result<(), Error> {
        let guest = Guest { vcpu: &self.vcpu, memory: &self.machine.memory };
        let (system, kvm_pvm) = (guest.system(), self.machine.kvm_pvm);
        let handler = |vector, wanted: bool| guest.handler(&system, vector).filter(|_| wanted);
        let debugging = Debugging {
            breakpoint: handler(rdpmc::GENERAL_PROTECTION, self.machine.has_pmu),
            trap: handler(pvm::DEBUG, kvm_pvm && self.may_step()),
            page_fault: handler(pvm::PAGE_FAULT, kvm_pvm),
            apic_writer: self.apic_writer(),
            ..self.debugging
        };
        self.debug(debugging)
    }
}

/// Names ECX of an RDPMC, if there can be such a counter: bit 30 is for the fixed ones.
fn named_counter(ecx: u32) -> Register {
    if ecx & !(1 << 30 | 0x1F) == 0 { Register::Number(ecx) } else { Register::Other }
}
