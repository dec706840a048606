//! `--pmu amd:v2,ibs`: the ops that a guest samples are those of its code, which is written here.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use guest::{
    AMD_COUNTER_0, Code, exit, image, kvm, messages, numbers, print, print_counter, run,
    skip_two_bytes, wrmsr,
};
use iced_x86::code_asm::*;

// APM vol. 2, "Instruction-Based Sampling".
const FETCH_CTL: u32 = 0xC001_1030;
const FETCH_LINADDR: u32 = 0xC001_1031;
const OP_CTL: u32 = 0xC001_1033;
const OP_RIP: u32 = 0xC001_1034;
const OP_DATA: u32 = 0xC001_1035;
const OP_DATA3: u32 = 0xC001_1037;
const DC_LINADDR: u32 = 0xC001_1038;
const DC_PHYSADDR: u32 = 0xC001_1039;
const IBS_CTL: u32 = 0xC001_103A;
const TARGET: u32 = 0xC001_103B;
/// One op in 160: enable, counts ops.
const OPS: u64 = 1 << 17 | 1 << 19 | 160 >> 4;
/// One op in 400,000 cycles.
const CYCLES: u64 = 1 << 17 | 400_000 >> 4;
/// IBS_OP_DATA: one cycle from tag to retirement, bits 31:16.
const CYCLE: u64 = 1 << 16;
const NMI: u8 = 2;
/// A word of the guest's memory, and the number of NMIs.
const WORD: u64 = 0x15_0008;
const NMIS: u64 = 0x15_0000;
/// APM vol. 2, "x2APIC Register Address Space": IA32_APIC_BASE in x2APIC mode, and the first extended entry.
const APIC_BASE: u32 = 0x1B;
const X2APIC: u64 = 0xFEE0_0D00;
const ENTRY: u32 = 0x850;

/// Counts an NMI.
fn count_nmi(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.inc(qword_ptr(NMIS))?;
    a.iretq()
}

/// Prints the number of NMIs.
fn print_nmis(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rax, qword_ptr(NMIS))?;
    a.xor(edx, edx)?;
    print(a)
}

/// Starts the sampling, and executes `before` instructions of one op each before `sampled`.
fn sample(a: &mut CodeAssembler, before: usize, sampled: Code) -> Result<(), IcedError> {
    let mut label = a.create_label();
    a.mov(rbx, WORD)?;
    wrmsr(a, OP_CTL, OPS)?;
    (0..before).try_for_each(|_| a.nop())?;
    a.set_label(&mut label)?;
    sampled(a)?;
    (0..8).try_for_each(|_| a.nop())?;
    a.lea(rax, ptr(label))?;
    a.xor(edx, edx)?;
    print(a)
}

/// The WRMSR that starts the sampling is the first op, so 158 are between it and the 160th.
#[test]
fn a_stepped_sample_is_of_the_last_op_of_its_period() {
    if !kvm() {
        return;
    }
    let registers = [OP_RIP, OP_DATA, OP_DATA3, DC_LINADDR, DC_PHYSADDR, TARGET];
    let kernel = image(
        |a| {
            let ops: [Code; 4] = [
                |a| a.mov(dword_ptr(rbx), ecx),
                |a| a.cmp(byte_ptr(rbx + 3), 0),
                |a| a.inc(eax),
                |a| {
                    let mut label = a.create_label();
                    a.jmp(label)?;
                    a.ud2()?;
                    a.set_label(&mut label)?;
                    a.nop()
                },
            ];
            for op in ops {
                sample(a, 158, op)?;
                registers.iter().try_for_each(|register| print_counter(a, *register))?;
                print_nmis(a)?;
            }
            exit(a, 0x10)
        },
        &[(NMI, count_nmi)],
    );
    let output = run(&kernel, "--count step --pmu amd:v2,ibs");
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    let printed = numbers(&output);
    let samples: Vec<&[u64]> = printed.chunks_exact(8).collect();
    let [store, load, none, jump] = samples[..] else { panic!("{samples:x?}") };
    // Data 3: load 0, store 1, linear address 17 and physical address 18 valid, width 25:22 (3: 4 bytes; 1: 1 byte).
    // The guest's memory is mapped as it is.
    let (valid, place) = (1 << 17 | 1 << 18, store[0]);
    assert_eq!(store[1..], [place, CYCLE, 3 << 22 | valid | 1 << 1, WORD, WORD, 0, 1]);
    let place = load[0];
    assert_eq!(load[1..], [place, CYCLE, 1 << 22 | valid | 1, WORD + 3, WORD + 3, 0, 2]);
    let place = none[0];
    assert_eq!(none[1..], [place, CYCLE, 0, 0, 0, 0, 3]);
    // Data: taken 35, branch 37. The jump is of two bytes, and so is UD2.
    let place = jump[0];
    assert_eq!(jump[1..], [place, 1 << 37 | 1 << 35 | CYCLE, 0, 0, 0, place + 4, 4]);
}

