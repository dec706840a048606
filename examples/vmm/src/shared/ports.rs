//! The machine's devices beside KVM's: a serial port, and the monitor's own ports.

use core::sync::atomic::{AtomicU8, Ordering};
use core::time::Duration;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use kvm_ioctls::VmFd;
use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::error::Error;
use crate::messages::say;
use crate::shared::end::End;
use crate::shared::resets::Requests;
use crate::shared::rtc::Rtc;

/// COM1, and its interrupt on the ISA bus.
const SERIAL: u16 = 0x3F8;
const SERIAL_INTERRUPT: u32 = 4;
const SERIAL_END: u16 = 0x3FF;
/// QEMU's isa-debug-exit, where kernels expect it.
const DEBUG_EXIT: u16 = 0xF4;
/// QEMU's isa-debugcon, which a guest finds by reading the port's own number.
const DEBUG_CONSOLE: u16 = 0xE9;
/// A write starts a phase of the statistics, and is in the trace.
pub(crate) const MARK: u16 = 0xE8;
/// A write resets the processor of that number; reads are 1 until that is done.
const RESET_ONE: u16 = 0xE7;
/// The keyboard controller, one of whose commands resets the machine.
const KEYBOARD_CONTROL: u16 = 0x64;
const PULSE_RESET: u8 = 0xFE;
/// The chip set's reset control register.
const RESET_CONTROL: u16 = 0xCF9;
const RESET_PROCESSOR: u8 = 1 << 2;
/// The real-time clock: index and data.
const RTC_INDEX: u16 = 0x70;
const RTC_DATA: u16 = 0x71;
/// Power management of QEMU's chip sets: the events, of which there are none; and the control register, in which a
/// kernel requests to sleep (bit 13), where type 0 (bits 12:10) is off. ACPI is enabled (bit 0). ACPI, "PM1 Event
/// Grouping" and "PM1 Control Registers".
const POWER_EVENTS: u16 = 0x600;
const POWER_EVENTS_END: u16 = 0x603;
const POWER: u16 = 0x604;
const ACPI_ENABLED: u16 = 1;
const SLEEP: u16 = 1 << 13;
const SLEEP_TYPE: u16 = 0b111 << 10;

const RESET: End = End::Orderly("reset the machine");
const OFF: End = End::Orderly("switched the machine off");

/// Time that input waits for the guest to read earlier input.
const FULL: Duration = Duration::from_millis(10);

/// The serial port's interrupt: an edge, which KVM delivers to its interrupt controllers.
struct Interrupt(EventFd);

impl Trigger for Interrupt {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

type Com1 = Serial<Interrupt, NoEvents, io::Stdout>;

/// The devices, for all processors.
pub(crate) struct Ports {
    serial: Mutex<Com1>,
    console: Option<Mutex<Console>>,
    phase: AtomicU8,
    clock: Rtc,
    /// RESETs of a processor that the guest wants.
    pub(crate) resets: Requests,
}

/// The file that receives what is written to the debug console.
struct Console {
    path: PathBuf,
    file: BufWriter<File>,
    /// The first thing that went wrong.
    error: Option<io::Error>,
}

impl Console {
    fn write(&mut self, bytes: &[u8]) {
        if self.error.is_none() {
            self.error = self.file.write_all(bytes).err();
        }
    }
}

impl Ports {
    /// Creates the devices of a machine with interrupt controllers.
    ///
    /// # Errors
    /// KVM's; `console` cannot be written.
    pub(crate) fn new(vm: &VmFd, console: Option<&Path>, processors: u8) -> Result<Self, Error> {
        let interrupt = EventFd::new(EFD_NONBLOCK).map_err(Error::system("eventfd"))?;
        vm.register_irqfd(&interrupt, SERIAL_INTERRUPT).map_err(Error::kvm("KVM_IRQFD"))?;
        let mut ports = Self::with_interrupt(interrupt, processors);
        if let Some(path) = console {
            let error = |error| Error::File { path: path.into(), error };
            let file = BufWriter::new(File::create(path).map_err(error)?);
            ports.console = Some(Mutex::new(Console { path: path.into(), file, error: None }));
        }
        Ok(ports)
    }

    fn with_interrupt(interrupt: EventFd, processors: u8) -> Self {
        let serial = Serial::new(Interrupt(interrupt), io::stdout());
        let resets = Requests::new(processors);
        let (phase, clock) = (AtomicU8::new(0), Rtc::default());
        Self { serial: Mutex::new(serial), console: None, phase, clock, resets }
    }

