//! Ring 3: the pages that it can use, the way there, and the way back.
//!
//! Read first: Intel SDM vol. 3A, "IRETQ" and "4-Level Paging and 5-Level Paging".

use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pmu::user::UserPage;
use spin::Once;
use x86_64::registers::control::{Cr3, Cr4, Cr4Flags};

use crate::machine::interrupts::{TrapFrame, return_to_interrupted};
use crate::machine::processor::{
    self, KERNEL_CODE, KERNEL_DATA, MAX_PROCESSORS, USER_CODE, USER_DATA,
};

/// Number of threads, each of which has a stack.
pub const THREADS: usize = 2;

/// The first address that ring 3 can use: the second entry of the page map, 512 GiB. The page of the event; stacks;
/// and the image's code and constants, which it cannot write.
const BASE: u64 = 1 << 39;
const PAGE: u64 = 0x1000;
const EVENT: u64 = BASE;
const STACKS: u64 = EVENT + PAGE;
const IMAGE: u64 = STACKS + THREADS as u64 * PAGE;

/// Bits of a page-table entry: present, writable, ring 3 may use it.
const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;

/// Length of UD2, by which a thread comes back to the kernel: it does not retire.
const UD2: u64 = 2;

unsafe extern "C" {
    static code_start: u8;
    static constants_end: u8;
}

/// A thread of ring 3.
#[derive(Debug)]
pub struct Thread {
    registers: TrapFrame,
}

/// The reason for which a thread came back, which it has in RSI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It wants something of the kernel, and can go on.
    Asked,
    /// It ended with this value, in RAX.
    Ended(u64),
}

impl Stop {
    /// RSI where a thread [asked](Self::Asked).
    pub const ASKED: u64 = 1;
    /// RSI where it [ended](Self::Ended).
    pub const ENDED: u64 = 0;
}

impl Thread {
    /// Creates the thread `number`, below [`THREADS`], which executes a program of this image on that number's stack.
    /// Threads of the same number do not run in turns. Its arguments are those of a function, in RDI and RSI.
    pub fn new(number: usize, program: u64, arguments: [u64; 2]) -> Self {
        assert!(number < THREADS, "a thread without a stack");
        map();
        let (start, _) = shared_image();
        let stack = STACKS + (number as u64 + 1) * PAGE;
        Self {
            registers: TrapFrame {
                rdi: arguments[0],
                rsi: arguments[1],
                rip: IMAGE + (program - start),
                cs: USER_CODE.into(),
                rflags: 1 << 9 | 1 << 1, // interrupts on
                rsp: stack - 8,          // as behind a CALL
                ss: USER_DATA.into(),
                ..TrapFrame::default()
            },
        }
    }

    /// Returns the address at which ring 3 has the page of the event, [`SHARED`].
    pub const fn page() -> u64 {
        EVENT
    }

    /// Executes it on this processor until it comes back. Task context.
    pub fn run(&mut self) -> Stop {
        let number = processor::number();
        let registers = &raw mut self.registers;
        let other = RUNNING[number].swap(registers, Ordering::Relaxed);
        assert!(other.is_null(), "one thread runs at ring 3 of a processor");
        // SAFETY: (1) code and stack are mapped for ring 3, whose programs (`programs`) do not change GS; (2) the
        // handler of #UD comes back by `KERNEL_STACKS` of this processor, on which no other thread runs, as was
        // asserted, and stores the registers.
        unsafe { enter(registers, KERNEL_STACKS[number].as_ptr()) };
        RUNNING[number].store(ptr::null_mut(), Ordering::Relaxed);
        self.registers.rip += UD2;
        match self.registers.rsi {
            Stop::ASKED => Stop::Asked,
            _ => Stop::Ended(self.registers.rax),
        }
    }
}

/// Lets ring 3 of this processor execute RDPMC, or not: CR4.PCE.
pub fn allow_rdpmc(allowed: bool) {
    // SAFETY: the bit does not concern memory.
    unsafe {
        Cr4::update(|flags| flags.set(Cr4Flags::PERFORMANCE_MONITOR_COUNTER, allowed));
    }
}

/// The page that ring 3 can read, and the kernel writes.
pub static SHARED: UserPage = UserPage::new();

