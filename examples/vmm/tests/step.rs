//! `--count step`: a guest's counters agree with instructions that were counted by hand.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use guest::counted::{
    AROUND, BRANCHES, INSTRUCTIONS, INTEL, SCRATCH, count_down, counted, ended, expect, expect_of,
    fences, interrupt_returns, strings,
};
use guest::{
    ALL, AMD_COUNTER_0, AMD_SELECT_0, Assembled, COUNTER_0, Code, KERNEL, KERNEL_CODE, SELECT_0,
    USER, enter_ring_3, exit, image, kvm, messages, numbers, print, print_counter, push_ring_3,
    skip_two_bytes, start_others, stats, wrmsr,
};
use iced_x86::code_asm::*;

#[test]
fn single_steps_count_exactly() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            counted(a, ALL | INSTRUCTIONS, count_down)?;
            counted(a, ALL | BRANCHES, count_down)?;
            counted(a, KERNEL | INSTRUCTIONS, count_down)?;
            counted(a, USER | INSTRUCTIONS, count_down)?;
            // A repeated string instruction retires once.
            let fill: Code = |a| {
                a.lea(rdi, ptr(0x12_0000))?;
                a.mov(ecx, 100)?;
                a.rep().stosb()
            };
            counted(a, ALL | INSTRUCTIONS, fill)?;
            // Calls by every way, and returns.
            let calls: Code = |a| {
                let (mut function, mut over) = (a.create_label(), a.create_label());
                a.call(function)?;
                a.lea(rax, ptr(function))?;
                a.call(rax)?;
                a.push(rax)?;
                a.call(qword_ptr(rsp))?;
                a.pop(rax)?;
                a.jmp(over)?;
                a.set_label(&mut function)?;
                a.ret()?;
                a.set_label(&mut over)?;
                a.nop()
            };
            counted(a, ALL | INSTRUCTIONS, calls)?;
            counted(a, ALL | BRANCHES, calls)?;
            // An instruction that faults does not retire; its handler's two do.
            counted(a, ALL | INSTRUCTIONS, |a| a.ud2())?;
            counted(a, ALL | BRANCHES, |a| a.ud2())?;
            exit(a, 0x10)
        },
        &[(6, skip_two_bytes)],
    );
    let expected =
        [2001 + AROUND, 1000, 2001 + AROUND, 0, 3 + AROUND, 11 + AROUND, 7, 2 + AROUND, 1];
    expect(&kernel, INTEL, &expected);
}

#[test]
fn single_steps_know_privilege() {
    if !kvm() {
        return;
    }
    // Ring 3 ends with UD2, whose handler prints what was counted until then.
    let kernel: fn(&mut CodeAssembler) -> Assembled = |a| {
        let mut user = a.create_label();
        wrmsr(a, SELECT_0, USER | INSTRUCTIONS)?;
        wrmsr(a, SELECT_0 + 1, KERNEL | INSTRUCTIONS)?;
        enter_ring_3(a, user)?;
        a.set_label(&mut user)?;
        count_down(a)?;
        a.ud2()
    };
    let handler: Code = |a| {
        wrmsr(a, SELECT_0 + 1, 0)?;
        print_counter(a, COUNTER_0)?;
        print_counter(a, COUNTER_0 + 1)?;
        exit(a, 0x10)
    };
    // In ring 0: the WRMSR, seven instructions into ring 3, and three MOVs in the handler.
    let expected = [2001, 1 + 7 + 3];
    // kvm-pvm steps in ring 3 through the guest's handler of #DB, which is never executed.
    let kernel = image(kernel, &[(6, handler), (1, |a| exit(a, 1))]);
    expect(&kernel, INTEL, &expected);
}

#[test]
fn amd_counts_taken_branches_too() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            // PMCx0C2 and PMCx0C4.
            wrmsr(a, AMD_SELECT_0, ALL | 0xC2)?;
            wrmsr(a, AMD_SELECT_0 + 1, ALL | 0xC4)?;
            count_down(a)?;
            wrmsr(a, AMD_SELECT_0, 0)?;
            wrmsr(a, AMD_SELECT_0 + 1, 0)?;
            print_counter(a, AMD_COUNTER_0)?;
            print_counter(a, AMD_COUNTER_0 + 1)?;
            exit(a, 0x10)
        },
        &[],
    );
    expect(&kernel, "--count step --stats=json --pmu amd:legacy", &[1000, 999]);
}

