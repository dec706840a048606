//! An event on a processor: its select, and the counters that can count it.

use crate::access::address::{OptionalAddress, RegisterAddress};
use crate::counters::error::CounterError;
use crate::counters::events::count::Membership;
use crate::counters::events::event::{Event, EventKind, GuestMode};
use crate::counters::names::CounterSet;
use crate::counters::registers::counter::EventSelect;
use crate::counters::registers::unit::CounterUnit;

impl CounterUnit {
    /// Returns the counters of this processor that can count an event, among those that the event
    /// [allows](Event::on).
    ///
    /// ```
    /// # use pmu_core::{CounterUnit, Event, GenericEvent};
    /// /// Returns whether only fixed counters can count an event.
    /// fn needs_fixed_counter(unit: &CounterUnit, event: GenericEvent) -> bool {
    ///     unit.counters_of(&Event::generic(event))
    ///         .is_ok_and(|counters| counters.iter().all(|counter| counter.is_fixed()))
    /// }
    /// # let _ = needs_fixed_counter;
    /// ```
    ///
    /// # Errors
    /// The errors of [`open`](crate::CounterSession::open) for an event that the processor cannot count.
    pub fn counters_of(&self, event: &Event) -> Result<CounterSet, CounterError> {
        self.resolve(event).map(|(_, capable)| capable)
    }

    /// Returns the counters, with the sampling units, that can count an event.
    pub(crate) fn all_counters_of(&self, event: &Event) -> Result<CounterSet, CounterError> {
        match event.of_unit() {
            Some(_) => Ok(CounterSet::UNITS),
            None => self.counters_of(event).map(|counters| counters & self.counters()),
        }
    }

    /// Returns the select and the counters with which an event is counted. Which of the sampling units samples an event
    /// is the facility's to say.
    pub(crate) fn resolve_with_units(
        &self,
        event: &Event,
    ) -> Result<(EventSelect, CounterSet), CounterError> {
        event
            .of_unit()
            .map_or_else(|| self.resolve(event), |select| Ok((select, CounterSet::UNITS)))
    }

    /// Returns the select and the counters with which an event is counted.
    pub(crate) fn resolve(&self, event: &Event) -> Result<(EventSelect, CounterSet), CounterError> {
        if let EventKind::Software(software) = event.kind {
            let bits = software.select().select_bits() | event.modes;
            return Ok((EventSelect::from_bits(bits), CounterSet::NONE));
        }
        if self.counters().is_empty() {
            return Err(CounterError::NoCounters(self.absent));
        }
        let plain = match event.kind {
            EventKind::Raw(select) if self.needs_pair(select, event.narrow) => {
                return Err(CounterError::NeedsCounterPair);
            }
            EventKind::Raw(select) => select,
            EventKind::Software(software) => software.select(),
            EventKind::Generic(name) => {
                self.generic(name).ok_or(CounterError::Unsupported(name))?
            }
        };
        let illegal = self.illegal_bits(plain);
        if illegal != 0 {
            return Err(CounterError::IllegalBits(illegal));
        }
        let [guest, host] = self.guest_bits();
        let guest_bit = match event.guest {
            GuestMode::Everywhere => 0,
            GuestMode::GuestOnly => guest,
            GuestMode::HostOnly => host,
        };
        let is_confined = guest_bit != 0 || self.has_guests_by_control();
        let is_everywhere = match event.guest {
            GuestMode::Everywhere => true,
            GuestMode::GuestOnly => false,
            GuestMode::HostOnly => self.runs_no_guests,
        };
        if !is_everywhere && !is_confined {
            return Err(CounterError::GuestModeUnsupported);
        }
        let user_rdpmc = if self.can_deny_user_reads() && event.flags & Membership::USER_READS == 0
        {
            EventSelect::NO_USER_RDPMC
        } else {
            0
        };
        let bits = plain.select_bits() & !EventSelect::MODES | event.modes | guest_bit | user_rdpmc;
        // A rollback takes back the overflow that raised the interrupt.
        if event.period().is_some() && self.in_txcp(plain) {
            return Err(CounterError::IllegalBits(EventSelect::IN_TXCP));
        }
        // One fixed counter counts its event, by whatever name.
        let asked_fixed = event.counters & CounterSet::FIXED;
        let one_fixed = event.counters.is_one() && !asked_fixed.is_empty();
        let capable = if one_fixed { self.counters() } else { self.counters_for(plain) };
        // A fixed counter counts its event without the extra register.
        let capable = if event.extra.is_none() { capable } else { capable & CounterSet::GENERAL };
        Ok((EventSelect::from_bits(bits), capable & event.counters))
    }
}

impl Event {
    /// Replaces what the event counts: the counter gets the event number, unit mask and qualifiers of `select`. Period,
    /// tag, privilege levels, counters and scheduling of the event stay. The event loses its
    /// [extra register](Self::with_extra). The call ignores the mode bits of `select`.
    ///
    /// ```
    /// # use pmu_core::{Event, GenericEvent};
    /// # use pmu_core::registers::EventSelect;
    /// // Skylake's precise records need an event that retires: cycles in which fewer than 16 instructions retire.
    /// let cycles = Event::generic(GenericEvent::Cycles).user_only().every(100_003);
    /// // The mode bits 16 and 17 of this select have no effect.
    /// let precise = cycles.counted_as(EventSelect::from_bits(0x1083_00C0));
    /// assert_eq!((precise.period(), precise.counts_kernel()), (Some(100_003), false));
    /// assert_eq!(precise.select(), Some(EventSelect::from_bits(0x1080_00C0)));
    /// ```
    pub const fn counted_as(mut self, select: EventSelect) -> Self {
        let bits = select.select_bits() & !EventSelect::MODES;
        self.kind = EventKind::Raw(EventSelect::from_bits(bits));
        self.extra = Extra::NONE;
        self.flags &= !Membership::EXTRA;
        self
    }
}

/// Greatest number of encodings of an event: Nova Lake's off-module response has four registers.
pub(crate) const MAX_ENCODINGS: u8 = 4;

/// The extra register of an event, and its value. An event may have several encodings, each with another register and
/// another select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Extra {
    /// The value of the register. Of an event with a latency, the latency: the processor's facility names the register.
    pub(crate) value: u64,
    /// The register of each encoding; the first ones are in use.
    pub(crate) registers: [OptionalAddress; MAX_ENCODINGS as usize],
    /// Bits 15:0 in which an encoding's select differs from the first one's, 16 bits for each encoding.
    pub(crate) differences: u64,
}

impl Extra {
    pub(crate) const NONE: Self = Self {
        value: 0,
        registers: [OptionalAddress::NONE; MAX_ENCODINGS as usize],
        differences: 0,
    };

    pub(crate) const fn new(register: RegisterAddress, value: u64) -> Self {
        let mut extra = Self { value, ..Self::NONE };
        extra.registers[0] = OptionalAddress::some(register);
        extra
    }

    /// Adds an encoding, if there is room.
    pub(crate) const fn or(mut self, difference: u16, register: RegisterAddress) -> Self {
        let mut encoding = 1;
        while encoding < MAX_ENCODINGS as usize {
            if self.registers[encoding].get().is_none() {
                self.registers[encoding] = OptionalAddress::some(register);
                self.differences |= (difference as u64) << (16 * encoding);
                break;
            }
            encoding += 1;
        }
        self
    }

    #[inline]
    pub(crate) const fn is_none(&self) -> bool {
        self.registers[0].get().is_none()
    }
}
