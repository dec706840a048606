//! A processor's counters as data: the counters' registers, and the events that the counters can count.

use crate::access::address::{CounterIndex, RegisterAddress, RegisterBits, RegisterUpdate};
use crate::access::backend::{RegisterAccess, RegisterBackend};
use crate::counters::names::{CounterId, CounterSet, GenericEvent, MAX_FIXED, MAX_GENERAL};
use crate::counters::registers::counter::{
    Counter, CounterBank, CounterControl, EventSelect, FixedCounters, FullWidth,
};
use crate::counters::registers::layout::{CounterLayout, SelectLayout};
use crate::counters::registers::unused::PreciseSampling;
use crate::detection::NoInterface;

/// Description of a processor's counters and their registers, made [of](Self::of) what a vendor crate says. A counter's
/// [`CounterId`] is the number of the counter's bit in the global registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterUnit {
    counters: CounterSet,
    bank: &'static CounterBank,
    fixed: &'static FixedCounters,
    /// One bit for each bit of a counter: of a general, and of a fixed one.
    masks: [u64; 2],
    full_width: Option<&'static FullWidth>,
    /// The bits that an event may have in a select.
    pub(crate) event_bits: u64,
    named: &'static [u64; GenericEvent::COUNT],
    pub(crate) has_generic: u8,
    pub(crate) can_deny_user_reads: bool,
    masked_on_delivery: bool,
    pub(crate) runs_no_guests: bool,
    /// The type of core on a hybrid processor; 0: all cores are alike.
    core_type: u32,
    /// Numbers of two events: the one that needs a pair of counters, and the one that makes the pair; 0: no pairs.
    merged: [u16; 2],
    /// Select bits by which an event counts in guests only, and outside guests only.
    guest_bits: [u64; 2],
    global: Option<&'static GlobalRegisters>,
    precise: Option<&'static PreciseSampling>,
    /// The reason why there are no counters, if there are none.
    pub(crate) absent: NoInterface,
}

impl CounterUnit {
    /// Description of a processor whose CPUID declares no counters.
    pub const NONE: Self = {
        const BANK: CounterBank = CounterBank {
            select: 0,
            value: 0,
            step: 0,
            indexed: 0,
            sign_extended: false,
            counts_every_number: false,
        };
        const FIXED: FixedCounters =
            FixedCounters { control: 0, value: 0, step: 0, events: [0; MAX_FIXED] };
        Self {
            counters: CounterSet::NONE,
            bank: &BANK,
            fixed: &FIXED,
            masks: [u64::MAX; 2],
            full_width: None,
            event_bits: 0,
            named: &[0; _],
            has_generic: 0,
            can_deny_user_reads: false,
            masked_on_delivery: false,
            runs_no_guests: false,
            core_type: 0,
            merged: [0; 2],
            guest_bits: [0; 2],
            global: None,
            precise: None,
            absent: NoInterface::NoPerformanceMonitoring,
        }
    };

    /// Describes a processor without counters. [`take`](crate::CounterSession::take) returns the `reason` in its error.
    #[inline(never)] // 64 bytes of the glue.
    pub const fn absent(reason: NoInterface) -> Self {
        Self { absent: reason, ..Self::NONE }
    }

    /// Returns the reason why there are no counters; `None` if there are any.
    ///
    /// ```
    /// # use pmu_core::CounterUnit;
    /// # use pmu_core::error::NoInterface;
    /// let absent = CounterUnit::absent(NoInterface::NoLongMode);
    /// assert_eq!(absent.why_absent(), Some(NoInterface::NoLongMode));
    /// ```
    pub const fn why_absent(&self) -> Option<NoInterface> {
        if self.counters.is_empty() { Some(self.absent) } else { None }
    }

