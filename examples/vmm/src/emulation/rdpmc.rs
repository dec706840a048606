//! RDPMC, for which KVM has no exit.
//!
//! Without a PMU of KVM's own the instruction faults. A hardware breakpoint at the guest's handler of #GP finds the
//! fault before the guest sees it: if it was RDPMC's, the monitor executes the instruction and undoes the exception; if
//! not, or if RDPMC has to fault, the handler runs. This works at every privilege level, in long mode.
//!
//! The exception has pushed its frame by then. That overwrites nothing where the handler begins below the stack
//! pointer, or on a stack of its own. In a handler that shares a stack of the interrupt stack table with that of #GP,
//! it overwrites that handler's own frame, which the monitor tells.

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

/// Greatest size of a stack of the interrupt stack table that is recognized.
const STACK: u64 = 0x4000;

/// Returns the number of the stack in the interrupt stack table on which `rsp` is, if the handler of #GP begins on the
/// same stack and other handlers do, too: #GP then overwrites the frame with which the interrupted handler was entered.
/// SDM vol. 3A, "Interrupt Stack Table" and "64-Bit Mode IDT".
fn shared_stack(memory: &impl Memory, system: &kvm_sregs, rsp: u64) -> Option<u8> {
    const FIRST: u64 = 0x24;
    let of = |vector: u8| {
        memory.handler(system, vector)?;
        let place = system.idt.base.wrapping_add(u64::from(vector) * 16 + 4);
        Some((memory.read_number(place, 1)? & 7) as u8)
    };
    let number = of(GENERAL_PROTECTION).filter(|number| *number != 0)?;
    let shares = |vector| vector != GENERAL_PROTECTION && of(vector) == Some(number);
    let entry = FIRST + 8 * u64::from(number - 1);
    let top = memory.read_number(system.tr.base.wrapping_add(entry), 8)?;
    let is_on = (1..STACK).contains(&top.wrapping_sub(rsp));
    (is_on && (0..=u8::MAX).any(shares)).then_some(number)
}

impl Fault {
    /// Returns the address of the RDPMC.
    pub(crate) fn address(&self) -> u64 {
        self.frame.rip
    }

    /// Returns what #GP has overwritten on the guest's stack, as a message: a frame that the guest still needs.
    pub(crate) fn overwritten(&self, guest: Guest<'_>) -> Option<String> {
        let number = shared_stack(&guest, &guest.system(), self.frame.rsp)?;
        Some(format!(
            "the guest executed RDPMC at {:#x} in a handler on stack {number} of its interrupt stack table, which its \
             handler of #GP has, too. KVM raises #GP before this monitor can execute RDPMC, and #GP has overwritten \
             the frame of that handler: the guest cannot return from it. Give #GP (vector 13) a stack of its own",
            self.frame.rip
        ))
    }

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
