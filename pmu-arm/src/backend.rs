//! The translation between the registers as the driver has them, and those of the processor.

use bitfield_struct::bitfield;
use pmu_core::access::{
    AccessError, AccessErrorKind, CounterIndex, RegisterAddress, RegisterBackend, RegisterUpdate,
};

use crate::registers::{CHAIN, CYCLE_COUNTER, EVENT_COUNTERS, EventType, Pmcr, Register};

/// Access to the system registers of the Performance Monitors Extension, on the processor that executes the call.
///
/// `NativeRegisters` (feature `native`) executes MRS and MSR. A kernel implements this trait itself if it catches the
/// undefined-instruction exception of a trapped access, or counts in a test.
///
/// ```
/// use pmu_arm::SystemRegisters;
/// use pmu_arm::registers::Register;
/// use core::convert::Infallible;
/// # fn call_monitor(_: u16, _: Option<u64>) -> u64 { 0 }
///
/// /// A kernel whose monitor accesses the registers for it.
/// struct ByCall;
///
/// impl SystemRegisters for ByCall {
///     type Error = Infallible;
///     fn read(&self, register: Register) -> Result<u64, Infallible> {
///         Ok(call_monitor(register.encoding(), None))
///     }
///     fn write(&self, register: Register, value: u64) -> Result<(), Infallible> {
///         call_monitor(register.encoding(), Some(value));
///         Ok(())
///     }
///     fn synchronize(&self) {} // the call does
/// }
/// # assert_eq!(ByCall.read(Register::Pmcr), Ok(0));
/// ```
///
/// # Context
/// Every method is called in task, interrupt and NMI context, and takes no lock that the interrupted code may hold.
pub trait SystemRegisters {
    /// Error of an access.
    type Error: AccessError;

    /// Reads the register by MRS.
    fn read(&self, register: Register) -> Result<u64, Self::Error>;

    /// Writes the register by MSR.
    fn write(&self, register: Register, value: u64) -> Result<(), Self::Error>;

    /// Executes ISB: the writes before the call have taken effect, and the reads after it see what happened before the
    /// call. The compiler moves no access of memory across it.
    fn synchronize(&self);
}

impl<R: SystemRegisters + ?Sized> SystemRegisters for &R {
    type Error = R::Error;

    #[inline]
    fn read(&self, register: Register) -> Result<u64, R::Error> {
        (**self).read(register)
    }

    #[inline]
    fn write(&self, register: Register, value: u64) -> Result<(), R::Error> {
        (**self).write(register, value)
    }

    #[inline]
    fn synchronize(&self) {
        (**self).synchronize();
    }
}

/// The [`RegisterBackend`] of a kernel on Arm: it translates the register values of the driver into those of PMUv3, and
/// accesses the registers by an `R`.
///
/// Only the registers of [`counters`](crate::counters) can be accessed. The address of a register is its
/// [encoding](Register::encoding); bits above it say what the registers themselves do not. An access of another address
/// fails, as if the register did not exist. A failed access may have made a part of its changes, as the driver expects:
/// a counter that cannot be programmed is not used.
///
/// The write that enables counters also sets E and LC of `PMCR_EL0`, and LP if the event counters have 64 bits, and
/// clears FZO. While E is clear, as after a reset, no counter counts, and the contents of the other registers are
/// unknown. So no counter is reported as enabled then, and the write that sets E disables all other counters, also from
/// number 16 on, and their interrupts. Afterwards only the driver's own bits are changed: a hypervisor's own event
/// counters, those from `MDCR_EL2.HPMN` on, that are enabled as a session begins stay so. The session does not know of
/// one that is enabled later, and disables it with its own as it lends the counters or suspends.
///
/// `PMSELR_EL0` is not used. The registers that are written are `PMCR_EL0`, `PMCNTENSET_EL0`, `PMCNTENCLR_EL0`,
/// `PMOVSCLR_EL0`, `PMINTENSET_EL1`, `PMINTENCLR_EL1`, `PMCCFILTR_EL0`, `PMCCNTR_EL0`, and type and value of the event
/// counters.
///
/// ```
/// use pmu_arm::{ArmRegisters, SystemRegisters};
/// use pmu_core::access::RegisterBackend;
/// /// Returns the backend for `Kernel::registers`.
/// fn msr(registers: impl SystemRegisters) -> impl RegisterBackend {
///     ArmRegisters::new(registers)
/// }
/// # let _ = |registers: pmu_arm_doc::Registers| msr(registers);
/// # mod pmu_arm_doc {
/// #     use pmu_arm::registers::Register;
/// #     pub struct Registers;
/// #     impl pmu_arm::SystemRegisters for Registers {
/// #         type Error = core::convert::Infallible;
/// #         fn read(&self, _: Register) -> Result<u64, Self::Error> { Ok(0) }
/// #         fn write(&self, _: Register, _: u64) -> Result<(), Self::Error> { Ok(()) }
/// #         fn synchronize(&self) {}
/// #     }
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ArmRegisters<R> {
    registers: R,
}

