//! A processor's counters as data: which there are, and each one's registers.

use crate::counter::counters_in;
use crate::msr::{MsrAccess, retry_once};
use crate::{Counter, EventSelect, MAX_COUNTERS, MsrAddress, MsrBackend, MsrUpdate, PmcIndex};

/// Counters whose registers lie at regular distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterBank {
    /// The first counter's event select.
    pub select: u32,
    /// The first counter.
    pub value: u32,
    /// The distance from one counter's registers to the next one's.
    pub step: u32,
    /// Number of them that RDPMC reads, with their number in ECX.
    pub rdpmc: u8,
    /// Their width in bits, 32–64.
    pub width: u8,
}

/// A processor's counters, as its vendor describes them: all that the operations need to know.
///
/// Counter *n* is bit *n* of the global registers, and has the registers that are *n* steps beyond the bank's
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterUnit {
    counters: u64,
    bank: CounterBank,
    /// One bit for each bit of a counter.
    mask: u64,
    /// The bits that an event may have in a select.
    event_bits: u64,
    global: Option<GlobalRegisters>,
    precise: Option<PreciseSampling>,
    masked_on_delivery: bool,
}

impl CounterUnit {
    /// No counters.
    pub const NONE: Self = {
        let bank = CounterBank { select: 0, value: 0, step: 0, rdpmc: 0, width: 64 };
        Self {
            counters: 0,
            bank,
            mask: u64::MAX,
            event_bits: 0,
            global: None,
            precise: None,
            masked_on_delivery: false,
        }
    };

    /// The counters whose bits are set in `counters`, of which those from [`MAX_COUNTERS`] on are left out.
    /// `event_bits` are those that an event may have in a select: others fault, or mean something else.
    ///
    /// # Safety
    /// - The registers of `bank`, for each of these counters, are event selects and counters: no value of
    ///   them makes the processor write to memory.
    pub const unsafe fn new(counters: u64, bank: CounterBank, event_bits: u64) -> Self {
        let counters = counters & ((1 << MAX_COUNTERS) - 1);
        let mask = match 64u32.checked_sub(bank.width as u32) {
            Some(unused @ 0..64) => u64::MAX >> unused,
            _ => 0,
        };
        Self { counters, bank, mask, event_bits, ..Self::NONE }
    }

    /// The same, with registers that control all counters together.
    pub const fn with_global(mut self, global: GlobalRegisters) -> Self {
        self.global = Some(global);
        self
    }

    /// The same, with precise sampling that a predecessor may have left on.
    pub const fn with_precise_sampling(mut self, precise: PreciseSampling) -> Self {
        self.precise = Some(precise);
        self
    }

    /// The same; whether the local APIC may mask its performance entry when it delivers the interrupt, so
    /// that each interrupt must unmask it.
    pub const fn masked_on_delivery(mut self, masked: bool) -> Self {
        self.masked_on_delivery = masked;
        self
    }

    /// The counters, one bit each.
    #[inline]
    pub const fn counters(&self) -> u64 {
        self.counters
    }

    /// Returns the bits of an event that no select of these counters may have.
    pub const fn illegal_bits(&self, event: EventSelect) -> u64 {
        event.select_bits() & !self.event_bits
    }

    /// Number of counters.
    pub const fn count(&self) -> u8 {
        self.counters.count_ones() as u8
    }

