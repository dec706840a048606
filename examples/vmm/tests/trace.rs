//! `--trace`: each access of a small guest, and the instructions of its handler of an NMI.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use std::path::Path;

use guest::{
    ALL, COUNTER_0, Code, LVTPC, MAIN, MARK, NMI, SELECT_0, exit, image, kvm, messages, run,
    skipped, wrmsr,
};
use iced_x86::code_asm::*;

/// IA32_PERFEVTSELx.INT.
const INTERRUPT: u64 = 1 << 20;

/// Returns the fields of the trace's lines, on standard error, without the time.
fn lines(messages: &str) -> Vec<Vec<&str>> {
    let of_trace = |line: &&str| line.starts_with(|first: char| first.is_ascii_digit());
    let lines = messages.lines().filter(of_trace);
    lines.map(|line| line.split(' ').skip(1).collect()).collect()
}

/// The addresses are those of the instructions, whose lengths are in the comments.
#[test]
fn each_access_has_a_line_in_their_order() {
    if !kvm() {
        return;
    }
    let main: Code = |a| {
        wrmsr(a, COUNTER_0, 0x1234)?; // 5, 5, 5, and 2 of WRMSR
        a.mov(al, 7)?; // 2
        a.out(MARK, al)?; // 2
        a.mov(ecx, 0)?; // 5
        a.rdpmc()?; // 2
        a.mov(ecx, SELECT_0)?; // 5
        a.rdmsr()?; // 2
        a.mov(ecx, 0x38E)?; // 5: the status is read-only
        a.wrmsr()
    };
    let output = run(&image(main, &[(13, |a| exit(a, 0x10))]), "--pmu intel:version=4 --trace msr");
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(33), "{said}");
    let at = |offset: u64| format!("{:#x}", MAIN + offset);
    let (write, counter, read, refused) = (at(15), at(26), at(33), at(40));
    let expected = [
        ["0", "W", "0xc1", "0x1234", &write],
        ["0", "M", "0xe8", "0x7", "-"],
        ["0", "P", "0x0", "0x1234", &counter],
        ["0", "R", "0x186", "0x0", &read],
        ["0", "W", "0x38e", "#GP", &refused],
    ];
    assert_eq!(lines(&said), expected, "{said}");
    assert!(said.contains("the trace lacks writes of LVTPC"), "{said}");
}

#[test]
fn the_instructions_of_a_handler_of_an_nmi_are_counted() {
    if !kvm() {
        return;
    }
    if !Path::new("/sys/module/kvm_pvm").exists() {
        return skipped("instructions of a handler", "stepping an NMI is untried on this KVM");
    }
    let main: Code = |a| {
        // The spurious-interrupt vector register: while the APIC is off, its entries stay masked.
        a.mov(rax, 0xFEE0_00F0_u64)?;
        a.mov(dword_ptr(rax), 0x1FF)?;
        a.mov(rax, LVTPC)?;
        a.mov(dword_ptr(rax), NMI)?;
        a.xor(ebx, ebx)?;
        wrmsr(a, COUNTER_0, 0u64.wrapping_sub(5_000_000))?;
        wrmsr(a, SELECT_0, ALL | INTERRUPT | 0x3C)?;
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.test(ebx, ebx)?;
        a.jz(again)?;
        exit(a, 0x10)
    };
    let handler: Code = |a| {
        wrmsr(a, SELECT_0, 0)?; // 4 instructions
        a.mov(ecx, 0)?;
        a.rdpmc()?; // which the monitor executes
        a.lfence()?; // which may be executed together with the next
        a.inc(ebx)?;
        a.iretq()
    };
    let guest = image(main, &[(2, handler), (13, |a| exit(a, 0x11))]);
    let output = run(&guest, "--pmu intel:version=1,fixed=0 --trace nmi");
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(33), "{said}");
    let lines = lines(&said);
    let of = |what: &str| lines.iter().filter(|line| line[1] == what).collect::<Vec<_>>();
    assert!(matches!(of("I")[..], [line] if line[2..4] == ["0x2", "0x4"]), "{said}");
    assert!(matches!(of("H")[..], [line] if line[2..4] == ["0x2", "0x9"]), "{said}");
}
