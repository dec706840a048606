//! `--pmu …,lbr`: a guest's branch records agree with its code, which is written here.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use guest::counted::{COUNT_INTERRUPT, print_interrupts, start_timer};
use guest::{
    AMD_COUNTER_0, AMD_SELECT_0, Code, LVTPC, NMI, USER, exit, image, kvm, messages, numbers,
    print, print_counter, push_ring_3, run, wrmsr,
};
use iced_x86::code_asm::*;

const EXTENSION: u32 = 0xC000_010F;
const SELECT: u32 = 0xC000_010E;
const RECORDS: u32 = 0xC001_0300;
const DEPTH: u32 = 16;
const ENABLED: u64 = 1 << 6;
/// TO of a branch that has retired.
const VALID: u64 = 1 << 63;

/// Executes a call, a return, a conditional jump that is taken, one that is not, and a jump, between two writes of
/// `DBG_EXTN_CFG`; and prints the addresses of the call, the function, the two jumps and the end.
fn branches(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut places: [CodeLabel; 5] = core::array::from_fn(|_| a.create_label());
    let [call, function, conditional, jump, end] = &mut places;
    wrmsr(a, EXTENSION, ENABLED)?;
    a.set_label(call)?;
    a.call(*function)?;
    a.set_label(conditional)?;
    a.jne(*jump)?;
    a.ud2()?;
    a.set_label(jump)?;
    a.jmp(*end)?;
    a.set_label(function)?;
    // ZF is 0.
    a.ret()?;
    a.set_label(end)?;
    a.je(*call)?;
    wrmsr(a, EXTENSION, 0)?;
    for place in places {
        a.lea(rax, ptr(place))?;
        a.xor(edx, edx)?;
        print(a)?;
    }
    Ok(())
}

/// APM vol. 2, "Last Branch Stack": FROM and TO of each taken branch, the newest first; the rest is empty. No counter
/// runs.
#[test]
fn records_without_a_counter_are_the_taken_branches() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            a.or(eax, 1)?;
            branches(a)?;
            (0..10).try_for_each(|word| print_counter(a, RECORDS + word))?;
            // Calls and returns are suppressed.
            wrmsr(a, SELECT, 1 << 3 | 1 << 5)?;
            a.or(eax, 1)?;
            branches(a)?;
            (0..6).try_for_each(|word| print_counter(a, RECORDS + word))?;
            exit(a, 0x10)
        },
        &[],
    );
    let output = run(&kernel, "--count step --pmu amd:v2,lbr");
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    let printed = numbers(&output);
    let (first, second) = printed.split_at(15);
    let records = |printed: &[u64]| -> Vec<[u64; 2]> {
        printed[5..].chunks_exact(2).map(|words| [words[0], words[1] ^ VALID]).collect()
    };
    let [call, function, conditional, jump, end] = first[..5] else { panic!("{first:?}") };
    let newest = [[jump, end], [conditional, jump], [function, conditional], [call, function]];
    assert_eq!(records(first), [&newest[..], &[[0, VALID]]].concat());
    // The third record is the first turn's newest.
    let [_, _, conditional, other_jump, other_end] = second[..5] else { panic!("{second:?}") };
    let newest = [[other_jump, other_end], [conditional, other_jump], [jump, end]];
    assert_eq!(records(second), newest);
}

