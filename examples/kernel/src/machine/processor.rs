//! Each processor's number, tables and stacks, which it needs before it can be interrupted.

use core::arch::asm;
use core::cell::UnsafeCell;

use spin::Once;
use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, DS, ES, GS, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::registers::model_specific::GsBase;
use x86_64::registers::segmentation::SegmentSelector;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

/// The most processors that this kernel runs on; more stay halted.
pub const MAX_PROCESSORS: usize = 4;

/// In the task-state segment: the stack of NMIs. An NMI can come while any other stack is in use, even
/// one that is just being switched.
pub const NMI_STACK: u16 = 0;
/// In the task-state segment: the stack of double faults.
pub const DOUBLE_FAULT_STACK: u16 = 1;

/// The selector of the kernel's code.
pub const KERNEL_CODE: u16 = 0x08;
/// The kernel's data.
pub const KERNEL_DATA: u16 = 0x10;
/// Ring 3's data.
pub const USER_DATA: u16 = 0x18 | 3;
/// Ring 3's code.
pub const USER_CODE: u16 = 0x20 | 3;

/// Of the stacks below: that of interrupts and exceptions at ring 3.
const PRIVILEGE_STACK: u16 = 2;

const STACK_SIZE: usize = 16 * 1024;

/// Memory that only the processor itself writes to.
#[repr(C, align(16))]
struct Stack(UnsafeCell<[u8; STACK_SIZE]>);

// SAFETY: only the processor that has it as a stack accesses it.
unsafe impl Sync for Stack {}

static STACKS: [[Stack; 3]; MAX_PROCESSORS] =
    [const { [const { Stack(UnsafeCell::new([0; STACK_SIZE])) }; 3] }; MAX_PROCESSORS];
static TASK_STATES: [Once<TaskStateSegment>; MAX_PROCESSORS] =
    [const { Once::new() }; MAX_PROCESSORS];
static DESCRIPTORS: [Once<GlobalDescriptorTable>; MAX_PROCESSORS] =
    [const { Once::new() }; MAX_PROCESSORS];
/// The processors' numbers; GS points at the processor's own.
static NUMBERS: [u64; MAX_PROCESSORS] = {
    let mut numbers = [0; MAX_PROCESSORS];
    let mut number = 0;
    while number < MAX_PROCESSORS {
        numbers[number] = number as u64;
        number += 1;
    }
    numbers
};

/// Makes this processor the one with `number`: GS, segments, and stacks for NMI, double fault and ring 3.
pub fn initialize(number: usize) {
    let state = TASK_STATES[number].call_once(|| {
        let mut state = TaskStateSegment::new();
        let top = |stack: u16| {
            VirtAddr::from_ptr(&STACKS[number][usize::from(stack)]) + STACK_SIZE as u64
        };
        state.interrupt_stack_table[usize::from(NMI_STACK)] = top(NMI_STACK);
        state.interrupt_stack_table[usize::from(DOUBLE_FAULT_STACK)] = top(DOUBLE_FAULT_STACK);
        state.privilege_stack_table[0] = top(PRIVILEGE_STACK);
        state
    });
    let mut selectors = None;
    let descriptors = DESCRIPTORS[number].call_once(|| {
        let mut table = GlobalDescriptorTable::new();
        let code = table.append(Descriptor::kernel_code_segment());
        let data = table.append(Descriptor::kernel_data_segment());
        let user_data = table.append(Descriptor::user_data_segment());
        let user_code = table.append(Descriptor::user_code_segment());
        let known = [KERNEL_CODE, KERNEL_DATA, USER_DATA, USER_CODE];
        assert_eq!([code, data, user_data, user_code].map(|selector| selector.0), known);
        selectors = Some((code, data, table.append(Descriptor::tss_segment(state))));
        table
    });
    let Some((code, data, task)) = selectors else { return };
    descriptors.load();
    // SAFETY: the selectors are those of the table just loaded. GS points at a number that is there for ever:
    // what this kernel executes at ring 3 leaves it alone, and so does the way there, which clears selectors of
    // ring 0 but not the base of one that is 0 already.
    unsafe {
        CS::set_reg(code);
        SS::set_reg(data);
        DS::set_reg(data);
        ES::set_reg(data);
        load_tss(task);
        GS::set_reg(SegmentSelector::NULL);
        GsBase::write(VirtAddr::from_ptr(&NUMBERS[number]));
    }
}

/// Returns the number of the processor that executes the call, below [`MAX_PROCESSORS`].
///
/// # Context
/// Any.
#[inline]
pub fn number() -> usize {
    let number: usize;
    // SAFETY: GS points at the processor's number once it can be interrupted.
    unsafe { asm!("mov {}, gs:[0]", out(reg) number, options(nostack, readonly, preserves_flags)) };
    number
}
