//! `--pmu intel:…,pebs`: the precise records of a guest are of its code, which is written here.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use guest::{
    COUNTER_0, GLOBAL_CONTROL, KERNEL, LVTPC, NMI, SELECT_0, exit, image, kvm, messages, numbers,
    print, print_counter, run, wrmsr,
};
use iced_x86::code_asm::*;

// SDM vol. 4.
const DS_AREA: u32 = 0x600;
const PEBS_ENABLE: u32 = 0x3F1;
const DATA_CONFIGURATION: u32 = 0x3F2;
const LOAD_LATENCY_THRESHOLD: u32 = 0x3F6;
const MISC_ENABLE: u32 = 0x1A0;
const CAPABILITIES: u32 = 0x345;
const STATUS: u32 = 0x38E;
const STATUS_RESET: u32 = 0x390;
/// OvfBuf of the status.
const BUFFER: u64 = 1 << 62;
const INSTRUCTIONS: u64 = KERNEL | 0xC0;
const BRANCHES: u64 = KERNEL | 0xC4;
const LOADS: u64 = KERNEL | 0x81D0;
const STORES: u64 = KERNEL | 0x82D0;
const LOAD_LATENCY: u64 = KERNEL | 0x1CD;
/// Of an event select: records have the groups that MSR_PEBS_DATA_CFG names.
const ADAPTIVE: u64 = 1 << 34;
/// Cycles of a Skylake, for drivers: cycles in which fewer than 16 instructions retire (counter mask 16, inverted).
const SKYLAKE_CYCLES: u64 = KERNEL | 16 << 24 | 1 << 23 | 1 << 8 | 0xC0;
/// The guest's area, its buffer of two records, and the number of NMIs. A record without further groups has 32 bytes.
const AREA: u64 = 0x15_0000;
const RECORDS: u64 = 0x15_1000;
const NMIS: u64 = 0x15_2000;
/// The local APIC's spurious-interrupt vector register.
const SPURIOUS: u64 = 0xFEE0_00F0;

/// SDM vol. 3B, "Debug Store Save Area" of 64-bit mode: base, index, maximum and threshold of the records at 0x20, and
/// the reset value of counter 0 at 0x40. The counter is to overflow after `period` events.
fn prepare(a: &mut CodeAssembler, event: u64, period: u64) -> Result<(), IcedError> {
    let words = [(0x20, RECORDS), (0x28, RECORDS), (0x30, RECORDS + 64), (0x38, RECORDS + 32)];
    for (place, word) in words.into_iter().chain([(0x40, period.wrapping_neg())]) {
        a.mov(rax, word)?;
        a.mov(qword_ptr(AREA + place), rax)?;
    }
    // After reset the global control has every counter enabled.
    wrmsr(a, GLOBAL_CONTROL, 0)?;
    wrmsr(a, DS_AREA, AREA)?;
    wrmsr(a, PEBS_ENABLE, 1)?;
    wrmsr(a, COUNTER_0, period.wrapping_neg())?;
    wrmsr(a, SELECT_0, event)?;
    a.mov(rsi, SPURIOUS)?;
    a.mov(dword_ptr(rsi), 0x1FF)?; // enables the local APIC
    a.mov(rsi, LVTPC)?;
    a.mov(dword_ptr(rsi), NMI)?;
    wrmsr(a, GLOBAL_CONTROL, 1)
}

/// Stops the counter, and prints the label's address, the record's four words, the index in the buffer, the status
/// before and after the buffer's bit is forgotten, and the number of NMIs.
fn report(a: &mut CodeAssembler, label: CodeLabel) -> Result<(), IcedError> {
    wrmsr(a, GLOBAL_CONTROL, 0)?;
    a.lea(rax, ptr(label))?;
    a.xor(edx, edx)?;
    print(a)?;
    for place in [RECORDS, RECORDS + 8, RECORDS + 16, RECORDS + 24, AREA + 0x28] {
        a.mov(rax, qword_ptr(place))?;
        a.xor(edx, edx)?;
        print(a)?;
    }
    print_counter(a, STATUS)?;
    wrmsr(a, STATUS_RESET, BUFFER)?;
    print_counter(a, STATUS)?;
    a.mov(rax, qword_ptr(NMIS))?;
    a.xor(edx, edx)?;
    print(a)
}

