//! INIT of one processor, while its PMU counts.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use guest::{
    ALL, Assembled, COM1, COUNTER_0, Code, SELECT_0, exit, image, kvm, messages, numbers, run,
    skipped, stats,
};
use iced_x86::code_asm::*;

/// Number of starts of the other processor, and its readiness for the next INIT.
const STARTS: u32 = 0x7000;
const READY: u32 = 0x7004;
const STARTED_AT: u32 = 0x8000;

/// Runs in real mode. The first time it starts a counter of instructions with a known value; the second time it
/// prints the event select, whether the counter went on, and the entry of the local APIC's performance interrupt.
fn other_processor(a: &mut CodeAssembler) -> Assembled {
    let (mut again, mut wait) = (a.create_label(), a.create_label());
    a.xor(ax, ax)?;
    a.mov(ds, ax)?;
    // x2APIC: IA32_APIC_BASE (0x1B), bits 10 and 11; the entry is register 0x834.
    a.mov(ecx, 0x1B)?;
    a.rdmsr()?;
    a.or(eax, 0xC00)?;
    a.wrmsr()?;
    a.inc(word_ptr(STARTS))?;
    a.cmp(word_ptr(STARTS), 2)?;
    a.je(again)?;
    for (address, value) in
        [(0x80F, 0x1FF), (0x834, 0x400), (COUNTER_0, 1000), (SELECT_0, ALL | 0xC0)]
    {
        a.mov(ecx, address)?;
        a.mov(eax, value as u32)?;
        a.xor(edx, edx)?;
        a.wrmsr()?;
    }
    a.mov(word_ptr(READY), 1)?;
    a.set_label(&mut wait)?;
    a.jmp(wait)?;
    a.set_label(&mut again)?;
    for address in [SELECT_0, COUNTER_0, 0x834] {
        a.mov(ecx, address)?;
        a.rdmsr()?;
        a.mov(edi, eax)?;
        a.mov(dx, COM1)?;
        for word in [edi, esi] {
            a.xor(esi, esi)?;
            a.mov(eax, word)?;
            for _ in 0..4 {
                a.out(dx, al)?;
                a.shr(eax, 8)?;
            }
        }
    }
    a.mov(al, 0x10)?;
    a.out(guest::DEBUG_EXIT, al)
}

#[test]
fn init_of_a_processor_leaves_its_counters_and_masks_its_entry() {
    if !kvm() {
        return;
    }
    let main: Code = |a| {
        let mut other = CodeAssembler::new(16)?;
        other_processor(&mut other)?;
        let code = other.assemble(STARTED_AT.into())?;
        for (place, byte) in (STARTED_AT..).zip(code) {
            a.mov(byte_ptr(place), i32::from(byte as i8))?;
        }
        a.mov(rsi, 0xFEE0_00F0_u64)?;
        a.mov(dword_ptr(rsi), 0x1FF)?;
        a.mov(rsi, 0xFEE0_0300_u64)?;
        // INIT and SIPI to all others; and once more when it is ready.
        let (mut wait, mut here) = (a.create_label(), a.create_label());
        a.mov(dword_ptr(rsi), 0xC_4500)?;
        a.mov(dword_ptr(rsi), 0xC_4608)?;
        a.set_label(&mut wait)?;
        a.cmp(word_ptr(READY), 0)?;
        a.je(wait)?;
        a.mov(dword_ptr(rsi), 0xC_4500)?;
        a.mov(dword_ptr(rsi), 0xC_4608)?;
        a.set_label(&mut here)?;
        a.jmp(here)?;
        exit(a, 1)
    };
    let output =
        run(&image(main, &[]), "--cpus 2 --timeout 60 --stats=json --pmu intel:version=1,fixed=0");
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    let printed = numbers(&output);
    // SDM vol. 3A, table "Processor States Following Power-up, Reset, or INIT": the PMU's registers are unchanged;
    // "Local APIC State After It Has Been Software Disabled", and after INIT: the entry is masked.
    assert_eq!(printed[0], ALL | 0xC0);
    assert!(printed[1] > 1000, "the counter went on: {}", printed[1]);
    assert_eq!(printed[2], 1 << 16);
    if messages(&output).contains("does not let INIT of a processor be seen") {
        return skipped("the number of INITs", "this KVM does not tell");
    }
    // The first start is by INIT as well.
    assert_eq!(stats(&output)["phases"]["0"]["inits"], 2, "{}", messages(&output));
}
