//! The interrupt descriptor table, the stubs that it points to, and their handlers.

use core::arch::naked_asm;

use spin::Once;
use x86_64::VirtAddr;
use x86_64::registers::segmentation::SegmentSelector;
use x86_64::structures::DescriptorTablePointer;
use x86_64::structures::idt::InterruptDescriptorTable;

use crate::line;
use crate::machine::apic;
use crate::machine::processor::{DOUBLE_FAULT_STACK, NMI_STACK};
use crate::machine::serial::{End, exit};
use crate::machine::vectors::{CALL, PERFORMANCE, SPURIOUS, TIMER};

const DEBUG: u8 = 1;
const NMI: u8 = 2;
/// The undefined opcode, #UD.
pub const UNDEFINED: u8 = 6;
const DOUBLE_FAULT: u8 = 8;
/// The general-protection exception, #GP.
pub const GENERAL_PROTECTION: u8 = 13;
const PAGE_FAULT: u8 = 14;

/// The words that a stub and the processor push, lowest address first.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct TrapFrame {
    /// R15 to R8.
    pub r15_to_r8: [u64; 8],
    /// RBP.
    pub rbp: u64,
    /// Of a function's arguments, the first.
    pub rdi: u64,
    /// The second.
    pub rsi: u64,
    /// RDX, RCX, RBX.
    pub rdx_to_rbx: [u64; 3],
    /// A function's value.
    pub rax: u64,
    /// The stub's vector.
    pub vector: u64,
    /// The exception's error code, or 0.
    pub error: u64,
    /// The address to which the interrupt returns.
    pub rip: u64,
    /// The interrupted code segment.
    pub cs: u64,
    /// The interrupted flags.
    pub rflags: u64,
    /// The interrupted stack pointer.
    pub rsp: u64,
    /// The interrupted stack segment.
    pub ss: u64,
}

/// The functions that this kernel's interrupts call.
#[derive(Clone, Copy, Debug)]
pub struct Handlers {
    /// The performance interrupt, as NMI or by its vector.
    pub performance: fn(&TrapFrame),
    /// The local APIC's timer.
    pub timer: fn(&TrapFrame),
    /// Another processor wants a function run here.
    pub call: fn(),
    /// An exception. `false`: it was not expected, and ends the run.
    pub exception: fn(&mut TrapFrame) -> bool,
}

static HANDLERS: Once<Handlers> = Once::new();

/// Registers the functions, for all processors; once, before the first interrupt.
pub fn register(handlers: Handlers) {
    HANDLERS.call_once(|| handlers);
}

/// A stub: pushes what the processor did not, and the vector.
macro_rules! stub {
    ($name:ident, $vector:expr, $error:literal) => {
        #[unsafe(naked)]
        extern "C" fn $name() {
            naked_asm!($error, "push {}", "jmp {}", const $vector, sym save_and_handle)
        }
    };
    ($name:ident, $vector:expr) => { stub!($name, $vector, "push 0"); };
    ($name:ident, $vector:expr, with error) => { stub!($name, $vector, ""); };
}

stub!(debug, DEBUG);
stub!(nmi, NMI);
stub!(undefined, UNDEFINED);
stub!(double_fault, DOUBLE_FAULT, with error);
stub!(general_protection, GENERAL_PROTECTION, with error);
stub!(page_fault, PAGE_FAULT, with error);
stub!(timer, TIMER);
stub!(performance, PERFORMANCE);
stub!(call, CALL);
stub!(spurious, SPURIOUS as i32);

#[unsafe(naked)]
extern "C" fn save_and_handle() {
    naked_asm!(
        "push rax; push rbx; push rcx; push rdx; push rsi; push rdi; push rbp",
        "push r8; push r9; push r10; push r11; push r12; push r13; push r14; push r15",
        "cld",
        "mov rdi, rsp",
        // The processor aligned the stack to 16 before it pushed; 22 words have been pushed since.
        "call {}",
        "jmp {}",
        sym handle,
        sym return_to_interrupted,
    )
}

