//! Small guests: multiboot images that a test assembles, and runs in the monitor.
#![allow(dead_code, reason = "no test needs all of it")]

pub(crate) mod counted;

use core::sync::atomic::{AtomicUsize, Ordering};
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Once;

use iced_x86::IcedError;
use iced_x86::code_asm::*;

/// Result of assembling.
pub(crate) type Assembled = Result<(), IcedError>;
/// A function that assembles part of a guest.
pub(crate) type Code = fn(&mut CodeAssembler) -> Assembled;

pub(crate) const COM1: u32 = 0x3F8;
pub(crate) const DEBUG_EXIT: u32 = 0xF4;
pub(crate) const MARK: u32 = 0xE8;
// SDM vol. 4: IA32_PERFEVTSELx, IA32_PMCx and IA32_PERF_GLOBAL_CTRL; APM vol. 2: PerfEvtSel0 and PerfCtr0
// at the legacy addresses.
pub(crate) const SELECT_0: u32 = 0x186;
pub(crate) const COUNTER_0: u32 = 0xC1;
pub(crate) const GLOBAL_CONTROL: u32 = 0x38F;
pub(crate) const AMD_SELECT_0: u32 = 0xC001_0000;
pub(crate) const AMD_COUNTER_0: u32 = 0xC001_0004;
// Of an event select: enable (22), OS (17), user (16).
pub(crate) const USER: u64 = 1 << 22 | 1 << 16;
pub(crate) const KERNEL: u64 = 1 << 22 | 1 << 17;
pub(crate) const ALL: u64 = USER | KERNEL;
/// The LVT entry, and its delivery mode for an NMI.
pub(crate) const LVTPC: u64 = 0xFEE0_0340;
pub(crate) const NMI: u32 = 4 << 8;

/// Selectors: code and data of ring 0 and of ring 3, and the task.
pub(crate) const KERNEL_CODE: u64 = 0x08;
pub(crate) const KERNEL_DATA: u64 = 0x10;
pub(crate) const USER_CODE: u64 = 0x18 | 3;
pub(crate) const USER_DATA: u64 = 0x20 | 3;
const TASK: u32 = 0x28;
/// Stacks, which grow down from here.
pub(crate) const KERNEL_STACK: u64 = 0x13_0000;
pub(crate) const USER_STACK: u64 = 0x14_0000;

const BASE: u64 = 0x10_0000;
pub(crate) const PAGE_TABLES: u64 = BASE + 0x1000;
const GDT: u64 = BASE + 0x5000;
const GDT_POINTER: u64 = GDT + 0x100;
const IDT_POINTER: u64 = GDT + 0x110;
pub(crate) const TSS: u64 = GDT + 0x200;
pub(crate) const IDT: u64 = BASE + 0x6000;
const HANDLERS: u64 = BASE + 0x7000;
const HANDLER: u64 = 0x100;
/// Address of a guest's first instruction in 64-bit mode.
pub(crate) const MAIN: u64 = BASE + 0x1_0000;
const END: u64 = BASE + 0x4_0000;
/// Addresses where the image starts in 32-bit mode, and continues in 64-bit mode.
const START: u64 = BASE + 0x40;
const START_64: u64 = BASE + 0xC0;

