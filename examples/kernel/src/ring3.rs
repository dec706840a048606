//! Ring 3: pages of its own for code, stack and what the kernel shows it, the way there, and the way back.
//!
//! Read first: Intel SDM vol. 3A, "IRETQ" and "4-Level Paging and 5-Level Paging".

use core::arch::{global_asm, naked_asm};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use pmu::user::UserPage;
use spin::Once;
use x86_64::registers::control::{Cr3, Cr4, Cr4Flags};

use crate::interrupts::TrapFrame;
use crate::processor::{self, KERNEL_CODE, KERNEL_DATA, MAX_PROCESSORS, USER_CODE, USER_DATA};

/// The first address that ring 3 can use: the second entry of the page map, 512 GiB.
const BASE: u64 = 1 << 39;
const PAGE: u64 = 0x1000;
const CODE: u64 = BASE;
const PAGE_OF_EVENT: u64 = BASE + PAGE;
const STACKS: u64 = BASE + 2 * PAGE;

/// Bits of a page-table entry: present, writable, ring 3 may use it.
const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;

// Each program has its argument in RDI, and ends with UD2, which does not retire: the handler of #UD
// returns to the kernel what is in RAX.
global_asm!(
    ".pushsection .text.user, \"ax\", @progbits",
    ".globl user_start, user_loop, user_measure",
    ".balign 4096",
    "user_start:",
    // 1 + 2 · RDI instructions
    "user_loop: mov ecx, edi",
    "2: dec ecx",
    "jnz 2b",
    "ud2",
    // 1 + 18 + 1 + 2000 + 1 + 18 instructions, of which the last 14 are the second RDPMC and what follows it
    "user_measure: call 3f",
    "mov eax, 1000",
    "2: dec eax",
    "jnz 2b",
    "call 3f",
    "ud2",
    // Reads the current count through the page (`pmu::user::UserPage`) at RDI: 18 instructions.
    "3: mov r8d, [rdi]",  // the sequence
    "mov ecx, [rdi + 4]", // the index, plus 1
    "dec ecx",
    "js 4f", // hidden
    "rdpmc",
    "shl rdx, 32",
    "or rax, rdx",
    "sub rax, [rdi + 24]", // the value up to which was booked
    "mov ecx, 64",
    "sub ecx, [rdi + 8]", // the width
    "shl rax, cl",
    "shr rax, cl",
    "add rax, [rdi + 16]", // what was booked
    "test r8d, 1",
    "jnz 3b",
    "cmp r8d, [rdi]",
    "jne 3b",
    "ret",
    "4: xor eax, eax",
    "ret",
    ".balign 4096",
    ".popsection",
);

unsafe extern "C" {
    static user_start: u8;
    static user_loop: u8;
    static user_measure: u8;
}

/// A program of ring 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Counts down from a number, which is not 0.
    Loop(u32),
    /// Reads the event of [`SHARED`] by RDPMC before and after a loop, and returns the second reading; 0: the page
    /// is hidden. CR4.PCE must be [set](allow_rdpmc).
    Measure,
}

impl Program {
    /// Instructions that it retires at ring 3.
    pub const fn instructions(self) -> u64 {
        match self {
            Self::Loop(turns) => 1 + 2 * turns as u64,
            Self::Measure => 2039,
        }
    }

    /// Of [`Measure`](Self::Measure)'s, those before its second RDPMC.
    pub const MEASURED: u64 = Self::Measure.instructions() - 14;

    const fn argument(self) -> u64 {
        match self {
            Self::Loop(turns) => turns as u64,
            Self::Measure => PAGE_OF_EVENT,
        }
    }

    fn address(self) -> u64 {
        let start = match self {
            Self::Loop(_) => &raw const user_loop,
            Self::Measure => &raw const user_measure,
        };
        CODE + (start as u64 - &raw const user_start as u64)
    }

    /// Executes it at ring 3 of this processor, and returns what it left in RAX.
    pub fn run(self) -> u64 {
        map();
        let number = processor::number();
        let stack = STACKS + (number as u64 + 1) * PAGE;
        // SAFETY: code and stack are mapped for ring 3; the handler of #UD comes back by `SAVED` of this
        // processor, on which nothing else is at ring 3 meanwhile.
        unsafe { enter(self.address(), stack, self.argument(), SAVED[number].as_ptr()) }
    }
}

