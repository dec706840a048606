//! Workarounds for kvm-pvm, a KVM without hardware virtualization that interprets ring 0 and runs ring 3 directly.
//! They apply only there.

use std::path::Path;

use iced_x86::{Code, Instruction, OpKind};
use kvm_bindings::{kvm_regs, kvm_sregs, kvm_xcrs};
use kvm_ioctls::VcpuFd;

use crate::guest::{self, Frame, Guest, Memory};
use crate::instruction::{address, decode, general, value};
use crate::vcpu::msr;

const RFLAGS_ZF: u64 = 1 << 6;
const RFLAGS_TF: u64 = 1 << 8;
const RFLAGS_RF: u64 = 1 << 16;
const RFLAGS_AC: u64 = 1 << 18;
/// Descriptors that SYSCALL loads, regardless of the table: flat segments of ring 0, accessed.
const CODE_64: u64 = 0x00AF_9B00_0000_FFFF;
const DATA: u64 = 0x00CF_9300_0000_FFFF;
/// CF, PF, AF, ZF, SF and OF.
const RFLAGS_STATUS: u64 = 0x8D5;

/// Returns whether this host's KVM is kvm-pvm.
pub(crate) fn is_there() -> bool {
    Path::new("/sys/module/kvm_pvm").exists()
}

/// #DB and #BP.
pub(crate) const DEBUG: u8 = 1;
const BREAKPOINT: u8 = 3;

/// Returns whether kvm-pvm's interpreter executes the instruction together with the next one, without a stop between.
pub(crate) fn has_no_stop(code: Code) -> bool {
    matches!(code, Code::Lfence | Code::Mfence | Code::Sfence | Code::Swapgs | Code::Iretq)
}

/// Sets the trap flag in the frame of an IRET to ring 3, because kvm-pvm steps only in ring 0. The resulting #DB is
/// [undone](step_to_handler) at the guest's handler.
pub(crate) fn step_through_iret(guest: Guest<'_>, frame: u64) {
    let flags = frame.wrapping_add(16);
    if let Some([saved]) = guest.read_words(flags) {
        guest.write_word(flags, saved | RFLAGS_TF);
    }
}

/// Returns the registers after the step that led to the first instruction of the guest's handler of #DB, where the
/// processor is. `None`: something else led there.
///
/// In ring 3 the step was requested now (`stepping`), or earlier with the trap flag still set; POPF clears it. In
/// ring 0 the step is obsolete: an interrupt pushed the trap flag, and its handler stopped the last counter and
/// returned.
pub(crate) fn step_to_handler(guest: Guest<'_>, stepping: bool) -> Option<(kvm_regs, kvm_sregs)> {
    let registers = guest.registers();
    let frame = Frame::read(&guest, registers.rsp)?;
    let ours = frame.flags & RFLAGS_TF != 0 || stepping && frame.cs & 3 == 3;
    let frame = Frame { flags: frame.flags & !RFLAGS_TF, ..frame };
    ours.then(|| frame.undo(&guest, registers, guest.system()))
}

/// Emulates the HLT at which the processor is, if it may execute it.
pub(crate) fn halt(guest: Guest<'_>) -> Option<Emulated> {
    let (registers, system) = (guest.registers(), guest.system());
    let instruction = decode(&guest, &system, registers.rip);
    let halts = instruction.code() == Code::Hlt && guest::privilege_level(&system) == 0;
    let registers = kvm_regs { rip: instruction.next_ip(), ..registers };
    halts.then_some(Emulated { instruction, registers, exception: None })
}

/// Model-specific registers of SYSCALL. On kvm-pvm SYSCALL leads from ring 3 to LSTAR without a change of the
/// privilege level, so that the first fetch there is a page fault. APM vol. 2, "SYSCALL and SYSRET".
#[derive(Clone, Copy, Debug)]
pub(crate) struct SystemCall {
    /// Bits 47:32: the selector of the code segment; the stack segment's is the next.
    pub(crate) star: u64,
    /// The entry point in 64-bit mode.
    pub(crate) lstar: u64,
    /// The flags that SYSCALL clears.
    pub(crate) fmask: u64,
}

/// #PF, and the bits of its error code: the page is present, the access was ring 3's, and a fetch (which is told
/// where pages can be made not executable).
pub(crate) const PAGE_FAULT: u8 = 14;
const PRESENT_USER: u64 = 0b00101;
const FETCH: u64 = 1 << 4;

impl SystemCall {
    /// Returns the registers of SYSCALL, as the processor has them.
    pub(crate) fn of(vcpu: &VcpuFd) -> Option<Self> {
        let [star, lstar, fmask] = msr::read_all(vcpu, [0xC000_0081, 0xC000_0082, 0xC000_0084])?;
        Some(Self { star, lstar, fmask })
    }

