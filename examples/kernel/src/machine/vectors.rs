//! The vectors of this kernel's interrupts.

/// The vector of the local APIC's timer.
pub const TIMER: u8 = 0x40;
/// The vector of the performance interrupt, where it is not delivered as NMI.
pub const PERFORMANCE: u8 = 0x41;
/// The vector of an interrupt from another processor that wants a function run here.
pub const CALL: u8 = 0x42;
/// The vector of an interrupt that went away again.
pub const SPURIOUS: u8 = 0xFF;
