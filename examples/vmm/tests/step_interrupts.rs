//! `--count step` of guests that are interrupted, at whatever instruction that is.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use guest::counted::{
    AROUND, COUNT_INTERRUPT, END, INSTRUCTIONS, INTEL, INTERRUPTS, count_down, counted, ended,
    expect_counted, fences, interrupt_returns, print_interrupts, start_timer, strings,
};
use guest::{
    ALL, Assembled, COUNTER_0, Code, KERNEL, LVTPC, NMI, SELECT_0, USER, command_others,
    enter_ring_3, exit, image, kvm, numbers, print, print_counter, push_ring_3, start_others,
    wrmsr,
};
use iced_x86::code_asm::*;

/// Five turns of three instructions: 16 instructions. The processor waits for an interrupt every time.
fn halts(a: &mut CodeAssembler) -> Assembled {
    let mut again = a.create_label();
    a.mov(r12d, 5)?;
    a.set_label(&mut again)?;
    a.hlt()?;
    a.dec(r12d)?;
    a.jne(again)
}

/// Instructions of `COUNT_INTERRUPT`.
const HANDLER: u64 = 11;

#[test]
fn interrupts_at_any_instruction_leave_the_count_exact() {
    if !kvm() {
        return;
    }
    let bodies: [(Code, u64); 4] =
        [(fences, 553), (strings, 171), (interrupt_returns, 901), (halts, 16)];
    for (body, instructions) in bodies {
        let kernel = image(
            |a| {
                start_timer(a)?;
                counted(a, ALL | INSTRUCTIONS, |a| {
                    a.sti()?;
                    for _ in 0..10 {
                        body(a)?;
                    }
                    a.cli()
                })?;
                print_interrupts(a)?;
                exit(a, 0x10)
            },
            &[COUNT_INTERRUPT],
        );
        let output = ended(&kernel, INTEL);
        let [counted, interrupts] = numbers(&output)[..] else { panic!() };
        assert!(interrupts > 0);
        let expected = 2 + 10 * instructions + AROUND + HANDLER * interrupts;
        expect_counted(&output, &[counted], &[expected]);
    }
}

/// Ring 3 executes what it executes, and ring 0 the handlers.
#[test]
fn interrupts_of_ring_3_leave_both_counts_exact() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let mut user = a.create_label();
            start_timer(a)?;
            wrmsr(a, SELECT_0, USER | INSTRUCTIONS)?;
            wrmsr(a, SELECT_0 + 1, KERNEL | INSTRUCTIONS)?;
            // IF.
            push_ring_3(a, user, 0x0202)?;
            a.iretq()?;
            a.set_label(&mut user)?;
            for _ in 0..2 {
                count_down(a)?;
            }
            a.ud2()
        },
        &[
            (6, |a| {
                wrmsr(a, SELECT_0 + 1, 0)?;
                print_counter(a, COUNTER_0)?;
                print_counter(a, COUNTER_0 + 1)?;
                print_interrupts(a)?;
                exit(a, 0x10)
            }),
            (1, |a| exit(a, 1)),
            COUNT_INTERRUPT,
        ],
    );
    let output = ended(&kernel, INTEL);
    let [user, kernel, interrupts] = numbers(&output)[..] else { panic!() };
    assert!(interrupts > 0);
    // In ring 0: WRMSR, seven into ring 3, three MOVs of the handler.
    expect_counted(&output, &[user, kernel], &[2 * 2001, 1 + 7 + 3 + HANDLER * interrupts]);
}

