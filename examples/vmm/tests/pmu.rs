//! Guests that use the PMU: interrupts, RDPMC at each privilege, statistics.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use guest::{
    ALL, AMD_COUNTER_0, AMD_SELECT_0, COM1, COUNTER_0, Code, GLOBAL_CONTROL, LVTPC, MARK, NMI,
    SELECT_0, USER, enter_ring_3, exit, expect, image, kvm, messages, numbers, print, run,
    skip_two_bytes, stats, wrmsr,
};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

const INTERRUPT: u64 = 1 << 20;

/// Reads a counter by RDPMC at ring 3, of which 0 holds 0x1234_5678_9ABC, and ends with UD2.
fn rdpmc_at_ring_3(a: &mut CodeAssembler, pce: bool, index: u32) -> Result<(), IcedError> {
    let mut user = a.create_label();
    wrmsr(a, 0x4C1, 0x1234_5678_9ABC)?;
    if pce {
        a.mov(rax, cr4)?;
        a.or(rax, 1 << 8)?;
        a.mov(cr4, rax)?;
    }
    enter_ring_3(a, user)?;
    a.set_label(&mut user)?;
    a.mov(ecx, index)?;
    a.rdpmc()?;
    a.ud2()
}

#[test]
fn rdpmc_works_at_ring_3_where_it_may() {
    if !kvm() {
        return;
    }
    const FAULT: u64 = 0xFA17;
    let invalid_opcode: Code = |a| {
        print(a)?;
        exit(a, 0x10)
    };
    let general_protection: Code = |a| {
        a.mov(eax, FAULT as u32)?;
        a.xor(edx, edx)?;
        print(a)?;
        exit(a, 0x10)
    };
    let handlers = &[(6, invalid_opcode), (13, general_protection)];
    for pmu in ["--pmu intel:full-width", "--pmu intel:full-width --count step"] {
        expect(&image(|a| rdpmc_at_ring_3(a, true, 0), handlers), pmu, &[0x1234_5678_9ABC]);
        expect(&image(|a| rdpmc_at_ring_3(a, false, 0), handlers), pmu, &[FAULT]);
        expect(&image(|a| rdpmc_at_ring_3(a, true, 7), handlers), pmu, &[FAULT]);
    }
}

/// IA32_PERFEVTSELx, bit 37, and IA32_FIXED_CTR_CTRL, bit 33. SDM vol. 3B, "RDPMC User Disable".
#[test]
fn rdpmc_at_ring_3_reads_0_of_a_counter_that_denies_it() {
    if !kvm() {
        return;
    }
    const VALUE: u64 = 0x1234_5678;
    let values = |a: &mut CodeAssembler, denied: bool| {
        for (counter, select) in [(0x4C1, SELECT_0), (0x4C2, SELECT_0 + 1)] {
            wrmsr(a, counter, VALUE)?;
            // Counter 1 is never denied.
            wrmsr(a, select, 0x2E | USER | u64::from(denied && select == SELECT_0) << 37)?;
        }
        wrmsr(a, 0x309, VALUE)?;
        wrmsr(a, 0x38D, u64::from(denied) << 33)?;
        a.mov(rax, cr4)?;
        a.or(rax, 1 << 8)?;
        a.mov(cr4, rax)
    };
    // The monitor finds an RDPMC at the handler of #GP, which is never executed.
    let general_protection: Code = |a| exit(a, 0x11);
    let invalid_opcode: Code = |a| {
        print(a)?;
        exit(a, 0x10)
    };
    for (index, denied, read) in [
        (0, false, VALUE),
        (0, true, 0),
        (1, true, VALUE),
        (1 << 30, false, VALUE),
        (1 << 30, true, 0),
    ] {
        let main = |a: &mut CodeAssembler| {
            let mut user = a.create_label();
            values(a, denied)?;
            enter_ring_3(a, user)?;
            a.set_label(&mut user)?;
            a.mov(ecx, index)?;
            a.rdpmc()?;
            a.ud2()
        };
        let kernel = image(main, &[(6, invalid_opcode), (13, general_protection)]);
        expect(&kernel, "--pmu intel:version=6,full-width,rdpmc-user-disable", &[read]);
    }
}

