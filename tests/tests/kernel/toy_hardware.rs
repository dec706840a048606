//! A processor that is unlike x86: registers that set and clear bits in place of one word, selects whose bits exclude a
//! privilege, counters of 32 bits beside a cycle counter of 64, and an interrupt line in place of an LVT entry. Each
//! event counter can latch the address of the instruction at which it overflows.

use core::cell::Cell;

/// Number of event counters.
pub(crate) const COUNTERS: usize = 4;
/// The cycle counter's bit in the registers with a bit per counter.
pub(crate) const CYCLE_COUNTER: u32 = 1 << 31;
/// Bits of a select and of the cycle counter's filter.
pub(crate) const NOT_USER: u32 = 1 << 30;
pub(crate) const NOT_KERNEL: u32 = 1 << 31;

/// Number of the event that happens in each cycle.
pub(crate) const CYCLES: u8 = 0x11;
pub(crate) const INSTRUCTIONS: u8 = 0x08;
pub(crate) const BRANCHES: u8 = 0x12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Enabled,
    EnableSet,
    EnableClear,
    Overflow,
    OverflowClear,
    InterruptEnabled,
    InterruptEnableSet,
    InterruptEnableClear,
    Select(usize),
    Count(usize),
    CycleFilter,
    CycleCount,
    /// A bit per event counter that latches addresses.
    Latching,
    /// The address at an event counter's last overflow; 0 while the counter does not latch.
    Latched(usize),
}

/// The identification register: the number of a processor's event counters, and whether they latch addresses.
pub(crate) struct Identification {
    pub(crate) counters: usize,
    pub(crate) latches: bool,
}

/// The counters of one processor, and its interrupt line.
#[derive(Debug, Default)]
pub(crate) struct Toy {
    enabled: Cell<u32>,
    overflow: Cell<u32>,
    interrupts: Cell<u32>,
    selects: [Cell<u32>; COUNTERS],
    counts: [Cell<u32>; COUNTERS],
    cycle_filter: Cell<u32>,
    cycles: Cell<u64>,
    latching: Cell<u32>,
    latched: [Cell<u64>; COUNTERS],
    /// Address of the instruction that is executed.
    pub(crate) at: Cell<u64>,
    /// The interrupt controller lets the line's interrupt through.
    pub(crate) is_unmasked: Cell<bool>,
}

impl Toy {
    pub(crate) fn read(&self, register: Register) -> u64 {
        match register {
            Register::Enabled => self.enabled.get().into(),
            Register::Overflow => self.overflow.get().into(),
            Register::InterruptEnabled => self.interrupts.get().into(),
            Register::Select(counter) => self.selects[counter].get().into(),
            Register::Count(counter) => self.counts[counter].get().into(),
            Register::CycleFilter => self.cycle_filter.get().into(),
            Register::CycleCount => self.cycles.get(),
            Register::Latching => self.latching.get().into(),
            Register::Latched(counter) => self.latched[counter].get(),
            _ => panic!("{register:?} is only written"),
        }
    }

    pub(crate) fn write(&self, register: Register, value: u64) {
        let word = value as u32;
        let set = |cell: &Cell<u32>| cell.set(cell.get() | word);
        let clear = |cell: &Cell<u32>| cell.set(cell.get() & !word);
        match register {
            Register::EnableSet => set(&self.enabled),
            Register::EnableClear => clear(&self.enabled),
            Register::OverflowClear => clear(&self.overflow),
            Register::InterruptEnableSet => set(&self.interrupts),
            Register::InterruptEnableClear => clear(&self.interrupts),
            Register::Select(counter) => self.selects[counter].set(word),
            Register::Count(counter) => self.counts[counter].set(word),
            Register::CycleFilter => self.cycle_filter.set(word),
            Register::CycleCount => self.cycles.set(value),
            Register::Latching => {
                self.latching.set(word);
                let ending = (0..COUNTERS).filter(|counter| word & 1 << counter == 0);
                ending.for_each(|counter| self.latched[counter].set(0));
            }
            _ => panic!("{register:?} is only read"),
        }
    }

    /// Lets an event happen so often, or until a counter overflows. Returns how often it happened.
    pub(crate) fn happen(&self, event: u8, user: bool, times: u64) -> u64 {
        let excluded = if user { NOT_USER } else { NOT_KERNEL };
        let is_counted =
            |bit: u32, filter: u32| self.enabled.get() & bit != 0 && filter & excluded == 0;
        let counted: Vec<usize> = (0..COUNTERS)
            .filter(|counter| {
                let select = self.selects[*counter].get();
                select as u8 == event && is_counted(1 << counter, select)
            })
            .collect();
        let by_cycles = event == CYCLES && is_counted(CYCLE_COUNTER, self.cycle_filter.get());
        let room = |counter: &usize| (1 << 32) - u64::from(self.counts[*counter].get());
        let until_zero = |count: u64| if count == 0 { u64::MAX } else { count.wrapping_neg() };
        let left = counted.iter().map(room).chain(by_cycles.then(|| until_zero(self.cycles.get())));
        let happened = left.min().unwrap_or(u64::MAX).min(times);
        for counter in counted {
            let (count, overflowed) = self.counts[counter].get().overflowing_add(happened as u32);
            let overflowed = overflowed || happened == 1 << 32;
            self.counts[counter].set(count);
            self.overflow.set(self.overflow.get() | u32::from(overflowed) << counter);
            if overflowed && self.latching.get() & 1 << counter != 0 {
                self.latched[counter].set(self.at.get());
            }
        }
        if by_cycles {
            let (count, overflowed) = self.cycles.get().overflowing_add(happened);
            self.cycles.set(count);
            let bit = if overflowed { CYCLE_COUNTER } else { 0 };
            self.overflow.set(self.overflow.get() | bit);
        }
        happened
    }

    /// Returns whether the processor is interrupted: the line is a level.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.is_unmasked.get() && self.overflow.get() & self.interrupts.get() != 0
    }

    /// Loses the contents of all registers, as in a suspend.
    pub(crate) fn lose_registers(&self) {
        for cell in self.selects.iter().chain(&self.counts) {
            cell.set(0);
        }
        for cell in [&self.enabled, &self.overflow, &self.interrupts, &self.cycle_filter] {
            cell.set(0);
        }
        self.cycles.set(0);
        self.write(Register::Latching, 0);
    }

    /// Returns whether nothing counts, interrupts or latches.
    pub(crate) fn is_idle(&self) -> bool {
        [&self.enabled, &self.overflow, &self.latching].iter().all(|cell| cell.get() == 0)
    }
}
