//! `--pmu …,lbr`: a guest's branch records agree with its code, which is written here.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use guest::{AMD_COUNTER_0, exit, image, kvm, messages, numbers, print, print_counter, run, wrmsr};
use iced_x86::code_asm::*;

const EXTENSION: u32 = 0xC000_010F;
const SELECT: u32 = 0xC000_010E;
const RECORDS: u32 = 0xC001_0300;
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