/// Instructions that kvm-pvm's interpreter lacks, and other processors have.
fn rare_instructions(a: &mut CodeAssembler) -> Assembled {
    a.mov(r8, 0xF0F0_0000_0000_00F1_u64)?;
    a.popcnt(r9, r8)?;
    // 16 bytes at 0x7010 from 0 to (5, 6); the second time they are not 0 any more.
    for value in [5, 7] {
        a.xor(eax, eax)?;
        a.xor(edx, edx)?;
        a.mov(ebx, value)?;
        a.mov(ecx, 6)?;
        a.cmpxchg16b(ptr(0x7010))?;
    }
    a.wait()?;
    a.int3()
}
/// Their number, with two of INT3's handler.
const RARE: u64 = 2 + 2 * 5 + 2;

#[test]
fn rare_instructions_do_what_they_should_and_count() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            rare_instructions(a)?;
            a.add(rax, r9)?;
            a.add(rax, r10)?;
            print(a)?;
            counted(a, ALL | INSTRUCTIONS, |a| {
                a.mov(qword_ptr(0x7010), 0)?;
                a.mov(qword_ptr(0x7018), 0)?;
                rare_instructions(a)
            })?;
            exit(a, 0x10)
        },
        &[(3, |a| {
            a.mov(r10d, 1000)?;
            a.iretq()
        })],
    );
    // The second CMPXCHG16B reads (5, 6); 13 bits are set; INT3's handler was there.
    let expected = [6 << 32 | (5 + 13 + 1000), 2 + RARE + 2 + AROUND];
    expect(&kernel, INTEL, &expected);
}

#[test]
fn fences_and_what_follows_them_are_counted() {
    if kvm() {
        expect_of(fences, &[], 553, 151);
    }
}

#[test]
fn a_repeated_string_instruction_is_counted_once() {
    if kvm() {
        expect_of(strings, &[], 171, 10);
    }
}

#[test]
fn an_iret_and_what_follows_it_are_counted() {
    if kvm() {
        expect_of(interrupt_returns, &[], 901, 120);
    }
}

/// 30 turns of 11 instructions, four of them branches: 333 instructions, 121 branches.
fn far_jumps(a: &mut CodeAssembler) -> Assembled {
    let [mut again, mut next, mut function, mut over] = core::array::from_fn(|_| a.create_label());
    a.mov(r12d, 30)?;
    a.set_label(&mut again)?;
    a.lea(rax, ptr(next))?;
    a.mov(dword_ptr(SCRATCH), eax)?;
    a.mov(word_ptr(SCRATCH + 4), KERNEL_CODE as u32)?;
    // JMP FAR and CALL FAR [SCRATCH], with 32 bits of offset, which every vendor has.
    a.db(&[0xFF, 0x2C, 0x25])?;
    a.dd(&[SCRATCH])?;
    a.set_label(&mut next)?;
    a.lea(rax, ptr(function))?;
    a.mov(dword_ptr(SCRATCH), eax)?;
    a.db(&[0xFF, 0x1C, 0x25])?;
    a.dd(&[SCRATCH])?;
    a.dec(r12d)?;
    a.jne(again)?;
    a.jmp(over)?;
    a.set_label(&mut function)?;
    a.mfence()?;
    // RETF, likewise.
    a.db(&[0xCB])?;
    a.set_label(&mut over)?;
    a.nop()
}

#[test]
fn far_jumps_calls_and_returns_are_counted() {
    if kvm() {
        expect_of(far_jumps, &[], 333, 121);
    }
}

/// 20 turns of five instructions that retire, two of them branches, of which two are the handler's: 101
/// instructions, 40 branches.
fn faults_after_fences(a: &mut CodeAssembler) -> Assembled {
    let mut again = a.create_label();
    a.mov(r12d, 20)?;
    a.set_label(&mut again)?;
    a.mfence()?;
    a.ud2()?;
    a.dec(r12d)?;
    a.jne(again)
}

#[test]
fn a_fence_before_a_fault_is_counted_and_the_faulting_instruction_is_not() {
    if kvm() {
        expect_of(faults_after_fences, &[(6, skip_two_bytes)], 101, 40);
    }
}

/// By way of a fence and SWAPGS, as kernels go. Ring 3 also clears the trap flag, by POPF.
#[test]
fn ring_3_is_stepped_when_iret_comes_after_what_is_not_stepped() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let mut user = a.create_label();
            wrmsr(a, SELECT_0, USER | INSTRUCTIONS)?;
            wrmsr(a, SELECT_0 + 1, KERNEL | INSTRUCTIONS)?;
            push_ring_3(a, user, 0x0002)?;
            a.mfence()?;
            a.swapgs()?;
            a.iretq()?;
            a.set_label(&mut user)?;
            a.push(0x0002)?;
            a.popfq()?;
            count_down(a)?;
            a.mfence()?;
            a.ud2()
        },
        &[
            (6, |a| {
                wrmsr(a, SELECT_0 + 1, 0)?;
                print_counter(a, COUNTER_0)?;
                print_counter(a, COUNTER_0 + 1)?;
                exit(a, 0x10)
            }),
            (1, |a| exit(a, 1)),
        ],
    );
    // In ring 3: PUSH, POPF, 2001, MFENCE. In ring 0: WRMSR, nine into ring 3, three MOVs of the handler.
    expect(&kernel, INTEL, &[2 + 2001 + 1, 1 + 9 + 3]);
}

