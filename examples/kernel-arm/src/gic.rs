//! The interrupt controller, of version 2 or 3: as much of it as the counters' interrupt and one between processors
//! need.

use core::arch::asm;

use crate::machine::processor;

/// The counters' interrupt is private peripheral interrupt (PPI) 7.
pub const COUNTERS: u32 = 23;

/// The interrupt between processors.
pub const CALL: u32 = 1;

const DISTRIBUTOR: usize = 0x0800_0000;
const CPU_INTERFACE: usize = 0x0801_0000;
const REDISTRIBUTORS: usize = 0x080A_0000;
const REDISTRIBUTOR_SIZE: usize = 0x2_0000;

/// Returns whether there are system registers of version 3 (ID_AA64PFR0_EL1.GIC).
fn is_version_3() -> bool {
    let features: u64;
    // SAFETY: reading changes nothing.
    unsafe { asm!("mrs {}, id_aa64pfr0_el1", out(reg) features, options(nomem, nostack)) };
    features >> 24 & 0xF != 0
}

fn write(register: usize, value: u32) {
    // SAFETY: the callers pass registers of the controller, which `virt` has at these addresses.
    unsafe { (register as *mut u32).write_volatile(value) }
}

fn read(register: usize) -> u32 {
    // SAFETY: the same.
    unsafe { (register as *const u32).read_volatile() }
}

fn redistributor() -> usize {
    REDISTRIBUTORS + processor() * REDISTRIBUTOR_SIZE
}

/// Prepares the executing processor.
pub fn initialize() {
    if !is_version_3() {
        write(DISTRIBUTOR, 1);
        write(CPU_INTERFACE + 0x4, 0xFF); // priority mask
        write(CPU_INTERFACE, 1);
        return set_enabled(CALL, true);
    }
    write(DISTRIBUTOR, 1 << 4 | 1 << 1); // affinity routing, group 1
    let waker = redistributor() + 0x14;
    write(waker, read(waker) & !(1 << 1));
    while read(waker) & 1 << 2 != 0 {}
    write(redistributor() + 0x1_0080, u32::MAX); // all private interrupts: group 1
    // SAFETY: system register interface, priority mask, and group 1 of this processor.
    unsafe {
        asm!("msr S3_0_C12_C12_5, {}", "isb", in(reg) 1_u64, options(nostack));
        asm!("msr S3_0_C4_C6_0, {}", "msr S3_0_C12_C12_7, {}", "isb", in(reg) 0xFF_u64, in(reg) 1_u64, options(nostack));
    }
    set_enabled(CALL, true);
}

/// Lets a private interrupt of the executing processor through, or not.
pub fn set_enabled(interrupt: u32, enabled: bool) {
    let first = if is_version_3() { redistributor() + 0x1_0000 } else { DISTRIBUTOR };
    write(first + if enabled { 0x100 } else { 0x180 }, 1 << interrupt);
}

/// Interrupts another processor.
pub fn call(processor: usize) {
    if !is_version_3() {
        return write(DISTRIBUTOR + 0xF00, 1 << (16 + processor) | CALL);
    }
    let value = u64::from(CALL) << 24 | 1 << processor;
    // SAFETY: a software generated interrupt of group 1.
    unsafe { asm!("dsb ishst", "msr S3_0_C12_C11_5, {}", "isb", in(reg) value, options(nostack)) };
}

/// Acknowledges the pending interrupt, and returns the value by which it is ended.
pub fn acknowledge() -> u32 {
    if !is_version_3() {
        return read(CPU_INTERFACE + 0xC);
    }
    let value: u64;
    // SAFETY: in the interrupt's handler.
    unsafe { asm!("mrs {}, S3_0_C12_C12_0", out(reg) value, options(nostack)) };
    value as u32
}

/// Ends the interrupt.
pub fn end(acknowledged: u32) {
    if !is_version_3() {
        return write(CPU_INTERFACE + 0x10, acknowledged);
    }
    // SAFETY: in the interrupt's handler, after it was acknowledged.
    unsafe {
        asm!("msr S3_0_C12_C12_1, {}", "isb", in(reg) u64::from(acknowledged), options(nostack))
    };
}