    /// Describes the counters of a processor, by what a vendor's crate says of them.
    ///
    /// ```
    /// # use pmu_core::CounterUnit;
    /// # use pmu_core::registers::{CounterLayout, SelectLayout};
    /// /// Returns the counters of processors that describe themselves, for a vendor's `EventSource::unit_of`.
    /// fn unit_of<P: CounterLayout + SelectLayout>(processor: &P) -> CounterUnit {
    ///     CounterUnit::of(processor)
    /// }
    /// ```
    pub fn of(processor: &(impl CounterLayout + SelectLayout)) -> Self {
        let (bank, width) = processor.general();
        let global = processor.global();
        let fixed = processor.fixed().filter(|_| global.is_some());
        let kinds = if fixed.is_some() { CounterSet::ALL } else { CounterSet::GENERAL };
        let (fixed, fixed_width) = fixed.unwrap_or((Self::NONE.fixed, 64));
        let (named, has_generic) = processor.generic_events();
        Self {
            counters: processor.counters() & kinds,
            bank,
            fixed,
            masks: [mask_of(width), mask_of(fixed_width)],
            full_width: processor.full_width(),
            event_bits: processor.event_bits(),
            named,
            has_generic,
            can_deny_user_reads: processor.denies_user_reads(),
            masked_on_delivery: processor.is_masked_on_delivery(),
            runs_no_guests: processor.runs_no_guests(),
            core_type: 0,
            merged: processor.merged_events(),
            guest_bits: processor.guest_bits(),
            global,
            precise: processor.precise_sampling(),
            absent: NoInterface::NoPerformanceMonitoring,
        }
    }

    /// Returns this unit with the register addresses of `bank`. The result has only the general counters whose bits are
    /// set in `counters`.
    ///
    /// # Safety
    /// - For each remaining general counter, `bank` gives a second address of the same event select, and a second
    ///   address of the same value register.
    ///
    /// ```
    /// # use pmu_core::registers::CounterBank;
    /// # use pmu_core::CounterUnit;
    /// # static LEGACY: CounterBank = CounterBank {
    /// #     select: 0xC001_0000,
    /// #     value: 0xC001_0004,
    /// #     step: 1,
    /// #     indexed: 6,
    /// #     sign_extended: false,
    /// #     counts_every_number: false,
    /// # };
    /// /// Returns the four legacy counters of a processor with the core extension.
    /// fn legacy(core: &CounterUnit) -> CounterUnit {
    ///     // SAFETY: these are the core extension's first four counters, at other addresses (APM vol. 2, §13.2.1).
    ///     unsafe { core.with_bank(&LEGACY, 0b1111) }
    /// }
    /// # let _ = legacy;
    /// ```
    ///
    /// Wrong: `core.with_bank(&LEGACY, 0b11_1111)`. Only four counters have legacy registers.
    pub const unsafe fn with_bank(&self, bank: &'static CounterBank, counters: u64) -> Self {
        let kept = self.counters.bits() & (counters | !CounterSet::GENERAL.bits());
        Self { counters: CounterSet::from_bits(kept), bank, ..*self }
    }

    /// Sets the unit's [type of core](Self::core_type) on a hybrid processor. By default, a [raw](crate::Event::raw)
    /// event is then counted only on cores of this type. The value 0, which a new unit has, means that all cores count
    /// the same events.
    pub const fn set_core_type(&mut self, core_type: u32) {
        self.core_type = core_type;
    }

    /// Returns the set of the unit's counters.
    #[inline]
    pub const fn counters(&self) -> CounterSet {
        self.counters
    }

    /// Returns the bits of `event` that are illegal in an event select of this processor.
    ///
    /// ```
    /// # use pmu_core::{CounterUnit, Event};
    /// # use pmu_core::registers::EventSelect;
    /// /// Checks a select that a user asked for, before an event is opened for it.
    /// fn check(unit: &CounterUnit, select: u64) -> Result<Event, u64> {
    ///     let select = EventSelect::from_bits(select);
    ///     match unit.illegal_bits(select) {
    ///         0 => Ok(Event::raw(select)),
    ///         bits => Err(bits), // to be named in the error
    ///     }
    /// }
    /// # let _ = check;
    /// ```
    pub const fn illegal_bits(&self, event: EventSelect) -> u64 {
        event.select_bits() & !self.event_bits
    }

    /// Returns all bits that a select may have: those of events, modes, guests and user mode's RDPMC.
    pub(crate) const fn all_bits(&self) -> u64 {
        let no_user_rdpmc = if self.can_deny_user_reads { EventSelect::NO_USER_RDPMC } else { 0 };
        self.event_bits | self.guest_bits[0] | self.guest_bits[1] | no_user_rdpmc
    }