/// Returns the image of a kernel that runs `main` in 64-bit mode in ring 0, without interrupts. A vector without a
/// handler in `handlers` is a triple fault.
pub(crate) fn image(
    main: impl FnOnce(&mut CodeAssembler) -> Assembled,
    handlers: &[(u8, Code)],
) -> Vec<u8> {
    let mut memory = vec![0; (END - BASE) as usize];
    let mut put = |address: u64, bytes: &[u8]| {
        let place = (address - BASE) as usize;
        memory[place..place + bytes.len()].copy_from_slice(bytes);
    };
    let magic: u32 = 0x1BAD_B002;
    put(BASE, &words(&[magic, 0, magic.wrapping_neg()]));

    // A PML4, a PDPT, the first GiB in large pages for every ring, and the local APIC.
    let entry = |number: u64, flags: u64| (PAGE_TABLES + number * 0x1000) | flags;
    put(PAGE_TABLES, &entry(1, 7).to_le_bytes());
    put(PAGE_TABLES + 0x1000, &entry(2, 7).to_le_bytes());
    put(PAGE_TABLES + 0x1000 + 3 * 8, &entry(3, 3).to_le_bytes());
    for page in 0..512 {
        put(PAGE_TABLES + 0x2000 + page * 8, &(page << 21 | 0x87).to_le_bytes());
    }
    let apic: u64 = 0xFEE0_0000;
    put(PAGE_TABLES + 0x3000 + (apic >> 21 & 511) * 8, &(apic | 0x93).to_le_bytes());

    let task = 0x0000_8900_0000_0067 | (TSS & 0xFF_FFFF) << 16;
    let segments: [u64; 7] = [
        0,
        0x00AF_9B00_0000_FFFF,
        0x00CF_9300_0000_FFFF,
        0x00AF_FB00_0000_FFFF,
        0x00CF_F300_0000_FFFF,
        task,
        0,
    ];
    for (place, segment) in (0..).zip(segments) {
        put(GDT + place * 8, &segment.to_le_bytes());
    }
    put(TSS + 4, &KERNEL_STACK.to_le_bytes());
    for (pointer, limit, base) in [(GDT_POINTER, 7 * 8 - 1, GDT), (IDT_POINTER, 256 * 16 - 1, IDT)]
    {
        put(pointer, &u16::to_le_bytes(limit));
        put(pointer + 2, &base.to_le_bytes());
    }
    for (number, (vector, handler)) in (0..).zip(handlers) {
        let address = HANDLERS + number * HANDLER;
        let code = assemble(64, address, *handler);
        assert!(code.len() as u64 <= HANDLER);
        put(address, &code);
        let gate = address & 0xFFFF | KERNEL_CODE << 16 | 0x8E00 << 32 | (address >> 16) << 48;
        put(IDT + u64::from(*vector) * 16, &gate.to_le_bytes());
    }
    put(START, &start());
    put(MAIN, &assemble(64, MAIN, main));
    elf_32(START as u32, &[(LOAD, BASE as u32, &memory)])
}

/// Assembles the way from 32-bit protected mode to `MAIN` in long mode.
fn start() -> Vec<u8> {
    let code = |a: &mut CodeAssembler| {
        a.mov(eax, PAGE_TABLES as u32)?;
        a.mov(cr3, eax)?;
        a.mov(eax, 1 << 5)?; // CR4.PAE
        a.mov(cr4, eax)?;
        a.mov(ecx, 0xC000_0080_u32)?; // EFER.LME
        a.mov(eax, 1 << 8)?;
        a.xor(edx, edx)?;
        a.wrmsr()?;
        a.mov(eax, 0x8000_0011_u32)?; // CR0.PG, ET and PE
        a.mov(cr0, eax)?;
        a.lgdt(ptr(GDT_POINTER as u32))?;
        // JMP FAR KERNEL_CODE:START_64, which iced's assembler has no name for.
        a.db(&[0xEA])?;
        a.dd(&[START_64 as u32])?;
        a.db(&[KERNEL_CODE as u8, 0])
    };
    let mut bytes = assemble(32, START, code);
    assert!(bytes.len() <= 0x80);
    bytes.resize(0x80, 0x90);
    bytes.extend(assemble(64, START_64, |a| {
        a.mov(eax, KERNEL_DATA as u32)?;
        a.mov(ss, eax)?;
        a.mov(ds, eax)?;
        a.mov(es, eax)?;
        a.lidt(ptr(IDT_POINTER))?;
        a.mov(eax, TASK)?;
        a.ltr(ax)?;
        a.mov(rsp, KERNEL_STACK)?;
        a.mov(rax, MAIN)?;
        a.jmp(rax)
    }));
    bytes
}