/// Bit of an address: the kernel runs at EL2, so that its own events are those at EL2.
pub(crate) const AT_EL2: u32 = 1 << 16;

/// Bit of the address of the enable word: event counters overflow after bit 63.
pub(crate) const LONG: u32 = 1 << 17;

/// Bit of an address: the driver's counters are [pairs](crate::chained_counters). Counter *n* is event counter 2*n*
/// with the next one, which counts the overflows of 2*n* (CHAIN).
pub(crate) const CHAINED: u32 = 1 << 18;

/// The select of a counter, as the driver writes and reads it.
#[bitfield(u64)]
pub(crate) struct Select {
    event: u16,
    pub(crate) user: bool,
    pub(crate) kernel: bool,
    #[bits(2)]
    __: u8,
    interrupt: bool,
    __: bool,
    enable: bool,
    /// Counts cycles with fewer events than the threshold, instead of those with as many or more.
    pub(crate) below: bool,
    pub(crate) threshold: u8,
    __: u32,
}

/// The control of the cycle counter, as the driver writes and reads it.
#[bitfield(u64)]
struct CycleControl {
    kernel: bool,
    user: bool,
    __: bool,
    interrupt: bool,
    #[bits(60)]
    __: u64,
}

/// The privileges at which a counter counts.
#[derive(Clone, Copy)]
struct Modes {
    user: bool,
    kernel: bool,
}

impl Modes {
    const NONE: Self = Self { user: false, kernel: false };

    fn is_none(self) -> bool {
        !(self.user || self.kernel)
    }

    /// Returns the filter bits of an event type. NSK, NSU and the bits of other states stay 0. So an event is counted
    /// in Secure state and at EL3 as in Non-secure state, in so far as `MDCR_EL3` permits: at reset, it does not.
    fn filter(self, at_el2: bool) -> EventType {
        let filter = EventType::new().with_not_el0(!self.user).with_not_el1(!self.kernel);
        filter.with_el2(self.kernel && at_el2)
    }

    fn of(filter: EventType) -> Self {
        Self { user: !filter.not_el0(), kernel: !filter.not_el1() }
    }
}

/// A counter that has an event type or a filter: its register, and its bit.
struct Counter {
    register: Register,
    bit: u64,
    at_el2: bool,
    /// The type of the counter that counts its overflows, and interrupts in its place.
    chain: Option<Register>,
}

impl Counter {
    /// Returns the bit of the counter that interrupts.
    fn interrupt(&self) -> u64 {
        if self.chain.is_some() { self.bit << 1 } else { self.bit }
    }
}

/// The bits of the counters that the driver may have.
const CYCLE: u64 = 1 << CYCLE_COUNTER;
const EVENTS: u64 = (1 << EVENT_COUNTERS) - 1;

/// The bits of the lower halves of pairs.
const LOWER: u64 = EVENTS / 3;

/// The bits of all counters of a processor.
const ALL: u64 = (1 << 32) - 1;

/// The cycle counter's bit in the driver's words: that of fixed counter 0.
const FIXED_0: u64 = 1 << 32;

/// The cycle counter's index for reads: that of fixed counter 0.
const CYCLE_INDEX: u32 = 1 << 30;

/// Returns the processor's bits per counter as the driver's.
fn to_driver(bits: u64, chained: bool) -> u64 {
    let events = if chained { to_pairs(bits) } else { bits & EVENTS };
    events | if bits & CYCLE != 0 { FIXED_0 } else { 0 }
}

