//! The performance interrupt while claims are tried: it takes a note of what it finds, and does as its plan says.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use pmu::core::registers::{Counter, GlobalRegisters};
use spin::Mutex;

use crate::check::bench::{Bench, MASKED, read, write};
use crate::embedding::interrupt;
use crate::machine::interrupts::TrapFrame;
use crate::machine::{apic, processor};

/// More interrupts than any claim waits for: from then on, each stops the counters.
const MOST: u64 = 1_000;
/// Turns of a loop in which a counter that runs moves; and those to wait for a second overflow.
const SPIN: u32 = 2_000;
const PATIENCE: u32 = 10_000;

/// Task of the handler beside taking a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Stops the counters.
    Stop,
    /// Looks first whether the second counter moves, then stops the counters.
    Look,
    /// Lets the counter overflow again after so many events, waits for it, and stops the counters.
    Again(u64),
    /// Counts the periods of so many events that passed, loads the counter for the rest of the next, and lets the
    /// counters go on.
    Period(u64),
}

/// The interrupts that came since the last [`expect`].
pub static TAKEN: AtomicU64 = AtomicU64::new(0);
/// The periods that passed: see [`Plan::Period`].
pub static PERIODS: AtomicU64 = AtomicU64::new(0);
/// The vector of the first one.
pub static VECTOR: AtomicU32 = AtomicU32::new(0);
/// The LVT entry, and the status, as the first one found them.
pub static ENTRY: AtomicU32 = AtomicU32::new(0);
/// See [`ENTRY`].
pub static STATUS: AtomicU64 = AtomicU64::new(0);
/// The global control as the first one found it.
pub static CONTROL: AtomicU64 = AtomicU64::new(0);
/// Events by which the second counter moved while the first interrupt looked.
pub static MOVED: AtomicU64 = AtomicU64::new(0);
/// The status of a second overflow while the first is serviced.
pub static AGAIN: AtomicU64 = AtomicU64::new(0);
/// NMIs of the other processors.
pub static ELSEWHERE: AtomicU64 = AtomicU64::new(0);

/// Claims are tried with registers: interrupts are theirs, and not the counter layer's.
static IS_RAW: AtomicBool = AtomicBool::new(false);
/// The handler of a facility whose claims are tried: interrupts are its.
static OTHER: Mutex<Option<fn()>> = Mutex::new(None);
/// The counters are not let go on any more.
static IS_FINISHED: AtomicBool = AtomicBool::new(false);
static EXPECTED: Mutex<Option<Expected>> = Mutex::new(None);

/// The registers that the handler accesses, all of which were accessed before.
#[derive(Clone, Copy)]
struct Expected {
    plan: Plan,
    first: Counter,
    second: Option<Counter>,
    global: Option<&'static GlobalRegisters>,
    bits: u64,
    /// Bits that release frozen counters, and do not fault: a fault would let the next NMI in before this one ends.
    release: u64,
}

/// Stops the counters, and expects interrupts of them by this LVT entry from now on.
pub fn expect(bench: &Bench, entry: u32, plan: Plan) {
    apic::write_performance_entry(entry | MASKED);
    bench.stop();
    for number in [&TAKEN, &PERIODS, &STATUS, &CONTROL, &MOVED, &AGAIN] {
        number.store(0, Relaxed);
    }
    IS_FINISHED.store(false, Relaxed);
    VECTOR.store(0, Relaxed);
    ENTRY.store(0, Relaxed);
    *EXPECTED.lock() = bench.counter(0).map(|first| Expected {
        plan,
        first,
        second: bench.counter(1),
        global: bench.global(),
        bits: bench.bit(0) | bench.bit(1),
        release: bench.release(),
    });
    IS_RAW.store(true, Relaxed);
    apic::write_performance_entry(entry);
}

/// Lets the counters not go on after the next interrupt: the counters are about to be stopped.
pub fn finish() {
    IS_FINISHED.store(true, Relaxed);
}

