//! RDPMC in handlers that have stacks of the interrupt stack table: what the exception overwrites is told.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use guest::{COUNTER_0, IDT, TSS, exit, image, kvm, messages, numbers, print, run, wrmsr};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

/// #UD, and #GP.
const UNDEFINED: u64 = 6;
const GENERAL_PROTECTION: u64 = 13;
/// Tops of two stacks.
const STACKS: [u64; 2] = [0x15_8000, 0x16_0000];

/// Gives a handler this stack of the interrupt stack table. SDM vol. 3A, "64-Bit Mode IDT" and "Interrupt Stack Table".
fn set_stack(a: &mut CodeAssembler, vector: u64, number: u64) -> Result<(), IcedError> {
    a.mov(rax, STACKS[number as usize - 1])?;
    a.mov(qword_ptr(TSS + 0x24 + 8 * (number - 1)), rax)?;
    a.mov(byte_ptr(IDT + vector * 16 + 4), number as i32)
}

/// Reads counter 0 and prints it; then skips UD2.
fn read_counter(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(ecx, 0)?;
    a.rdpmc()?;
    print(a)?;
    a.add(qword_ptr(rsp), 2)?;
    a.iretq()
}

/// Returns a guest whose handler of #UD reads a counter, and that ends when the handler has returned. Stacks: of #UD,
/// and of #GP.
fn guest(undefined: u64, general_protection: u64) -> Vec<u8> {
    image(
        |a| {
            set_stack(a, UNDEFINED, undefined)?;
            set_stack(a, GENERAL_PROTECTION, general_protection)?;
            wrmsr(a, COUNTER_0, 0x1234)?;
            a.ud2()?;
            exit(a, 0x10)
        },
        &[(6, read_counter), (13, |a| exit(a, 0x11))],
    )
}

#[test]
fn a_handler_that_shares_its_stack_with_that_of_general_protection_is_named() {
    if !kvm() {
        return;
    }
    let output = run(&guest(1, 1), "--pmu intel --timeout 2");
    let said = messages(&output);
    // The count is right, but the handler's own frame is gone: the guest executes RDPMC again and again.
    assert_eq!(numbers(&output).first(), Some(&0x1234), "{said}");
    assert_eq!(
        said.matches("in a handler on stack 1 of its interrupt stack table").count(),
        1,
        "{said}"
    );
    assert!(said.contains("Give #GP (vector 13) a stack of its own"), "{said}");
}

#[test]
fn a_handler_with_a_stack_of_its_own_reads_a_counter_and_returns() {
    if !kvm() {
        return;
    }
    let output = run(&guest(1, 2), "--pmu intel --timeout 20");
    let said = messages(&output);
    assert_eq!((output.status.code(), numbers(&output)), (Some(33), vec![0x1234]), "{said}");
    assert!(!said.contains("interrupt stack table"), "{said}");
}
