//! The frequencies of the time-stamp counter and the local APIC's timer, measured by the interval timer.
//!
//! Read first: Intel 8254 data sheet, "Mode 2: Rate Generator", "Counter Latch Command".

use core::arch::x86_64::_rdtsc;

use spin::Once;
use x86_64::instructions::port::Port;

use crate::machine::apic;

/// The interval timer's clock, in Hz.
const TIMER_HERTZ: u64 = 1_193_182;
/// Duration of a measurement: 20 ms of it.
const TICKS: u64 = TIMER_HERTZ / 50;
/// After so many readings that are all the same, there is no interval timer.
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

/// Measures, with interrupts off.
pub fn measure() {
    apic::start_measuring();
    let start = now();
    let Some(ticks) = wait_for_timer() else { return };
    let (tsc, apic) = (now() - start, apic::stop_measuring());
    let hertz = |count: u64| count * TIMER_HERTZ / ticks;
    SPEEDS.call_once(|| Speeds {
        tsc: hertz(tsc),
        apic: Some(hertz(apic)).filter(|hertz| *hertz > 0),
    });
}

/// Waits for [`TICKS`] of the interval timer, and says how many there were.
fn wait_for_timer() -> Option<u64> {
    let (mut control, mut channel_0) = (Port::<u8>::new(0x43), Port::<u8>::new(0x40));
    // SAFETY: nothing else uses the interval timer; its interrupt is masked.
    unsafe {
        control.write(0x34); // channel 0, low byte then high byte, rate generator
        channel_0.write(0); // of 65,536
        channel_0.write(0);
    }
    let mut read = || {
        // SAFETY: nothing else uses the interval timer.
        unsafe {
            control.write(0); // latch channel 0
            u16::from(channel_0.read()) | u16::from(channel_0.read()) << 8
        }
    };
    let (mut last, mut elapsed, mut still) = (read(), 0, 0);
    while elapsed < TICKS {
        let now = read();
        let passed = last.wrapping_sub(now); // it counts down
        still = if passed == 0 { still + 1 } else { 0 };
        if still == PATIENCE {
            return None;
        }
        elapsed += u64::from(passed);
        last = now;
    }
    Some(elapsed)
}
