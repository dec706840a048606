//! The local APIC of the processor that executes the call, and the two old interrupt controllers, which
//! stay silent.
//!
//! Read first: Intel SDM vol. 3A, "Advanced Programmable Interrupt Controller (APIC)".

use core::sync::atomic::{AtomicBool, Ordering, fence};

use x86_64::instructions::port::Port;
use x86_64::registers::model_specific::Msr;

use crate::machine::vectors::{CALL, SPURIOUS, TIMER};

/// Address of the registers of xAPIC mode, which are mapped there.
pub const BASE: usize = 0xFEE0_0000;

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
const INIT: u32 = 0b101 << 8;
const START_UP: u32 = 0b110 << 8;

/// `IA32_APIC_BASE`, its bit of x2APIC mode and that which enables the APIC; and the first register in x2APIC mode,
/// with one number for each 16 bytes of the page.
const APIC_BASE: u32 = 0x1B;
const X2APIC_MODE: u64 = 1 << 10;
const APIC_ENABLED: u64 = 1 << 11;
const X2APIC: u32 = 0x800;

/// The boot processor was handed over in x2APIC mode, so all are used in it.
static IS_X2APIC: AtomicBool = AtomicBool::new(false);

/// Returns whether the local APICs are used in x2APIC mode.
pub fn is_x2apic() -> bool {
    IS_X2APIC.load(Ordering::Relaxed)
}

/// Returns the number of a register in x2APIC mode, by its offset in the page.
pub const fn number(offset: usize) -> u32 {
    X2APIC + (offset >> 4) as u32
}

fn register(offset: usize) -> Msr {
    Msr::new(number(offset))
}

/// Reads a register that every local APIC has, or that this one declares.
pub fn read(offset: usize) -> u32 {
    // SAFETY: mapped, uncached, at its own address on every processor; registers are 32 bits wide. In x2APIC mode each
    // is a register of the processor.
    unsafe {
        match is_x2apic() {
            true => register(offset).read() as u32,
            false => ((BASE + offset) as *const u32).read_volatile(),
        }
    }
}

/// Writes a register that every local APIC has, or that this one declares.
pub fn write(offset: usize, value: u32) {
    // SAFETY: mapped, uncached, at its own address on every processor, or a register of the processor; this kernel sets
    // no entry that writes to memory.
    unsafe {
        match is_x2apic() {
            true => register(offset).write(value.into()),
            false => ((BASE + offset) as *mut u32).write_volatile(value),
        }
    }
}

/// Uses the local APICs in the mode in which the boot processor's was handed over. Boot processor, before anything else
/// here.
pub fn detect() {
    // SAFETY: every processor with 64-bit mode has it.
    let base = unsafe { Msr::new(APIC_BASE).read() };
    IS_X2APIC.store(base & X2APIC_MODE != 0, Ordering::Relaxed);
}

/// Returns the name of the mode.
pub fn mode() -> &'static str {
    if is_x2apic() { "x2APIC" } else { "xAPIC" }
}

/// Enables this processor's local APIC, with everything in it masked.
pub fn initialize() {
    if is_x2apic() {
        let mut base = Msr::new(APIC_BASE);
        // SAFETY: the mode of the other processors; another processor's may be as reset left it.
        unsafe {
            let found = base.read();
            if found & X2APIC_MODE == 0 {
                base.write(found | APIC_ENABLED | X2APIC_MODE);
            }
        }
    }
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
pub fn id() -> u32 {
    if is_x2apic() { read(ID) } else { read(ID) >> 24 }
}

/// Ends an interrupt that came by a vector (an NMI is not ended).
pub fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

/// Returns the LVT entry of the performance interrupt.
pub fn performance_entry() -> u32 {
    read(LVT_PERFORMANCE)
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
pub fn call(id: u32) {
    command(id, u32::from(CALL));
}

/// Interrupts all other processors with an NMI.
pub fn interrupt_others() {
    const NON_MASKABLE: u32 = 0b100 << 8;
    command(0, ALL_BUT_SELF | ASSERT | NON_MASKABLE);
}

/// Sends INIT to one other processor.
pub fn reset(id: u32) {
    command(id, ASSERT | INIT);
}

/// Sends a SIPI to one other processor: see [`start_others`].
pub fn start(id: u32, page: u8) {
    command(id, ASSERT | START_UP | u32::from(page));
}

/// Sends INIT to all others.
pub fn reset_others() {
    command(0, ALL_BUT_SELF | ASSERT | INIT);
}

/// Sends a SIPI to all others, which then execute the page at `page` in real mode.
pub fn start_others(page: u8) {
    command(0, ALL_BUT_SELF | ASSERT | START_UP | u32::from(page));
}

/// Sends an interrupt to the processor with this id, where `what` names no others.
fn command(id: u32, what: u32) {
    if is_x2apic() {
        // The receiver is to see everything that was written before, and writing the register is no barrier.
        fence(Ordering::SeqCst);
        // SAFETY: in x2APIC mode; the interrupts are this kernel's.
        unsafe { register(COMMAND_LOW).write(u64::from(id) << 32 | u64::from(what)) };
        return;
    }
    write(COMMAND_HIGH, id << 24);
    write(COMMAND_LOW, what);
    while read(COMMAND_LOW) & DELIVERY_PENDING != 0 {
        core::hint::spin_loop();
    }
}
