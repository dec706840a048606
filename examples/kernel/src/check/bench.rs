//! The processor's counters as registers: what claims write is not what the counter layer would.

use pmu::Machine;
use pmu::core::access::{RegisterAddress, RegisterBackend};
use pmu::core::registers::{Counter, CounterId, GlobalRegisters};
use pmu::core::{CounterSet, CounterUnit, EventSource};

use crate::demos::workload;
use crate::embedding::msr::control_msr;
use crate::machine::{apic, clock};

/// The freeze bit of `IA32_DEBUGCTL`, and AMD's of DebugCtl (SDM vol. 4, table 2-2; APM vol. 2, §13.2.5).
pub const DEBUG_CONTROL: u32 = 0x1D9;
/// See [`DEBUG_CONTROL`].
pub const FREEZE: u64 = 1 << 12;
/// LVT entries: by NMI, and the same masked.
pub const BY_NMI: u32 = 0b100 << 8;
/// See [`BY_NMI`].
pub const MASKED: u32 = 1 << 16;
/// Instructions, at every privilege level: event 0xC0 of both vendors.
const INSTRUCTIONS: u64 = 0xC0 | 0b11 << 16;
/// In an event select: interrupts.
const INTERRUPTS: u64 = 1 << 20;
/// In an event select: counts.
pub const ENABLED: u64 = 1 << 22;

/// The processor under test, which executes the calls.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// The machine.
    pub machine: &'static Machine,
    /// Its counters.
    pub unit: CounterUnit,
}

impl Bench {
    /// Creates the bench of a machine; `None` if it has no counters.
    pub fn new(machine: &'static Machine) -> Option<Self> {
        let unit = *machine.unit();
        let general = unit.counters() & CounterSet::GENERAL;
        (!general.is_empty()).then_some(Self { machine, unit })
    }

    /// Returns whether any general counter runs, or keeps what is written to it, and puts back what it held. An
    /// emulator without counters declares AMD's first four all the same, for CPUID has no bit of them.
    pub fn answers(&self) -> bool {
        const VALUE: u64 = 0x1234;
        (0..self.general()).filter_map(|place| self.counter(place)).any(|counter| {
            let (select, value) = (counter.control().register(), counter.value_register());
            if read(select).is_some_and(|select| select & ENABLED != 0) {
                return true;
            }
            let Some(found) = read(value) else { return false };
            let kept = write(value, VALUE) && read(value) == Some(VALUE);
            write(value, found);
            kept
        })
    }

    /// Returns whether the counters are Intel's.
    pub fn is_intel(&self) -> bool {
        self.machine.perfmon().is_some()
    }

    /// Returns the general counter of this place, from 0.
    pub fn counter(&self, place: usize) -> Option<Counter> {
        self.id(place).and_then(|id| self.unit.counter(id))
    }

    fn id(&self, place: usize) -> Option<CounterId> {
        (self.unit.counters() & CounterSet::GENERAL).iter().nth(place)
    }

    /// Returns its bit of the global registers.
    pub fn bit(&self, place: usize) -> u64 {
        self.id(place).map_or(0, |id| id.only().bits())
    }

