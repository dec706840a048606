//! The local APIC of the processor that executes the call, and the two old interrupt controllers, which
//! stay silent.
//!
//! Read first: Intel SDM vol. 3A, "Advanced Programmable Interrupt Controller (APIC)".

use x86_64::instructions::port::Port;

use crate::machine::vectors::{CALL, SPURIOUS, TIMER};

const BASE: usize = 0xFEE0_0000;

const ID: usize = 0x20;
const END_OF_INTERRUPT: usize = 0xB0;
const SPURIOUS_VECTOR: usize = 0xF0;
const COMMAND_LOW: usize = 0x300;
const COMMAND_HIGH: usize = 0x310;
const LVT_TIMER: usize = 0x320;
const LVT_PERFORMANCE: usize = 0x340;
const INITIAL_COUNT: usize = 0x380;
const CURRENT_COUNT: usize = 0x390;
const DIVIDE: usize = 0x3E0;

const ENABLED: u32 = 1 << 8;
const MASKED: u32 = 1 << 16;
const PERIODIC: u32 = 1 << 17;
const DIVIDE_BY_16: u32 = 0b0011;
const DELIVERY_PENDING: u32 = 1 << 12;
const ALL_BUT_SELF: u32 = 0b11 << 18;
const ASSERT: u32 = 1 << 14;

fn read(register: usize) -> u32 {
    // SAFETY: mapped, uncached, at its own address on every processor; registers are 32 bits wide.
    unsafe { ((BASE + register) as *const u32).read_volatile() }
}

fn write(register: usize, value: u32) {
    // SAFETY: mapped, uncached, at its own address on every processor; this kernel sets no entry that writes to memory.
    unsafe { ((BASE + register) as *mut u32).write_volatile(value) }
}

/// Enables this processor's local APIC, with everything in it masked.
pub fn initialize() {
    // SAFETY: masks every line of both 8259s.
    unsafe {
        Port::<u8>::new(0x21).write(0xFF);
        Port::<u8>::new(0xA1).write(0xFF);
    }
    write(LVT_TIMER, MASKED);
    write(LVT_PERFORMANCE, MASKED);
    write(DIVIDE, DIVIDE_BY_16);
    write(SPURIOUS_VECTOR, ENABLED | u32::from(SPURIOUS));
}

/// Returns this processor's APIC id.
pub fn id() -> u8 {
    (read(ID) >> 24) as u8
}

/// Ends an interrupt that came by a vector (an NMI is not ended).
pub fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

/// Writes the LVT entry of the performance interrupt.
pub fn write_performance_entry(entry: u32) {
    write(LVT_PERFORMANCE, entry);
}

/// Lets the timer interrupt with [`TIMER`] each time that so many of its ticks have passed.
pub fn start_timer(ticks: u32) {
    write(LVT_TIMER, PERIODIC | u32::from(TIMER));
    write(INITIAL_COUNT, ticks);
}

/// Stops the timer. An interrupt that is pending still comes.
pub fn stop_timer() {
    write(LVT_TIMER, MASKED);
    write(INITIAL_COUNT, 0);
}

/// Lets the timer count down from its highest value, without interrupt.
pub fn start_measuring() {
    write(INITIAL_COUNT, u32::MAX);
}

/// Stops it, and says how far it came.
pub fn stop_measuring() -> u64 {
    let passed = u32::MAX - read(CURRENT_COUNT);
    write(INITIAL_COUNT, 0);
    passed.into()
}

/// Interrupts another processor with [`CALL`].
pub fn call(id: u8) {
    command(u32::from(id) << 24, u32::from(CALL));
}

/// Sends INIT to all others.
pub fn reset_others() {
    const INIT: u32 = 0b101 << 8;
    command(0, ALL_BUT_SELF | ASSERT | INIT);
}

/// Sends a SIPI to all others, which then execute the page at `page` in real mode.
pub fn start_others(page: u8) {
    const START_UP: u32 = 0b110 << 8;
    command(0, ALL_BUT_SELF | ASSERT | START_UP | u32::from(page));
}

fn command(high: u32, low: u32) {
    write(COMMAND_HIGH, high);
    write(COMMAND_LOW, low);
    while read(COMMAND_LOW) & DELIVERY_PENDING != 0 {
        core::hint::spin_loop();
    }
}
