//! A model of PMUv3, from the manual: strict where processors are lenient.
//!
//! A write takes effect at the next synchronization, an ISB or an exception's entry or return, and not before. What is
//! unknown after a reset has the most harmful value. Reserved bits are not written.

use core::cell::{Cell, RefCell};

use pmu_arm::Identification;
use pmu_arm::registers::{Register, UserEnable};

pub(crate) const EVENT_COUNTERS: usize = 6;
pub(crate) const CYCLE: u64 = 1 << 31;
const IMPLEMENTED: u64 = CYCLE | ((1 << EVENT_COUNTERS) - 1);

// Of PMCR_EL0.
const ENABLE: u64 = 1 << 0;
const RESETS: u64 = 0b110;
const DIVIDE: u64 = 1 << 3;
const LONG_CYCLES: u64 = 1 << 6;
const LONG_EVENTS: u64 = 1 << 7;
const FREEZE: u64 = 1 << 9;

// Of PMEVTYPER<n>_EL0 and PMCCFILTR_EL0.
const NOT_EL1: u64 = 1 << 31;
const NOT_EL0: u64 = 1 << 30;
const EL2: u64 = 1 << 27;

pub(crate) const INST_RETIRED: u64 = 0x08;
pub(crate) const CPU_CYCLES: u64 = 0x11;
pub(crate) const BR_RETIRED: u64 = 0x21;
const BR_MIS_PRED_RETIRED: u64 = 0x22;

/// One register file. The last of the types and of the values is the cycle counter's.
#[derive(Clone, Debug)]
struct State {
    control: u64,
    enabled: u64,
    overflowed: u64,
    interrupts: u64,
    types: [u64; EVENT_COUNTERS + 1],
    values: [u64; EVENT_COUNTERS + 1],
}

impl State {
    /// Returns the state after a reset: of PMCR_EL0 only E is known, and everything else counts and interrupts.
    fn reset(is_long: bool) -> Self {
        let long = if is_long { FREEZE } else { 0 };
        Self {
            control: DIVIDE | long,
            enabled: IMPLEMENTED,
            overflowed: IMPLEMENTED,
            interrupts: IMPLEMENTED,
            types: [INST_RETIRED | EL2; _],
            values: [0xFFFF_FFF0; _],
        }
    }
}

/// The counters of a processor, and its interrupt line.
#[derive(Debug)]
pub(crate) struct Processor {
    pub(crate) is_long: bool,
    pub(crate) level: u8,
    state: RefCell<State>,
    pending: RefCell<Vec<(Register, u64)>>,
    /// PMUSERENR_EL0.
    user: Cell<u64>,
    /// The interrupt controller lets the line's interrupt through.
    pub(crate) is_unmasked: Cell<bool>,
}

/// Number of a counter's type or value.
fn number(register: Register, row: fn(usize) -> Option<Register>) -> Option<usize> {
    (0..16).find(|number| row(*number) == Some(register))
}

impl Processor {
    pub(crate) fn new(is_long: bool, level: u8) -> Self {
        Self {
            is_long,
            level,
            state: RefCell::new(State::reset(is_long)),
            pending: RefCell::default(),
            user: Cell::new(0),
            is_unmasked: Cell::new(false),
        }
    }

    pub(crate) fn identification(&self) -> Identification {
        let bit = |number: u64| 1 << (number & 0x1F);
        Identification {
            id_aa64dfr0_el1: (if self.is_long { 7 } else { 1 }) << 8,
            pmcr_el0: (EVENT_COUNTERS as u64) << 11,
            pmceid0_el0: bit(INST_RETIRED) | bit(CPU_CYCLES),
            pmceid1_el0: bit(BR_RETIRED) | bit(BR_MIS_PRED_RETIRED),
            pmmir_el1: 0,
            mdcr_el2: (self.level == 2).then_some(EVENT_COUNTERS as u64),
        }
    }

    /// Loses the contents of all registers, as in a suspend.
    pub(crate) fn reset(&self) {
        self.pending.borrow_mut().clear();
        *self.state.borrow_mut() = State::reset(self.is_long);
    }

    pub(crate) fn synchronize(&self) {
        for (register, value) in self.pending.take() {
            self.apply(register, value);
        }
    }

    pub(crate) fn read(&self, register: Register) -> u64 {
        let state = self.state.borrow();
        match register {
            Register::Pmcr => state.control | (EVENT_COUNTERS as u64) << 11 | 0x41 << 24,
            Register::Pmcntenset | Register::Pmcntenclr => state.enabled,
            Register::Pmovsclr | Register::Pmovsset => state.overflowed,
            Register::Pmintenset | Register::Pmintenclr => state.interrupts,
            Register::Pmccntr => state.values[EVENT_COUNTERS],
            Register::Pmccfiltr => state.types[EVENT_COUNTERS],
            Register::Pmuserenr => panic!("the driver has no access to it"),
            _ => match number(register, Register::event_counter) {
                Some(number) => state.values[number],
                None => state.types[number(register, Register::event_type).unwrap()],
            },
        }
    }

