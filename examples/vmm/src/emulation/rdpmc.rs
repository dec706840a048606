//! RDPMC, for which KVM has no exit.
//!
//! Without a PMU of KVM's own the instruction faults. A hardware breakpoint at the guest's handler of
//! #GP finds the fault before the guest sees it: if it was RDPMC's, the monitor executes the
//! instruction and undoes the exception; if not, or if RDPMC has to fault, the handler runs. This works at every
//! privilege level, in long mode.

use iced_x86::{Code, Instruction};
use kvm_bindings::{kvm_regs, kvm_sregs};
use pmu_virt::Mode;

use crate::guest::{CR4_PCE, Frame, Guest, Memory};
use crate::instruction::decode;

/// #GP.
pub(crate) const GENERAL_PROTECTION: u8 = 13;
const RFLAGS_RF: u64 = 1 << 16;

/// An RDPMC that faulted; the processor is at the first instruction of the handler.
pub(crate) struct Fault {
    registers: kvm_regs,
    frame: Frame,
    pub(crate) instruction: Instruction,
    /// ECX.
    pub(crate) counter: u32,
    /// State that RDPMC depends on.
    pub(crate) mode: Mode,
}

/// Returns the fault at the guest's handler of #GP, if RDPMC caused it.
pub(crate) fn fault(guest: Guest<'_>) -> Option<Fault> {
    let registers = guest.registers();
    // The error code comes first; RDPMC's is 0.
    let [0] = guest.read_words(registers.rsp)? else { return None };
    let frame = Frame::read(&guest, registers.rsp.wrapping_add(8))?;
    let instruction = decode(&guest, &guest.system(), frame.rip);
    if instruction.code() != Code::Rdpmc {
        return None;
    }
    let pce = guest.system().cr4 & CR4_PCE != 0;
    let mode = Mode { cpl: (frame.cs & 3) as u8, pce, protected: true };
    Some(Fault { registers, frame, instruction, counter: registers.rcx as u32, mode })
}

impl Fault {
    /// Returns the registers as if RDPMC had read `value` without a fault.
    pub(crate) fn finish(self, guest: Guest<'_>, value: u64) -> (kvm_regs, kvm_sregs) {
        let frame = Frame {
            rip: self.instruction.next_ip(),
            flags: self.frame.flags & !RFLAGS_RF,
            ..self.frame
        };
        let (rax, rdx) = (value & 0xFFFF_FFFF, value >> 32);
        frame.undo(&guest, kvm_regs { rax, rdx, ..self.registers }, guest.system())
    }
}
