//! The guest's state at its start, by each boot protocol; and the start of the other processors.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use guest::{
    Code, KERNEL_STACK, as_linux, as_pvh, by_addresses, exit, file, image, kvm, messages, numbers,
    print, vmm,
};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

const INITRD: &[u8] = b"\x88\x77\x66\x55\x44\x33\x22\x11 and so on";
/// The initial RAM disk's first 8 bytes.
const INITRD_START: u64 = 0x1122_3344_5566_7788;
const LINE: &[u8; 8] = b"quick=12";

/// Returns the numbers that this guest printed, with a command line, an initial RAM disk and 64 MiB.
fn booted(kernel: &[u8], protocol: &str) -> Vec<u64> {
    let (kernel, initrd) = (file(kernel), file(INITRD));
    let line = String::from_utf8_lossy(LINE);
    let output = vmm(&format!(
        "--kernel {} --initrd {} --append {line} --memory 64 --pmu none",
        kernel.display(),
        initrd.display()
    ));
    std::fs::remove_file(kernel).unwrap();
    std::fs::remove_file(initrd).unwrap();
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    assert!(messages(&output).contains(protocol), "{}", messages(&output));
    numbers(&output)
}

/// Prints 8 bytes at the address that is at RBX + `pointer`, in 32 bits.
fn print_at(a: &mut CodeAssembler, pointer: i32) -> Result<(), IcedError> {
    a.mov(esi, dword_ptr(rbx + pointer))?;
    print_word(a)
}

/// Prints 8 bytes at RSI.
fn print_word(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rax, qword_ptr(rsi))?;
    a.xor(edx, edx)?;
    print(a)
}

#[test]
fn multiboot() {
    if !kvm() {
        return;
    }
    // Multiboot information: mem_lower and mem_upper (4), cmdline (16), mods_count (20), mods_addr (24).
    let main: Code = |a| {
        a.lea(rsi, ptr(rbx + 4))?;
        print_word(a)?;
        print_at(a, 16)?;
        a.mov(eax, dword_ptr(rbx + 20))?;
        a.xor(edx, edx)?;
        print(a)?;
        a.mov(ebx, dword_ptr(rbx + 24))?;
        print_at(a, 0)?;
        // The length of the module.
        a.mov(eax, dword_ptr(rbx + 4))?;
        a.sub(eax, dword_ptr(rbx))?;
        a.xor(edx, edx)?;
        print(a)?;
        exit(a, 0x10)
    };
    // 639 KiB, and 64 MiB but the first: in KiB.
    let expected =
        [639 | 63 << 10 << 32, u64::from_le_bytes(*LINE), 1, INITRD_START, INITRD.len() as u64];
    let kernel = image(main, &[]);
    assert_eq!(booted(&kernel, "by multiboot"), expected);
    assert_eq!(booted(&by_addresses(&kernel), "by multiboot"), expected);
}

#[test]
fn pvh() {
    if !kvm() {
        return;
    }
    // hvm_start_info: magic (0), nr_modules (12), modlist_paddr (16), cmdline_paddr (24).
    let main: Code = |a| {
        a.mov(eax, dword_ptr(rbx))?;
        a.mov(edx, dword_ptr(rbx + 12))?;
        print(a)?;
        print_at(a, 24)?;
        a.mov(ebx, dword_ptr(rbx + 16))?;
        print_at(a, 0)?;
        a.lea(rsi, ptr(rbx + 8))?;
        print_word(a)?;
        exit(a, 0x10)
    };
    let expected =
        [0x336E_C578 | 1 << 32, u64::from_le_bytes(*LINE), INITRD_START, INITRD.len() as u64];
    assert_eq!(booted(&as_pvh(&image(main, &[])), "by PVH"), expected);
}

#[test]
fn linux() {
    if !kvm() {
        return;
    }
    // boot_params: e820_entries (0x1E8), "HdrS" (0x202), ramdisk_image (0x218), ramdisk_size (0x21C),
    // cmd_line_ptr (0x228), the last e820 entry's size (0x2D0 + 2 * 20 + 8).
    let main: Code = |a| {
        a.mov(rsp, KERNEL_STACK)?;
        a.mov(rbx, rsi)?;
        a.movzx(eax, byte_ptr(rbx + 0x1E8))?;
        a.mov(edx, dword_ptr(rbx + 0x202))?;
        print(a)?;
        print_at(a, 0x228)?;
        print_at(a, 0x218)?;
        a.mov(eax, dword_ptr(rbx + 0x21C))?;
        a.xor(edx, edx)?;
        print(a)?;
        a.lea(rsi, ptr(rbx + 0x300))?;
        print_word(a)?;
        exit(a, 0x10)
    };
    let expected = [
        3 | u64::from(u32::from_le_bytes(*b"HdrS")) << 32,
        u64::from_le_bytes(*LINE),
        INITRD_START,
        INITRD.len() as u64,
        63 << 20,
    ];
    assert_eq!(booted(&as_linux(&image(main, &[])), "64-bit boot protocol"), expected);
}

#[test]
fn other_processors_start() {
    if !kvm() {
        return;
    }
    // CPUID leaf 1, EBX: how many. Then INIT and SIPI for all others, at 0x8000: MOV AL, 0x21;
    // OUT 0xF4, AL, in real mode.
    let main: Code = |a| {
        a.mov(eax, 1)?;
        a.cpuid()?;
        a.mov(eax, ebx)?;
        a.shr(eax, 16)?;
        a.and(eax, 0xFF)?;
        a.xor(edx, edx)?;
        print(a)?;
        a.mov(dword_ptr(0x8000), 0xF4E6_21B0_u32)?;
        a.mov(rsi, 0xFEE0_00F0_u64)?;
        a.mov(dword_ptr(rsi), 0x1FF)?;
        a.mov(rsi, 0xFEE0_0300_u64)?;
        a.mov(dword_ptr(rsi), 0xC_4500)?;
        a.mov(dword_ptr(rsi), 0xC_4608)?;
        let mut here = a.create_label();
        a.set_label(&mut here)?;
        a.jmp(here)
    };
    let output = guest::run(&image(main, &[]), "--cpus 2 --timeout 60");
    assert_eq!(output.status.code(), Some(0x21 << 1 | 1), "{}", messages(&output));
    assert_eq!(numbers(&output), [2]);
}
