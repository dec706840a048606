//! The machine as kernels expect it that were written for firmware or for QEMU: ACPI, the clock, and the places of a
//! module and of the boot information.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use std::time::{SystemTime, UNIX_EPOCH};

use guest::{Code, exit, file, image, kvm, messages, numbers, print, run, vmm};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

/// End of an [`image`].
const KERNEL_END: u64 = 0x14_0000;
/// ACPI 6.5, "Finding the RSDP on IA-PC Systems": the first paragraph of the firmware's memory.
const ROOT_POINTER: u64 = 0xE_0000;

fn print_eax(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.xor(edx, edx)?;
    print(a)
}

/// Multiboot information: mods_addr (24). A loader that is the kernel takes the page behind itself, memory behind
/// its module, and the page behind the boot information.
#[test]
fn by_multiboot_the_module_is_behind_the_kernel_and_the_page_behind_the_information_is_free() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let mut again = a.create_label();
            a.mov(esi, dword_ptr(rbx + 24))?;
            a.mov(eax, dword_ptr(rsi))?;
            print_eax(a)?;
            // The list of modules and the map of the memory (48).
            a.mov(eax, dword_ptr(rbx + 24))?;
            a.mov(edx, dword_ptr(rbx + 48))?;
            print(a)?;
            a.mov(rax, rbx)?;
            print_eax(a)?;
            // All bytes of the page.
            a.mov(ecx, 512)?;
            a.xor(eax, eax)?;
            a.set_label(&mut again)?;
            a.or(rax, qword_ptr(rbx + rcx * 8 + 0xFF8))?;
            a.dec(ecx)?;
            a.jnz(again)?;
            print_eax(a)?;
            exit(a, 0x10)
        },
        &[],
    );
    let module = file(&[0xA5; 0x3000]);
    let output = run(&kernel, &format!("--initrd {} --pmu none", module.display()));
    std::fs::remove_file(module).unwrap();
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    let [start, lists, information, page] = numbers(&output)[..] else { panic!() };
    assert_eq!((start, page), (KERNEL_END + 0x1000, 0));
    for list in [lists & 0xFFFF_FFFF, lists >> 32] {
        assert_eq!(list & !0xFFF, information & !0xFFF, "{list:#x}");
    }
}

/// A kernel that lies at 0 and has no protocol's header is that of a loader. ELF-64: e_type (16) 3 is ET_DYN; p_paddr
/// is at 24 of the only program header (64).
#[test]
fn a_kernel_that_needs_a_loader_is_told() {
    if !kvm() {
        return;
    }
    let mut kernel = vec![0; 0x1000];
    let mut put =
        |place: usize, bytes: &[u8]| kernel[place..place + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7FELF\x02\x01\x01");
    for (place, number) in [(16, 3), (18, 62), (52, 64), (54, 56), (56, 1)] {
        put(place, &u16::to_le_bytes(number));
    }
    put(32, &[64]);
    put(64, &[1]);
    for place in [64 + 32, 64 + 40] {
        put(place, &u64::to_le_bytes(0x1000));
    }
    let output = run(&kernel, "--pmu none");
    assert_eq!(output.status.code(), Some(6), "{}", messages(&output));
    assert!(messages(&output).contains("--initrd"), "{}", messages(&output));
}

/// SDM vol. 1, "Enabling the XSAVE Feature Set": CR4.OSXSAVE, and bits 0 and 1 of XCR0, x87 and SSE.
#[test]
fn a_kernel_sets_and_reads_xcr0() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let mut absent = a.create_label();
            a.mov(eax, 1)?;
            a.xor(ecx, ecx)?;
            a.cpuid()?;
            a.bt(ecx, 26)?;
            a.jnc(absent)?;
            a.mov(rax, cr4)?;
            a.or(eax, 1 << 18)?;
            a.mov(cr4, rax)?;
            a.xor(ecx, ecx)?;
            a.xor(edx, edx)?;
            a.mov(eax, 0b11)?;
            a.xsetbv()?;
            a.mov(eax, -1)?;
            a.xgetbv()?;
            print(a)?;
            exit(a, 0x10)?;
            a.set_label(&mut absent)?;
            exit(a, 0x11)
        },
        &[],
    );
    let output = run(&kernel, "--pmu none");
    match output.status.code() {
        Some(33) => assert_eq!(numbers(&output), [0b11]),
        Some(35) => guest::skipped("XCR0", "the guest has no XSAVE"),
        _ => panic!("{}", messages(&output)),
    }
}

/// A module that does not fit behind the kernel is told.
#[test]
fn a_module_that_does_not_fit_behind_the_kernel_is_told() {
    if !kvm() {
        return;
    }
    let module = file(&vec![0; 0xC_1000]);
    let kernel = image(|a| exit(a, 0x10), &[]);
    let output = run(&kernel, &format!("--memory 2 --initrd {} --pmu none", module.display()));
    std::fs::remove_file(module).unwrap();
    assert_eq!(output.status.code(), Some(18), "{}", messages(&output));
    assert!(messages(&output).contains("the initial RAM disk"), "{}", messages(&output));
}