/// Returns the processor's enable bits as the driver's. If one counter of a pair alone is enabled, the counter is
/// another owner's: the word has a bit for the counter, which the driver writes back as it was found.
fn enabled_to_driver(bits: u64, chained: bool) -> u64 {
    if !chained {
        return to_driver(bits, false);
    }
    let pairs = to_pairs(bits & bits << 1);
    let single = bits & EVENTS & !of_pairs(pairs);
    to_driver(bits & CYCLE, true) | pairs | single << SINGLE
}

fn to_processor(word: u64, chained: bool) -> u64 {
    let events = if chained { of_pairs(word) | word >> SINGLE & EVENTS } else { word & EVENTS };
    events | if word & FIXED_0 != 0 { CYCLE } else { 0 }
}

/// Place of the bits of single counters in the enable word of pairs.
const SINGLE: u32 = 16;

/// Returns the bits of event counters for the driver's pairs: both of each.
fn of_pairs(word: u64) -> u64 {
    (0..EVENT_COUNTERS / 2)
        .filter(|pair| word >> pair & 1 != 0)
        .map(|pair| 0b11 << (2 * pair))
        .sum()
}

/// Returns the driver's pairs of which the bits of the counters that count overflows are set.
fn to_pairs(bits: u64) -> u64 {
    (0..EVENT_COUNTERS / 2).map(|pair| (bits >> (2 * pair + 1) & 1) << pair).sum()
}

/// The meaning of an address.
enum Meaning {
    Select(Counter),
    CycleControl(Counter),
    Value(Register),
    /// The values of a pair, the lower half first.
    Pair([Register; 2]),
    Enabled {
        long: bool,
        chained: bool,
    },
    Overflowed {
        chained: bool,
    },
}

fn meaning(address: u32) -> Option<Meaning> {
    let (at_el2, long) = (address & AT_EL2 != 0, address & LONG != 0);
    let chained = address & CHAINED != 0;
    let encoding = address & !(AT_EL2 | LONG | CHAINED);
    let number = |first: Register| encoding.wrapping_sub(first as u32) as usize;
    let of_type = number(Register::Pmevtyper0);
    if let Some(register) = Register::event_type(of_type) {
        let bit = 1 << of_type;
        let chain = match chained {
            false => None,
            true if of_type % 2 != 0 => return None,
            true => Some(Register::event_type(of_type + 1)?),
        };
        return Some(Meaning::Select(Counter { register, bit, at_el2, chain }));
    }
    let of_value = number(Register::Pmevcntr0);
    if let Some(register) = Register::event_counter(of_value) {
        return match chained {
            false => Some(Meaning::Value(register)),
            true if of_value % 2 != 0 => None,
            true => Some(Meaning::Pair([register, Register::event_counter(of_value + 1)?])),
        };
    }
    const CYCLES: u32 = Register::Pmccntr as u32;
    const FILTER: u32 = Register::Pmccfiltr as u32;
    const ENABLED: u32 = Register::Pmcntenset as u32;
    const OVERFLOWED: u32 = Register::Pmovsclr as u32;
    Some(match encoding {
        CYCLES if !chained => Meaning::Value(Register::Pmccntr),
        FILTER if !chained => {
            let register = Register::Pmccfiltr;
            Meaning::CycleControl(Counter { register, bit: CYCLE, at_el2, chain: None })
        }
        ENABLED => Meaning::Enabled { long, chained },
        OVERFLOWED => Meaning::Overflowed { chained },
        _ => return None,
    })
}

impl<R: SystemRegisters> ArmRegisters<R> {
    /// Creates the backend.
    pub const fn new(registers: R) -> Self {
        Self { registers }
    }

    #[inline]
    fn get(&self, register: Register) -> Result<u64, AccessErrorKind> {
        self.registers.read(register).map_err(|error| error.kind())
    }

    #[inline]
    fn set(&self, register: Register, value: u64) -> Result<(), AccessErrorKind> {
        self.registers.write(register, value).map_err(|error| error.kind())
    }

    fn interrupts(&self, counter: &Counter) -> Result<bool, AccessErrorKind> {
        Ok(self.get(Register::Pmintenset)? & counter.interrupt() != 0)
    }