/// Counter 0 interrupts each 25 instructions, by an NMI whose handler has 14. Counter 1 counts all.
#[test]
fn performance_interrupts_at_any_instruction_leave_the_count_exact() {
    if !kvm() {
        return;
    }
    const PERIOD: u64 = 25;
    const INTERRUPT: u64 = 1 << 20;
    let kernel = image(
        |a| {
            a.mov(dword_ptr(INTERRUPTS), 0)?;
            a.mov(rax, 0xFEE0_00F0_u64)?;
            a.mov(dword_ptr(rax), 0x1FF)?;
            a.mov(rax, LVTPC)?;
            a.mov(dword_ptr(rax), NMI)?;
            wrmsr(a, COUNTER_0, PERIOD.wrapping_neg())?;
            wrmsr(a, COUNTER_0 + 1, 0)?;
            wrmsr(a, SELECT_0 + 1, ALL | INSTRUCTIONS)?;
            wrmsr(a, SELECT_0, ALL | INSTRUCTIONS | INTERRUPT)?;
            fences(a)?;
            interrupt_returns(a)?;
            wrmsr(a, SELECT_0, 0)?;
            wrmsr(a, SELECT_0 + 1, 0)?;
            print_counter(a, COUNTER_0 + 1)?;
            a.mov(eax, dword_ptr(INTERRUPTS))?;
            a.xor(edx, edx)?;
            print(a)?;
            exit(a, 0x10)
        },
        &[(2, |a| {
            a.push(rax)?;
            a.push(rcx)?;
            a.push(rdx)?;
            a.inc(dword_ptr(INTERRUPTS))?;
            wrmsr(a, COUNTER_0, 25u64.wrapping_neg())?;
            a.mov(rax, LVTPC)?;
            a.mov(dword_ptr(rax), NMI)?;
            a.pop(rdx)?;
            a.pop(rcx)?;
            a.pop(rax)?;
            a.iretq()
        })],
    );
    let output = ended(&kernel, INTEL);
    let [counted, interrupts] = numbers(&output)[..] else { panic!() };
    assert!(interrupts > 50, "{interrupts} interrupts");
    // Starting and stopping counter 0 is four instructions each.
    let expected = 4 + 553 + 901 + 4 + AROUND + 14 * interrupts;
    expect_counted(&output, &[counted], &[expected]);
}

/// An NMI comes just before an IRET to ring 3, and its handler stops the last counter. The IRET is then not stepped.
#[test]
fn a_step_that_is_not_to_be_any_more_leaves_no_trap_to_the_guest() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let mut user = a.create_label();
            a.mov(rax, 0xFEE0_00F0_u64)?;
            a.mov(dword_ptr(rax), 0x1FF)?;
            a.mov(rax, LVTPC)?;
            a.mov(dword_ptr(rax), NMI)?;
            // The WRMSR that starts, and the six up to IRET.
            wrmsr(a, COUNTER_0, 7u64.wrapping_neg())?;
            wrmsr(a, SELECT_0, ALL | INSTRUCTIONS | 1 << 20)?;
            enter_ring_3(a, user)?;
            a.set_label(&mut user)?;
            count_down(a)?;
            a.ud2()
        },
        &[
            (2, |a| {
                wrmsr(a, SELECT_0, 0)?;
                a.iretq()
            }),
            (1, |a| exit(a, 1)),
            (6, |a| {
                print_counter(a, COUNTER_0)?;
                exit(a, 0x10)
            }),
        ],
    );
    // It overflowed, and then three MOVs were counted: of the handler.
    let output = ended(&kernel, INTEL);
    expect_counted(&output, &numbers(&output), &[3]);
}

/// Stepping ends in the handler, and does not resume where it returns: those flags are the guest's.
#[test]
fn a_handler_that_stops_the_last_counter_returns_without_a_step() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let mut wait = a.create_label();
            start_timer(a)?;
            wrmsr(a, SELECT_0, ALL | INSTRUCTIONS)?;
            a.sti()?;
            a.set_label(&mut wait)?;
            a.cmp(dword_ptr(INTERRUPTS), 0)?;
            a.je(wait)?;
            a.cli()?;
            a.pushfq()?;
            a.pop(rax)?;
            a.and(eax, 1 << 8)?;
            a.xor(edx, edx)?;
            print(a)?;
            exit(a, 0x10)
        },
        &[
            (0x41, |a| {
                wrmsr(a, SELECT_0, 0)?;
                a.inc(dword_ptr(INTERRUPTS))?;
                a.mov(rax, END)?;
                a.mov(dword_ptr(rax), 0)?;
                a.iretq()
            }),
            // #DB.
            (1, |a| exit(a, 1)),
        ],
    );
    assert_eq!(numbers(&ended(&kernel, INTEL)), [0]);
}