    /// Returns the select that counts a generic event at every privilege level, if the processor has the event.
    ///
    /// ```
    /// # use pmu_core::{CounterUnit, GenericEvent};
    /// /// Returns the generic events that a processor lacks, for a tool that lists events.
    /// fn lacking(unit: &CounterUnit) -> impl Iterator<Item = GenericEvent> + '_ {
    ///     GenericEvent::ALL.into_iter().filter(|event| unit.generic(*event).is_none())
    /// }
    /// assert_eq!(lacking(&CounterUnit::NONE).count(), GenericEvent::COUNT);
    /// ```
    pub fn generic(&self, event: GenericEvent) -> Option<EventSelect> {
        let bits = *self.named.get(event as usize)?;
        let available = self.has_generic >> event as u32 & 1 != 0;
        (available && bits != 0).then(|| EventSelect::from_bits(bits | EventSelect::MODES))
    }

    /// Returns the counters that can count `select`, by these rules:
    ///
    /// - A general counter counts any event, with two exceptions. If there are fixed counters, only they count event
    ///   number 0, unless the bank [counts every number](CounterBank::counts_every_number). On Intel, only counter 2
    ///   counts a select with bit 33 (IN_TXCP).
    /// - A fixed counter counts only its own event, without qualifiers such as edge detection.
    ///
    /// For restrictions of single events on single processors, see [`Event::on`](crate::Event::on).
    ///
    /// ```
    /// # use pmu_core::{CounterUnit, GenericEvent};
    /// /// Returns the number of counters that can count a generic event.
    /// fn at_once(unit: &CounterUnit, event: GenericEvent) -> usize {
    ///     unit.generic(event).map_or(0, |select| unit.counters_for(select).len())
    /// }
    /// # let _ = at_once;
    /// ```
    pub fn counters_for(&self, select: EventSelect) -> CounterSet {
        let bits = select.select_bits();
        if self.in_txcp(select) {
            // Only the select of general counter 2 has the bit.
            return self.counters & CounterSet::from_bits(1 << 2);
        }
        let (event, plain) = (bits as u16, bits & self.qualifiers() == 0);
        let fixed = self.counters & CounterSet::FIXED;
        let of_fixed = fixed.retain(|counter| {
            let own = self.fixed.events.get(usize::from(counter.number()));
            plain && event != 0 && own == Some(&event)
        });
        let is_reserved = event as u8 | u8::from(self.bank.counts_every_number) == 0;
        let fixed_only = !fixed.is_empty() && is_reserved;
        let general = if fixed_only { CounterSet::NONE } else { CounterSet::GENERAL };
        self.counters & general | of_fixed
    }

    /// Returns whether `select` has the bit IN_TXCP, which on AMD belongs to the event number.
    pub(crate) const fn in_txcp(&self, select: EventSelect) -> bool {
        // Bit 35 is legal in an event only where event numbers have twelve bits, which then include bit 33.
        let twelve_bits = self.event_bits >> 35 & 1 != 0;
        select.select_bits() & EventSelect::IN_TXCP != 0 && !twelve_bits
    }

    /// Returns the bits of a select that qualify its event: all but event number, unit mask and modes.
    const fn qualifiers(&self) -> u64 {
        !(0xFFFF | EventSelect::MODES | self.guest_bits[0] | self.guest_bits[1])
    }

    /// Returns the type of core on a hybrid processor, or 0 if all cores are alike. On Intel the value is EAX of CPUID
    /// leaf 0x1A: the type in bits 31:24, the native model in bits 23:0.
    pub const fn core_type(&self) -> u32 {
        self.core_type
    }

    /// Returns whether `select` counts right only on a pair of counters. `narrow`: the event happens at most 15 times
    /// per cycle.
    pub(crate) const fn needs_pair(&self, select: EventSelect, narrow: bool) -> bool {
        let ([wide, merge], number) = (self.merged, select.event_number());
        merge != 0 && (number == merge || number == wide && !narrow)
    }

