//! The guest's instructions, and their operands in 64-bit code.

use iced_x86::{Decoder, DecoderOptions, Instruction, Register};
use kvm_bindings::{kvm_regs, kvm_sregs};

use crate::guest::{self, Guest};

/// An x86 instruction has at most 15 bytes.
pub(crate) const LONGEST: usize = 15;

/// The instruction at an address in the code segment; an invalid one, if none can be read.
pub(crate) fn decode(guest: Guest<'_>, system: &kvm_sregs, rip: u64) -> Instruction {
    let mut bytes = [0; LONGEST];
    let code = guest.read(system.cs.base.wrapping_add(rip), &mut bytes);
    Decoder::with_ip(guest::bitness(system), code, rip, DecoderOptions::NONE).decode()
}

/// The address of an operand in memory.
pub(crate) fn address(
    registers: &kvm_regs,
    system: &kvm_sregs,
    instruction: &Instruction,
    operand: u32,
) -> Option<u64> {
    instruction.virtual_address(operand, 0, |register, _, _| value(registers, system, register))
}

/// A register in 64-bit mode; of a segment register, the segment's base.
pub(crate) fn value(registers: &kvm_regs, system: &kvm_sregs, register: Register) -> Option<u64> {
    let base = match register.full_register() {
        Register::FS => system.fs.base,
        Register::GS => system.gs.base,
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        _ => {
            let full = *general(&mut registers.clone(), register)?;
            return Some(if register.size() == 4 { full & 0xFFFF_FFFF } else { full });
        }
    };
    Some(base)
}

/// Where a general register of 32 or 64 bits is kept.
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