/// Counts an NMI.
fn count_nmi(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.inc(qword_ptr(NMIS))?;
    a.iretq()
}

/// Runs a kernel that ends by `report`, of one record of counter 0.
fn expect_record(kernel: &[u8], count: &str) {
    let output = run(kernel, &format!("--pmu intel:version=5,pebs {count}"));
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    let printed = numbers(&output);
    let [label, header, address, counters, time, index, status, after, nmis] = printed[..] else {
        panic!("{count}: {printed:x?}")
    };
    // Of adaptive records: size 63:48, no group; the eventing address; the counters.
    assert_eq!([header, address, counters], [32 << 48, label, 1], "{count}: {printed:x?}");
    assert!(time != 0, "{count}: {printed:x?}");
    assert_eq!([index, status, after, nmis], [RECORDS + 32, BUFFER, 0, 1], "{count}");
}

/// The WRMSR that starts the counter is the first instruction, so the counter overflows at the 99th NOP.
#[test]
fn a_stepped_record_is_of_the_instruction_after_the_overflow() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let mut label = a.create_label();
            prepare(a, INSTRUCTIONS, 100)?;
            (0..99).try_for_each(|_| a.nop())?;
            a.set_label(&mut label)?;
            a.mov(rcx, rbx)?;
            (0..8).try_for_each(|_| a.nop())?;
            report(a, label)?;
            exit(a, 0x10)
        },
        &[(2, count_nmi)],
    );
    expect_record(&kernel, "--count step");
}

/// Of a counter of branches, the record is of the next branch.
#[test]
fn a_record_of_branches_is_of_the_branch_after_the_overflow() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let mut labels: [CodeLabel; 3] = core::array::from_fn(|_| a.create_label());
            let mut third = a.create_label();
            prepare(a, BRANCHES, 2)?;
            for (number, label) in labels.iter_mut().enumerate() {
                a.inc(eax)?;
                if number == 2 {
                    a.set_label(&mut third)?;
                }
                a.jmp(*label)?;
                a.nop()?;
                a.set_label(label)?;
                a.inc(eax)?;
            }
            report(a, third)?;
            exit(a, 0x10)
        },
        &[(2, count_nmi)],
    );
    expect_record(&kernel, "--count step");
}

/// Until the record's NMI has come: the record is of the loop's only branch.
#[test]
fn a_record_by_time_is_of_a_branch_of_the_loop() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let (mut again, mut back) = (a.create_label(), a.create_label());
            prepare(a, BRANCHES, 100_000)?;
            a.set_label(&mut again)?;
            a.inc(rcx)?;
            a.mov(rax, qword_ptr(NMIS))?;
            a.test(rax, rax)?;
            a.set_label(&mut back)?;
            a.je(again)?;
            report(a, back)?;
            exit(a, 0x10)
        },
        &[(2, count_nmi)],
    );
    expect_record(&kernel, "--count time --timeout 50");
}

