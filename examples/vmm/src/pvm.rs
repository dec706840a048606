//! kvm-pvm, a KVM without hardware virtualisation: it interprets ring 0 and runs ring 3 as it is. What
//! it lacks is made up for here, and only there.

use std::path::Path;

use iced_x86::{Code, Instruction, OpKind};
use kvm_bindings::{kvm_regs, kvm_sregs};

use crate::guest::{self, Frame, Guest, Memory};
use crate::instruction::{address, decode, general, value};

const RFLAGS_ZF: u64 = 1 << 6;
const RFLAGS_TF: u64 = 1 << 8;
const RFLAGS_AC: u64 = 1 << 18;
/// CF, PF, AF, ZF, SF and OF.
const RFLAGS_STATUS: u64 = 0x8D5;

/// Whether this host's KVM is kvm-pvm.
pub(crate) fn is_there() -> bool {
    Path::new("/sys/module/kvm_pvm").exists()
}

/// #DB and #BP.
pub(crate) const DEBUG: u8 = 1;
const BREAKPOINT: u8 = 3;

/// What its interpreter executes together with the instruction behind it, and stops only then.
pub(crate) fn has_no_stop(code: Code) -> bool {
    matches!(code, Code::Lfence | Code::Mfence | Code::Sfence | Code::Swapgs | Code::Iretq)
}

/// It steps in ring 0 alone. So an IRET to ring 3, whose frame this is, is to return with the trap flag
/// set; what comes of that there is [taken back](step_of_ring_3) from the guest's handler of #DB.
pub(crate) fn step_through_iret(guest: Guest<'_>, frame: u64) {
    let flags = frame.wrapping_add(16);
    if let Some([saved]) = guest.read_words(flags) {
        guest.write_word(flags, saved | RFLAGS_TF);
    }
}

/// The processor is at the first instruction of the guest's handler of #DB: its registers as they were
/// after the step in ring 3 that led there. `None`: it was something else.
///
/// The step was asked for now (`stepping`), or earlier, and the trap flag is still set. POPF clears it.
pub(crate) fn step_of_ring_3(guest: Guest<'_>, stepping: bool) -> Option<(kvm_regs, kvm_sregs)> {
    let registers = guest.registers();
    let frame = Frame::read(&guest, registers.rsp)?;
    let ours = frame.cs & 3 == 3 && (stepping || frame.flags & RFLAGS_TF != 0);
    let frame = Frame { flags: frame.flags & !RFLAGS_TF, ..frame };
    ours.then(|| frame.undo(&guest, registers, guest.system()))
}

/// The HLT at which the processor is, if it may execute it, and the registers afterwards.
pub(crate) fn halt(guest: Guest<'_>) -> Option<Emulated> {
    let (registers, system) = (guest.registers(), guest.system());
    let instruction = decode(&guest, &system, registers.rip);
    let halts = instruction.code() == Code::Hlt && guest::privilege_level(&system) == 0;
    let registers = kvm_regs { rip: instruction.next_ip(), ..registers };
    halts.then_some(Emulated { instruction, registers, exception: None })
}

/// What an instruction comes to: the registers afterwards, and the exception to raise there.
pub(crate) struct Emulated {
    pub(crate) instruction: Instruction,
    pub(crate) registers: kvm_regs,
    pub(crate) exception: Option<u8>,
}

/// Executes the instruction at which KVM could not go on, in 64-bit code: one of those that its
/// interpreter lacks. `None`: another.
///
/// CMPXCHG16B is not atomic towards other processors.
pub(crate) fn emulate(guest: Guest<'_>) -> Option<Emulated> {
    let (mut registers, system) = (guest.registers(), guest.system());
    if guest::bitness(&system) != 64 {
        return None;
    }
    let instruction = decode(&guest, &system, registers.rip);
    let operand = |registers: &kvm_regs, number| match instruction.op_kind(number) {
        OpKind::Register => value(registers, &system, instruction.op_register(number)),
        _ => {
            let [word] = guest.read_words(address(registers, &system, &instruction, number)?)?;
            let short = instruction.memory_size().size() == 4;
            Some(if short { word & 0xFFFF_FFFF } else { word })
        }
    };
    let mut exception = None;
    match instruction.code() {
        Code::Int3 => exception = Some(BREAKPOINT),
        Code::Clac => registers.rflags &= !RFLAGS_AC,
        Code::Stac => registers.rflags |= RFLAGS_AC,
        Code::Wait | Code::Clflushopt_m8 | Code::Clwb_m8 => {}
        Code::Popcnt_r32_rm32 | Code::Popcnt_r64_rm64 => {
            let source = operand(&registers, 1)?;
            *general(&mut registers, instruction.op0_register())? = source.count_ones().into();
            registers.rflags &= !RFLAGS_STATUS;
            registers.rflags |= if source == 0 { RFLAGS_ZF } else { 0 };
        }
        Code::Cmpxchg16b_m128 => {
            let place = address(&registers, &system, &instruction, 0)?;
            let [low, high] = guest.read_words(place)?;
            if (low, high) == (registers.rax, registers.rdx) {
                guest.write_word(place, registers.rbx);
                guest.write_word(place.wrapping_add(8), registers.rcx);
                registers.rflags |= RFLAGS_ZF;
            } else {
                (registers.rax, registers.rdx) = (low, high);
                registers.rflags &= !RFLAGS_ZF;
            }
        }
        _ => return None,
    }
    registers.rip = instruction.next_ip();
    Some(Emulated { instruction, registers, exception })
}