/// Two jumps of ring 3, each behind 20 instructions, until a counter of ring 3 interrupts. Meanwhile the timer
/// interrupts; its handler has no branch but its return. After the NMI it prints the places of the two jumps, the
/// records, and how often the timer interrupted.
fn jumps_in_ring_3(a: &mut CodeAssembler, select: u64) -> Result<(), IcedError> {
    const EVENT: u64 = USER | 1 << 20 | 0x76; // cycles, with an interrupt
    let (mut first, mut second, mut report) =
        (a.create_label(), a.create_label(), a.create_label());
    wrmsr(a, SELECT, select)?;
    wrmsr(a, AMD_COUNTER_0, (1 << 48) - 100_000)?;
    wrmsr(a, EXTENSION, ENABLED)?;
    start_timer(a)?;
    a.mov(rsi, LVTPC)?;
    a.mov(dword_ptr(rsi), NMI)?;
    a.lea(r14, ptr(first))?;
    a.lea(r15, ptr(second))?;
    a.lea(r13, ptr(report))?;
    wrmsr(a, AMD_SELECT_0, EVENT)?;
    push_ring_3(a, first, 0x0202)?; // with interrupts on
    a.iretq()?;
    a.set_label(&mut first)?;
    (0..20).try_for_each(|_| a.inc(rbx))?; // 3 bytes each
    a.jmp(second)?;
    a.ud2()?;
    a.set_label(&mut second)?;
    (0..20).try_for_each(|_| a.inc(rbx))?;
    a.jmp(first)?;
    a.set_label(&mut report)?;
    wrmsr(a, EXTENSION, 0)?;
    for place in [r14, r15] {
        a.mov(rax, place)?;
        a.xor(edx, edx)?;
        print(a)?;
    }
    (0..2 * DEPTH).try_for_each(|word| print_counter(a, RECORDS + word))?;
    print_interrupts(a)?;
    exit(a, 0x10)
}

/// APM vol. 2, "Last Branch Stack": `DBG_EXTN_CFG` stops the recording, `LBR_SELECT`'s bit 0 suppresses ring 0.
#[test]
fn records_outlast_an_interrupt_whose_handler_they_leave_out_or_record() {
    const INCREMENTS: u64 = 60;
    if !kvm() {
        return;
    }
    for select in [1, 0] {
        // kvm-pvm steps in ring 3 through the guest's handler of #DB, which is never executed.
        let handlers: [(u8, Code); 3] = [COUNT_INTERRUPT, (2, |a| a.jmp(r13)), (1, |a| exit(a, 1))];
        let kernel = image(|a| jumps_in_ring_3(a, select), &handlers);
        let output = run(&kernel, "--pmu amd:v2,lbr --timeout 30");
        assert_eq!(output.status.code(), Some(33), "{select}: {}", messages(&output));
        let printed = numbers(&output);
        let [first, second, ref records @ .., interrupts] = printed[..] else { panic!() };
        assert!(interrupts > 1, "{select}: {printed:x?}");
        let jumps = [(first + INCREMENTS, second), (second + INCREMENTS, first)];
        let is_in_ring_3 = |place: u64| (first..=second + INCREMENTS).contains(&place);
        let mut others = 0;
        // From the oldest to the newest.
        let mut records: Vec<_> =
            records.chunks_exact(2).map(|words| (words[0], words[1] & !VALID)).collect();
        records.reverse();
        for pair in records.windows(2) {
            let [(_, target), (from, to)] = pair[..] else { panic!() };
            let is_jump = jumps.contains(&(from, to));
            // Straight on from the target, or, where the timer interrupted, from the handler's return.
            let follows = is_in_ring_3(target) && from >= target && from - target <= INCREMENTS;
            let ring_0 = !is_in_ring_3(from);
            assert!(
                is_jump && follows || ring_0 && select == 0,
                "{select}: {pair:x?} {printed:x?}"
            );
            others += u32::from(ring_0);
        }
        assert_eq!(others != 0, select == 0, "{printed:x?}");
    }
}

/// Without `lbr` the registers fault, and other registers answer.
#[test]
fn a_guest_without_records_has_no_registers_of_them() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            print_counter(a, AMD_COUNTER_0)?;
            a.mov(ecx, EXTENSION)?;
            a.rdmsr()?;
            exit(a, 1)
        },
        &[(13, |a| exit(a, 0x10))],
    );
    guest::expect(&kernel, "--pmu amd:v2", &[0]);
}