/// Goes on with the registers of the frame at the stack pointer.
#[unsafe(naked)]
pub extern "C" fn return_to_interrupted() {
    naked_asm!(
        "pop r15; pop r14; pop r13; pop r12; pop r11; pop r10; pop r9; pop r8",
        "pop rbp; pop rdi; pop rsi; pop rdx; pop rcx; pop rbx; pop rax",
        "add rsp, 16",
        "iretq",
    )
}

extern "C" fn handle(frame: &mut TrapFrame) {
    let Some(handlers) = HANDLERS.get() else { unexpected(frame) };
    match frame.vector as u8 {
        NMI => (handlers.performance)(frame),
        PERFORMANCE => {
            (handlers.performance)(frame);
            apic::end_of_interrupt();
        }
        TIMER => {
            (handlers.timer)(frame);
            apic::end_of_interrupt();
        }
        CALL => {
            (handlers.call)();
            apic::end_of_interrupt();
        }
        SPURIOUS => {}
        _ => {
            if !(handlers.exception)(frame) {
                unexpected(frame)
            }
        }
    }
}

fn unexpected(frame: &TrapFrame) -> ! {
    line!("failed exception {} error {:#x} at {:#x}", frame.vector as u8, frame.error, frame.rip);
    exit(End::Exception)
}

unsafe extern "C" {
    fn parked();
    static mut parking_table_pointer: DescriptorTablePointer;
}

/// The selector of 64-bit code in the first descriptor table of `boot.s`.
const BOOT_CODE: u16 = 0x10;

/// Prepares the table of processors that are not used, before the first one arrives: an NMI or a machine check lets
/// them stand still, as they do.
pub fn prepare_parking() {
    static TABLE: Once<InterruptDescriptorTable> = Once::new();
    let table = TABLE.call_once(|| {
        let mut table = InterruptDescriptorTable::new();
        let address = VirtAddr::new(parked as *const () as u64);
        // SAFETY: it neither returns nor reads its stack, and the selector is that of 64-bit code in the table of
        // `boot.s`, which these processors keep.
        unsafe {
            let code = SegmentSelector(BOOT_CODE);
            table.non_maskable_interrupt.set_handler_addr(address).set_code_selector(code);
            table.machine_check.set_handler_addr(address).set_code_selector(code);
        }
        table
    });
    let limit = (size_of::<InterruptDescriptorTable>() - 1) as u16;
    let pointer = DescriptorTablePointer { limit, base: VirtAddr::from_ptr(table) };
    // SAFETY: `boot.s` has room for it, and no other processor runs yet.
    unsafe { (&raw mut parking_table_pointer).write_unaligned(pointer) };
}

/// Loads the table on this processor, whose segments are set.
pub fn initialize() {
    static TABLE: Once<InterruptDescriptorTable> = Once::new();
    let address = |stub: extern "C" fn()| VirtAddr::new(stub as usize as u64);
    let table = TABLE.call_once(|| {
        let mut table = InterruptDescriptorTable::new();
        // SAFETY: each stub returns as its vector demands, and a stack is a processor's own.
        unsafe {
            let entry = table.non_maskable_interrupt.set_handler_addr(address(nmi));
            entry.set_stack_index(NMI_STACK);
            let entry = table.double_fault.set_handler_addr(address(double_fault));
            entry.set_stack_index(DOUBLE_FAULT_STACK);
            // Never executed: a monitor that steps ring 3 looks for it.
            table.debug.set_handler_addr(address(debug));
            table.invalid_opcode.set_handler_addr(address(undefined));
            table.general_protection_fault.set_handler_addr(address(general_protection));
            table.page_fault.set_handler_addr(address(page_fault));
            table[TIMER].set_handler_addr(address(timer));
            table[PERFORMANCE].set_handler_addr(address(performance));
            table[CALL].set_handler_addr(address(call));
            table[SPURIOUS].set_handler_addr(address(spurious));
        }
        table
    });
    table.load();
}
