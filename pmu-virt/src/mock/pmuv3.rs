//! A strict model of Arm's PMUv3, for tests of a driver or of a kernel's register access.

use core::cell::{Cell, RefCell};

/// Number of event counters of a [`MockPmuv3`].
const EVENT_COUNTERS: usize = 6;
const CYCLE: u64 = 1 << 31;
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

/// Event of an odd counter: the overflows of the counter before it.
const CHAIN: u64 = 0x1E;

// Of PMUSERENR_EL0.
const CYCLES_AT_EL0: u64 = 1 << 2;
const EVENTS_AT_EL0: u64 = 1 << 3;

/// Number of writes that can wait for a synchronization.
const MAX_PENDING: usize = 16;

/// The registers. The last of the types and of the values is the cycle counter's.
#[derive(Clone, Debug)]
struct State {
    control: u64,
    enabled: u64,
    overflowed: u64,
    interrupts: u64,
    user: u64,
    types: [u64; EVENT_COUNTERS + 1],
    values: [u64; EVENT_COUNTERS + 1],
    /// Writes that have no effect yet: encodings and values, and their number.
    pending: ([(u16, u64); MAX_PENDING], usize),
}

/// Effect of a write on the bits that are set in the value.
#[derive(Clone, Copy)]
enum WriteAs {
    Set,
    Clear,
}
use WriteAs::{Clear, Set};

/// Contents of a register.
#[derive(Clone, Copy)]
enum Holds {
    Version,
    /// The events from this number on that are declared.
    Declared(u64),
    HypervisorControl,
    Control,
    User,
    Enabled(WriteAs),
    Overflowed(WriteAs),
    Interrupts(WriteAs),
    /// Of a counter: by number, from the row's first on.
    Value,
    Type,
}

/// A register, or the registers of one kind, of which each event counter has one. `legal` are the bits that may be
/// written, if any, and `legal_long` are those that only 64-bit counters have.
struct Row {
    name: &'static str,
    holds: Holds,
    /// op0 in bits 15:14, op1 in 13:11, CRn in 10:7, CRm in 6:3, op2 in 2:0, as in MRS and MSR.
    encoding: u16,
    first: usize,
    count: usize,
    legal: u64,
    legal_long: u64,
}

impl Row {
    const fn new(encoding: u16, name: &'static str, holds: Holds) -> Self {
        Self { name, holds, encoding, first: 0, count: 1, legal: 0, legal_long: 0 }
    }

    const fn legal(self, legal: u64, legal_long: u64) -> Self {
        Self { legal, legal_long, ..self }
    }

    const fn of_counters(self, first: usize, count: usize) -> Self {
        Self { first, count, ..self }
    }
}

const BITS: u64 = u32::MAX as u64;
const FILTER: u64 = NOT_EL1 | NOT_EL0 | EL2;

/// DDI 0487, "Performance Monitors registers". A register that a driver does not need, or must not use, has no row.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row::new(0xC028, "ID_AA64DFR0_EL1", Holds::Version),
    Row::new(0xE089, "MDCR_EL2", Holds::HypervisorControl),
    Row::new(0xDCE0, "PMCR_EL0", Holds::Control)
        .legal(0xFFFF_F83F & !RESETS | LONG_CYCLES, LONG_EVENTS | FREEZE),
    Row::new(0xDCE1, "PMCNTENSET_EL0", Holds::Enabled(Set)).legal(BITS, 0),
    Row::new(0xDCE2, "PMCNTENCLR_EL0", Holds::Enabled(Clear)).legal(BITS, 0),
    Row::new(0xDCE3, "PMOVSCLR_EL0", Holds::Overflowed(Clear)).legal(BITS, 0),
    Row::new(0xDCF3, "PMOVSSET_EL0", Holds::Overflowed(Set)).legal(BITS, 0),
    Row::new(0xC4F1, "PMINTENSET_EL1", Holds::Interrupts(Set)).legal(BITS, 0),
    Row::new(0xC4F2, "PMINTENCLR_EL1", Holds::Interrupts(Clear)).legal(BITS, 0),
    Row::new(0xDCE6, "PMCEID0_EL0", Holds::Declared(0)),
    Row::new(0xDCE7, "PMCEID1_EL0", Holds::Declared(0x20)),
    // EN and SW open more than reads.
    Row::new(0xDCF0, "PMUSERENR_EL0", Holds::User).legal(CYCLES_AT_EL0 | EVENTS_AT_EL0, 0),
    Row::new(0xDCE8, "PMCCNTR_EL0", Holds::Value).of_counters(EVENT_COUNTERS, 1).legal(u64::MAX, 0),
    Row::new(0xDF7F, "PMCCFILTR_EL0", Holds::Type).of_counters(EVENT_COUNTERS, 1).legal(FILTER, 0),
    Row::new(0xDF40, "PMEVCNTR<n>_EL0", Holds::Value).of_counters(0, EVENT_COUNTERS).legal(BITS, u64::MAX),
    Row::new(0xDF60, "PMEVTYPER<n>_EL0", Holds::Type).of_counters(0, EVENT_COUNTERS)
        .legal(FILTER | 0x3FF, 0xFFFF),
];

