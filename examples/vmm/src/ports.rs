//! The machine's devices that are not KVM's: a serial port, and the ports with a meaning for the
//! monitor.

use core::sync::atomic::{AtomicU8, Ordering};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use vm_superio::{Serial, Trigger};

use crate::machine::End;

/// COM1.
const SERIAL: u16 = 0x3F8;
const SERIAL_END: u16 = 0x3FF;
/// QEMU's isa-debug-exit, where kernels expect it.
const DEBUG_EXIT: u16 = 0xF4;
/// A write starts a phase of the statistics.
const MARK: u16 = 0xE8;
/// The keyboard controller, one of whose commands resets the machine.
const KEYBOARD_CONTROL: u16 = 0x64;
const PULSE_RESET: u8 = 0xFE;
/// The chip set's reset control register.
const RESET_CONTROL: u16 = 0xCF9;
const RESET_PROCESSOR: u8 = 1 << 2;

/// The serial port polls: its interrupt is not wired.
struct NotWired;

impl Trigger for NotWired {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The devices, for all processors.
pub(crate) struct Ports {
    serial: Mutex<Serial<NotWired, vm_superio::serial::NoEvents, io::Stdout>>,
    phase: AtomicU8,
}

impl Ports {
    pub(crate) fn new() -> Self {
        Self { serial: Mutex::new(Serial::new(NotWired, io::stdout())), phase: AtomicU8::new(0) }
    }

    /// The phase of the statistics.
    pub(crate) fn phase(&self) -> u8 {
        self.phase.load(Ordering::Relaxed)
    }

    /// The guest writes to a port: several bytes are several writes of a byte. Some end the machine.
    pub(crate) fn write(&self, port: u16, bytes: &[u8]) -> Option<End> {
        let first = *bytes.first()?;
        match port {
            SERIAL..=SERIAL_END => {
                let mut serial = self.serial.lock().unwrap_or_else(PoisonError::into_inner);
                for byte in bytes {
                    // Where standard output is closed, nobody listens.
                    let _ = serial.write((port - SERIAL) as u8, *byte);
                }
                None
            }
            MARK => {
                self.phase.store(first, Ordering::Relaxed);
                None
            }
            DEBUG_EXIT => Some(End::DebugExit(first)),
            KEYBOARD_CONTROL if first == PULSE_RESET => Some(End::Orderly("reset the machine")),
            RESET_CONTROL if first & RESET_PROCESSOR != 0 => {
                Some(End::Orderly("reset the machine"))
            }
            _ => None,
        }
    }

    /// The guest reads from a port.
    pub(crate) fn read(&self, port: u16, bytes: &mut [u8]) {
        let value = match port {
            SERIAL..=SERIAL_END => {
                let mut serial = self.serial.lock().unwrap_or_else(PoisonError::into_inner);
                serial.read((port - SERIAL) as u8)
            }
            // Ready for a command.
            KEYBOARD_CONTROL => 0,
            // Nothing is there.
            _ => 0xFF,
        };
        bytes.fill(value);
    }

    /// What the guest wrote so far reaches standard output.
    pub(crate) fn flush(&self) {
        let mut serial = self.serial.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = serial.writer_mut().flush();
    }
}