    /// Returns the select bits by which an event counts in guests only, and outside guests only; 0: there is none.
    pub(crate) const fn guest_bits(&self) -> [u64; 2] {
        self.guest_bits
    }

    /// Returns whether the values of the global control register confine events to guests, or to the host.
    pub(crate) const fn has_guests_by_control(&self) -> bool {
        matches!(self.global, Some(GlobalRegisters { loaded_for_guests: true, .. }))
    }

    /// Returns whether the processor can deny RDPMC above privilege level 0 for each counter separately.
    pub const fn can_deny_user_reads(&self) -> bool {
        self.can_deny_user_reads
    }

    /// Returns each counter of the unit with its registers, in ascending order of the counters' bits.
    pub fn iter(&self) -> impl Iterator<Item = (CounterId, Counter)> + '_ {
        self.counters.iter().map(|counter| (counter, self.registers(counter)))
    }

    /// Returns the registers of `counter`, or `None` if the unit lacks this counter.
    #[inline]
    pub fn counter(&self, counter: CounterId) -> Option<Counter> {
        self.counters.contains(counter).then(|| self.registers(counter))
    }

    /// Returns the registers of a counter that is in this unit.
    #[inline]
    pub(crate) fn registers(&self, counter: CounterId) -> Counter {
        let number = counter.number();
        let mask = self.masks[usize::from(counter.is_fixed())];
        if counter.is_fixed() {
            let value = self.fixed.value.wrapping_add(self.fixed.step * u32::from(number));
            // SAFETY: the control and the counters, by the promise of `CounterLayout`.
            let (register, value) =
                unsafe { (RegisterAddress::new(self.fixed.control), RegisterAddress::new(value)) };
            let control = CounterControl::Shared { register, counter: number };
            let index = Some(CounterIndex::new(1 << 30 | u32::from(number)));
            return Counter { control, value, full: None, sign_extended: false, index, mask };
        }
        self.general(counter)
    }

    /// Returns the registers of a general counter that is in this unit.
    #[inline]
    pub(crate) fn general(&self, counter: CounterId) -> Counter {
        let (bank, number, mask) = (self.bank, counter.bit(), self.masks[0]);
        let distance = bank.step * u32::from(number);
        let readable = number < bank.indexed;
        // SAFETY: these are event selects and counters, by the promises of `CounterLayout`.
        let (select, value, full) = unsafe {
            let full = self.full_width.map(|full| RegisterAddress::new(full.value + distance));
            (
                RegisterAddress::new(bank.select + distance),
                RegisterAddress::new(bank.value + distance),
                full,
            )
        };
        let index = readable.then_some(CounterIndex::new(number.into()));
        let control = CounterControl::Select(select);
        Counter { control, value, full, sign_extended: bank.sign_extended, index, mask }
    }

    /// Returns whether the general counters can be written in full width, by reading the register that declares it.
    pub(crate) fn has_full_width(&self, msr: &impl RegisterBackend) -> bool {
        self.full_width.is_some_and(|full| {
            let capabilities = msr.update_retrying(RegisterUpdate::read(full.capabilities));
            capabilities.is_ok_and(|bits| bits & full.declared != 0)
        })
    }

    /// Returns the control register that the fixed counters share.
    pub(crate) fn fixed_control(&self) -> RegisterAddress {
        // SAFETY: the control, by the promise of `CounterLayout`; without fixed counters it is not accessed.
        unsafe { RegisterAddress::new(self.fixed.control) }
    }

    /// Returns the registers that control all counters together. Returns `None` if the processor has no such registers.
    #[inline]
    pub const fn global(&self) -> Option<&'static GlobalRegisters> {
        self.global
    }

    /// Returns the register of precise sampling, if the processor declares it.
    pub(crate) const fn precise(&self) -> Option<&'static PreciseSampling> {
        self.precise
    }

    /// Returns whether the interrupt controller may mask the performance interrupt when it delivers it.
    /// [`service`](crate::service) then unmasks the interrupt each time.
    #[inline]
    pub const fn is_masked_on_delivery(&self) -> bool {
        self.masked_on_delivery
    }

    /// Returns the counters that both units have, with the same registers and width in both. On a hybrid machine, the
    /// units of different types of core differ.
    ///
    /// ```
    /// # use pmu_core::{CounterSet, CounterUnit};
    /// /// Returns the counters that all cores of a hybrid machine have: a thread's events can use these anywhere.
    /// fn everywhere(cores: &[CounterUnit]) -> CounterSet {
    ///     let [first, others @ ..] = cores else { return CounterSet::NONE };
    ///     others.iter().fold(first.counters(), |counters, core| counters & first.shared_with(core))
    /// }
    /// # let _ = everywhere;
    /// ```
    #[inline(never)] // 320 bytes of the glue, at `opt-level` 3.
    pub fn shared_with(&self, other: &Self) -> CounterSet {
        let global = |unit: &Self| unit.global.map(|global| (global.control, global.frozen));
        if self.bank.value != other.bank.value || global(self) != global(other) {
            return CounterSet::NONE;
        }
        // A counter of another width overflows elsewhere.
        let ([general, fixed], [of_general, of_fixed]) = (self.masks, other.masks);
        let general = if general == of_general { CounterSet::GENERAL } else { CounterSet::NONE };
        let alike = fixed == of_fixed && self.fixed.value == other.fixed.value;
        let fixed = if alike { CounterSet::FIXED } else { CounterSet::NONE };
        self.counters & other.counters & (general | fixed)
    }

    /// Returns the number of slots that these counters need: one for each slot up to the last.
    pub(crate) fn slots_needed(&self, counters: CounterSet) -> usize {
        counters.last().map_or(0, |last| {
            let first = if last.is_fixed() { self.first_fixed_slot() } else { 0 };
            first + usize::from(last.number()) + 1
        })
    }

    /// Returns the counters for which this number of slots is enough.
    pub(crate) fn addressable_with(&self, slots: usize) -> CounterSet {
        let first = |count: usize, most: usize| (1u64 << count.min(most)) - 1;
        let fixed = first(slots.saturating_sub(self.first_fixed_slot()), MAX_FIXED) as u8;
        CounterSet::from_bits(first(slots, MAX_GENERAL)) | CounterSet::fixed(fixed)
    }

    pub(crate) fn first_fixed_slot(&self) -> usize {
        (u32::BITS - (self.counters().bits() as u32).leading_zeros()) as usize
    }
}