    /// Reads a pair of counters, which may run.
    fn read_pair(&self, [low, high]: [Register; 2]) -> Result<u64, AccessErrorKind> {
        // Reads between two synchronizations may be done in any order.
        let get = |register| {
            self.registers.synchronize();
            self.get(register)
        };
        let (before, value, after) = (get(high)?, get(low)?, get(high)?);
        if before == after {
            return Ok(after << 32 | value);
        }
        // The lower half has overflowed in between, and is far from the next time.
        Ok(after << 32 | get(low)?)
    }

    /// Writes a pair of counters, which may run.
    fn write_pair(&self, [low, high]: [Register; 2], value: u64) -> Result<(), AccessErrorKind> {
        // From 0 the lower half does not overflow before the upper half is written.
        self.set(low, 0)?;
        self.registers.synchronize();
        self.set(high, value >> 32)?;
        self.registers.synchronize();
        self.set(low, value & u64::from(u32::MAX))?;
        self.registers.synchronize();
        Ok(())
    }

    /// Programs a counter's type and interrupt. On return, it counts as told or has stopped.
    fn program(
        &self,
        counter: &Counter,
        counted: EventType,
        modes: Modes,
        interrupt: bool,
    ) -> Result<(), AccessErrorKind> {
        let interrupts = interrupt && !modes.is_none();
        let filter = modes.filter(counter.at_el2).into_bits() | counted.into_bits();
        // The interrupt is enabled before the counter counts, and until it has stopped: so no overflow is missed.
        if interrupts {
            self.set(Register::Pmintenset, counter.interrupt())?;
            self.registers.synchronize();
        }
        if let Some(chain) = counter.chain {
            // The lower half overflows where its event is counted, so the upper half counts everywhere.
            let overflows = Modes { user: true, kernel: true }.filter(true).with_event(CHAIN);
            self.set(Register::Pmintenclr, counter.bit)?;
            self.set(chain, overflows.into_bits())?;
            self.registers.synchronize();
        }
        self.set(counter.register, filter)?;
        self.registers.synchronize();
        if !interrupts {
            self.set(Register::Pmintenclr, counter.interrupt())?;
            if counter.chain.is_some() {
                // The driver never sees the lower half's overflow.
                self.set(Register::Pmovsclr, counter.bit)?;
            }
            self.registers.synchronize();
        }
        Ok(())
    }

    /// Enables these counters, and disables the others of the driver's.
    fn enable(&self, bits: u64, long: bool, chained: bool) -> Result<(), AccessErrorKind> {
        // P and C read as 0, so writing back what was read resets no counter.
        let found = Pmcr::from_bits(self.get(Register::Pmcr)?);
        let wanted = found.with_enable(true).with_long_cycle_counter(true);
        let wanted = wanted.with_freeze_on_overflow(false);
        // Bit 7 is reserved where event counters have 32 bits.
        let wanted = if long { wanted.with_long_event_counters(true) } else { wanted };
        if !found.enable() {
            // The counters have no owner: these registers hold what a reset or a suspend left in them.
            for register in [Register::Pmcntenclr, Register::Pmintenclr, Register::Pmovsclr] {
                self.set(register, !bits & ALL)?;
            }
        }
        if wanted != found {
            self.set(Register::Pmcr, wanted.into_bits())?;
        }
        self.registers.synchronize();
        let stopped = if chained { self.get(Register::Pmcntenset)? & !bits } else { 0 };
        self.set(Register::Pmcntenclr, !bits & (EVENTS | CYCLE))?;
        if chained {
            self.registers.synchronize();
            // The driver never sees the overflow of a lower half, and a borrower of the counters must not.
            self.set(Register::Pmovsclr, stopped & stopped >> 1 & LOWER)?;
        }
        self.set(Register::Pmcntenset, bits)?;
        self.registers.synchronize();
        Ok(())
    }

    /// Returns the bits of the counters that are enabled.
    fn enabled(&self) -> Result<u64, AccessErrorKind> {
        let is_any = Pmcr::from_bits(self.get(Register::Pmcr)?).enable();
        if is_any { self.get(Register::Pmcntenset) } else { Ok(0) }
    }