    fn serial(&self) -> MutexGuard<'_, Com1> {
        self.serial.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn console(&self) -> Option<MutexGuard<'_, Console>> {
        self.console.as_ref().map(|console| console.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Passes `input` to the guest's serial port, until it ends.
    pub(crate) fn receive(&self, mut input: impl Read) -> io::Result<()> {
        let mut buffer = [0; 64];
        loop {
            let count = input.read(&mut buffer)?;
            let mut bytes = &buffer[..count];
            if bytes.is_empty() {
                return Ok(());
            }
            while !bytes.is_empty() {
                // Nothing is taken while the port is full, or loops back to itself.
                match self.serial().enqueue_raw_bytes(bytes).unwrap_or(0) {
                    0 => thread::sleep(FULL),
                    taken => bytes = &bytes[taken..],
                }
            }
        }
    }

    /// Returns the phase of the statistics.
    pub(crate) fn phase(&self) -> u8 {
        self.phase.load(Ordering::Relaxed)
    }

    /// Writes to a port for the guest: several bytes are several writes of one byte. Some writes end the machine.
    pub(crate) fn write(&self, port: u16, bytes: &[u8]) -> Option<End> {
        let first = *bytes.first()?;
        match port {
            SERIAL..=SERIAL_END => {
                let mut serial = self.serial();
                for byte in bytes {
                    // A closed standard output is ignored.
                    let _ = serial.write((port - SERIAL) as u8, *byte);
                }
                None
            }
            DEBUG_CONSOLE => {
                if let Some(mut console) = self.console() {
                    console.write(bytes);
                }
                None
            }
            MARK => {
                self.phase.store(first, Ordering::Relaxed);
                None
            }
            RTC_INDEX => {
                self.clock.select(first);
                None
            }
            DEBUG_EXIT => Some(End::DebugExit(first)),
            KEYBOARD_CONTROL if first == PULSE_RESET => Some(RESET),
            RESET_CONTROL if first & RESET_PROCESSOR != 0 => Some(RESET),
            POWER => {
                let control = u16::from_le_bytes(*bytes.first_chunk()?);
                (control & (SLEEP | SLEEP_TYPE) == SLEEP).then_some(OFF)
            }
            // The boot processor begins where there is no firmware.
            RESET_ONE if first == 0 => Some(RESET),
            RESET_ONE => {
                self.resets.request(first);
                None
            }
            _ => None,
        }
    }

    /// Reads from a port for the guest.
    pub(crate) fn read(&self, port: u16, bytes: &mut [u8]) {
        let value = match port {
            SERIAL..=SERIAL_END => self.serial().read((port - SERIAL) as u8),
            DEBUG_CONSOLE if self.console.is_some() => DEBUG_CONSOLE as u8,
            // Ready for a command.
            KEYBOARD_CONTROL => 0,
            RESET_ONE => self.resets.are_some().into(),
            RTC_DATA => self.clock.read(),
            POWER_EVENTS..=POWER_EVENTS_END => 0,
            POWER => {
                let control = ACPI_ENABLED.to_le_bytes().into_iter().chain(core::iter::repeat(0));
                bytes.iter_mut().zip(control).for_each(|(byte, value)| *byte = value);
                return;
            }
            // Nothing is there.
            _ => 0xFF,
        };
        bytes.fill(value);
    }

    /// Flushes the guest's output to standard output, and to the debug console's file.
    pub(crate) fn flush(&self) {
        let _ = self.serial().writer_mut().flush();
        if let Some(mut console) = self.console() {
            let flushed = console.file.flush().err();
            if let Some(error) = console.error.take().or(flushed) {
                say(&format_args!("{}: {error}", console.path.display()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // 16550: the registers of data, interrupt enable and interrupt identification; the bits of "received
    // data available" and "transmitter holding register empty" (National Semiconductor PC16550D, section 8).
    const ENABLE: u16 = SERIAL + 1;
    const IDENTIFICATION: u16 = SERIAL + 2;
    const RECEIVED: u8 = 1;
    const EMPTY: u8 = 2;

    fn identification(ports: &Ports) -> u8 {
        let mut byte = [0];
        ports.read(IDENTIFICATION, &mut byte);
        byte[0] & 0x0F
    }

    #[test]
    fn the_serial_port_interrupts_when_it_can_send_and_when_it_received() {
        let line = EventFd::new(EFD_NONBLOCK).unwrap();
        let ports = Ports::with_interrupt(line.try_clone().unwrap(), 1);
        assert_eq!(identification(&ports), 1, "nothing is pending");
        assert!(line.read().is_err());

        ports.write(ENABLE, &[EMPTY]);
        assert_eq!(line.read().unwrap(), 1);
        assert_eq!(identification(&ports), 2, "the transmitter is empty");
        assert_eq!(identification(&ports), 1, "reading it ended the interrupt");
        ports.write(SERIAL, b"\n");
        assert_eq!(line.read().unwrap(), 1);

        ports.write(ENABLE, &[RECEIVED]);
        while line.read().is_ok() {}
        identification(&ports);
        ports.receive(&b"ab"[..]).unwrap();
        assert_eq!(line.read().unwrap(), 1);
        assert_eq!(identification(&ports), 4, "data was received");
        for expected in *b"ab" {
            let mut byte = [0];
            ports.read(SERIAL, &mut byte);
            assert_eq!(byte[0], expected);
        }
    }

    /// The boot processor's RESET is the machine's, and a processor that is not there has none.
    #[test]
    fn a_reset_of_one_processor_is_pending_until_it_is_done() {
        let ports = Ports::with_interrupt(EventFd::new(EFD_NONBLOCK).unwrap(), 3);
        let pending = || {
            let mut byte = [0xFF];
            ports.read(0xE7, &mut byte);
            byte[0]
        };
        assert_eq!(pending(), 0);
        for absent in [3, 16, 255] {
            assert_eq!(ports.write(0xE7, &[absent]), None);
        }
        assert_eq!(pending(), 0);
        assert_eq!(ports.write(0xE7, &[2]), None);
        assert_eq!(ports.write(0xE7, &[1]), None);
        assert_eq!([0, 1, 2].map(|number| ports.resets.is_requested(number)), [false, true, true]);
        ports.resets.done(2);
        assert_eq!(
            ([1, 2].map(|number| ports.resets.is_requested(number)), pending()),
            ([true, false], 1)
        );
        ports.resets.done(1);
        assert_eq!(pending(), 0);
        assert_eq!(ports.write(0xE7, &[0]), Some(End::Orderly("reset the machine")));
    }
}
