//! A guest that accesses the PMU at random can neither stop nor slow the monitor beyond its own processor's time.
//! Alone in its program, because it measures the time of all children.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use core::time::Duration;
use std::time::Instant;

use guest::{Code, exit, file, image, kvm, messages, run, skip_two_bytes, wrmsr};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

/// The LVT entry, and its delivery mode for an NMI.
const LVTPC: u64 = 0xFEE0_0340;
const NMI: u32 = 4 << 8;

/// Accesses the PMU at random, with interrupts of every kind on; ends after `turns` turns, or never for 0. Every
/// fault is skipped.
fn fuzz(a: &mut CodeAssembler, turns: u32) -> Result<(), IcedError> {
    let (mut turn, mut write, mut read, mut pmc, mut next, mut ranges) = (
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
    );
    a.mov(rax, 0xFEE0_00F0_u64)?;
    a.mov(dword_ptr(rax), 0x1FF)?;
    a.mov(r8, 0x9E37_79B9_7F4A_7C15_u64)?;
    a.mov(r9d, turns)?;
    a.sti()?;
    a.set_label(&mut turn)?;
    // xorshift64.
    for (left, amount) in [(true, 13), (false, 7), (true, 17)] {
        a.mov(rax, r8)?;
        if left {
            a.shl(rax, amount)?
        } else {
            a.shr(rax, amount)?
        }
        a.xor(r8, rax)?;
    }
    // LVTPC, unmasked: an NMI, or vector 0x41.
    a.mov(rdi, LVTPC)?;
    a.mov(eax, r8d)?;
    a.and(eax, NMI)?;
    a.or(eax, 0x41)?;
    a.mov(dword_ptr(rdi), eax)?;
    // Once in 16 times, a counter of cycles that soon runs over, of either vendor. What is not there
    // faults.
    let mut random = a.create_label();
    a.mov(rax, r8)?;
    a.shr(rax, 50)?;
    a.test(eax, 15)?;
    a.jne(random)?;
    let soon = 0u64.wrapping_sub(20_000);
    for (address, value) in [
        (0xC1, soon),
        (0x186, 0x53_003C),
        (0x38F, 1),
        (0xC001_0201, soon & 0xFFFF_FFFF_FFFF),
        (0xC001_0004, soon & 0xFFFF_FFFF_FFFF),
        (0xC001_0200, 0x53_0076),
        (0xC001_0000, 0x53_0076),
        (0xC000_0301, 1),
    ] {
        wrmsr(a, address, value)?;
    }
    a.set_label(&mut random)?;
    // A register in one of eight ranges, or one in four times, any at all.
    a.mov(rax, r8)?;
    a.shr(rax, 20)?;
    a.and(eax, 7)?;
    a.lea(rsi, ptr(ranges))?;
    a.mov(ecx, dword_ptr(rsi + rax * 4))?;
    a.mov(rax, r8)?;
    a.shr(rax, 24)?;
    a.and(eax, 15)?;
    a.add(ecx, eax)?;
    a.mov(rax, r8)?;
    a.shr(rax, 32)?;
    a.test(eax, 3)?;
    a.cmove(ecx, eax)?;
    // A value with few bits, or many.
    a.mov(rax, r8)?;
    a.mov(rdx, r8)?;
    a.shr(rdx, 40)?;
    a.bt(r8d, 5)?;
    let mut many = a.create_label();
    a.jb(many)?;
    a.and(eax, 0x00FF_00FF)?;
    a.xor(edx, edx)?;
    a.set_label(&mut many)?;
    a.mov(ebx, r8d)?;
    a.shr(ebx, 8)?;
    a.and(ebx, 7)?;
    a.cmp(ebx, 1)?;
    a.jb(pmc)?;
    a.cmp(ebx, 4)?;
    a.jb(read)?;
    a.set_label(&mut write)?;
    a.wrmsr()?;
    a.jmp(next)?;
    a.set_label(&mut read)?;
    a.rdmsr()?;
    a.jmp(next)?;
    a.set_label(&mut pmc)?;
    a.and(ecx, 0x4000_000F)?;
    a.rdpmc()?;
    a.set_label(&mut next)?;
    a.dec(r9d)?;
    a.jne(turn)?;
    exit(a, 0x10)?;
    a.set_label(&mut ranges)?;
    a.dd(&[0xC1, 0x186, 0x300, 0x380, 0x4C1, 0x390, 0xC001_0000, 0xC001_0200])
}

fn fuzz_handlers() -> [(u8, Code); 3] {
    let end_of_interrupt: Code = |a| {
        a.push(rax)?;
        a.mov(rax, 0xFEE0_00B0_u64)?;
        a.mov(dword_ptr(rax), 0)?;
        a.pop(rax)?;
        a.iretq()
    };
    let general_protection: Code = |a| {
        a.add(rsp, 8)?;
        skip_two_bytes(a)
    };
    [(2, |a| a.iretq()), (13, general_protection), (0x41, end_of_interrupt)]
}

/// Returns the processor time of this process's children, and the most memory of one, in KiB.
fn children() -> (Duration, i64) {
    // SAFETY: plain data, for which zero is a valid value of every field.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) }, 0);
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    (time(usage.ru_utime) + time(usage.ru_stime), usage.ru_maxrss)
}

#[test]
fn a_fuzzing_guest_neither_stops_nor_slows_the_monitor() {
    if !kvm() {
        return;
    }
    let ends = image(|a| fuzz(a, 10_000), &fuzz_handlers());
    for pmu in [
        "none:intel",
        "none:amd",
        "intel:version=1,fixed=0",
        "intel:version=5,gp=8,full-width",
        "amd:legacy",
        "amd:v2",
    ] {
        let output = run(&ends, &format!("--stats=json --pmu {pmu}"));
        let said = messages(&output);
        assert_eq!(output.status.code(), Some(33), "{pmu}: {said}");
        // It did something: there were faults, and counters ran over.
        let json = said.lines().find(|line| line.starts_with('{')).unwrap();
        let stats: serde_json::Value = serde_json::from_str(json).unwrap();
        let count = |what: &str| stats["phases"]["0"][what].as_u64().unwrap_or(0);
        assert!(count("faults") > 1000, "{pmu}: {said}");
        let interrupts = (count("pmis_nmi") > 0, count("pmis_fixed") > 0);
        let visible = !pmu.starts_with("none");
        assert_eq!(interrupts, (visible, visible), "{pmu}: {said}");
    }
    let steps = image(|a| fuzz(a, 2_000), &fuzz_handlers());
    let output = run(&steps, "--count step --pmu intel:full-width");
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));

    // Without an end: the monitor ends it at the timeout, and took one processor's time.
    let path = file(&image(|a| fuzz(a, 0), &fuzz_handlers()));
    let (start, (before, _)) = (Instant::now(), children());
    let arguments = format!("--kernel {} --timeout 2 --memory 16 --stats=json", path.display());
    let output = guest::vmm(&arguments);
    let (elapsed, (after, memory)) = (start.elapsed(), children());
    std::fs::remove_file(path).unwrap();
    assert_eq!(output.status.code(), Some(12), "{}", messages(&output));
    assert!(elapsed < Duration::from_secs(60), "{elapsed:?}");
    assert!(after - before < elapsed + Duration::from_millis(500), "{:?}", after - before);
    assert!(memory < 256 << 10, "{memory} KiB");
}