/// Lets ring 3 of this processor execute RDPMC, or not: CR4.PCE.
pub fn allow_rdpmc(allowed: bool) {
    // SAFETY: of memory the bit says nothing.
    unsafe {
        Cr4::update(|flags| flags.set(Cr4Flags::PERFORMANCE_MONITOR_COUNTER, allowed));
    }
}

/// A page by which ring 3 reads an event.
#[repr(C, align(4096))]
pub struct SharedPage(pub UserPage);

/// The page that ring 3 can read, and the kernel writes.
pub static SHARED: SharedPage = SharedPage(UserPage::new());

/// A page table, or what ring 3 has as a stack.
#[repr(C, align(4096))]
struct Page(UnsafeCell<[u64; 512]>);

// SAFETY: tables are written once, in `map`; a stack is its processor's ring 3's.
unsafe impl Sync for Page {}

impl Page {
    const fn new() -> Self {
        Self(UnsafeCell::new([0; 512]))
    }

    /// Returns its physical address, which is its linear address: the kernel is identity-mapped.
    fn address(&self) -> u64 {
        self.0.get() as u64
    }
}

/// Maps the code and the stacks for ring 3, once. The page tables are the same for all processors.
fn map() {
    static TABLES: [Page; 3] = [const { Page::new() }; 3];
    static STACK_PAGES: [Page; MAX_PROCESSORS] = [const { Page::new() }; MAX_PROCESSORS];
    static MAPPED: Once<()> = Once::new();
    MAPPED.call_once(|| {
        let [pointers, directory, table] = &TABLES;
        let set = |page: u64, index: usize, address: u64, bits: u64| {
            // SAFETY: a page table, of which nothing was used yet but other entries.
            unsafe { ((page as *mut u64).add(index)).write_volatile(address | bits | PRESENT) };
        };
        set(table.address(), 0, &raw const user_start as u64, USER);
        set(table.address(), 1, &raw const SHARED as u64, USER);
        for (index, stack) in STACK_PAGES.iter().enumerate() {
            set(table.address(), index + 2, stack.address(), USER | WRITABLE);
        }
        set(directory.address(), 0, table.address(), USER | WRITABLE);
        set(pointers.address(), 0, directory.address(), USER | WRITABLE);
        let map = Cr3::read().0.start_address().as_u64();
        set(map, (BASE >> 39) as usize, pointers.address(), USER | WRITABLE);
    });
}

/// The stack pointer with which each processor's kernel goes on.
static SAVED: [AtomicU64; MAX_PROCESSORS] = [const { AtomicU64::new(0) }; MAX_PROCESSORS];

/// Goes to ring 3, at `code` with `stack` and `argument`, and returns when [`leave`] was called.
///
/// # Safety
/// - Code and stack are mapped for ring 3, and the code leaves the kernel's GS alone.
/// - `saved` is this processor's, and nothing else uses it meanwhile.
#[unsafe(naked)]
unsafe extern "C" fn enter(code: u64, stack: u64, argument: u64, saved: *mut u64) -> u64 {
    naked_asm!(
        "pushfq",
        "push rbx; push rbp; push r12; push r13; push r14; push r15",
        "mov [rcx], rsp",
        "push {data}",
        "push rsi",
        "push 0x202", // interrupts on
        "push {code}",
        "push rdi",
        "mov rdi, rdx",
        "iretq",
        data = const USER_DATA,
        code = const USER_CODE,
    )
}

/// Goes on in the kernel: [`enter`] returns.
#[unsafe(naked)]
extern "C" fn entered() {
    naked_asm!("pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx", "popfq", "ret")
}

/// Lets the handler of an exception at ring 3 return into the kernel, behind [`Program::run`]. `false`: it was
/// not at ring 3.
pub fn leave(frame: &mut TrapFrame) -> bool {
    if frame.cs & 3 != 3 {
        return false;
    }
    frame.rip = entered as *const () as u64;
    frame.cs = KERNEL_CODE.into();
    frame.rsp = SAVED[processor::number()].load(Ordering::Relaxed);
    frame.ss = KERNEL_DATA.into();
    // Interrupts off, until `entered` has the kernel's own flags.
    frame.rflags = 1 << 1;
    true
}