    /// Returns the global registers, where there are any.
    pub fn global(&self) -> Option<&'static GlobalRegisters> {
        self.unit.global()
    }

    /// Programs counters to count instructions from so many short of the overflow on, and lets all of them go at once.
    pub fn start<const N: usize>(&self, counters: [(usize, u64, bool); N]) {
        self.stop();
        for (place, short, interrupts) in counters {
            let Some(counter) = self.counter(place) else { continue };
            let interrupts = if interrupts { INTERRUPTS } else { 0 };
            self.preload(place, short);
            write(counter.control().register(), INSTRUCTIONS | interrupts | ENABLED);
        }
        let bits = counters.iter().fold(0, |bits, (place, ..)| bits | self.bit(*place));
        if let Some(global) = self.global() {
            write(global.control, bits);
        }
    }

    /// Writes a counter such that it overflows after so many events.
    pub fn preload(&self, place: usize, short: u64) {
        let Some(counter) = self.counter(place) else { return };
        // Before version 6, Intel's address takes 32 bits, and extends their sign.
        write(counter.value_register(), counter.preload(short));
    }

    /// Stops all general counters, and acknowledges their overflows.
    pub fn stop(&self) {
        self.halt();
        self.acknowledge();
    }

    /// Stops all general counters.
    pub fn halt(&self) {
        if let Some(global) = self.global() {
            write(global.control, 0);
        }
        for place in 0..self.general() {
            if let Some(counter) = self.counter(place) {
                write(counter.control().register(), 0);
            }
        }
    }

    /// Acknowledges the overflows of all general counters, and that they are frozen.
    pub fn acknowledge(&self) {
        if let Some(global) = self.global() {
            write(global.acknowledge, (self.unit.counters() & CounterSet::GENERAL).bits());
        }
        self.release();
    }

    /// Acknowledges that the counters are frozen, and returns the bits that do; 0: there are none, or the register
    /// refuses them.
    pub fn release(&self) -> u64 {
        match self.global() {
            Some(global) if global.frozen != 0 && write(global.acknowledge, global.frozen) => {
                global.frozen
            }
            _ => 0,
        }
    }

    /// Returns the number of general counters.
    pub fn general(&self) -> usize {
        (self.unit.counters() & CounterSet::GENERAL).len()
    }

    /// Returns a counter's value.
    pub fn value(&self, place: usize) -> u64 {
        self.counter(place).and_then(|counter| read(counter.value_register())).unwrap_or(0)
    }

    /// Returns whether a counter that was [preloaded](Self::preload) passed its overflow.
    pub fn has_overflowed(&self, place: usize) -> bool {
        let value = self.value(place);
        self.counter(place).is_some_and(|counter| value <= counter.mask() >> 1)
    }

    /// Returns the overflow status; 0 where there is none.
    pub fn status(&self) -> u64 {
        self.global().and_then(|global| read(global.status)).unwrap_or(0)
    }

    /// Returns whether the processor can freeze its counters, and to do so is set.
    pub fn set_freezing(&self, freezes: bool) -> Option<bool> {
        self.global()?.freeze?;
        let register = address(DEBUG_CONTROL);
        let found = read(register)?;
        write(register, if freezes { found | FREEZE } else { found & !FREEZE });
        read(register).map(|found| found & FREEZE != 0)
    }

    /// Stops, and masks the LVT entry.
    pub fn end(&self) {
        apic::write_performance_entry(BY_NMI | MASKED);
        self.stop();
    }
}

/// Works until `done`, or so many milliseconds have passed. Returns whether it is done.
pub fn work_until(milliseconds: u64, mut done: impl FnMut() -> bool) -> bool {
    let begin = clock::now();
    while !done() {
        workload::short_turn();
        if clock::now() - begin > clock::milliseconds(milliseconds) {
            return done();
        }
    }
    true
}

/// Works for so many milliseconds, and at least for the turns that they take on a slow machine: a hypervisor that is
/// busy lets time pass in which this processor executes nothing.
pub fn work(milliseconds: u64) {
    work_until(milliseconds, || false);
    (0..5 * milliseconds).for_each(|_| workload::short_turn());
}

/// Returns the address of a register of the PMU.
pub fn address(register: u32) -> RegisterAddress {
    // SAFETY: the callers' registers stop and start counters, and none makes the processor write to memory.
    unsafe { RegisterAddress::new(register) }
}

/// Reads a register; `None`: it faults.
pub fn read(register: RegisterAddress) -> Option<u64> {
    control_msr().read(register).ok()
}

/// Writes a register. Returns whether it took the value without a fault.
pub fn write(register: RegisterAddress, value: u64) -> bool {
    control_msr().write(register, value).is_ok()
}