/// Returns the row of a register, and the number of the counter to which the register belongs.
fn find(encoding: u16) -> Option<(&'static Row, usize)> {
    ROWS.iter().find_map(|row| {
        let place = usize::from(encoding.wrapping_sub(row.encoding));
        (place < row.count).then_some((row, row.first + place))
    })
}

impl State {
    /// After a reset, of PMCR_EL0 only E is known, and everything else counts and interrupts.
    const fn reset(is_long: bool) -> Self {
        Self {
            control: DIVIDE | if is_long { FREEZE } else { 0 },
            enabled: IMPLEMENTED,
            overflowed: IMPLEMENTED,
            interrupts: IMPLEMENTED,
            user: 0,
            types: [MockPmuv3::INST_RETIRED | EL2; _],
            values: [0xFFFF_FFF0; _],
            pending: ([(0, 0); _], 0),
        }
    }

    fn apply(&mut self, encoding: u16, value: u64) {
        let Some((row, number)) = find(encoding) else { return };
        let bits = value & IMPLEMENTED;
        match row.holds {
            Holds::Control => self.control = value & 0x3FF,
            Holds::Enabled(Set) => self.enabled |= bits,
            Holds::Enabled(Clear) => self.enabled &= !bits,
            Holds::Overflowed(Set) => self.overflowed |= bits,
            Holds::Overflowed(Clear) => self.overflowed &= !bits,
            Holds::Interrupts(Set) => self.interrupts |= bits,
            Holds::Interrupts(Clear) => self.interrupts &= !bits,
            Holds::User => self.user = value,
            Holds::Value => self.values[number] = value,
            Holds::Type => self.types[number] = value,
            Holds::Version | Holds::Declared(_) | Holds::HypervisorControl => {}
        }
    }

    /// Returns the bits of the counters that count an event at an exception level.
    fn counting(&self, event: u64, level: u8) -> u64 {
        let frozen = self.control & FREEZE != 0 && self.overflowed != 0;
        let mut counting = 0;
        for (number, of) in self.types.iter().enumerate() {
            let is_cycles = number == EVENT_COUNTERS;
            let at = match level {
                0 => of & NOT_EL0 == 0,
                1 => of & NOT_EL1 == 0,
                _ => of & EL2 != 0,
            };
            let is_event = event == if is_cycles { MockPmuv3::CPU_CYCLES } else { of & 0xFFFF };
            if at && is_event && (is_cycles || !frozen) {
                counting |= bit(number);
            }
        }
        if self.control & ENABLE != 0 { counting & self.enabled } else { 0 }
    }

    /// A counter has overflowed at an exception level: so the next one counts, if it counts overflows.
    fn overflow(&mut self, number: usize, level: u8) {
        self.overflowed |= bit(number);
        let next = number + 1;
        if number.is_multiple_of(2)
            && next < EVENT_COUNTERS
            && self.counting(CHAIN, level) & bit(next) != 0
        {
            self.values[next] = (self.values[next] + 1) & u64::from(u32::MAX);
            if self.values[next] == 0 {
                self.overflow(next, level);
            }
        }
    }

    /// Returns the bits of a counter that its overflow fills.
    fn range(&self, number: usize) -> u64 {
        let long = if number == EVENT_COUNTERS { LONG_CYCLES } else { LONG_EVENTS };
        if self.control & long != 0 { u64::MAX } else { u32::MAX.into() }
    }
}

/// Returns a counter's bit in the registers with one bit per counter.
const fn bit(number: usize) -> u64 {
    if number == EVENT_COUNTERS { CYCLE } else { 1 << number }
}

/// Returns the numbers of counters whose bits are set.
fn numbers(bits: u64) -> impl Iterator<Item = usize> {
    (0..=EVENT_COUNTERS).filter(move |number| bits & bit(*number) != 0)
}