/// Starts a counter of cycles that overflows in 5 ms, with an interrupt by `entry`.
fn start_counter(
    a: &mut CodeAssembler,
    select: u32,
    event: u64,
    counter: u32,
    entry: u32,
) -> Result<(), IcedError> {
    // The spurious-interrupt vector register: while the APIC is off, its entries stay masked.
    a.mov(rax, 0xFEE0_00F0_u64)?;
    a.mov(dword_ptr(rax), 0x1FF)?;
    a.mov(rax, LVTPC)?;
    a.mov(dword_ptr(rax), entry)?;
    // Intel's counters are written with 32 bits, of which the last is extended.
    wrmsr(a, counter, 0u64.wrapping_sub(5_000_000))?;
    wrmsr(a, select, ALL | INTERRUPT | event)?;
    a.sti()
}

/// Starts the counter, and then jumps in place.
fn wait_for_overflow(
    a: &mut CodeAssembler,
    select: u32,
    event: u64,
    counter: u32,
    entry: u32,
) -> Result<(), IcedError> {
    start_counter(a, select, event, counter, entry)?;
    let mut here = a.create_label();
    a.set_label(&mut here)?;
    a.jmp(here)
}

/// Prints LVTPC's mask bit, in the handler.
fn print_mask(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rax, LVTPC)?;
    a.mov(eax, dword_ptr(rax))?;
    a.and(eax, 1 << 16)?;
    a.xor(edx, edx)?;
    print(a)?;
    exit(a, 0x10)
}

#[test]
fn interrupts_come_between_exits_and_intel_masks_the_entry() {
    if !kvm() {
        return;
    }
    let intel = "--timeout 60 --pmu intel:version=1,fixed=0";
    let nmi: Code = |a| wait_for_overflow(a, SELECT_0, 0x3C, COUNTER_0, NMI);
    expect(&image(nmi, &[(2, print_mask)]), intel, &[1 << 16]);
    let fixed: Code = |a| wait_for_overflow(a, SELECT_0, 0x3C, COUNTER_0, 0x41);
    expect(&image(fixed, &[(0x41, print_mask)]), intel, &[1 << 16]);
    let amd = "--timeout 60 --pmu amd:legacy";
    let nmi: Code = |a| wait_for_overflow(a, AMD_SELECT_0, 0x76, AMD_COUNTER_0, NMI);
    expect(&image(nmi, &[(2, print_mask)]), amd, &[0]);
}

#[test]
fn a_masked_entry_loses_the_interrupt_and_says_so() {
    if !kvm() {
        return;
    }
    let kernel: Code = |a| wait_for_overflow(a, SELECT_0, 0x3C, COUNTER_0, NMI | 1 << 16);
    let arguments = "--timeout 3 --stats=json --pmu intel:version=1,fixed=0";
    let output = run(&image(kernel, &[]), arguments);
    assert_eq!(output.status.code(), Some(12), "{}", messages(&output));
    let stats = stats(&output);
    assert_eq!(stats["phases"]["0"]["pmis_masked"], 1);
    assert_eq!(stats["phases"]["0"]["pmis_nmi"], 0);
}

#[test]
fn accesses_are_counted_by_register_and_phase() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            for _ in 0..3 {
                wrmsr(a, COUNTER_0, 5)?;
            }
            a.mov(al, 7)?;
            a.out(MARK, al)?;
            for _ in 0..4 {
                a.mov(ecx, COUNTER_0)?;
                a.rdmsr()?;
            }
            // Read-only, of no PMU, and past the last counter: three faults.
            wrmsr(a, 0x38E, 0)?;
            wrmsr(a, 0x1234_5678, 0)?;
            a.mov(ecx, 99)?;
            a.rdpmc()?;
            a.mov(ecx, 2)?;
            a.rdpmc()?;
            a.rdpmc()?;
            a.mov(dx, COM1 + 5)?;
            a.in_(al, dx)?;
            exit(a, 0x10)
        },
        &[(13, |a| {
            a.add(rsp, 8)?;
            skip_two_bytes(a)
        })],
    );
    let output = run(&kernel, "--stats=json --pmu intel:version=2");
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    let stats = stats(&output);
    let (start, marked) = (&stats["phases"]["0"], &stats["phases"]["7"]);
    assert_eq!(start["wrmsr"], serde_json::json!({"0xc1": 3}));
    assert_eq!(start["rdmsr"], serde_json::json!({}));
    assert_eq!(start["faults"], 0);
    assert_eq!(marked["rdmsr"], serde_json::json!({"0xc1": 4}));
    assert_eq!(marked["wrmsr"], serde_json::json!({"0x38e": 1, "other": 1}));
    assert_eq!(marked["rdpmc"], serde_json::json!({"0x2": 2, "other": 1}));
    assert_eq!(marked["faults"], 3);
    assert_eq!(marked["exits"]["port_in"], 1);
}

