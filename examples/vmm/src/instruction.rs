//! The guest's instructions, and their operands.

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess, Register, UsedMemory,
};
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
pub(crate) fn linear(system: &kvm_sregs, rip: u64) -> u64 {
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

/// An instruction's access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Linear address.
    pub(crate) linear: u64,
    /// Size; 0 if the instruction does not tell.
    pub(crate) bytes: usize,
    pub(crate) load: bool,
    pub(crate) store: bool,
    pub(crate) locked: bool,
}

/// Returns an instruction's access to memory, by an operand or on the stack, with the registers before it. Of several,
/// it is the first load.
pub(crate) fn access(
    registers: &kvm_regs,
    system: &kvm_sregs,
    instruction: &Instruction,
) -> Option<Access> {
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_memory();
    let accesses = || used.iter().filter_map(|memory| Some((memory, kind(memory)?)));
    let (memory, (load, store)) =
        accesses().find(|(_, (load, _))| *load).or_else(|| accesses().next())?;
    let value = |register, _, _| value(registers, system, register);
    let linear = memory.virtual_address(0, value)?;
    let flat = guest::bitness(system) == 64;
    Some(Access {
        linear: if flat { linear } else { linear & 0xFFFF_FFFF },
        bytes: memory.memory_size().size(),
        load,
        store,
        locked: instruction.has_lock_prefix(),
    })
}

/// Returns whether memory is loaded and whether it is stored; `None`: its address alone is used.
fn kind(memory: &UsedMemory) -> Option<(bool, bool)> {
    match memory.access() {
        OpAccess::Read | OpAccess::CondRead => Some((true, false)),
        OpAccess::Write | OpAccess::CondWrite => Some((false, true)),
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => Some((true, true)),
        OpAccess::None | OpAccess::NoMemAccess => None,
    }
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

#[cfg(test)]
mod tests {
    use iced_x86::Decoder;

    use super::*;

    const LOAD: (bool, bool) = (true, false);
    const STORE: (bool, bool) = (false, true);

    /// SDM vol. 1, "Specifying an Offset", and the descriptions of the instructions, which are encoded by hand.
    #[test]
    fn the_access_of_an_instruction_has_its_linear_address() {
        let registers = kvm_regs {
            rax: 0x10,
            rbx: 0x4000,
            rsp: 0x8000,
            rsi: 0x5000,
            rdi: 0x6000,
            ..Default::default()
        };
        let mut system = kvm_sregs { efer: 1 << 10, ..Default::default() };
        (system.cs.l, system.gs.base, system.ds.base) = (1, 0x9000_0000, 0x7777_0000);
        let access = |code: &[u8]| {
            let instruction = Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE).decode();
            access(&registers, &system, &instruction)
        };
        for (code, linear, bytes, (load, store)) in [
            (&[0x48, 0x8B, 0x03][..], 0x4000, 8, LOAD), // MOV RAX, [RBX]
            (&[0x89, 0x44, 0x83, 0xF8], 0x4000 + 0x40 - 8, 4, STORE), // MOV [RBX + 4 RAX - 8], EAX
            (&[0x65, 0x8A, 0x03], 0x9000_4000, 1, LOAD), // MOV AL, GS:[RBX]
            (&[0x66, 0x8B, 0x05, 0, 1, 0, 0], 0x1107, 2, LOAD), // MOV AX, [RIP + 0x100]
            (&[0x48, 0x01, 0x03], 0x4000, 8, (true, true)), // ADD [RBX], RAX
            (&[0x50], 0x7FF8, 8, STORE),                // PUSH RAX
            (&[0xC3], 0x8000, 8, LOAD),                 // RET
            (&[0xE8, 0, 0, 0, 0], 0x7FF8, 8, STORE),    // CALL
            (&[0xA4], 0x5000, 1, LOAD),                 // MOVSB: its load comes first
            (&[0xAA], 0x6000, 1, STORE),                // STOSB
        ] {
            let expected = Access { linear, bytes, load, store, locked: false };
            let found = access(code).unwrap_or_else(|| panic!("{code:02x?}"));
            assert_eq!(found, expected, "{code:02x?}");
        }
        // LOCK INC DWORD PTR [RBX]
        assert!(access(&[0xF0, 0xFF, 0x03]).unwrap().locked);
        // NOP, NOP [RAX], LEA RAX, [RBX], PREFETCHT0 [RBX], MOV EAX, EBX.
        for code in [
            &[0x90][..],
            &[0x0F, 0x1F, 0x00],
            &[0x48, 0x8D, 0x03],
            &[0x0F, 0x18, 0x0B],
            &[0x89, 0xD8],
        ] {
            assert_eq!(access(code), None, "{code:02x?}");
        }
    }

    #[test]
    fn outside_of_64_bit_code_an_access_is_in_its_segment() {
        let registers = kvm_regs { rbx: 0xFFFF_F000, ..Default::default() };
        let mut system = kvm_sregs::default();
        (system.cs.db, system.ds.base) = (1, 0x3000);
        // MOV EAX, [EBX]
        let instruction = Decoder::with_ip(32, &[0x8B, 0x03], 0, DecoderOptions::NONE).decode();
        let found = access(&registers, &system, &instruction).unwrap();
        assert_eq!((found.linear, found.bytes), (0x2000, 4));
    }
}
