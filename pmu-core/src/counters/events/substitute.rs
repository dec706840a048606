//! An event that is counted in place of another one.

use crate::counters::events::event::{Event, EventKind};
use crate::counters::events::extra::Extra;
use crate::counters::events::membership::Membership;
use crate::counters::registers::select::EventSelect;

impl Event {
    /// Replaces what the event counts: the counter gets the event number, unit mask and qualifiers of `select`. Period,
    /// tag, privilege levels, counters and scheduling of the event stay. The event loses its
    /// [extra register](Self::with_extra). The call ignores the mode bits of `select`.
    ///
    /// ```
    /// # use pmu_core::{Event, EventSelect, GenericEvent};
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