    /// Returns the registers behind the SYSCALL that led to the first instruction of the guest's handler of #PF,
    /// where the processor is. `None`: it was another fault.
    ///
    /// RCX and R11 have what SYSCALL saves. A jump from ring 3 to LSTAR with RCX behind a SYSCALL is taken for it.
    pub(crate) fn finish(
        self,
        memory: &impl Memory,
        registers: kvm_regs,
        system: kvm_sregs,
    ) -> Option<(kvm_regs, kvm_sregs)> {
        const SYSCALL: u64 = 0x050F;
        let [code] = memory.read_words(registers.rsp)?;
        let frame = Frame::read(memory, registers.rsp.wrapping_add(8))?;
        let fetched = code & !FETCH == PRESENT_USER && frame.cs & 3 == 3 && frame.rip == self.lstar;
        if !fetched || memory.read_number(registers.rcx.wrapping_sub(2), 2)? != SYSCALL {
            return None;
        }
        let selector = (self.star >> 32) as u16 & !3;
        let ring_0 = kvm_sregs {
            cs: guest::segment(selector, CODE_64),
            ss: guest::segment(selector.wrapping_add(8), DATA),
            ..system
        };
        let rflags = frame.flags & !self.fmask & !RFLAGS_RF;
        Some((kvm_regs { rip: frame.rip, rsp: frame.rsp, rflags, ..registers }, ring_0))
    }
}

/// Returns whether the guest is at the kernel's entry, where SYSCALL leaves it in ring 3 until the page fault.
pub(crate) fn is_at_entry(guest: Guest<'_>) -> bool {
    let rip = guest.registers().rip;
    SystemCall::of(guest.vcpu).is_some_and(|call| call.lstar == rip)
}

/// Result of an emulated instruction: the registers afterwards, and the exception to raise there.
pub(crate) struct Emulated {
    pub(crate) instruction: Instruction,
    pub(crate) registers: kvm_regs,
    pub(crate) exception: Option<u8>,
}

/// Executes the instruction at which KVM could not continue, in 64-bit code: one of those that its interpreter lacks.
/// `None`: another.
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
        Code::Lsl_r32_r32m16 | Code::Lsl_r64_r64m16 => {
            let limit = segment_limit(&guest, &system, operand(&registers, 1)? as u16);
            registers.rflags &= !RFLAGS_ZF;
            if let Some(limit) = limit {
                *general(&mut registers, instruction.op0_register())? = limit.into();
                registers.rflags |= RFLAGS_ZF;
            }
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
        // SDM vol. 2, XGETBV and XSETBV: ECX 0 is XCR0.
        Code::Xgetbv if registers.rcx as u32 == 0 => {
            let state = guest.vcpu.get_xcrs().ok()?;
            let value = state.xcrs.iter().find(|register| register.xcr == 0)?.value;
            (registers.rax, registers.rdx) = (value & 0xFFFF_FFFF, value >> 32);
        }
        Code::Xsetbv if registers.rcx as u32 == 0 => {
            let mut state = kvm_xcrs { nr_xcrs: 1, ..Default::default() };
            state.xcrs[0].value = registers.rdx << 32 | registers.rax & 0xFFFF_FFFF;
            guest.vcpu.set_xcrs(&state).ok()?;
        }
        _ => return None,
    }
    registers.rip = instruction.next_ip();
    Some(Emulated { instruction, registers, exception })
}