/// Model of a processor's PMUv3, strict where processors are lenient: six event counters, of 32 bits or, as
/// FEAT_PMUv3p7 has them, of 64, and the cycle counter. An odd counter of 32 bits can count the overflows of the one
/// before it (CHAIN). It is written from the manual and shares no code with the driver. A kernel tests its own register
/// access, and what it built on it, against the model.
///
/// - A write has no effect before the next [synchronization](Self::synchronize), an ISB or an exception.
/// - What is unknown after a reset has the most harmful value: all counters are enabled and interrupt.
/// - A write of a reserved bit panics, as does the access of a register that a driver does not need, such as
///   `PMSELR_EL0`.
///
/// Registers are named by their encodings: op0 in bits 15:14, op1 in 13:11, CRn in 10:7, CRm in 6:3, op2 in 2:0.
///
/// ```
/// use pmu_virt::mock::MockPmuv3;
/// const PMCR: u16 = 0xDCE0;
/// const PMCNTENSET: u16 = 0xDCE1;
/// const PMCNTENCLR: u16 = 0xDCE2;
/// const PMEVCNTR0: u16 = 0xDF40;
/// let processor = MockPmuv3::new(false, 1);
/// processor.write(PMEVCNTR0, 0);
/// processor.write(PMCNTENCLR, 0xFFFF_FFFF);
/// processor.write(PMCNTENSET, 1); // it counts retired instructions, after a reset
/// processor.write(PMCR, 1);
/// processor.synchronize();
/// processor.happen(MockPmuv3::INST_RETIRED, 0, 250);
/// assert_eq!(processor.read(PMEVCNTR0), 250);
/// ```
#[derive(Debug)]
pub struct MockPmuv3 {
    is_long: bool,
    level: u8,
    state: RefCell<State>,
    /// The interrupt controller lets the line's interrupt through.
    is_unmasked: Cell<bool>,
}

impl MockPmuv3 {
    /// Retired instructions. This event and the next three are the common events that the model declares.
    pub const INST_RETIRED: u64 = 0x08;
    /// Cycles, which the cycle counter counts, too.
    pub const CPU_CYCLES: u64 = 0x11;
    /// Retired branches.
    pub const BR_RETIRED: u64 = 0x21;
    /// Retired branches that were mispredicted.
    pub const BR_MIS_PRED_RETIRED: u64 = 0x22;
    const EVENTS: [u64; 4] =
        [Self::INST_RETIRED, Self::CPU_CYCLES, Self::BR_RETIRED, Self::BR_MIS_PRED_RETIRED];

    /// Creates a processor after its reset, whose event counters have 64 bits if `is_long` is set. The kernel runs at
    /// exception level `level`, 1 or 2.
    pub const fn new(is_long: bool, level: u8) -> Self {
        let state = RefCell::new(State::reset(is_long));
        Self { is_long, level, state, is_unmasked: Cell::new(false) }
    }

    /// Returns the exception level of the kernel.
    pub const fn level(&self) -> u8 {
        self.level
    }

    /// Loses the contents of all registers, as in a suspend.
    pub fn reset(&self) {
        *self.state.borrow_mut() = State::reset(self.is_long);
    }

    /// Executes ISB, or is interrupted: the writes so far take effect.
    pub fn synchronize(&self) {
        let mut state = self.state.borrow_mut();
        let (pending, count) = core::mem::replace(&mut state.pending, ([(0, 0); _], 0));
        pending.iter().take(count).for_each(|(encoding, value)| state.apply(*encoding, *value));
    }

    /// Executes MRS.
    ///
    /// # Panics
    /// The model lacks the register.
    pub fn read(&self, encoding: u16) -> u64 {
        let Some((row, number)) = find(encoding) else {
            panic!("MRS of {encoding:#X}: no such register")
        };
        let state = self.state.borrow();
        match row.holds {
            Holds::Version => (if self.is_long { 7 } else { 1 }) << 8,
            Holds::Declared(from) => {
                let chain = (!self.is_long).then_some(CHAIN);
                let events = Self::EVENTS.into_iter().chain(chain);
                let here = events.filter(|event| (from..from + 0x20).contains(event));
                here.fold(0, |declared, event| declared | 1 << (event - from))
            }
            Holds::HypervisorControl => {
                assert_eq!(self.level, 2, "MRS of {}: at EL2 alone", row.name);
                EVENT_COUNTERS as u64
            }
            Holds::Control => state.control | (EVENT_COUNTERS as u64) << 11 | 0x41 << 24,
            Holds::Enabled(_) => state.enabled,
            Holds::Overflowed(_) => state.overflowed,
            Holds::Interrupts(_) => state.interrupts,
            Holds::User => state.user,
            Holds::Value => state.values[number],
            Holds::Type => state.types[number],
        }
    }

