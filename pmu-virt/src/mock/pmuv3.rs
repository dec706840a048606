//! A strict model of Arm's PMUv3, for tests of a driver or of a kernel's register access.

use core::cell::{Cell, RefCell};

/// Number of event counters of a [`MockPmuv3`].
const EVENT_COUNTERS: usize = 6;
const CYCLE: u64 = 1 << 31;
const IMPLEMENTED: u64 = CYCLE | ((1 << EVENT_COUNTERS) - 1);

// Encodings of op0 to op2, as in MRS and MSR (DDI 0487, "Performance Monitors registers").
const ID_AA64DFR0: u16 = 0xC028;
const PMCR: u16 = 0xDCE0;
const PMCNTENSET: u16 = 0xDCE1;
const PMCNTENCLR: u16 = 0xDCE2;
const PMOVSCLR: u16 = 0xDCE3;
const PMCEID0: u16 = 0xDCE6;
const PMCEID1: u16 = 0xDCE7;
const PMCCNTR: u16 = 0xDCE8;
const PMUSERENR: u16 = 0xDCF0;
const PMINTENSET: u16 = 0xC4F1;
const PMINTENCLR: u16 = 0xC4F2;
const PMOVSSET: u16 = 0xDCF3;
const MDCR_EL2: u16 = 0xE089;
const PMCCFILTR: u16 = 0xDF7F;
const PMEVCNTR0: u16 = 0xDF40;
const PMEVTYPER0: u16 = 0xDF60;

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

/// A counter's registers: its number, and whether it is the type or the value.
#[derive(Clone, Copy)]
enum Of {
    Type(usize),
    Value(usize),
}

fn of_counter(encoding: u16) -> Option<Of> {
    let number = |first: u16| {
        let number = usize::from(encoding.wrapping_sub(first));
        (number < EVENT_COUNTERS).then_some(number)
    };
    match encoding {
        PMCCNTR => Some(Of::Value(EVENT_COUNTERS)),
        PMCCFILTR => Some(Of::Type(EVENT_COUNTERS)),
        _ => number(PMEVCNTR0).map(Of::Value).or(number(PMEVTYPER0).map(Of::Type)),
    }
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
        let bits = value & IMPLEMENTED;
        match (encoding, of_counter(encoding)) {
            (PMCR, _) => self.control = value & 0x3FF,
            (PMCNTENSET, _) => self.enabled |= bits,
            (PMCNTENCLR, _) => self.enabled &= !bits,
            (PMOVSCLR, _) => self.overflowed &= !bits,
            (PMOVSSET, _) => self.overflowed |= bits,
            (PMINTENSET, _) => self.interrupts |= bits,
            (PMINTENCLR, _) => self.interrupts &= !bits,
            (PMUSERENR, _) => self.user = value,
            (_, Some(Of::Value(number))) => self.values[number] = value,
            (_, Some(Of::Type(number))) => self.types[number] = value,
            _ => {}
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
        let declared = |number: u64| 1 << (number & 0x1F);
        let state = self.state.borrow();
        match (encoding, of_counter(encoding)) {
            (ID_AA64DFR0, _) => (if self.is_long { 7 } else { 1 }) << 8,
            (PMCEID0, _) => {
                let chain = if self.is_long { 0 } else { declared(CHAIN) };
                declared(Self::INST_RETIRED) | declared(Self::CPU_CYCLES) | chain
            }
            (PMCEID1, _) => declared(Self::BR_RETIRED) | declared(Self::BR_MIS_PRED_RETIRED),
            (PMCR, _) => state.control | (EVENT_COUNTERS as u64) << 11 | 0x41 << 24,
            (PMCNTENSET | PMCNTENCLR, _) => state.enabled,
            (PMOVSCLR | PMOVSSET, _) => state.overflowed,
            (PMINTENSET | PMINTENCLR, _) => state.interrupts,
            (PMUSERENR, _) => state.user,
            (MDCR_EL2, _) if self.level == 2 => EVENT_COUNTERS as u64,
            (_, Some(Of::Value(number))) => state.values[number],
            (_, Some(Of::Type(number))) => state.types[number],
            _ => panic!("MRS of {encoding:#X}: no such register"),
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
        let filter = NOT_EL1 | NOT_EL0 | EL2;
        let permitted = match (encoding, of_counter(encoding)) {
            (PMCR, _) => {
                assert_eq!(value & RESETS, 0, "MSR of PMCR_EL0: it resets counters");
                let features = if self.is_long { LONG_EVENTS | FREEZE } else { 0 };
                0xFFFF_F83F | LONG_CYCLES | features
            }
            (PMCNTENSET | PMCNTENCLR | PMOVSCLR | PMOVSSET | PMINTENSET | PMINTENCLR, _) => {
                u32::MAX.into()
            }
            // EN and SW open more than reads.
            (PMUSERENR, _) => CYCLES_AT_EL0 | EVENTS_AT_EL0,
            (_, Some(Of::Value(number))) if self.is_long || number == EVENT_COUNTERS => u64::MAX,
            (_, Some(Of::Value(_))) => u32::MAX.into(),
            (_, Some(Of::Type(EVENT_COUNTERS))) => filter,
            (_, Some(Of::Type(_))) => filter | if self.is_long { 0xFFFF } else { 0x3FF },
            _ => panic!("MSR of {encoding:#X}: no such register"),
        };
        let illegal = value & !permitted;
        assert_eq!(illegal, 0, "MSR of {encoding:#X}, {value:#X}: illegal bits {illegal:#X}");
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
