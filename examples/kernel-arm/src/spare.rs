//! QEMU's deviation from the manual: an event counter's overflow is found when a register of the extension is written,
//! or at an exception, and not as it happens. A second counter that overflows at the same event makes it exact.
//!
//! A kernel for hardware has nothing like this.

use pmu::arm::registers::Register;
use pmu::arm::{NativeRegisters, SystemRegisters};

/// Number of the counter that the driver does not have.
pub const NUMBER: usize = 5;

// SAFETY: this kernel runs at EL1 or EL2, and every exception ends it.
const REGISTERS: NativeRegisters = unsafe { NativeRegisters::new() };

fn read(register: Register) -> u64 {
    let Ok(value) = REGISTERS.read(register);
    value
}

fn write(register: Register, value: u64) {
    let Ok(()) = REGISTERS.write(register, value);
}

/// Makes the spare counter count what the driver's first event counter with an interrupt counts, up to the same
/// overflow. Called after each change of the driver's counters.
pub fn follow() {
    let spare = 1 << NUMBER;
    let leader = read(Register::Pmintenset) & (spare - 1);
    let number = leader.trailing_zeros() as usize;
    write(Register::Pmcntenclr, spare);
    write(Register::Pmovsclr, spare);
    let (Some(event), Some(value)) =
        (Register::event_type(number), Register::event_counter(number))
    else {
        return;
    };
    let (Some(own_event), Some(own_value)) =
        (Register::event_type(NUMBER), Register::event_counter(NUMBER))
    else {
        return;
    };
    write(own_event, read(event));
    write(own_value, read(value).wrapping_sub(1));
    write(Register::Pmcntenset, spare);
}