/// Until an NMI has come: the sampled op is one of the loop, with the loop's access.
#[test]
fn a_sample_by_time_is_of_an_instruction_of_the_loop() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let mut places: [CodeLabel; 4] = core::array::from_fn(|_| a.create_label());
            let [store, load, test, back] = &mut places;
            a.mov(rbx, WORD)?;
            wrmsr(a, OP_CTL, CYCLES)?;
            wrmsr(a, FETCH_CTL, 1 << 48 | 100_000 >> 4)?;
            a.set_label(store)?;
            a.mov(qword_ptr(rbx), rcx)?;
            a.set_label(load)?;
            a.mov(rax, qword_ptr(NMIS))?;
            a.set_label(test)?;
            a.cmp(rax, 2)?;
            a.set_label(back)?;
            a.jb(*store)?;
            for place in places {
                a.lea(rax, ptr(place))?;
                a.xor(edx, edx)?;
                print(a)?;
            }
            for register in [OP_RIP, DC_LINADDR, FETCH_LINADDR] {
                print_counter(a, register)?;
            }
            exit(a, 0x10)
        },
        &[(NMI, count_nmi)],
    );
    for count in ["time", "step"] {
        let output = run(&kernel, &format!("--count {count} --pmu amd:v2,ibs --timeout 50"));
        assert_eq!(output.status.code(), Some(33), "{count}: {}", messages(&output));
        let printed = numbers(&output);
        let [store, load, test, back, op, data, fetch] = printed[..] else {
            panic!("{printed:x?}")
        };
        let expected = match op {
            _ if op == store => WORD,
            _ if op == load => NMIS,
            _ if [test, back].contains(&op) => 0,
            _ => panic!("{count}: {op:x}, not in {printed:x?}"),
        };
        assert_eq!(data, expected, "{count}: {printed:x?}");
        // The handler of the first sample's NMI is three instructions.
        let of_handler = !(store..=back).contains(&fetch);
        assert!(printed[..4].contains(&fetch) || of_handler, "{count}: {fetch:x}");
    }
}

/// In x2APIC mode the interrupt comes through the extended entry that `IBS_CTL` names, which is masked after reset.
#[test]
fn in_x2apic_mode_the_interrupt_comes_through_the_extended_entry() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            wrmsr(a, APIC_BASE, X2APIC)?;
            for register in [IBS_CTL, 0x840, ENTRY] {
                print_counter(a, register)?;
            }
            for entry in [0x1_0400, 0x400] {
                wrmsr(a, ENTRY, entry)?;
                sample(a, 200, |a| a.nop())?;
                print_nmis(a)?;
            }
            print_counter(a, ENTRY)?;
            // There are four entries, and an entry has no bit 11.
            a.mov(ecx, ENTRY + 4)?;
            a.rdmsr()?;
            wrmsr(a, ENTRY, 1 << 11)?;
            exit(a, 0x10)
        },
        &[(NMI, count_nmi), (13, skip_fault)],
    );
    let output = run(&kernel, "--count step --pmu amd:v2,ibs");
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    let printed = numbers(&output);
    let [control, features, entry, _, masked, _, unmasked, written, faults @ ..] = &printed[..]
    else {
        panic!("{printed:x?}")
    };
    assert_eq!([*control, *features, *entry], [1 << 8, 4 << 16, 1 << 16]);
    assert_eq!([*masked, *unmasked, *written], [0, 1, 0x400]);
    assert_eq!(faults, [13, 13]);
}

/// Prints 13 and skips RDMSR or WRMSR, which has two bytes.
fn skip_fault(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(eax, 13)?;
    a.xor(edx, edx)?;
    print(a)?;
    a.add(rsp, 8)?; // the error code
    skip_two_bytes(a)
}

/// Without `ibs`, CPUID leaf 0x8000001B is 0, and the registers of instruction-based sampling fault. In x2APIC mode,
/// the extended entries of the local vector table fault, too.
#[test]
fn a_guest_without_sampling_has_no_register_of_it() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            a.mov(eax, 0x8000_001B_u32)?;
            a.cpuid()?;
            a.xor(edx, edx)?;
            print(a)?;
            wrmsr(a, APIC_BASE, X2APIC)?;
            for register in [FETCH_CTL, OP_CTL, IBS_CTL, ENTRY] {
                a.mov(ecx, register)?;
                a.rdmsr()?;
            }
            print_counter(a, AMD_COUNTER_0)?;
            exit(a, 0x10)
        },
        &[(13, skip_fault)],
    );
    guest::expect(&kernel, "--pmu amd:v2", &[0, 13, 13, 13, 13, 0]);
}

/// APM vol. 3, CPUID function 0x8000_0001: ECX bit 10, IBS. A KVM may keep the bit from every guest, or show that of
/// its host.
#[test]
fn a_guest_without_sampling_is_not_told_of_it() {
    const FEATURES: u32 = 0x8000_0001;
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            a.mov(eax, FEATURES)?;
            a.cpuid()?;
            a.mov(eax, ecx)?;
            a.xor(edx, edx)?;
            print(a)?;
            exit(a, 0x10)
        },
        &[],
    );
    let [with, without] = ["amd:v2,ibs", "amd:v2"].map(|pmu| {
        let output = run(&kernel, &format!("--pmu {pmu}"));
        assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
        numbers(&output)[0] >> 10 & 1
    });
    let of_host = core::arch::x86_64::__cpuid(FEATURES).ecx >> 10 & 1;
    if with == 0 || without != 0 && of_host != 0 {
        guest::skipped("the bit of IBS", "this KVM answers it itself");
        return;
    }
    assert_eq!([with, without], [1, 0]);
}