/// Returns the limit that LSL loads; `None` where it clears ZF. APM vol. 3, LSL: in long mode code, data, LDT and
/// TSS, if CPL and RPL allow; conforming code allows all.
fn segment_limit(memory: &impl Memory, system: &kvm_sregs, selector: u16) -> Option<u32> {
    let (table, local) = (system.gdt, selector & 4 != 0);
    let place = u64::from(selector & !7);
    if local || place == 0 || place + 7 > table.limit.into() {
        return None;
    }
    let [descriptor] = memory.read_words(table.base.wrapping_add(place))?;
    let segment = guest::segment(selector, descriptor);
    let privileged = guest::privilege_level(system).max(selector as u8 & 3) <= segment.dpl;
    let allowed = match (segment.s, segment.type_) {
        (0, kind) => matches!(kind, 2 | 9 | 11) && privileged,
        (_, kind) => kind & 0b1100 == 0b1100 || privileged,
    };
    allowed.then_some(segment.limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::tests::Pieces;

    /// The kernel's entry, the program's SYSCALL, and where it returns to.
    const LSTAR: u64 = 0xFFFF_FFFF_8100_0040;
    const PROGRAM: u64 = 0x40_1000;
    const BEHIND: u64 = PROGRAM + 2;
    const STACK: u64 = 0xFFFF_C900_0000_0F00;

    /// #PF's handler is entered: an error code, and RIP, CS, RFLAGS, RSP and SS.
    fn fault(code: u64, rip: u64, cs: u64) -> (Pieces, kvm_regs) {
        let flags = 0x1_0302; // RF, TF, IF
        let stack = Pieces::words(STACK, &[code, rip, cs, flags, 0x7FFF_0000_1238, 0x2B]);
        let memory = Pieces(vec![stack, (PROGRAM, vec![0x0F, 0x05, 0x90])]);
        let registers = kvm_regs {
            rip: 0xFFFF_FFFF_8100_9000,
            rsp: STACK,
            rax: 39,
            rcx: BEHIND,
            r11: 0x302,
            rflags: 2,
            ..Default::default()
        };
        (memory, registers)
    }

    /// Linux': code at 0x10, user's from 0x23 on; TF, IF, DF, IOPL, NT and AC are cleared, and status flags.
    const LINUX: SystemCall = SystemCall { star: 0x23_0010 << 32, lstar: LSTAR, fmask: 0x25_7FD5 };

    /// APM vol. 3, SYSCALL: CS and SS from STAR 47:32, RIP from LSTAR, RFLAGS without FMASK's bits and RF; RSP,
    /// RCX and R11 are the program's.
    #[test]
    fn a_system_call_that_faulted_at_its_entry_is_finished() {
        let (memory, registers) = fault(0x15, LSTAR, 0x33);
        let (after, system) =
            LINUX.finish(&memory, registers, kvm_sregs::default()).expect("a system call");
        assert_eq!((after.rip, after.rsp, after.rflags), (LSTAR, 0x7FFF_0000_1238, 0x2));
        assert_eq!((after.rax, after.rcx, after.r11), (39, BEHIND, 0x302));
        assert_eq!((system.cs.selector, system.cs.dpl, system.cs.l, system.cs.db), (0x10, 0, 1, 0));
        assert_eq!((system.ss.selector, system.ss.dpl, system.ss.type_), (0x18, 0, 3));
        // Without non-executable pages, a fetch is not reported.
        let (memory, registers) = fault(0x05, LSTAR, 0x33);
        assert!(LINUX.finish(&memory, registers, kvm_sregs::default()).is_some());
    }

    #[test]
    fn another_page_fault_is_no_system_call() {
        let none = |(memory, registers): (Pieces, kvm_regs)| {
            assert!(LINUX.finish(&memory, registers, kvm_sregs::default()).is_none());
        };
        none(fault(0x14, LSTAR, 0x33)); // not present
        none(fault(0x07, LSTAR, 0x33)); // a write
        none(fault(0x11, LSTAR, 0x10)); // the kernel's own
        none(fault(0x15, LSTAR + 1, 0x33)); // elsewhere
        // A jump, with RCX elsewhere.
        let (memory, registers) = fault(0x15, LSTAR, 0x33);
        none((memory, kvm_regs { rcx: BEHIND + 1, ..registers }));
        // Nothing can be read.
        none((Pieces(Vec::new()), registers));
    }

    /// APM vol. 3, LSL: limits in bytes, and the conditions that clear ZF.
    #[test]
    fn the_limit_of_a_segment_is_told_to_those_who_may_use_it() {
        const GDT: u64 = 0x9000;
        let descriptors: [u64; 6] = [
            0,
            0x00AF_9B00_0000_FFFF, // code of ring 0, 4 GiB
            0x0040_F500_0000_0042, // data of ring 3, 0x42 bytes and one: Linux' number of the processor
            0x0000_8900_0000_0067, // an available TSS of ring 0
            0x00C0_9E00_0000_0001, // conforming code of ring 0, two pages
            0x0000_8E00_0000_FFFF, // a gate
        ];
        let memory = Pieces(vec![Pieces::words(GDT, &descriptors)]);
        let mut system = kvm_sregs::default();
        (system.gdt.base, system.gdt.limit) = (GDT, 6 * 8 - 1);
        let limits = |system: &kvm_sregs| {
            [0, 0x08, 0x10, 0x13, 0x18, 0x20, 0x23, 0x28, 0x30, 0x0C]
                .map(|selector| segment_limit(&memory, system, selector))
        };
        let (all, two_pages) = (Some(0xFFFF_FFFF), Some(0x1FFF));
        let (data, task) = (Some(0x42), Some(0x67));
        let none = None;
        assert_eq!(
            limits(&system),
            [none, all, data, data, task, two_pages, two_pages, none, none, none]
        );
        system.ss.dpl = 3;
        assert_eq!(
            limits(&system),
            [none, none, data, data, none, two_pages, two_pages, none, none, none]
        );
    }
}
