//! The way of a kernel to user space: SYSCALL, the serial port's interrupt, and a program to start.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use std::io::Write;
use std::process::{Command, Stdio};

use guest::{
    AMD_COUNTER_0, Assembled, COM1, COUNTER_0, Code, KERNEL_CODE, PAGE_TABLES, USER_STACK,
    as_linux, exit, file, image, kvm, messages, numbers, print, push_ring_3, run, vmm, wrmsr,
};
use iced_x86::code_asm::*;

/// APM vol. 2, "SYSCALL and SYSRET": EFER.SCE; STAR, LSTAR and FMASK.
const EFER: u32 = 0xC000_0080;
const STAR: u32 = 0xC000_0081;
const LSTAR: u32 = 0xC000_0082;
const FMASK: u32 = 0xC000_0084;

/// The first 2 MiB once more at 4 MiB, where ring 3 may not go, as kernels have it.
const KERNEL_ALIAS: u64 = 0x40_0000;

/// Ring 3 calls the kernel with carry and direction flags set; the kernel prints RAX, its flags, its stack, CS, SS,
/// R11, and how far RCX is from the instruction behind SYSCALL.
fn system_calls(a: &mut CodeAssembler, counter: u32) -> Assembled {
    let (mut user, mut entry, mut behind) = (a.create_label(), a.create_label(), a.create_label());
    a.mov(qword_ptr(PAGE_TABLES + 0x2000 + 2 * 8), 0x83)?;
    a.mov(ecx, EFER)?;
    a.rdmsr()?;
    a.or(eax, 1)?;
    a.wrmsr()?;
    // SYSRET's code is at + 16, its stack at + 8: the guest's has them the other way round, and is not used.
    wrmsr(a, STAR, KERNEL_CODE << 32)?;
    // IF and DF.
    wrmsr(a, FMASK, 1 << 9 | 1 << 10)?;
    a.lea(rax, ptr(entry))?;
    a.add(rax, KERNEL_ALIAS as i32)?;
    a.xor(edx, edx)?;
    a.mov(ecx, LSTAR)?;
    a.wrmsr()?;
    // The monitor looks each 100 ms where the handlers are, and when a PMU's register is written.
    wrmsr(a, counter, 0)?;
    // With interrupts on, as programs have them.
    push_ring_3(a, user, 0x0202)?;
    a.iretq()?;
    a.set_label(&mut user)?;
    a.mov(eax, 7)?;
    a.stc()?;
    a.std()?;
    a.syscall()?;
    a.set_label(&mut behind)?;
    a.ud2()?;
    a.set_label(&mut entry)?;
    a.mov(r10, rsp)?;
    a.pushfq()?;
    a.pop(r9)?;
    a.lea(r8, ptr(behind))?;
    a.sub(r8, KERNEL_ALIAS as i32)?;
    a.sub(rcx, r8)?;
    a.mov(ebx, cs)?;
    a.mov(esi, ss)?;
    for number in [rax, r9, r10, rbx, rsi, r11, rcx] {
        a.mov(rax, number)?;
        a.xor(edx, edx)?;
        print(a)?;
    }
    exit(a, 0x10)
}

#[test]
fn a_system_call_of_ring_3_arrives_in_the_kernel() {
    if !kvm() {
        return;
    }
    // If SYSCALL changes the privilege level by itself, no page fault ever comes.
    let page_fault: Code = |a| exit(a, 1);
    // Reserved bit 1 and CF; in R11, IF and DF as well.
    let (flags, behind) = (0b11, 0);
    let expected =
        [7, flags, USER_STACK, KERNEL_CODE, KERNEL_CODE + 8, flags | 1 << 9 | 1 << 10, behind];
    for (pmu, counter) in
        [("intel", COUNTER_0), ("amd:v2", AMD_COUNTER_0), ("none:amd", AMD_COUNTER_0)]
    {
        let kernel = image(|a| system_calls(a, counter), &[(14, page_fault)]);
        let output = run(&kernel, &format!("--pmu {pmu}"));
        assert_eq!(output.status.code(), Some(33), "{pmu}: {}", messages(&output));
        assert_eq!(numbers(&output), expected, "{pmu}");
    }
}