    fn read_register(&self, address: u32) -> Result<u64, AccessErrorKind> {
        match meaning(address).ok_or(AccessErrorKind::Fault)? {
            Meaning::Select(counter) => {
                let found = EventType::from_bits(self.get(counter.register)?);
                let modes = Modes::of(found);
                let select = Select::new().with_event(found.event()).with_user(modes.user);
                let select = select.with_kernel(modes.kernel).with_enable(!modes.is_none());
                let select = select.with_interrupt(self.interrupts(&counter)?);
                Ok(thresholds_of(found, select).into_bits())
            }
            Meaning::CycleControl(counter) => {
                let modes = Modes::of(EventType::from_bits(self.get(counter.register)?));
                let control = CycleControl::new().with_user(modes.user).with_kernel(modes.kernel);
                Ok(control.with_interrupt(self.interrupts(&counter)?).into_bits())
            }
            Meaning::Value(register) => {
                // Without it, the read may be done before the instructions that are to be counted.
                self.registers.synchronize();
                self.get(register)
            }
            Meaning::Pair(pair) => self.read_pair(pair),
            Meaning::Enabled { chained, .. } => Ok(enabled_to_driver(self.enabled()?, chained)),
            Meaning::Overflowed { chained } => {
                Ok(to_driver(self.get(Register::Pmovsclr)?, chained))
            }
        }
    }

    fn write_register(&self, address: u32, value: u64) -> Result<(), AccessErrorKind> {
        match meaning(address).ok_or(AccessErrorKind::Fault)? {
            Meaning::Select(counter) => {
                let select = Select::from_bits(value);
                let modes = Modes { user: select.user(), kernel: select.kernel() };
                let modes = if select.enable() { modes } else { Modes::NONE };
                self.program(&counter, counted_by(select), modes, select.interrupt())
            }
            Meaning::CycleControl(counter) => {
                let control = CycleControl::from_bits(value);
                let modes = Modes { user: control.user(), kernel: control.kernel() };
                self.program(&counter, EventType::new(), modes, control.interrupt())
            }
            Meaning::Value(register) => {
                self.set(register, value)?;
                // Otherwise, what a running counter counts from here on may be overwritten.
                self.registers.synchronize();
                Ok(())
            }
            Meaning::Pair(pair) => self.write_pair(pair, value),
            Meaning::Enabled { long, chained } => {
                self.enable(to_processor(value, chained), long, chained)
            }
            Meaning::Overflowed { chained } => {
                self.set(Register::Pmovsclr, to_processor(value, chained))?;
                // The interrupt line is inactive before the kernel ends the interrupt.
                self.registers.synchronize();
                Ok(())
            }
        }
    }
}

/// Returns event and threshold of a select as an event type without filter bits.
fn counted_by(select: Select) -> EventType {
    let counted = EventType::new().with_event(select.event());
    if select.threshold() == 0 {
        return counted;
    }
    let control = if select.below() { EventType::BELOW } else { EventType::AT_LEAST };
    counted.with_threshold(select.threshold().into()).with_threshold_control(control)
}

/// Returns the select with the threshold of an event type.
fn thresholds_of(found: EventType, select: Select) -> Select {
    let below = found.threshold_control() == EventType::BELOW;
    select.with_threshold(found.threshold() as u8).with_below(below)
}

impl<R: SystemRegisters> RegisterBackend for ArmRegisters<R> {
    type Error = AccessErrorKind;

    fn read(&self, address: RegisterAddress) -> Result<u64, AccessErrorKind> {
        self.read_register(address.get())
    }

    fn write(&self, address: RegisterAddress, value: u64) -> Result<(), AccessErrorKind> {
        self.write_register(address.get(), value)
    }

    /// Reads an event counter by its number, or the cycle counter by its index, `1 << 30`.
    fn read_counter(&self, index: CounterIndex) -> Result<u64, AccessErrorKind> {
        let register = match index.get() {
            CYCLE_INDEX => Some(Register::Pmccntr),
            number => Register::event_counter(number as usize),
        };
        self.read_register(register.ok_or(AccessErrorKind::Fault)? as u32)
    }

    fn update(&self, update: RegisterUpdate) -> Result<u64, AccessErrorKind> {
        let found = self.read_register(update.register())?;
        if let Some(value) = update.apply(found) {
            self.write_register(update.register(), value)?;
        }
        Ok(found)
    }

    /// Returns the number of the counter's bit: 31 for the cycle counter, as in Linux' `perf_event_mmap_page`.
    fn user_index(&self, index: CounterIndex) -> CounterIndex {
        if index.get() == CYCLE_INDEX { CounterIndex::new(CYCLE_COUNTER) } else { index }
    }
}
