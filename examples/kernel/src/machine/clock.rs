//! The frequencies of the time-stamp counter and the local APIC's timer, measured by a clock of known frequency.
//!
//! Read first: ACPI Specification 6.5, §4.8.3.3 "Power Management Timer"; IA-PC HPET Specification 1.0a, §2.3; Intel
//! 8254 data sheet, "Mode 2: Rate Generator", "Counter Latch Command".

use core::arch::x86_64::_rdtsc;

use spin::Once;
use x86_64::instructions::port::Port;

use crate::machine::apic;

/// The interval timer's clock, in Hz.
const TIMER_HERTZ: u64 = 1_193_182;
/// After so many readings that are all the same, the clock stands still.
const PATIENCE: u32 = 10_000;

/// The measured frequencies.
#[derive(Clone, Copy, Debug)]
pub struct Speeds {
    /// The time-stamp counter's, in Hz.
    pub tsc: u64,
    /// The local APIC timer's behind its divider, in Hz; `None` where there was nothing to measure by.
    pub apic: Option<u64>,
}

static SPEEDS: Once<Speeds> = Once::new();

/// Returns the time-stamp counter.
#[inline]
pub fn now() -> u64 {
    // SAFETY: every processor with 64-bit mode has it, and this kernel does not forbid it.
    unsafe { _rdtsc() }
}

/// Returns the time-stamp counter's ticks in `count` milliseconds.
pub fn milliseconds(count: u64) -> u64 {
    speeds().tsc / 1_000 * count
}

/// Returns the measured frequencies; 1 GHz before the measurement, or if there was nothing to measure by.
pub fn speeds() -> Speeds {
    SPEEDS.get().copied().unwrap_or(Speeds { tsc: 1_000_000_000, apic: None })
}

/// Waits for so many milliseconds.
pub fn wait(count: u64) {
    let start = now();
    while now() - start < milliseconds(count) {
        core::hint::spin_loop();
    }
}

/// A clock of known frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// ACPI's power-management timer, of so many bits, at a port.
    Acpi {
        /// The port.
        port: u16,
        /// Bits of its count.
        bits: u32,
    },
    /// The high-precision event timer, whose registers are mapped at this address.
    Hpet {
        /// The address.
        address: usize,
    },
    /// The interval timer (8254), which every PC had.
    IntervalTimer,
}

impl Reference {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acpi { .. } => "ACPI",
            Self::Hpet { .. } => "HPET",
            Self::IntervalTimer => "8254",
        }
    }
}

/// Measures by this clock, with interrupts off.
pub fn measure(reference: Reference) {
    apic::start_measuring();
    let start = now();
    let passed = match reference {
        Reference::Acpi { port, bits } => wait_for_acpi(port, bits),
        Reference::Hpet { address } => wait_for_hpet(address),
        Reference::IntervalTimer => wait_for_interval_timer(),
    };
    let (tsc, apic) = (now() - start, apic::stop_measuring());
    let Some((ticks, hertz)) = passed else { return };
    let hertz = |count: u64| (u128::from(count) * u128::from(hertz) / u128::from(ticks)) as u64;
    SPEEDS.call_once(|| Speeds {
        tsc: hertz(tsc),
        apic: Some(hertz(apic)).filter(|hertz| *hertz > 0),
    });
}

/// Waits for 20 ms of a clock that counts `up`, within `mask`, and returns the ticks that passed; `None` if it stands
/// still.
fn wait_for(hertz: u64, mask: u64, mut up: impl FnMut() -> u64) -> Option<(u64, u64)> {
    let (mut last, mut elapsed, mut still) = (up(), 0, 0);
    while elapsed < hertz / 50 {
        let now = up();
        let passed = now.wrapping_sub(last) & mask;
        still = if passed == 0 { still + 1 } else { 0 };
        if still == PATIENCE {
            return None;
        }
        elapsed += passed;
        last = now;
    }
    Some((elapsed, hertz))
}

fn wait_for_acpi(port: u16, bits: u32) -> Option<(u64, u64)> {
    let mut port = Port::<u32>::new(port);
    // SAFETY: reading the timer changes nothing.
    wait_for(3_579_545, (1 << bits) - 1, || unsafe { port.read() }.into())
}

fn wait_for_hpet(address: usize) -> Option<(u64, u64)> {
    /// "General Capabilities and ID", whose upper half is the period in femtoseconds; "General Configuration", whose
    /// bit 0 lets it count; "Main Counter Value".
    const CAPABILITIES: usize = 0;
    const CONFIGURATION: usize = 0x10;
    const COUNTER: usize = 0xF0;
    let register = |offset| (address + offset) as *mut u32;
    // SAFETY: ACPI says that its registers are there, and nothing else uses them. Memory is mapped at its own address.
    unsafe {
        let period = u64::from(register(CAPABILITIES + 4).read_volatile());
        let hertz = 1_000_000_000_000_000u64.checked_div(period)?;
        let configuration = register(CONFIGURATION).read_volatile();
        register(CONFIGURATION).write_volatile(configuration | 1);
        wait_for(hertz, u32::MAX.into(), || register(COUNTER).read_volatile().into())
    }
}

fn wait_for_interval_timer() -> Option<(u64, u64)> {
    let (mut control, mut channel_0) = (Port::<u8>::new(0x43), Port::<u8>::new(0x40));
    // SAFETY: nothing else uses the interval timer; its interrupt is masked.
    unsafe {
        control.write(0x34); // channel 0, low byte then high byte, rate generator
        channel_0.write(0); // of 65,536
        channel_0.write(0);
    }
    wait_for(TIMER_HERTZ, u16::MAX.into(), || {
        // SAFETY: nothing else uses the interval timer. It counts down.
        unsafe {
            control.write(0); // latch channel 0
            let count = u16::from(channel_0.read()) | u16::from(channel_0.read()) << 8;
            u64::from(count.wrapping_neg())
        }
    })
}