    pub(crate) fn write(&self, register: Register, value: u64) {
        let reserved = match register {
            Register::Pmcr => {
                let features = if self.is_long { LONG_EVENTS | FREEZE } else { 0 };
                assert_eq!(value & RESETS, 0, "it resets counters");
                !(0xFFFF_F83F | LONG_CYCLES | features)
            }
            Register::Pmuserenr | Register::Pmovsset => panic!("the driver has no access to it"),
            Register::Pmccntr => 0,
            Register::Pmccfiltr => !(NOT_EL1 | NOT_EL0 | EL2),
            _ if number(register, Register::event_type).is_some() => {
                !(NOT_EL1 | NOT_EL0 | EL2 | if self.is_long { 0xFFFF } else { 0x3FF })
            }
            _ if number(register, Register::event_counter).is_some() && self.is_long => 0,
            _ => u64::MAX << 32,
        };
        assert_eq!(value & reserved, 0, "{}: {value:#x}", register.name());
        self.pending.borrow_mut().push((register, value));
    }

    fn apply(&self, register: Register, value: u64) {
        let mut state = self.state.borrow_mut();
        let bits = value & IMPLEMENTED;
        match register {
            Register::Pmcr => state.control = value & 0x3FF,
            Register::Pmcntenset => state.enabled |= bits,
            Register::Pmcntenclr => state.enabled &= !bits,
            Register::Pmovsclr => state.overflowed &= !bits,
            Register::Pmintenset => state.interrupts |= bits,
            Register::Pmintenclr => state.interrupts &= !bits,
            Register::Pmccntr => state.values[EVENT_COUNTERS] = value,
            Register::Pmccfiltr => state.types[EVENT_COUNTERS] = value,
            _ => match number(register, Register::event_counter) {
                Some(number) => state.values[number] = value,
                None => state.types[number(register, Register::event_type).unwrap()] = value,
            },
        }
    }

    /// Writes PMUSERENR_EL0, as the kernel does at a switch. EN and SW open more than reads.
    pub(crate) fn permit_reads_at_el0(&self, enable: UserEnable) {
        assert!(!enable.all() && !enable.software_increment());
        self.user.set(enable.into_bits());
    }

    /// MRS at EL0 of the counter with this bit; `None`: it is not permitted, and the kernel's handler is called.
    pub(crate) fn read_at_el0(&self, bit: u32) -> Option<u64> {
        const CR: u64 = 1 << 2;
        const ER: u64 = 1 << 3;
        let (of, number) = match bit {
            31 => (CR, EVENT_COUNTERS),
            _ => (ER, bit as usize),
        };
        (self.user.get() & of != 0).then(|| self.state.borrow().values[number])
    }

    /// Lets an event happen so often at an exception level, or until a counter overflows. Returns how often it
    /// happened.
    pub(crate) fn happen(&self, event: u64, level: u8, times: u64) -> u64 {
        let mut state = self.state.borrow_mut();
        let is_counted = |counter: usize, state: &State| {
            let of = state.types[counter];
            let is_cycles = counter == EVENT_COUNTERS;
            let bit = if is_cycles { CYCLE } else { 1 << counter };
            let at = [of & NOT_EL0 == 0, of & NOT_EL1 == 0, of & EL2 != 0];
            let is_event = event == if is_cycles { CPU_CYCLES } else { of & 0xFFFF };
            let frozen = !is_cycles && state.control & FREEZE != 0 && state.overflowed != 0;
            state.control & ENABLE != 0
                && state.enabled & bit != 0
                && is_event
                && at[usize::from(level)]
                && !frozen
        };
        let counting: Vec<usize> =
            (0..=EVENT_COUNTERS).filter(|counter| is_counted(*counter, &state)).collect();
        let overflow = |counter: usize, control: u64| {
            let long = if counter == EVENT_COUNTERS { LONG_CYCLES } else { LONG_EVENTS };
            if control & long != 0 { u64::MAX } else { u32::MAX.into() }
        };
        let room = |counter: &usize| {
            let mask = overflow(*counter, state.control);
            u128::from(mask - (state.values[*counter] & mask)) + 1
        };
        let left = counting.iter().map(room).min().unwrap_or(u128::MAX);
        let happened = left.min(times.into()) as u64;
        for counter in counting {
            let mask = overflow(counter, state.control);
            let value = state.values[counter];
            let bits = if counter < EVENT_COUNTERS && !self.is_long { 32 } else { 64 };
            state.values[counter] = value.wrapping_add(happened) & (u64::MAX >> (64 - bits));
            if u128::from(value & mask) + u128::from(happened) > mask.into() {
                state.overflowed |= if counter == EVENT_COUNTERS { CYCLE } else { 1 << counter };
            }
        }
        happened
    }

    /// Returns whether the processor is interrupted: the line is a level. If so, the exception synchronizes.
    pub(crate) fn is_interrupted(&self) -> bool {
        if self.is_unmasked.get() && self.is_active() {
            self.synchronize();
        }
        self.is_unmasked.get() && self.is_active()
    }

    /// Returns whether the interrupt line is active.
    pub(crate) fn is_active(&self) -> bool {
        let state = self.state.borrow();
        state.control & ENABLE != 0 && state.overflowed & state.interrupts & state.enabled != 0
    }

    /// Returns the bits of counters that are enabled, interrupt or have overflowed.
    pub(crate) fn left(&self) -> u64 {
        assert_eq!(self.pending.borrow().len(), 0, "not synchronized");
        let state = self.state.borrow();
        state.enabled | state.interrupts | state.overflowed
    }
}
