//! The machine `virt` of QEMU: processors, firmware calls, and the end.

use core::arch::{asm, global_asm};
use core::fmt;

global_asm!(include_str!("boot.s"));

/// Number of the processor that executes the call: affinity level 0.
pub fn processor() -> usize {
    let mpidr: usize;
    // SAFETY: reading changes nothing.
    unsafe { asm!("mrs {}, mpidr_el1", out(reg) mpidr, options(nomem, nostack)) };
    mpidr & 0xFF
}

/// The exception level of the kernel.
pub fn level() -> u64 {
    let level: u64;
    // SAFETY: reading changes nothing.
    unsafe { asm!("mrs {}, currentel", out(reg) level, options(nomem, nostack)) };
    level >> 2 & 3
}

/// Lets interrupts in on this processor.
pub fn enable_interrupts() {
    // SAFETY: the vectors are set up, and the interrupt controller is.
    unsafe { asm!("msr daifclr, #2", options(nostack)) };
}

/// Lets the other processors run: under `-icount`, QEMU has one thread for all of them, which leaves a processor that
/// waits only here. (`spin_loop` is ISB, by which it does not.)
pub fn yield_to_others() {
    // SAFETY: a hint.
    unsafe { asm!("yield", options(nomem, nostack)) };
}

/// Makes the event SW_INCR happen once on each event counter: `PMSWINC_EL0`.
pub fn increment() {
    // SAFETY: counters that do not count the event ignore it.
    unsafe { asm!("msr pmswinc_el0, {}", in(reg) (1u64 << 31) - 1, options(nomem, nostack)) };
}

/// Time since the start, in nanoseconds.
pub fn now() -> u64 {
    let (count, hertz): (u64, u64);
    // SAFETY: reading changes nothing.
    unsafe {
        asm!("mrs {}, cntvct_el0", "mrs {}, cntfrq_el0", out(reg) count, out(reg) hertz, options(nomem, nostack));
    }
    (u128::from(count) * 1_000_000_000 / u128::from(hertz)) as u64
}

/// Starts processor 1, by PSCI. Returns whether there is one.
pub fn start_second() -> bool {
    unsafe extern "C" {
        fn start_second();
    }
    const CPU_ON: u64 = 0xC400_0003;
    let (features, result): (u64, i64);
    let entry = start_second as *const () as usize;
    // SAFETY: the second processor begins at `start_second`, which takes the stack that is its own. QEMU is called by
    // SMC if the processors have EL2 (bits 11:8 of the register), and by HVC if they do not.
    unsafe {
        asm!("mrs {}, id_aa64pfr0_el1", out(reg) features, options(nomem, nostack));
        if features >> 8 & 0xF != 0 {
            asm!("smc #0", inout("x0") CPU_ON => result, in("x1") 1, in("x2") entry, in("x3") 0, clobber_abi("C"));
        } else {
            asm!("hvc #0", inout("x0") CPU_ON => result, in("x1") 1, in("x2") entry, in("x3") 0, clobber_abi("C"));
        }
    }
    result == 0
}

/// Ends QEMU with this status, by semihosting.
pub fn exit(status: u64) -> ! {
    const SYS_EXIT: u64 = 0x18;
    const APPLICATION_EXIT: u64 = 0x2_0026;
    let parameters = [APPLICATION_EXIT, status];
    loop {
        // SAFETY: the call ends the machine.
        unsafe { asm!("hlt #0xF000", in("x0") SYS_EXIT, in("x1") &raw const parameters) };
    }
}

/// The serial line, a PL011.
#[derive(Debug)]
pub struct Serial;

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the data register of the machine's first PL011; QEMU takes every byte at once.
            unsafe { (0x0900_0000 as *mut u32).write_volatile(byte.into()) };
        }
        Ok(())
    }
}

/// Prints one line.
#[macro_export]
macro_rules! line {
    ($($argument:tt)*) => {{
        use core::fmt::Write as _;
        // Writing to the serial line does not fail.
        let _ = writeln!($crate::machine::Serial, $($argument)*);
    }};
}

/// Of an exception that this kernel does not expect.
#[unsafe(no_mangle)]
extern "C" fn exception(syndrome: u64, at: u64, address: u64) -> ! {
    line!("exception {syndrome:#x} at {at:#x}, address {address:#x}");
    exit(3)
}