    /// Executes MRS of a counter's value at EL0: an event counter's by its number, the cycle counter's by 31. Returns
    /// `None` if `PMUSERENR_EL0` does not permit the access, which then is an exception to EL1.
    pub fn read_at_el0(&self, counter: u32) -> Option<u64> {
        let state = self.state.borrow();
        let (permission, number) = match counter {
            31 => (CYCLES_AT_EL0, EVENT_COUNTERS),
            _ => (EVENTS_AT_EL0, counter as usize),
        };
        let value = state.values.get(number).copied();
        value.filter(|_| state.user & permission != 0)
    }

    /// Executes MSR.
    ///
    /// # Panics
    /// The model lacks the register; a bit of the value is reserved, or would reset counters.
    pub fn write(&self, encoding: u16, value: u64) {
        let Some((row, _)) = find(encoding) else {
            panic!("MSR of {encoding:#X}: no such register")
        };
        let legal = row.legal | if self.is_long { row.legal_long } else { 0 };
        let illegal = value & !legal;
        assert!(
            legal != 0 && illegal == 0,
            "MSR of {}, {value:#X}: illegal {illegal:#X}",
            row.name
        );
        if self.state.borrow().pending.1 == MAX_PENDING {
            // A processor synchronizes when it likes to, also earlier.
            self.synchronize();
        }
        let (pending, count) = &mut self.state.borrow_mut().pending;
        pending[*count] = (encoding, value);
        *count += 1;
    }

    /// Lets an event happen so often at exception level 0, 1 or 2, or until a counter overflows. Returns how often it
    /// happened.
    pub fn happen(&self, event: u64, level: u8, times: u64) -> u64 {
        let mut state = self.state.borrow_mut();
        let counting = state.counting(event, level);
        let room = |number: usize| {
            let range = state.range(number);
            u128::from(range - (state.values[number] & range)) + 1
        };
        let left = numbers(counting).map(room).min().unwrap_or(u128::MAX);
        let happened = left.min(times.into()) as u64;
        for number in numbers(counting) {
            let (range, value) = (state.range(number), state.values[number]);
            let is_short = number < EVENT_COUNTERS && !self.is_long;
            let mask = if is_short { u32::MAX.into() } else { u64::MAX };
            state.values[number] = value.wrapping_add(happened) & mask;
            if u128::from(value & range) + u128::from(happened) > range.into() {
                state.overflow(number, level);
            }
        }
        happened
    }

    /// Lets each counter that counts anything at an exception level overflow. Returns their bits.
    pub fn overflow_all(&self, level: u8) -> u64 {
        let mut state = self.state.borrow_mut();
        let of = |number: usize, state: &State| {
            if number == EVENT_COUNTERS { Self::CPU_CYCLES } else { state.types[number] & 0xFFFF }
        };
        let mut overflowed = 0;
        for number in 0..=EVENT_COUNTERS {
            let bit = bit(number) & state.counting(of(number, &state), level);
            if bit != 0 {
                state.values[number] = 0;
            }
            overflowed |= bit;
        }
        state.overflowed |= overflowed;
        overflowed
    }

    /// Returns the bits of the counters that would count an event at an exception level.
    pub fn counting(&self, event: u64, level: u8) -> u64 {
        self.state.borrow().counting(event, level)
    }

    /// Lets the interrupt of the counters through, or not: the interrupt controller's enable bit.
    pub fn set_unmasked(&self, is_unmasked: bool) {
        self.is_unmasked.set(is_unmasked);
    }

    /// Returns whether the processor is interrupted: the line is a level. If so, the exception synchronizes.
    pub fn is_interrupted(&self) -> bool {
        if self.is_unmasked.get() && self.is_active() {
            self.synchronize();
        }
        self.is_unmasked.get() && self.is_active()
    }

    /// Returns whether the interrupt line is active.
    pub fn is_active(&self) -> bool {
        let state = self.state.borrow();
        let active = state.overflowed & state.interrupts & state.enabled;
        state.control & ENABLE != 0 && active != 0
    }

    /// Returns the bits of counters that are enabled, interrupt or have overflowed: 0 after a driver left.
    ///
    /// # Panics
    /// Writes wait for a synchronization.
    pub fn left(&self) -> u64 {
        let state = self.state.borrow();
        assert_eq!(state.pending.1, 0, "writes that are not synchronized");
        state.enabled | state.interrupts | state.overflowed
    }
}