fn assemble(
    bitness: u32,
    address: u64,
    code: impl FnOnce(&mut CodeAssembler) -> Assembled,
) -> Vec<u8> {
    let mut assembler = CodeAssembler::new(bitness).unwrap();
    code(&mut assembler).unwrap();
    assembler.assemble(address).unwrap()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Types of program headers.
const LOAD: u32 = 1;
const NOTE: u32 = 4;

/// Returns an ELF file for the 386 with these segments, by type and physical address.
fn elf_32(entry: u32, segments: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let mut file = Vec::from(*b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0");
    file.extend(words(&[3 << 16 | 2, 1, entry, 52, 0, 0])); // EXEC, EM_386
    file.extend([52, 0, 32, 0, segments.len() as u8, 0, 0, 0, 0, 0, 0, 0]);
    let mut offset = 52 + 32 * segments.len() as u32;
    for (kind, address, content) in segments {
        let size = content.len() as u32;
        file.extend(words(&[*kind, offset, *address, *address, size, size, 7, 4]));
        offset += size;
    }
    segments.iter().for_each(|(_, _, content)| file.extend(*content));
    file
}

/// Returns the same kernel with a PVH note in place of the multiboot header.
pub(crate) fn as_pvh(image: &[u8]) -> Vec<u8> {
    let mut memory = image[52 + 32..].to_vec();
    memory[..12].fill(0);
    // The sizes of name and description, and "PHYS32_ENTRY".
    let mut note = words(&[4, 4, 18]);
    note.extend(b"Xen\0");
    note.extend(words(&[START as u32]));
    elf_32(START as u32, &[(LOAD, BASE as u32, &memory), (NOTE, 0, &note)])
}

/// Returns the same kernel as a 64-bit ELF file without either, which starts at `main`.
pub(crate) fn as_linux(image: &[u8]) -> Vec<u8> {
    let memory = &image[52 + 32..];
    let mut file = Vec::from(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file.extend(words(&[62 << 16 | 2, 1])); // EXEC, EM_X86_64
    file.extend([MAIN, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    file.extend(words(&[LOAD, 7]));
    // The bytes behind the headers, without the multiboot header.
    let (skipped, size) = (0x10, memory.len() as u64 - 0x10);
    let header = [64 + 56, BASE + skipped, BASE + skipped, size, size, 8];
    file.extend(header.iter().flat_map(|word| word.to_le_bytes()));
    file.extend(&memory[skipped as usize..]);
    file
}

/// Returns the same kernel with load addresses in the multiboot header.
pub(crate) fn by_addresses(image: &[u8]) -> Vec<u8> {
    let mut file = image.to_vec();
    let (magic, flags): (u32, u32) = (0x1BAD_B002, 1 << 16);
    let header = words(&[
        magic,
        flags,
        magic.wrapping_add(flags).wrapping_neg(),
        BASE as u32,
        BASE as u32,
        0,
        0,
        START as u32,
    ]);
    file[84..84 + header.len()].copy_from_slice(&header);
    // ELF's segment would go elsewhere.
    file[52 + 12..52 + 16].copy_from_slice(&0x80_0000_u32.to_le_bytes());
    file
}

/// Writes a file with this content, which lives as long as the test program.
pub(crate) fn file(content: &[u8]) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("guest-{}-{number}", std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, content).unwrap();
    path
}

/// Runs the monitor with these arguments, separated by spaces. It takes a minute at most.
pub(crate) fn vmm(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmm"));
    let output = command.args(arguments.split_whitespace()).output().unwrap();
    assert_eq!(output.status.signal(), None, "{}", messages(&output));
    assert!(!messages(&output).contains("panicked"), "{}", messages(&output));
    output
}

/// Runs the monitor with this guest; removes the guest's file afterwards.
pub(crate) fn run(image: &[u8], arguments: &str) -> Output {
    let path = file(image);
    let output = vmm(&format!("--kernel {} {arguments}", path.display()));
    fs::remove_file(path).unwrap();
    output
}

/// Asserts that the guest printed these numbers and ended well.
pub(crate) fn expect(kernel: &[u8], arguments: &str, expected: &[u64]) {
    let output = run(kernel, arguments);
    assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
    assert_eq!(numbers(&output), expected, "{arguments}");
}

/// Returns the statistics of `--stats=json`.
pub(crate) fn stats(output: &Output) -> serde_json::Value {
    let messages = messages(output);
    let json = messages.lines().find(|line| line.starts_with('{')).unwrap();
    serde_json::from_str(json).unwrap()
}

/// Returns the monitor's messages.
pub(crate) fn messages(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns whether there is a KVM; prints once if not.
pub(crate) fn kvm() -> bool {
    static SAID: Once = Once::new();
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if let Err(error) = &opened {
        let which = format!("every test of `{}` that runs a guest", env!("CARGO_CRATE_NAME"));
        SAID.call_once(|| skipped(&which, &format!("/dev/kvm cannot be opened: {error}")));
    }
    opened.is_ok()
}

/// Prints a line that names a skipped test. Not by `eprintln`, whose output the test harness holds back.
pub(crate) fn skipped(what: &str, why: &str) {
    let _ = io::stderr().write_all(format!("skipped: {what}: {why}\n").as_bytes());
}

pub(crate) fn wrmsr(a: &mut CodeAssembler, address: u32, value: u64) -> Result<(), IcedError> {
    a.mov(ecx, address)?;
    a.mov(eax, value as u32)?;
    a.mov(edx, (value >> 32) as u32)?;
    a.wrmsr()
}

/// Ends the machine with status `value << 1 | 1`.
pub(crate) fn exit(a: &mut CodeAssembler, value: u8) -> Result<(), IcedError> {
    a.mov(al, u32::from(value))?;
    a.out(DEBUG_EXIT, al)
}

/// Writes the number in RDX:RAX, 32 bits each, to the serial port: 8 bytes.
pub(crate) fn print(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    a.mov(dx, COM1)?;
    for _ in 0..8 {
        a.out(dx, al)?;
        a.shr(rax, 8)?;
    }
    Ok(())
}

/// Prints the counter's value.
pub(crate) fn print_counter(a: &mut CodeAssembler, address: u32) -> Result<(), IcedError> {
    a.mov(ecx, address)?;
    a.rdmsr()?;
    print(a)
}

/// Returns the numbers that a guest printed.
pub(crate) fn numbers(output: &Output) -> Vec<u64> {
    let chunks = output.stdout.chunks_exact(8);
    chunks.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Address at which the other processors start.
const OTHERS: u32 = 0x8000;

/// Puts `code` where the other processors start, in real mode, and starts them.
pub(crate) fn start_others(a: &mut CodeAssembler, code: Code) -> Assembled {
    for (place, byte) in (OTHERS..).zip(assemble(16, OTHERS.into(), code)) {
        a.mov(byte_ptr(place), i32::from(byte as i8))?;
    }
    a.mov(rsi, 0xFEE0_00F0_u64)?;
    a.mov(dword_ptr(rsi), 0x1FF)?;
    start_others_again(a)
}

/// Sends INIT and SIPI to the other processors.
pub(crate) fn start_others_again(a: &mut CodeAssembler) -> Assembled {
    command_others(a, 0x4500)?;
    command_others(a, 0x4600 | OTHERS as i32 >> 12)
}

/// Sends an interrupt of this delivery mode and vector to the other processors.
pub(crate) fn command_others(a: &mut CodeAssembler, command: i32) -> Assembled {
    a.mov(rsi, 0xFEE0_0300_u64)?;
    a.mov(dword_ptr(rsi), 0xC_0000 | command)
}

/// Continues at a label in ring 3.
pub(crate) fn enter_ring_3(a: &mut CodeAssembler, label: CodeLabel) -> Result<(), IcedError> {
    push_ring_3(a, label, 0x0002)?;
    a.iretq()
}

/// Pushes the frame from which an IRET continues at a label in ring 3.
pub(crate) fn push_ring_3(
    a: &mut CodeAssembler,
    label: CodeLabel,
    flags: i32,
) -> Result<(), IcedError> {
    a.push(USER_DATA as i32)?;
    a.push(USER_STACK as i32)?;
    a.push(flags)?;
    a.push(USER_CODE as i32)?;
    a.lea(rax, ptr(label))?;
    a.push(rax)
}

/// Handles an exception without error code by skipping an instruction of two bytes.
pub(crate) fn skip_two_bytes(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.add(qword_ptr(rsp), 2)?;
    a.iretq()
}
