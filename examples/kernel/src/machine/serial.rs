//! The ports that speak to the machine's host: COM1, the debug console and exit, and a monitor's marks.
//!
//! Read first: National Semiconductor, PC16550D data sheet, "Registers".

use core::arch::x86_64::__cpuid;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use x86_64::instructions::hlt;
use x86_64::instructions::port::Port;

/// COM1's first register.
const COM1: u16 = 0x3F8;
/// QEMU's `isa-debug-exit`, at the address that `run.sh` gives it.
const DEBUG_EXIT: u16 = 0xF4;
/// Port at which a monitor that counts register accesses takes marks; elsewhere it is unused.
const MARK: u16 = 0xE8;

/// QEMU's `isa-debugcon`, at its usual address; elsewhere it is unused.
const DEBUG_CONSOLE: u16 = 0xE9;

/// Reads of COM1's status after which it is taken to be absent, and nothing more is sent.
const PATIENCE: u32 = 1_000_000;

/// CPUID says that this is a hypervisor's machine. On others, the ports of hypervisors may be anything.
static IS_GUEST: AtomicBool = AtomicBool::new(false);
static IS_ABSENT: AtomicBool = AtomicBool::new(false);

/// Looks whether this is a hypervisor's machine.
pub fn detect() {
    // CPUID leaf 1, ECX bit 31 (APM vol. 3, "Feature Identifiers").
    IS_GUEST.store(__cpuid(1).ecx >> 31 != 0, Ordering::Relaxed);
}

/// Writes to a port of a hypervisor's, where there is one.
fn tell_hypervisor(port: u16, value: u8) {
    if IS_GUEST.load(Ordering::Relaxed) {
        // SAFETY: whatever is there takes a byte, or nothing is there.
        unsafe { Port::<u8>::new(port).write(value) };
    }
}

/// Sends bytes to the debug console.
pub fn send_to_debug_console(bytes: &[u8]) {
    for byte in bytes {
        tell_hypervisor(DEBUG_CONSOLE, *byte);
    }
}

/// COM1: 115,200 baud, 8 bits, no parity, polled.
#[derive(Debug)]
pub struct Serial;

impl Serial {
    /// Sets the line up.
    pub fn initialize() {
        // Interrupts off; divisor 1; 8N1; FIFOs on and empty; RTS and DTR.
        for (register, value) in [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 0x03), (2, 0x07), (4, 3)] {
            // SAFETY: COM1 is this module's alone.
            unsafe { Port::<u8>::new(COM1 + register).write(value) };
        }
    }

    /// Sends bytes as they are.
    pub fn send(bytes: &[u8]) {
        for byte in bytes {
            if IS_ABSENT.load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: COM1 is this module's alone. Bit 5 of the line status: there is room.
            let has_room = || unsafe { Port::<u8>::new(COM1 + 5).read() & 1 << 5 != 0 };
            if (0..PATIENCE).any(|_| has_room()) {
                // SAFETY: COM1 is this module's alone.
                unsafe { Port::<u8>::new(COM1).write(*byte) };
            } else {
                IS_ABSENT.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        Self::send(text.as_bytes());
        Ok(())
    }
}

/// The end of a run. QEMU, and a monitor like it, exit with twice the value plus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    /// Everything was as it should be: status 33.
    Good = 0x10,
    /// A panic: status 3.
    Panic = 1,
    /// An operation of the crates failed: status 5.
    Error = 2,
    /// A count or a sample is not the expected one: status 7.
    Wrong = 3,
    /// An unexpected exception: status 9.
    Exception = 4,
}

/// Ends the machine, or stands still where it cannot be ended.
pub fn exit(end: End) -> ! {
    tell_hypervisor(DEBUG_EXIT, end as u8);
    loop {
        x86_64::instructions::interrupts::disable();
        hlt();
    }
}

/// Phase for which a monitor is to count accesses from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mark {
    /// Nothing in particular.
    Rest = 0,
    /// Starting one source more.
    Start = 1,
    /// Switching all counters out and in.
    Switch = 2,
    /// Servicing one performance interrupt.
    Interrupt = 3,
}

/// Sets a mark.
pub fn mark(mark: Mark) {
    tell_hypervisor(MARK, mark as u8);
}