const fn mask_of(width: u8) -> u64 {
    match 64u32.checked_sub(width as u32) {
        Some(unused @ 0..64) => u64::MAX >> unused,
        _ => 0,
    }
}

/// The registers that control all counters of a processor together.
///
/// A session owns the bits of its own counters in these registers. While the session lives, other owners must not write
/// the control register: they set their bits by
/// [`CounterSession::set_others_control`](crate::CounterSession::set_others_control). In the status register, each
/// owner acknowledges its own bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct GlobalRegisters {
    /// The control register, with one bit per counter. A counter counts only while its bit in this register and the
    /// enable bits in its own control register are set.
    pub control: RegisterAddress,
    /// The overflow status register, with one bit per counter. The bit is set if the counter has overflowed.
    pub status: RegisterAddress,
    /// The acknowledgement register: writing 1 to a bit clears the same bit of the [status](Self::status) register.
    pub acknowledge: RegisterAddress,
    /// If set, the driver stops the counters while it services their interrupt. This costs two more writes per
    /// interrupt. Events that the interrupt handler itself causes are then not counted.
    pub stop_while_serviced: bool,
    /// If set, VM entry and VM exit can load the control register, as with Intel's VMX. The hypervisor then has to load
    /// the values that [`guest_control`](crate::lending::guest_control) returns. These values confine events to guests,
    /// or to the host.
    pub loaded_for_guests: bool,
    /// Mask of the bit that the processor sets in the overflow status when it freezes the counters. Acknowledging this
    /// bit lets the counters run again. This field is 0 if the processor has no such bit. Such a processor freezes its
    /// counters by clearing the control register.
    pub frozen: u64,
    /// The register bit that enables freezing, if the processor has such a bit. While this bit is set, the processor
    /// stops all its counters when it raises the performance interrupt.
    pub freeze: Option<RegisterBits>,
}