/// Prints the vendor in CPUID (leaf 0, EBX); a bit for each access that faulted: WRMSR of the five registers, RDMSR
/// of the last two, RDPMC; and the sum of the values read.
fn touch_a_hidden_pmu(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.xor(r15d, r15d)?;
    a.mov(r14d, 1)?;
    a.xor(r13d, r13d)?;
    for address in [SELECT_0, COUNTER_0, GLOBAL_CONTROL, AMD_SELECT_0, AMD_COUNTER_0] {
        wrmsr(a, address, 0x1234)?;
        a.shl(r14d, 1)?;
    }
    for address in [AMD_SELECT_0, AMD_COUNTER_0] {
        a.mov(ecx, address)?;
        a.xor(eax, eax)?;
        a.rdmsr()?;
        a.add(r13d, eax)?;
        a.shl(r14d, 1)?;
    }
    a.xor(ecx, ecx)?;
    a.rdpmc()?;
    a.xor(eax, eax)?;
    a.cpuid()?;
    for number in [rbx, r15, r13] {
        a.mov(rax, number)?;
        a.xor(edx, edx)?;
        print(a)?;
    }
    exit(a, 0x10)
}
const NOTE_FAULT: (u8, Code) = (13, |a| {
    a.or(r15, r14)?;
    a.add(rsp, 8)?;
    skip_two_bytes(a)
});

#[test]
fn hidden_registers_answer_as_the_guests_vendor_does_whatever_the_hosts_is() {
    if !kvm() {
        return;
    }
    let kernel = image(touch_a_hidden_pmu, &[NOTE_FAULT]);
    let (genuine, authentic) = (u32::from_le_bytes(*b"Genu"), u32::from_le_bytes(*b"Auth"));
    // Intel's registers fault in an Intel guest, and AMD's are no registers there.
    expect(&kernel, "--pmu none:intel", &[genuine.into(), 0b1111_1111, 0]);
    // Of an AMD guest, the legacy registers read 0 and ignore writes.
    expect(&kernel, "--pmu none:amd", &[authentic.into(), 0b1000_0111, 0]);
    // Without a vendor it is the host's.
    let output = run(&kernel, "--pmu none");
    let vendor = numbers(&output)[0];
    assert!([genuine, authentic].map(u64::from).contains(&vendor), "{}", messages(&output));
}

/// Makes the other processor send interrupt 0x42 to this one each time that `ANSWERS` has changed.
///
/// It is in real mode, from where it reaches its local APIC as x2APIC: IA32_APIC_BASE (0x1B), bits 10
/// and 11, and the interrupt command register (0x830).
fn send_interrupts(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let (mut send, mut wait) = (a.create_label(), a.create_label());
    a.mov(ecx, 0x1B)?;
    a.rdmsr()?;
    a.or(eax, 0xC00)?;
    a.wrmsr()?;
    a.xor(bx, bx)?;
    a.mov(ds, bx)?;
    a.set_label(&mut send)?;
    a.mov(si, word_ptr(ANSWERS))?;
    a.mov(ecx, 0x830)?;
    a.mov(eax, 0x4042)?;
    a.xor(edx, edx)?;
    a.wrmsr()?;
    a.set_label(&mut wait)?;
    a.cmp(si, word_ptr(ANSWERS))?;
    a.je(wait)?;
    a.jmp(send)
}
const ANSWERS: u32 = 0x7000;

