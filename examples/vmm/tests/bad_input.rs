//! Each kind of bad input has its exit status and its message.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use core::time::Duration;
use std::process::{Command, Stdio};
use std::time::Instant;

use guest::{MAIN, exit, file, image, kvm, messages, run, skipped, vmm};
use iced_x86::code_asm::*;

/// Asserts the monitor's exit status and message with this kernel.
fn expect(kernel: &[u8], arguments: &str, status: i32, message: &str) {
    let output = run(kernel, arguments);
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(said.contains(message), "{said:?} has no {message:?}");
}

#[test]
fn unreadable_files() {
    let missing = "/nonexistent/kernel";
    let output = vmm(&format!("--kernel {missing}"));
    assert_eq!(output.status.code(), Some(4));
    assert!(messages(&output).contains("/nonexistent/kernel: No such file"));
    let output = vmm("--kernel /");
    assert_eq!(output.status.code(), Some(4));
    assert!(messages(&output).contains("/: Is a directory"));
    let output = vmm("--kernel /dev/zero");
    assert_eq!(output.status.code(), Some(4));
    assert!(messages(&output).contains("/dev/zero: not a regular file"));
    let kernel = image(|a| exit(a, 0), &[]);
    expect(&kernel, "--initrd /nonexistent/initrd", 4, "/nonexistent/initrd: No such file");
}

#[test]
fn files_that_are_no_kernel() {
    expect(b"", "", 6, "not an ELF file");
    expect(b"#!/bin/sh\nexit 0\n# a script of some length\n", "", 6, "not an ELF file");
    let whole = image(|a| exit(a, 0), &[]);
    expect(&whole[..60], "", 6, "not an ELF file");
    // A kernel without its multiboot header.
    let mut headless = whole.clone();
    headless[84] ^= 1;
    expect(&headless, "", 6, "neither a multiboot header nor a PVH note");
    // The machine is ARM.
    let mut foreign = whole.clone();
    foreign[18] = 40;
    expect(&foreign, "", 6, "not an executable for x86");
    // The segment is longer than the file.
    let truncated = &whole[..whole.len() - 1];
    expect(truncated, "", 6, "a segment ends beyond the file");
    // The header requires a video mode (flag 2); the checksum is put right.
    let mut video = whole.clone();
    video[88] = 4;
    video[92..96].copy_from_slice(&(0x1BAD_B002_u32 + 4).wrapping_neg().to_le_bytes());
    expect(&video, "", 6, "requires what is not offered (0x4)");
    // Nothing is at the entry point.
    let mut elsewhere = whole;
    elsewhere[24..28].copy_from_slice(&0x20_0000_u32.to_le_bytes());
    expect(&elsewhere, "", 6, "the entry point 0x200000 is in no segment");
}

#[test]
fn no_command_line() {
    assert_eq!(vmm("").status.code(), Some(2));
    assert_eq!(vmm("--kernel x --cpus 0").status.code(), Some(2));
    assert_eq!(vmm("--kernel x --count guess").status.code(), Some(2));
    assert_eq!(vmm("--kernel x --memory 0").status.code(), Some(2));
}

#[test]
fn impossible_pmus() {
    let kernel = image(|a| exit(a, 0), &[]);
    expect(&kernel, "--pmu intel:version=9", 8, "no version 9");
    expect(&kernel, "--pmu intel:version=1,fixed=3", 8, "fixed counters in version 1");
    expect(&kernel, "--pmu amd:v2,counters=16", 8, "PerfMonV2 with 16 counters");
    expect(&kernel, "--pmu via", 8, "`via` is not none, intel or amd");
}

#[test]
fn what_does_not_fit_in_memory() {
    if !kvm() {
        return;
    }
    let mut kernel = image(|a| exit(a, 0), &[]);
    let big = file(&vec![0; 3 << 20]);
    let arguments = format!("--memory 2 --initrd {}", big.display());
    expect(&kernel, &arguments, 18, "the initial RAM disk");
    std::fs::remove_file(big).unwrap();
    let line = "x".repeat(8000);
    expect(&kernel, &format!("--append {line}"), 18, "the command line");
    // p_memsz: 3 GiB.
    kernel[52 + 20..52 + 24].copy_from_slice(&0xC000_0000_u32.to_le_bytes());
    expect(&kernel, "", 18, "a segment of 3221225472 bytes at 0x100000");
    // p_memsz and p_paddr: it ends beyond 4 GiB.
    kernel[52 + 12..52 + 16].copy_from_slice(&0xFFF0_0000_u32.to_le_bytes());
    kernel[24..28].copy_from_slice(&0xFFF0_0040_u32.to_le_bytes());
    expect(&kernel, "", 18, "a segment");
}

#[test]
fn guests_that_do_not_end_well() {
    if !kvm() {
        return;
    }
    let fault = image(|a| a.ud2(), &[]);
    expect(&fault, "", 10, "processor 0 shut down after a triple fault");
    let hang = image(
        |a| {
            let mut here = a.create_label();
            a.set_label(&mut here)?;
            a.jmp(here)
        },
        &[],
    );
    let start = Instant::now();
    expect(&hang, "--timeout 1", 12, "the guest did not end within 1 s");
    assert!(start.elapsed() < Duration::from_secs(60));
    let asleep = image(
        |a| {
            a.sti()?;
            let mut here = a.create_label();
            a.set_label(&mut here)?;
            a.hlt()?;
            a.jmp(here)
        },
        &[],
    );
    expect(&asleep, "--timeout 1", 12, "the guest did not end within 1 s");
}

