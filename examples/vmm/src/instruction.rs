//! The guest's instructions, and their operands.

use iced_x86::{Decoder, DecoderOptions, Instruction, Register};
use kvm_bindings::{kvm_regs, kvm_sregs};

use crate::guest::{self, Memory};

/// An x86 instruction has at most 15 bytes.
const LONGEST: usize = 15;

/// Returns the instruction at an address in the code segment; an invalid one, if none can be read.
pub(crate) fn decode(memory: &impl Memory, system: &kvm_sregs, rip: u64) -> Instruction {
    let mut bytes = [0; LONGEST];
    let code = memory.read(linear(system, rip), &mut bytes);
    Decoder::with_ip(guest::bitness(system), code, rip, DecoderOptions::NONE).decode()
}

/// Returns whether there are as many bytes at an address in the code segment as an instruction can have.
pub(crate) fn is_readable(memory: &impl Memory, system: &kvm_sregs, rip: u64) -> bool {
    memory.read(linear(system, rip), &mut [0; LONGEST]).len() == LONGEST
}

/// Returns the linear address of an instruction; in 64-bit code without the segment's base.
fn linear(system: &kvm_sregs, rip: u64) -> u64 {
    match guest::bitness(system) {
        64 => rip,
        _ => system.cs.base.wrapping_add(rip) & 0xFFFF_FFFF,
    }
}

/// Returns the address of an operand in memory.
pub(crate) fn address(
    registers: &kvm_regs,
    system: &kvm_sregs,
    instruction: &Instruction,
    operand: u32,
) -> Option<u64> {
    let value = |register, _, _| value(registers, system, register);
    let address = instruction.virtual_address(operand, 0, value)?;
    Some(if guest::bitness(system) == 64 { address } else { address & 0xFFFF_FFFF })
}

/// Returns the value of a register of 16 bits or more; of a segment register, the segment's base.
pub(crate) fn value(registers: &kvm_regs, system: &kvm_sregs, register: Register) -> Option<u64> {
    let flat = guest::bitness(system) == 64;
    let base = match register.full_register() {
        Register::FS => system.fs.base,
        Register::GS => system.gs.base,
        Register::CS | Register::DS | Register::ES | Register::SS if flat => 0,
        Register::CS => system.cs.base,
        Register::DS => system.ds.base,
        Register::ES => system.es.base,
        Register::SS => system.ss.base,
        _ => {
            let full = *general(&mut registers.clone(), register)?;
            return Some(match register.size() {
                2 => full & 0xFFFF,
                4 => full & 0xFFFF_FFFF,
                _ => full,
            });
        }
    };
    Some(base)
}

/// Returns the field of a general register.
pub(crate) fn general(registers: &mut kvm_regs, register: Register) -> Option<&mut u64> {
    Some(match register.full_register() {
        Register::RAX => &mut registers.rax,
        Register::RBX => &mut registers.rbx,
        Register::RCX => &mut registers.rcx,
        Register::RDX => &mut registers.rdx,
        Register::RSI => &mut registers.rsi,
        Register::RDI => &mut registers.rdi,
        Register::RBP => &mut registers.rbp,
        Register::RSP => &mut registers.rsp,
        Register::R8 => &mut registers.r8,
        Register::R9 => &mut registers.r9,
        Register::R10 => &mut registers.r10,
        Register::R11 => &mut registers.r11,
        Register::R12 => &mut registers.r12,
        Register::R13 => &mut registers.r13,
        Register::R14 => &mut registers.r14,
        Register::R15 => &mut registers.r15,
        _ => return None,
    })
}