/// RDPMC faults in KVM, and kvm-pvm does not know POPCNT: the monitor executes them, after fences too.
#[test]
fn an_instruction_that_the_monitor_executes_is_counted() {
    if kvm() {
        let body: Code = |a| {
            a.xor(ecx, ecx)?;
            a.rdpmc()?;
            a.mfence()?;
            a.rdpmc()?;
            a.popcnt(eax, ecx)?;
            a.mfence()?;
            a.popcnt(eax, ecx)?;
            a.nop()
        };
        expect_of(body, &[(13, |a| exit(a, 1))], 8, 0);
    }
}

/// SYSCALL's target is in a register that the monitor does not read.
#[test]
fn a_stop_that_cannot_be_reconciled_is_told() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            // EFER.SCE; STAR: the segments; LSTAR: where to.
            a.mov(ecx, 0xC000_0080_u32)?;
            a.rdmsr()?;
            a.or(eax, 1)?;
            a.wrmsr()?;
            wrmsr(a, 0xC000_0081, KERNEL_CODE << 32)?;
            let mut entry = a.create_label();
            a.lea(rax, ptr(entry))?;
            a.xor(edx, edx)?;
            a.mov(ecx, 0xC000_0082_u32)?;
            a.wrmsr()?;
            wrmsr(a, COUNTER_0, 0)?;
            wrmsr(a, SELECT_0, ALL | INSTRUCTIONS)?;
            a.syscall()?;
            a.ud2()?;
            a.set_label(&mut entry)?;
            a.nop()?;
            wrmsr(a, SELECT_0, 0)?;
            print_counter(a, COUNTER_0)?;
            exit(a, 0x10)
        },
        &[],
    );
    let output = ended(&kernel, INTEL);
    let said = messages(&output);
    assert!(said.contains("--count step is not exact: 1 stop "), "{said}");
    assert_eq!(stats(&output)["phases"]["0"]["unreconciled"], 1, "{said}");
    // SYSCALL, NOP and four others retired: the count is not above that.
    assert!(numbers(&output)[0] <= 2 + AROUND, "{said}");
    let table = messages(&ended(&kernel, &INTEL.replace("=json", "")));
    assert!(table.contains("    0  step    unreconciled 1"), "{table}");
}

/// Count of the other processor, and the flag that it is done.
const COUNTED: u32 = 0x7100;
const DONE: u32 = 0x7108;

/// Makes the other processor, in real mode, count and halt.
fn other_processor(a: &mut CodeAssembler) -> Assembled {
    a.xor(ax, ax)?;
    a.mov(ds, ax)?;
    wrmsr(a, COUNTER_0, 0)?;
    wrmsr(a, SELECT_0, ALL | INSTRUCTIONS)?;
    count_down(a)?;
    wrmsr(a, SELECT_0, 0)?;
    a.mov(ecx, COUNTER_0)?;
    a.rdmsr()?;
    a.mov(dword_ptr(COUNTED), eax)?;
    a.mov(dword_ptr(COUNTED + 4), edx)?;
    a.mov(word_ptr(DONE), 1)?;
    a.hlt()
}

#[test]
fn two_processors_are_stepped_at_once_and_each_counts_its_own() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            start_others(a, other_processor)?;
            // Again and again, until the other one is done.
            let mut again = a.create_label();
            a.set_label(&mut again)?;
            wrmsr(a, COUNTER_0, 0)?;
            wrmsr(a, SELECT_0, ALL | INSTRUCTIONS)?;
            count_down(a)?;
            wrmsr(a, SELECT_0, 0)?;
            a.cmp(word_ptr(DONE), 0)?;
            a.je(again)?;
            print_counter(a, COUNTER_0)?;
            a.mov(eax, dword_ptr(COUNTED))?;
            a.mov(edx, dword_ptr(COUNTED + 4))?;
            print(a)?;
            exit(a, 0x10)
        },
        &[],
    );
    expect(&kernel, &format!("{INTEL} --cpus 2"), &[2001 + AROUND; 2]);
}