#[test]
fn guests_that_end_well() {
    if !kvm() {
        return;
    }
    let exits = image(|a| exit(a, 0x10), &[]);
    expect(&exits, "", 33, "");
    expect(&exits, "--timeout 18446744073709551615 --timeout 9223372036854775807", 33, "");
    expect(&exits, "--pmu intel:version=1", 33, "");
    let halts = image(|a| a.hlt(), &[]);
    expect(&halts, "", 0, "halted all its processors, with interrupts off");
    expect(&halts, "--cpus 3", 0, "halted all its processors, with interrupts off");
    let resets = image(
        |a| {
            a.mov(al, 0xFE)?;
            a.out(0x64, al)
        },
        &[],
    );
    expect(&resets, "", 0, "reset the machine");
}

/// QEMU's chip sets: SLP_EN (13) and SLP_TYP (12:10) of PM1a_CNT. Another type is another sleep.
#[test]
fn a_guest_that_switches_the_machine_off_by_port_0x604_ends_it() {
    if !kvm() {
        return;
    }
    let off = image(
        |a| {
            a.mov(dx, 0x604)?;
            for control in [0x2400, 0x0001, 0x2000] {
                a.mov(ax, control)?;
                a.out(dx, ax)?;
            }
            exit(a, 0x11)
        },
        &[],
    );
    expect(&off, "", 0, "the guest switched the machine off");
    let asleep = image(
        |a| {
            a.mov(dx, 0x604)?;
            a.mov(ax, 0x2400)?;
            a.out(dx, ax)?;
            exit(a, 0x11)
        },
        &[],
    );
    expect(&asleep, "", 35, "");
}

/// A page fault without a handler, at the second instruction. KVM may not tell the exception; it tells the rest.
#[test]
fn a_triple_fault_is_told_with_its_place_and_address() {
    if !kvm() {
        return;
    }
    let faults = image(
        |a| {
            a.mov(rax, 0x4000_1234_u64)?;
            a.mov(rbx, qword_ptr(rax))
        },
        &[],
    );
    expect(&faults, "", 10, "triple fault at RIP");
    // MOV RAX, imm64 has 10 bytes; 48 8B 18 is the load.
    expect(&faults, "", 10, &format!("RIP {:#x}, at instruction bytes [48, 8b, 18", MAIN + 10));
    expect(&faults, "", 10, "CR2 0x40001234, ");
    expect(&faults, "", 10, "exception");
}

/// FEMMS is 3DNow!'s, and XSTORE VIA's: no host of today has them.
#[test]
fn an_instruction_that_cpuid_does_not_offer_is_an_undefined_opcode() {
    if !kvm() {
        return;
    }
    for instruction in [&[0x0F, 0x0E][..], &[0x0F, 0xA7, 0xC0], &[0x0F, 0x04]] {
        let kernel = image(
            |a| {
                a.db(instruction)?;
                exit(a, 0x11)
            },
            &[(6, |a| exit(a, 0x10)), (13, |a| exit(a, 0x12))],
        );
        expect(&kernel, "", 33, "");
    }
}

#[test]
fn a_host_without_kvm() {
    if std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        expect(&image(|a| exit(a, 0), &[]), "", 16, "/dev/kvm cannot be opened");
    }
}

#[test]
fn a_host_without_counters() {
    if !kvm() {
        return;
    }
    let output = run(&image(|a| exit(a, 0x10), &[]), "--count perf");
    let said = messages(&output);
    match output.status.code() {
        Some(22) => assert!(said.contains("the host offers none of the counters"), "{said}"),
        // This one has some.
        status => assert_eq!(status, Some(33), "{said}"),
    }
}

#[test]
fn what_kvm_does_not_know() {
    if !kvm() {
        return;
    }
    if !std::path::Path::new("/sys/module/kvm_pvm").exists() {
        return skipped("what_kvm_does_not_know", "KVM knows every instruction but on kvm-pvm");
    }
    let kernel = image(|a| a.addps(xmm0, xmm1), &[]);
    expect(&kernel, "", 20, "KVM cannot go on with the guest's processor 0");
    expect(&kernel, "", 20, "instruction bytes [0f, 58, c1");
}

#[test]
fn a_standard_output_that_is_not_read() {
    if !kvm() {
        return;
    }
    let talks = image(
        |a| {
            a.mov(dx, 0x3F8)?;
            let mut here = a.create_label();
            a.set_label(&mut here)?;
            a.out(dx, al)?;
            a.jmp(here)
        },
        &[],
    );
    let kernel = file(&talks);
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmm"));
    command.arg("--kernel").arg(&kernel).args(["--timeout", "3"]);
    // The pipe's other end is held, and fills.
    let mut monitor = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = monitor.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > Duration::from_secs(60) {
            monitor.kill().unwrap();
            panic!("the monitor waits for who reads");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(status.code(), Some(12));
    std::fs::remove_file(kernel).unwrap();
}
