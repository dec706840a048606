//! Guest code with hand-counted instructions, for `--count step`.

use std::path::Path;
use std::process::Output;

use iced_x86::code_asm::*;

use super::{
    ALL, Assembled, COUNTER_0, Code, KERNEL_CODE, KERNEL_DATA, SELECT_0, exit, image, messages,
    numbers, print, print_counter, run, skipped, stats, wrmsr,
};

pub(crate) const INSTRUCTIONS: u64 = 0xC0;
pub(crate) const BRANCHES: u64 = 0xC4;
pub(crate) const INTEL: &str = "--count step --stats=json --pmu intel:version=1,fixed=0";

/// Runs a guest, asserts that it ended well, and returns its output.
pub(crate) fn ended(kernel: &[u8], arguments: &str) -> Output {
    let output = run(kernel, arguments);
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    output
}

pub(crate) fn expect(kernel: &[u8], arguments: &str, expected: &[u64]) {
    let output = ended(kernel, arguments);
    expect_counted(&output, &numbers(&output), expected);
}

/// Asserts that the guest counted as expected, or that the monitor reported inexact counts. On kvm-pvm they must be
/// exact.
pub(crate) fn expect_counted(output: &Output, counted: &[u64], expected: &[u64]) {
    let said = messages(output);
    if said.contains("not exact") && !Path::new("/sys/module/kvm_pvm").exists() {
        return skipped("exact counts", "the monitor says that on this KVM they are not exact");
    }
    assert!(!said.contains("not exact"), "{said}");
    assert_eq!(counted, expected, "{said}");
    for phase in stats(output)["phases"].as_object().unwrap().values() {
        assert_eq!(phase["unreconciled"], 0, "{said}");
    }
}

/// 1000 turns: 2001 instructions, 1000 branches of which 999 are taken.
pub(crate) fn count_down(a: &mut CodeAssembler) -> Assembled {
    a.mov(ecx, 1000)?;
    let mut again = a.create_label();
    a.set_label(&mut again)?;
    a.dec(ecx)?;
    a.jne(again)
}

/// Selects `event` in counter 0 of version 1 (no global control), runs `body`, stops, and prints.
///
/// Also counted: the WRMSR that starts, and three MOVs before the WRMSR that stops.
pub(crate) fn counted(
    a: &mut CodeAssembler,
    select: u64,
    body: impl FnOnce(&mut CodeAssembler) -> Assembled,
) -> Assembled {
    wrmsr(a, COUNTER_0, 0)?;
    wrmsr(a, SELECT_0, select)?;
    body(a)?;
    wrmsr(a, SELECT_0, 0)?;
    print_counter(a, COUNTER_0)
}
pub(crate) const AROUND: u64 = 1 + 3;

/// Memory where the guests below keep far pointers and strings, and count their interrupts.
pub(crate) const SCRATCH: u32 = 0x7000;
pub(crate) const INTERRUPTS: u32 = 0x7F00;

/// Asserts that the first counter counts the body's instructions, and then its branches.
pub(crate) fn expect_of(body: Code, handlers: &[(u8, Code)], instructions: u64, branches: u64) {
    let kernel = image(
        |a| {
            counted(a, ALL | INSTRUCTIONS, body)?;
            counted(a, ALL | BRANCHES, body)?;
            exit(a, 0x10)
        },
        handlers,
    );
    expect(&kernel, INTEL, &[instructions + AROUND, branches]);
}

/// 50 turns of 11 instructions, three of them branches: 553 instructions, 151 branches.
pub(crate) fn fences(a: &mut CodeAssembler) -> Assembled {
    let (mut again, mut function, mut over) =
        (a.create_label(), a.create_label(), a.create_label());
    a.mov(r12d, 50)?;
    a.set_label(&mut again)?;
    a.clflush(byte_ptr(SCRATCH))?;
    a.mfence()?;
    a.lfence()?;
    a.sfence()?;
    a.mfence()?;
    a.call(function)?;
    a.dec(r12d)?;
    a.mfence()?;
    a.jne(again)?;
    a.jmp(over)?;
    a.set_label(&mut function)?;
    a.lfence()?;
    a.ret()?;
    a.set_label(&mut over)?;
    a.nop()
}