/// A page table, or what ring 3 has as a stack.
#[repr(C, align(4096))]
struct Page(UnsafeCell<[u64; 512]>);

// SAFETY: tables are written once, in `map`; a stack is its thread's.
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

/// Returns the pages of the image that ring 3 can use: code and constants. Programs are compiled with the kernel, and
/// relative to where they are; those of a kernel of your own come with pages of their own.
fn shared_image() -> (u64, u64) {
    let [start, end] = [&raw const code_start, &raw const constants_end].map(|at| at as u64);
    (start & !(PAGE - 1), end)
}

/// Maps what ring 3 can use, once. The page tables are the same for all processors.
fn map() {
    static TABLES: [Page; 3] = [const { Page::new() }; 3];
    static STACK_PAGES: [Page; THREADS] = [const { Page::new() }; THREADS];
    static MAPPED: Once<()> = Once::new();
    MAPPED.call_once(|| {
        let [pointers, directory, table] = &TABLES;
        let set = |page: u64, index: usize, address: u64, bits: u64| {
            assert!(index < 512, "the image is larger than a page table maps");
            // SAFETY: a page table, of which nothing was used yet but other entries.
            unsafe { ((page as *mut u64).add(index)).write_volatile(address | bits | PRESENT) };
        };
        let in_table = |linear: u64| ((linear - BASE) / PAGE) as usize;
        set(table.address(), in_table(EVENT), &raw const SHARED as u64, USER);
        for (stack, linear) in STACK_PAGES.iter().zip((STACKS..).step_by(PAGE as usize)) {
            set(table.address(), in_table(linear), stack.address(), USER | WRITABLE);
        }
        let (start, end) = shared_image();
        for page in (start..end).step_by(PAGE as usize) {
            set(table.address(), in_table(IMAGE + (page - start)), page, USER);
        }
        set(directory.address(), 0, table.address(), USER | WRITABLE);
        set(pointers.address(), 0, directory.address(), USER | WRITABLE);
        let map = Cr3::read().0.start_address().as_u64();
        set(map, (BASE >> 39) as usize, pointers.address(), USER | WRITABLE);
    });
}

/// The registers of each processor's thread at ring 3, and the stack pointer with which its kernel goes on.
static RUNNING: [AtomicPtr<TrapFrame>; MAX_PROCESSORS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_PROCESSORS];
static KERNEL_STACKS: [AtomicU64; MAX_PROCESSORS] = [const { AtomicU64::new(0) }; MAX_PROCESSORS];

/// Goes to ring 3 with these registers, and returns when [`leave`] was called.
///
/// # Safety
/// - Code and stack are mapped for ring 3, and the code leaves the kernel's GS alone.
/// - `kernel_stack` is this processor's, and nothing else uses it meanwhile.
#[unsafe(naked)]
unsafe extern "C" fn enter(registers: *const TrapFrame, kernel_stack: *mut u64) {
    naked_asm!(
        "pushfq",
        "push rbx; push rbp; push r12; push r13; push r14; push r15",
        "mov [rsi], rsp",
        "cli", // the stack pointer is where an interrupt would overwrite what is there
        "mov rsp, rdi",
        "jmp {}",
        sym return_to_interrupted,
    )
}

/// Goes on in the kernel: [`enter`] returns.
#[unsafe(naked)]
extern "C" fn entered() {
    naked_asm!("pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx", "popfq", "ret")
}

/// Lets the handler of an exception at ring 3 return into the kernel, behind [`Thread::run`], with the thread's
/// registers kept. `false`: it was not at ring 3.
pub fn leave(frame: &mut TrapFrame) -> bool {
    let number = processor::number();
    let registers = RUNNING[number].load(Ordering::Relaxed);
    if frame.cs & 3 != 3 || registers.is_null() {
        return false;
    }
    // SAFETY: they are the thread's that runs here, and `Thread::run` waits for them.
    unsafe { registers.write(*frame) };
    frame.rip = entered as *const () as u64;
    frame.cs = KERNEL_CODE.into();
    frame.rsp = KERNEL_STACKS[number].load(Ordering::Relaxed);
    frame.ss = KERNEL_DATA.into();
    // Interrupts off, until `entered` has the kernel's own flags.
    frame.rflags = 1 << 1;
    true
}