/// Sets the interrupt controllers of a PC: requests 0 to 7 at vectors from 0x20 on, with only the serial port's
/// unmasked.
fn unmask_serial(a: &mut CodeAssembler) -> Assembled {
    for (port, value) in [(0x20, 0x11), (0x21, 0x20), (0x21, 4), (0x21, 1), (0x21, 0xEF)] {
        a.mov(al, value)?;
        a.out(port, al)?;
    }
    Ok(())
}

/// Writes to the serial port's register of interrupts.
fn enable(a: &mut CodeAssembler, interrupts: u32) -> Assembled {
    a.mov(dx, COM1 + 1)?;
    a.mov(al, interrupts)?;
    a.out(dx, al)?;
    let mut here = a.create_label();
    a.sti()?;
    a.set_label(&mut here)?;
    a.hlt()?;
    a.jmp(here)
}

/// Prints the port's register of interrupt identification.
fn print_identification(a: &mut CodeAssembler) -> Assembled {
    a.mov(dx, COM1 + 2)?;
    a.xor(eax, eax)?;
    a.in_(al, dx)?;
    a.and(eax, 0xF)?;
    a.xor(edx, edx)?;
    print(a)
}

#[test]
fn the_serial_port_interrupts_a_guest_that_waits_to_send() {
    if !kvm() {
        return;
    }
    let sends: Code = |a| {
        unmask_serial(a)?;
        enable(a, 2)
    };
    let interrupt: Code = |a| {
        print_identification(a)?;
        exit(a, 0x10)
    };
    let output = run(&image(sends, &[(0x24, interrupt)]), "");
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    assert_eq!(numbers(&output), [2], "the transmitter is empty");
}

#[test]
fn the_serial_port_interrupts_a_guest_that_waits_for_input() {
    if !kvm() {
        return;
    }
    let receives: Code = |a| {
        unmask_serial(a)?;
        enable(a, 1)
    };
    let interrupt: Code = |a| {
        print_identification(a)?;
        a.mov(dx, COM1)?;
        a.xor(eax, eax)?;
        a.in_(al, dx)?;
        a.xor(edx, edx)?;
        print(a)?;
        exit(a, 0x10)
    };
    let path = file(&image(receives, &[(0x24, interrupt)]));
    let mut monitor = Command::new(env!("CARGO_BIN_EXE_vmm"))
        .args(["--timeout", "60", "--input", "--kernel"])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    monitor.stdin.take().unwrap().write_all(b"x").unwrap();
    let output = monitor.wait_with_output().unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    assert_eq!(numbers(&output), [4, u64::from(b'x')], "data was received");
}

#[test]
fn a_program_becomes_the_initial_ram_disk() {
    if !kvm() {
        return;
    }
    // boot_params: ramdisk_image. The guest prints the first bytes there: an archive's magic number.
    let main: Code = |a| {
        a.mov(ebx, dword_ptr(rsi + 0x218))?;
        a.mov(eax, dword_ptr(rbx))?;
        a.mov(edx, dword_ptr(rbx + 4))?;
        print(a)?;
        exit(a, 0x10)
    };
    let (kernel, program) = (file(&as_linux(&image(main, &[]))), file(b"program"));
    let paths = format!("--kernel {} --init {}", kernel.display(), program.display());
    let output = vmm(&paths);
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    assert_eq!(output.stdout[..6], *b"070701");
    // Not beside another.
    let output = vmm(&format!("{paths} --initrd {}", program.display()));
    assert_eq!(output.status.code(), Some(2), "{}", messages(&output));
    for path in [kernel, program] {
        std::fs::remove_file(path).unwrap();
    }
}