#[test]
fn no_interrupt_of_another_processor_is_lost_when_the_entry_is_masked() {
    if !kvm() {
        return;
    }
    fn end_of_interrupt(a: &mut CodeAssembler) -> Result<(), IcedError> {
        a.mov(rax, 0xFEE0_00B0_u64)?;
        a.mov(dword_ptr(rax), 0)
    }
    // An overflow each 100,000 cycles, whose handler unmasks LVTPC.
    let main: Code = |a| {
        let mut sender = CodeAssembler::new(16)?;
        send_interrupts(&mut sender)?;
        let code = sender.assemble(0x8000)?;
        for (place, byte) in (0x8000..).zip(code) {
            a.mov(byte_ptr(place), i32::from(byte as i8))?;
        }
        start_counter(a, SELECT_0, 0x3C, COUNTER_0, 0x41)?;
        // INIT and SIPI to all others, at 0x8000.
        a.mov(rsi, 0xFEE0_0300_u64)?;
        a.mov(dword_ptr(rsi), 0xC_4500)?;
        a.mov(dword_ptr(rsi), 0xC_4608)?;
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.cmp(word_ptr(ANSWERS), 2000)?;
        a.jb(again)?;
        exit(a, 0x10)
    };
    let overflow: Code = |a| {
        wrmsr(a, COUNTER_0, 0u64.wrapping_sub(100_000))?;
        a.mov(rax, LVTPC)?;
        a.mov(dword_ptr(rax), 0x41)?;
        end_of_interrupt(a)?;
        a.iretq()
    };
    let answer: Code = |a| {
        a.push(rax)?;
        a.inc(word_ptr(ANSWERS))?;
        end_of_interrupt(a)?;
        a.pop(rax)?;
        a.iretq()
    };
    let kernel = image(main, &[(0x41, overflow), (0x42, answer)]);
    let output = run(&kernel, "--cpus 2 --timeout 250 --pmu intel:version=1,fixed=0");
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
}

/// Leaf 7, EBX 4 (HLE) and 11 (RTM), announce bits 32 (IN_TX) of each select and 33 (IN_TXCP) of the third: SDM vol.
/// 3B, "Performance Monitoring Events for Intel TSX". Leaf 0x8000_0001, ECX 2 (SVM), announces AMD's 40 and 41: APM
/// vol. 2, "Core Performance Event-Select Registers". What KVM shows the guest is the host's affair.
#[test]
fn a_qualifier_of_a_select_is_accepted_where_the_guest_sees_its_feature_and_nowhere_else() {
    if !kvm() {
        return;
    }
    // Prints the feature's bits, and how many of the writes faulted; then reads back.
    let writes = |a: &mut CodeAssembler, leaf: u32, select: u32, bits: &[(u32, u64)]| {
        a.mov(eax, leaf)?;
        a.xor(ecx, ecx)?;
        a.cpuid()?;
        a.mov(r13, if leaf == 7 { rbx } else { rcx })?;
        a.mov(rax, r13)?;
        a.xor(edx, edx)?;
        print(a)?;
        a.xor(r15d, r15d)?;
        a.mov(r14d, 1)?;
        for (number, bit) in bits {
            wrmsr(a, select + number, 0xC0 | 1 << bit)?;
        }
        a.mov(rax, r15)?;
        a.xor(edx, edx)?;
        print(a)?;
        a.mov(ecx, select)?;
        a.rdmsr()?;
        print(a)?;
        exit(a, 0x10)
    };
    let count_faults: Code = |a| {
        a.add(r15, r14)?;
        a.add(rsp, 8)?;
        skip_two_bytes(a)
    };
    let handlers = &[(13, count_faults)];
    let intel = image(|a| writes(a, 7, SELECT_0, &[(2, 33), (0, 32)]), handlers);
    let amd = image(|a| writes(a, 0x8000_0001, AMD_SELECT_0, &[(0, 40)]), handlers);
    for (kernel, pmu, announcing, bit) in
        [(intel, "intel", 1 << 4 | 1 << 11, 32), (amd, "amd:legacy", 1 << 2, 40)]
    {
        let output = run(&kernel, &format!("--pmu {pmu}"));
        let [feature, faults, select] = numbers(&output)[..] else {
            panic!("{}", messages(&output))
        };
        let sees = feature & announcing != 0;
        let refused = if sees || pmu != "intel" { 0 } else { 2 };
        assert_eq!(faults, refused, "{pmu}: {}", messages(&output));
        let kept = if sees {
            0xC0 | 1 << bit
        } else if refused == 0 {
            0xC0
        } else {
            0
        };
        assert_eq!(select, kept, "{pmu}: {}", messages(&output));
        assert_eq!(messages(&output).contains("this KVM shows the guest"), sees);
    }
}