    /// The counters with their numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u8, Counter)> + '_ {
        counters_in(self.counters).filter_map(|number| Some((number, self.counter(number)?)))
    }

    /// The counter with this number, if it is one of them.
    #[inline]
    pub fn counter(&self, number: u8) -> Option<Counter> {
        let there = number < MAX_COUNTERS as u8 && self.counters >> number & 1 != 0;
        there.then(|| self.registers(number))
    }

    /// The registers of a counter that is one of them.
    #[inline]
    pub(crate) fn registers(&self, number: u8) -> Counter {
        let bank = &self.bank;
        let distance = bank.step * u32::from(number);
        let readable = number < bank.rdpmc;
        // SAFETY: these are event selects and counters, by the promise of `new`.
        let (select, value) = unsafe {
            (MsrAddress::new(bank.select + distance), MsrAddress::new(bank.value + distance))
        };
        let rdpmc = readable.then_some(PmcIndex::new(number.into()));
        Counter { select, value, rdpmc, mask: self.mask }
    }

    /// The registers that control all counters together, where the processor has them.
    #[inline]
    pub const fn global(&self) -> Option<&GlobalRegisters> {
        self.global.as_ref()
    }

    /// Precise sampling, where the processor declares it.
    pub(crate) const fn precise(&self) -> Option<&PreciseSampling> {
        self.precise.as_ref()
    }

    /// Returns whether each interrupt must unmask the local APIC's performance entry.
    #[inline]
    pub const fn is_masked_on_delivery(&self) -> bool {
        self.masked_on_delivery
    }

    /// The counters that a processor with these shares with one of `other`, one bit each: none, if they
    /// differ in anything but their number. On a hybrid machine processors differ.
    pub fn shared_with(&self, other: &Self) -> u64 {
        let alike = self.bank == other.bank
            && self.global == other.global
            && self.event_bits == other.event_bits;
        if alike { self.counters & other.counters } else { 0 }
    }
}

/// The registers that control all counters of a processor together.
///
/// A session owns the bits of its counters in them, and no others. Other owners do not write the control
/// register while a session lives, but have it set their bits
/// ([`Session::set_others_control`](crate::Session::set_others_control)); of the status they acknowledge their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GlobalRegisters {
    /// One bit per counter: it counts while the bit is set (and its event select says so).
    pub control: MsrAddress,
    /// One bit per counter: it overflowed.
    pub status: MsrAddress,
    /// Writing 1 clears the bit of the status.
    pub acknowledge: MsrAddress,
    /// Whether the counters are stopped while their interrupt is serviced: two writes more, and none
    /// of the events of servicing itself are counted.
    pub stop_while_serviced: bool,
    /// Bit of the status that says that the processor froze the counters, and whose acknowledgement
    /// releases them. 0: a processor that freezes clears the control register instead.
    pub frozen: u64,
    /// The control by which the processor freezes the counters itself, where it can.
    pub freeze: Option<Freeze>,
}

/// The bit that makes a processor stop all its counters as it raises the performance interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Freeze {
    register: u32,
    pub(crate) bit: u64,
}

impl Freeze {
    /// `bit` of `register` freezes.
    ///
    /// # Safety
    /// - Setting and clearing `bit` of `register`, with its other bits as they are, does not break
    ///   memory safety.
    pub const unsafe fn new(register: u32, bit: u64) -> Self {
        Self { register, bit }
    }

    /// Sets the bit or clears it.
    pub(crate) const fn set(&self, freezes: bool) -> MsrUpdate {
        let (clear, set) = if freezes { (0, self.bit) } else { (self.bit, 0) };
        // SAFETY: by the promise of `new`.
        unsafe { MsrUpdate::new(self.register, clear, set) }
    }

    /// Reads the register.
    pub(crate) const fn read(&self) -> MsrUpdate {
        MsrUpdate::read(self.register)
    }
}

/// The register whose bits make an overflow write a record to memory instead of interrupting, one bit per
/// counter: `IA32_PEBS_ENABLE`. A predecessor may have left bits of it set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PreciseSampling {
    enable: u32,
    capability: u32,
    unavailable: u64,
}

impl PreciseSampling {
    /// Bits of `enable` enable it, unless `unavailable` of the register `capability` says that there is no
    /// such register.
    ///
    /// # Safety
    /// - Clearing bits of `enable`, with its other bits as they are, does not break memory safety.
    pub const unsafe fn new(enable: u32, capability: u32, unavailable: u64) -> Self {
        Self { enable, capability, unavailable }
    }

    /// Takes it away from these counters, and returns those from which it could not be taken.
    pub(crate) fn disable(&self, msr: &impl MsrBackend, counters: u64) -> u64 {
        let capability = retry_once(|| msr.change(MsrUpdate::read(self.capability)));
        if capability.is_ok_and(|capability| capability & self.unavailable == 0) {
            // SAFETY: by the promise of `new`.
            let disable = unsafe { MsrUpdate::new(self.enable, counters, 0) };
            if retry_once(|| msr.change(disable)).is_err() {
                // A register that cannot even be read is not there.
                return msr.change(MsrUpdate::read(self.enable)).unwrap_or(0) & counters;
            }
        }
        0
    }
}