/// ACPI 6.5: RSDT (16 of the root pointer), MADT and FADT (its entries), PM1a_CNT_BLK (64) and DSDT (40) of the FADT.
/// `_S5_` is a package whose first element is the sleep type.
#[test]
fn by_acpi_a_guest_finds_its_processors_and_switches_the_machine_off() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let mut good = a.create_label();
            a.mov(esi, dword_ptr(ROOT_POINTER + 16))?;
            // The numbers of both tables, their signatures and the length of the MADT.
            a.mov(eax, dword_ptr(rsi + 36))?;
            a.mov(edi, dword_ptr(rsi + 40))?;
            a.mov(edx, dword_ptr(rax))?;
            a.mov(eax, dword_ptr(rax + 4))?;
            print(a)?;
            a.mov(eax, dword_ptr(rdi))?;
            print_eax(a)?;
            // The DSDT has the name and its package: 08, "_S5_", 12, length, number, elements.
            a.mov(esi, dword_ptr(rdi + 40))?;
            a.mov(rax, qword_ptr(rsi + 36))?;
            print_eax(a)?;
            a.movzx(ebx, byte_ptr(rsi + 36 + 8))?;
            // ACPI is enabled (0).
            a.mov(edx, dword_ptr(rdi + 64))?;
            a.in_(ax, dx)?;
            a.test(ax, 1)?;
            a.jnz(good)?;
            exit(a, 0x11)?;
            a.set_label(&mut good)?;
            // SLP_TYP (12:10) and SLP_EN (13).
            a.mov(eax, ebx)?;
            a.shl(eax, 10)?;
            a.or(eax, 1 << 13)?;
            a.out(dx, ax)?;
            exit(a, 0x12)
        },
        &[],
    );
    let output = run(&kernel, "--cpus 3 --pmu none");
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("switched the machine off"), "{said}");
    let [madt, fadt, s5] = numbers(&output)[..] else { panic!("{said}") };
    let text = |word: u64| (word as u32).to_le_bytes();
    assert_eq!((text(madt >> 32), text(fadt)), (*b"APIC", *b"FACP"));
    // Header, address and flags; three processors, the I/O APIC, two overrides, and the NMI.
    assert_eq!(madt & 0xFFFF_FFFF, 44 + 3 * 8 + 12 + 2 * 10 + 6);
    assert_eq!(s5.to_le_bytes(), *b"\x08_S5_\x12\x06\x04");
}

/// FADT: RESET_REG (116, its address at 120) and RESET_VALUE (128).
#[test]
fn by_acpi_a_guest_resets_the_machine() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            a.mov(esi, dword_ptr(ROOT_POINTER + 16))?;
            a.mov(edi, dword_ptr(rsi + 40))?;
            a.mov(edx, dword_ptr(rdi + 120))?;
            a.mov(al, byte_ptr(rdi + 128))?;
            a.out(dx, al)?;
            exit(a, 0x11)
        },
        &[],
    );
    let output = run(&kernel, "--pmu none");
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    assert!(messages(&output).contains("reset the machine"), "{}", messages(&output));
}

/// Registers 0x0A (bit 7: an update is in progress), 0x32 and 0x09: century and year, in decimals.
#[test]
fn the_real_time_clock_has_the_year() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            for register in [0x0A, 0x32, 0x09] {
                a.mov(al, register)?;
                a.out(0x70, al)?;
                a.in_(al, 0x71)?;
                a.movzx(eax, al)?;
                print_eax(a)?;
            }
            exit(a, 0x10)
        },
        &[],
    );
    let output = run(&kernel, "--pmu none");
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    let [status, century, year] = numbers(&output)[..] else { panic!() };
    assert_eq!(status >> 7, 0);
    let number = |decimals: u64| (decimals >> 4) * 10 + (decimals & 0xF);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    // A year has 31,556,952 seconds: within one of the truth, also at its ends.
    let about = 1970 + since / 31_556_952;
    let found = number(century) * 100 + number(year);
    assert!(found.abs_diff(about) <= 1, "{found}");
}

/// The guests have 128 MiB, and 1 GiB of addresses that are mapped.
#[test]
fn code_and_operands_outside_of_the_memory_are_told_in_these_words() {
    if !kvm() {
        return;
    }
    let cases: [(Code, &str); 3] = [
        (
            |a| {
                a.mov(rax, 0x3000_0000_u64)?;
                a.jmp(rax)
            },
            "RIP 0x30000000, which is outside of the guest's memory: physical address 0x30000000",
        ),
        (
            |a| {
                a.mov(rax, 0x7000_0000_u64)?;
                a.jmp(rax)
            },
            "RIP 0x70000000, which is not mapped",
        ),
        (
            |a| {
                a.mov(rsi, 0x3000_0010_u64)?;
                a.cmpxchg16b(xmmword_ptr(rsi))
            },
            "whose operand at 0x30000010 is outside of the guest's memory: physical address 0x30000010",
        ),
    ];
    for (code, words) in cases {
        let path = file(&image(code, &[]));
        let output = vmm(&format!("--kernel {} --pmu none --timeout 20", path.display()));
        std::fs::remove_file(path).unwrap();
        let said = messages(&output);
        assert!(matches!(output.status.code(), Some(10 | 20)), "{said}");
        assert!(said.contains(words), "{said}");
    }
}