/// As `perf mem record` has it: the loop has one load and one store. SDM vol. 3B, "Adaptive PEBS": the data address is
/// behind the basic group's four words, and the latency two words further.
#[test]
fn records_of_loads_and_stores_have_the_address_of_their_access() {
    if !kvm() {
        return;
    }
    // Beside the count of NMIs, which the loop loads.
    const STORED: u64 = NMIS + 64;
    for (event, loads) in [(LOADS, true), (LOAD_LATENCY, true), (STORES, false)] {
        let kernel = image(
            |a| {
                let (mut again, mut load) = (a.create_label(), a.create_label());
                wrmsr(a, LOAD_LATENCY_THRESHOLD, 30)?;
                wrmsr(a, DATA_CONFIGURATION, 1)?; // the group of memory
                prepare(a, event | ADAPTIVE, 100_000)?;
                a.set_label(&mut again)?;
                a.mov(qword_ptr(STORED), rax)?;
                a.set_label(&mut load)?;
                a.mov(rax, qword_ptr(NMIS))?;
                a.test(rax, rax)?;
                a.je(again)?;
                wrmsr(a, GLOBAL_CONTROL, 0)?;
                a.lea(rax, ptr(if loads { load } else { again }))?;
                a.xor(edx, edx)?;
                print(a)?;
                for place in [1, 4, 6] {
                    a.mov(rax, qword_ptr(RECORDS + 8 * place))?;
                    a.xor(edx, edx)?;
                    print(a)?;
                }
                exit(a, 0x10)
            },
            &[(2, count_nmi)],
        );
        let output = run(&kernel, "--pmu intel:version=5,pebs --count time --timeout 20");
        assert_eq!(output.status.code(), Some(33), "{event:#x}: {}", messages(&output));
        let [label, address, data, latency] = numbers(&output)[..] else { panic!("{event:#x}") };
        let accessed = if loads { NMIS } else { STORED };
        assert_eq!([address, data, latency], [label, accessed, 30], "{event:#x}");
    }
}

/// Until the record's NMI has come: the record is of the only instruction that is executed again and again.
#[test]
fn precise_cycles_of_a_skylake_are_counted_and_recorded() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let mut again = a.create_label();
            prepare(a, SKYLAKE_CYCLES, 100_000)?;
            a.mov(rsi, NMIS)?;
            a.xor(eax, eax)?;
            a.set_label(&mut again)?;
            a.pause()?;
            a.cmp(qword_ptr(rsi), rax)?;
            a.je(again)?;
            wrmsr(a, GLOBAL_CONTROL, 0)?;
            a.lea(rax, ptr(again))?;
            a.xor(edx, edx)?;
            print(a)?;
            a.mov(rax, qword_ptr(RECORDS + 8))?;
            a.xor(edx, edx)?;
            print(a)?;
            exit(a, 0x10)
        },
        &[(2, count_nmi)],
    );
    let output = run(&kernel, "--pmu intel:version=5,pebs --count time --timeout 20");
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    let [first, address] = numbers(&output)[..] else { panic!("{}", messages(&output)) };
    // PAUSE has 2 bytes, the comparison 3.
    assert!((first..first + 7).contains(&address), "{address:#x} is not in the loop at {first:#x}");
}

/// SDM vol. 4: IA32_MISC_ENABLE says that BTS (11) and PEBS (12) are unavailable, unless the guest has them; and
/// IA32_PERF_CAPABILITIES has the format, 11:8, and the baseline, 14.
#[test]
fn a_guest_without_records_is_told_so() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            print_counter(a, MISC_ENABLE)?;
            print_counter(a, CAPABILITIES)?;
            exit(a, 0x10)
        },
        &[],
    );
    for (pmu, unavailable, format) in [
        ("intel:version=5,full-width", 0b11 << 11, 0),
        ("intel:version=5,full-width,pebs", 0, 4 << 8 | 1 << 14),
    ] {
        let output = run(&kernel, &format!("--pmu {pmu}"));
        let printed = numbers(&output);
        assert_eq!(printed[0] & 0b11 << 11, unavailable, "{pmu}");
        assert_eq!(printed[1] & (0xF << 8 | 1 << 14), format, "{pmu}");
    }
    // Without records, their registers fault.
    let kernel = image(
        |a| {
            a.mov(ecx, PEBS_ENABLE)?;
            a.rdmsr()?;
            exit(a, 1)
        },
        &[(13, |a| exit(a, 0x10))],
    );
    guest::expect(&kernel, "--pmu intel:version=5", &[]);
}
