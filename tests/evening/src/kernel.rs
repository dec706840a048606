//! Modules that the README's kernel had before: registers, per-CPU data, preemption, and a console.

use core::arch::asm;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(crate) struct TrapFrame {
    pub(crate) rip: u64,
    pub(crate) cs: u64,
    pub(crate) rflags: u64,
}

pub(crate) fn wrmsr(register: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: registers of the local APIC; their vectors have handlers.
    unsafe { asm!("wrmsr", in("ecx") register, in("eax") low, in("edx") high) };
}

pub(crate) fn processor_number() -> usize {
    let number: usize;
    // SAFETY: GS points at the processor's own data, whose first word is its number.
    unsafe { asm!("mov {}, gs:[0]", out(reg) number, options(pure, readonly, nostack)) };
    number
}

static PREEMPTION_OFF: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

pub(crate) struct PreemptionOff;

impl PreemptionOff {
    pub(crate) fn new() -> Self {
        PREEMPTION_OFF.get(processor_number()).inspect(|depth| _ = depth.fetch_add(1, Relaxed));
        Self
    }
}

impl Drop for PreemptionOff {
    fn drop(&mut self) {
        PREEMPTION_OFF.get(processor_number()).inspect(|depth| _ = depth.fetch_sub(1, Relaxed));
    }
}

macro_rules! println {
    ($($text:tt)*) => {
        let _ = format_args!($($text)*);
    };
}

/// As `println`, in a buffer that a task prints.
macro_rules! log_in_nmi {
    ($($text:tt)*) => {
        let _ = format_args!($($text)*);
    };
}