/// The last request to the other processor, and the last that it saw.
const REQUESTED: u32 = 0x7000;
const SEEN: u32 = 0x7004;
const TURNS: i32 = 300;

/// Gives a processor in real mode a handler, which leaves the registers alone.
fn set_handler(a: &mut CodeAssembler, vector: u32, handler: Code) -> Assembled {
    let mut past = a.create_label();
    // The return address is the handler's.
    a.call(past)?;
    a.pushad()?;
    handler(a)?;
    a.popad()?;
    a.iret()?;
    a.set_label(&mut past)?;
    a.pop(word_ptr(vector * 4))?;
    a.mov(word_ptr(vector * 4 + 2), 0)
}

/// Counts, in real mode, and halts until there is a new request. Each 25 instructions an NMI interrupts it.
fn halting_processor(a: &mut CodeAssembler) -> Assembled {
    /// x2APIC: the performance interrupt's entry; the end of an interrupt.
    const ENTRY: u32 = 0x834;
    const END: u32 = 0x80B;
    let (mut again, mut new) = (a.create_label(), a.create_label());
    a.xor(ax, ax)?;
    a.mov(ds, ax)?;
    a.mov(ss, ax)?;
    a.mov(sp, 0x7000)?;
    set_handler(a, 2, |a| {
        wrmsr(a, COUNTER_0, 25u64.wrapping_neg())?;
        wrmsr(a, ENTRY, NMI.into())
    })?;
    set_handler(a, 0x41, |a| wrmsr(a, END, 0))?;
    // IA32_APIC_BASE, bits 10 and 11: x2APIC. Register 0x80F enables it by software.
    a.mov(ecx, 0x1B)?;
    a.rdmsr()?;
    a.or(eax, 0xC00)?;
    a.wrmsr()?;
    wrmsr(a, 0x80F, 0x1FF)?;
    wrmsr(a, ENTRY, NMI.into())?;
    wrmsr(a, COUNTER_0, 25u64.wrapping_neg())?;
    wrmsr(a, SELECT_0, ALL | INSTRUCTIONS | 1 << 20)?;

    a.set_label(&mut again)?;
    a.cli()?;
    a.mov(ax, word_ptr(REQUESTED))?;
    a.cmp(ax, word_ptr(SEEN))?;
    a.jne(new)?;
    a.sti()?;
    a.hlt()?;
    a.jmp(again)?;
    a.set_label(&mut new)?;
    a.mov(word_ptr(SEEN), ax)?;
    a.jmp(again)
}

/// The interrupt comes at any instruction of the other processor's, above all between its last look at the request and
/// its HLT. It is not sent again.
#[test]
fn a_processor_that_is_stepped_does_not_sleep_over_an_interrupt() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let [mut turn, mut delay, mut wait] = [(); 3].map(|()| a.create_label());
            a.mov(dword_ptr(REQUESTED), 0)?;
            a.mov(dword_ptr(SEEN), 0)?;
            start_others(a, halting_processor)?;
            a.xor(ebx, ebx)?;
            a.set_label(&mut turn)?;
            a.inc(ebx)?;
            // So many turns that the interrupt comes at another instruction each time.
            a.imul_3(ecx, ebx, 37)?;
            a.and(ecx, 0x3F)?;
            a.inc(ecx)?;
            a.set_label(&mut delay)?;
            a.dec(ecx)?;
            a.jne(delay)?;
            a.mov(word_ptr(REQUESTED), bx)?;
            command_others(a, 0x4041)?;
            a.set_label(&mut wait)?;
            a.cmp(word_ptr(SEEN), bx)?;
            a.jne(wait)?;
            a.cmp(ebx, TURNS)?;
            a.jne(turn)?;
            exit(a, 0x10)
        },
        &[],
    );
    ended(&kernel, &format!("{INTEL} --cpus 2 --timeout 300"));
}