/// 10 turns of 17 instructions: 171 instructions, 10 branches.
pub(crate) fn strings(a: &mut CodeAssembler) -> Assembled {
    let mut again = a.create_label();
    a.mov(r12d, 10)?;
    a.set_label(&mut again)?;
    a.mov(edi, SCRATCH)?;
    a.mov(ecx, 20)?;
    a.rep().stosb()?;
    a.mov(esi, SCRATCH)?;
    a.mov(edi, SCRATCH + 64)?;
    a.mov(ecx, 7)?;
    a.rep().movsq()?;
    a.xor(ecx, ecx)?;
    a.rep().movsb()?;
    a.mov(esi, SCRATCH)?;
    a.mov(edi, SCRATCH + 64)?;
    a.mov(ecx, 5)?;
    a.repe().cmpsb()?;
    a.lodsb()?;
    a.stosb()?;
    a.dec(r12d)?;
    a.jne(again)
}

/// Pushes a frame for IRET to `target` in ring 0: 7 instructions.
pub(crate) fn push_frame(a: &mut CodeAssembler, target: CodeLabel) -> Assembled {
    a.mov(r9, rsp)?;
    a.push(KERNEL_DATA as i32)?;
    a.push(r9)?;
    a.pushfq()?;
    a.push(KERNEL_CODE as i32)?;
    a.lea(rax, ptr(target))?;
    a.push(rax)
}

/// 20 turns of 45 instructions, six of them branches: 901 instructions, 120 branches.
pub(crate) fn interrupt_returns(a: &mut CodeAssembler) -> Assembled {
    let [mut again, mut one, mut two, mut three, mut four, mut five] =
        core::array::from_fn(|_| a.create_label());
    a.mov(r12d, 20)?;
    a.set_label(&mut again)?;
    push_frame(a, one)?;
    a.iretq()?;
    a.set_label(&mut one)?;
    push_frame(a, two)?;
    a.mfence()?;
    a.iretq()?;
    a.set_label(&mut two)?;
    push_frame(a, three)?;
    a.swapgs()?;
    a.iretq()?;
    a.set_label(&mut three)?;
    a.swapgs()?;
    // To another IRET.
    push_frame(a, five)?;
    push_frame(a, four)?;
    a.iretq()?;
    a.set_label(&mut four)?;
    a.iretq()?;
    a.set_label(&mut five)?;
    a.dec(r12d)?;
    a.jne(again)
}

/// Registers of the local APIC: the end of an interrupt, and the timer's initial count.
pub(crate) const END: u64 = 0xFEE0_00B0;
const INITIAL_COUNT: u64 = 0xFEE0_0380;
/// The time until the first interrupt, in nanoseconds. Each next one takes as much longer, so that a host on which
/// steps are slow comes to the end too.
const LATER: i32 = 20_000;

/// Starts the local APIC's timer, which interrupts once, at vector 0x41.
pub(crate) fn start_timer(a: &mut CodeAssembler) -> Assembled {
    a.mov(dword_ptr(INTERRUPTS), 0)?;
    // Spurious-interrupt vector, divisor 1, one-shot timer.
    for (register, value) in [(0xF0, 0x1FF), (0x3E0, 0b1011), (0x320, 0x41)] {
        a.mov(rax, 0xFEE0_0000_u64 + register)?;
        a.mov(dword_ptr(rax), value)?;
    }
    a.mov(rax, INITIAL_COUNT)?;
    a.mov(dword_ptr(rax), LATER)
}

/// The handler, which starts the timer again: eleven instructions.
pub(crate) const COUNT_INTERRUPT: (u8, Code) = (0x41, |a| {
    a.inc(dword_ptr(INTERRUPTS))?;
    a.push(rax)?;
    a.push(rcx)?;
    a.mov(rax, END)?;
    a.mov(dword_ptr(rax), 0)?;
    a.imul_3(ecx, dword_ptr(INTERRUPTS), LATER)?;
    a.mov(rax, INITIAL_COUNT)?;
    a.mov(dword_ptr(rax), ecx)?;
    a.pop(rcx)?;
    a.pop(rax)?;
    a.iretq()
});

/// Prints the number of the timer's interrupts.
pub(crate) fn print_interrupts(a: &mut CodeAssembler) -> Assembled {
    a.mov(eax, dword_ptr(INTERRUPTS))?;
    a.xor(edx, edx)?;
    print(a)
}
