//! An event on a processor: its select, and the counters that can count it.

use crate::counters::error::CounterError;
use crate::counters::events::event::{Event, EventKind, GuestMode};
use crate::counters::events::membership::Membership;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::registers::select::EventSelect;
use crate::counters::registers::unit::{CounterUnit, IN_TXCP};

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
    /// The errors of [`open_event`](crate::CounterSession::open_event) for an event that the processor cannot count.
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
        let plain = match event.kind {
            EventKind::Raw(select) if self.needs_pair(select, event.narrow) => {
                return Err(CounterError::NeedsCounterPair);
            }
            EventKind::Raw(select) => select,
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
        let user_rdpmc =
            if self.has_user_rdpmc_control() && event.flags & Membership::USER_RDPMC == 0 {
                EventSelect::NO_USER_RDPMC
            } else {
                0
            };
        let bits = plain.select_bits() & !EventSelect::MODES | event.modes | guest_bit | user_rdpmc;
        // A rollback takes back the overflow that raised the interrupt.
        if event.period().is_some() && self.in_txcp(plain) {
            return Err(CounterError::IllegalBits(IN_TXCP));
        }
        // One fixed counter counts its event, by whatever name.
        let one_fixed =
            event.counters.len() == 1 && event.counters.without(CounterSet::FIXED).is_empty();
        let capable = if one_fixed { self.counters() } else { self.counters_for(plain) };
        // A fixed counter counts its event without the extra register.
        let capable = if event.extra.is_none() { capable } else { capable & CounterSet::GENERAL };
        Ok((EventSelect::from_bits(bits), capable & event.counters))
    }
}