/// A counter of ring 3 alone interrupts each millisecond of it. The program calls the kernel and faults more often than
/// that: each is a stop of the guest in the handler's first instruction, or on kvm-pvm in ring 3 at the kernel's entry.
#[test]
fn no_sample_of_a_ring_3_event_is_in_the_kernel() {
    if !kvm() {
        return;
    }
    const SAMPLES: u32 = 40;
    const MISSING: u64 = 0u64.wrapping_sub(1_000_000);
    /// The first 2 MiB once more, where ring 3 may not go.
    const KERNEL_ALIAS: i32 = 0x40_0000;
    // The frame's CS and RIP, of each sample.
    let sample: Code = |a| {
        for register in [rax, rcx, rdx] {
            a.push(register)?;
        }
        let mut more = a.create_label();
        for place in [4, 3] {
            a.mov(rax, qword_ptr(rsp + place * 8))?;
            a.xor(edx, edx)?;
            print(a)?;
        }
        a.dec(r12d)?;
        a.jnz(more)?;
        exit(a, 0x10)?;
        a.set_label(&mut more)?;
        wrmsr(a, COUNTER_0, MISSING)?;
        a.mov(rax, LVTPC)?;
        a.mov(dword_ptr(rax), NMI)?;
        for register in [rdx, rcx, rax] {
            a.pop(register)?;
        }
        a.iretq()
    };
    // CLI is one byte.
    let skip: Code = |a| {
        a.add(rsp, 8)?;
        a.inc(qword_ptr(rsp))?;
        a.iretq()
    };
    let page_fault: Code = |a| exit(a, 1);
    let main: Code = |a| {
        let [mut user, mut spin, mut entry] = [(); 3].map(|()| a.create_label());
        a.mov(qword_ptr(guest::PAGE_TABLES + 0x2000 + 2 * 8), 0x83)?;
        // EFER.SCE, STAR, FMASK and LSTAR.
        a.mov(ecx, 0xC000_0080_u32)?;
        a.rdmsr()?;
        a.or(eax, 1)?;
        a.wrmsr()?;
        wrmsr(a, 0xC000_0081, guest::KERNEL_CODE << 32)?;
        wrmsr(a, 0xC000_0084, 1 << 9)?;
        a.lea(rax, ptr(entry))?;
        a.add(rax, KERNEL_ALIAS)?;
        a.xor(edx, edx)?;
        a.mov(ecx, 0xC000_0082_u32)?;
        a.wrmsr()?;
        a.mov(rax, 0xFEE0_00F0_u64)?;
        a.mov(dword_ptr(rax), 0x1FF)?;
        a.mov(rax, LVTPC)?;
        a.mov(dword_ptr(rax), NMI)?;
        a.mov(r12d, SAMPLES)?;
        wrmsr(a, COUNTER_0, MISSING)?;
        wrmsr(a, SELECT_0, USER | INTERRUPT | 0x3C)?;
        enter_ring_3(a, user)?;
        a.set_label(&mut user)?;
        a.mov(ebx, 300_000)?;
        a.set_label(&mut spin)?;
        a.dec(ebx)?;
        a.jnz(spin)?;
        a.cli()?;
        a.mov(ebx, 300_000)?;
        a.syscall()?;
        a.jmp(spin)?;
        // Back to RCX, with the flags of R11.
        a.set_label(&mut entry)?;
        a.push(guest::USER_DATA as i32)?;
        a.push(guest::USER_STACK as i32)?;
        a.push(r11)?;
        a.push(guest::USER_CODE as i32)?;
        a.push(rcx)?;
        a.iretq()
    };
    let kernel = image(main, &[(2, sample), (13, skip), (14, page_fault)]);
    let output = run(&kernel, "--pmu intel:version=1,fixed=0");
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    let numbers = numbers(&output);
    assert_eq!(numbers.len(), 2 * SAMPLES as usize);
    for sample in numbers.chunks(2) {
        let program = guest::MAIN..guest::MAIN + 0x1000;
        assert!(sample[0] == guest::USER_CODE && program.contains(&sample[1]), "{sample:x?}");
    }
}