/// Leaves interrupts to the counter layer.
pub fn leave() {
    IS_RAW.store(false, Relaxed);
    *OTHER.lock() = None;
}

/// Leaves interrupts to the handler of a facility's claims, until [`leave`].
pub fn leave_to(handler: fn()) {
    IS_RAW.store(false, Relaxed);
    *OTHER.lock() = Some(handler);
}

/// Handles the performance interrupt.
pub fn performance_interrupt(frame: &TrapFrame) {
    if processor::number() != 0 {
        ELSEWHERE.fetch_add(1, Relaxed);
    }
    // Task context holds it only where no interrupt is expected.
    if processor::number() == 0
        && let Some(handler) = OTHER.try_lock().and_then(|handler| *handler)
    {
        return handler();
    }
    if !IS_RAW.load(Relaxed) {
        return interrupt::performance_interrupt(frame);
    }
    if processor::number() != 0 {
        return;
    }
    // Task context holds it only while the interrupt is masked.
    let Some(expected) = EXPECTED.try_lock().and_then(|expected| *expected) else { return };
    expected.serve(frame.vector as u32);
}

impl Expected {
    fn serve(&self, vector: u32) {
        let taken = TAKEN.fetch_add(1, Relaxed);
        let entry = apic::performance_entry();
        let control = self.global.and_then(|global| read(global.control)).unwrap_or(0);
        let status = self.status();
        if taken == 0 {
            VECTOR.store(vector, Relaxed);
            ENTRY.store(entry, Relaxed);
            CONTROL.store(control, Relaxed);
            STATUS.store(status, Relaxed);
        }
        match self.plan {
            _ if taken >= MOST => self.stop(),
            Plan::Stop => self.stop(),
            Plan::Look => {
                if taken == 0 {
                    MOVED.store(self.moved(), Relaxed);
                }
                self.stop();
            }
            Plan::Again(short) => {
                // Only an interrupt that found an overflow can find another.
                if status & self.bits != 0 && AGAIN.load(Relaxed) == 0 {
                    self.acknowledge();
                    self.preload(short);
                    let second = (0..PATIENCE).map(|_| self.status()).find(|status| *status != 0);
                    AGAIN.store(second.unwrap_or(0), Relaxed);
                }
                self.stop();
            }
            Plan::Period(period) => {
                self.set_control(0);
                // It goes on behind the overflow.
                let passed = read(self.first.value_register()).unwrap_or(0);
                self.acknowledge();
                if passed < self.first.mask() / 2 {
                    // A late interrupt stands for several periods.
                    PERIODS.fetch_add(1 + passed / period, Relaxed);
                    self.preload(period - passed % period);
                }
                apic::write_performance_entry(entry & !MASKED);
                if !IS_FINISHED.load(Relaxed) {
                    self.set_control(self.bits);
                }
            }
        }
    }

    fn status(&self) -> u64 {
        self.global.and_then(|global| read(global.status)).unwrap_or(0)
    }

    fn moved(&self) -> u64 {
        let value = |counter: Counter| read(counter.value_register()).unwrap_or(0);
        let Some(before) = self.second.map(value) else { return 0 };
        (0..SPIN).for_each(|_| core::hint::spin_loop());
        self.second.map(value).unwrap_or(0).wrapping_sub(before)
    }

    fn stop(&self) {
        self.set_control(0);
        let counters = [Some(self.first), self.second];
        counters.into_iter().flatten().for_each(|counter| {
            write(counter.control().register(), 0);
        });
        self.acknowledge();
    }

    fn acknowledge(&self) {
        if let Some(global) = self.global {
            write(global.acknowledge, self.bits | self.release);
        }
    }

    fn set_control(&self, bits: u64) {
        if let Some(global) = self.global {
            write(global.control, bits);
        }
    }

    fn preload(&self, short: u64) {
        write(self.first.value_register(), self.first.preload(short));
    }
}
