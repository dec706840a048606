//! A stopped event apart from its table.

use crate::counters::events::count::EventCount;
use crate::counters::events::extra::Extra;
use crate::counters::events::membership::Membership;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::names::group_id::GroupId;
use crate::counters::names::named_event::NamedEvent;
use crate::counters::registers::select::EventSelect;
use crate::counters::registers::unit::CounterUnit;

/// A stopped event apart from its table: plain data, which any other processor's table takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct StoppedEvent {
    /// It was started: on a counter, waiting for one, or refused one.
    pub(crate) started: bool,
    pub(crate) total_wanted: bool,
    pub(crate) rotates: bool,
    pub(crate) guest: u8,
    /// The only type of core that counts it; 0: every type.
    pub(crate) core_type: u32,
    pub(crate) membership: u64,
    pub(crate) extra: Extra,
    pub(crate) select: u64,
    pub(crate) tag: u64,
    pub(crate) counters: u64,
    pub(crate) period: u64,
    pub(crate) current: u64,
    pub(crate) left: u64,
    pub(crate) resume: u64,
    pub(crate) count: EventCount,
    pub(crate) forgotten: [u64; 2],
}

impl StoppedEvent {
    /// Returns the count so far.
    pub const fn count(&self) -> EventCount {
        self.count
    }

    /// Returns the event select that it has on a counter, without the bits that make it run.
    pub const fn select(&self) -> EventSelect {
        EventSelect::from_bits(self.select)
    }

    /// Returns whether it was started when it was taken from its processor, so that
    /// [`switch_in`](crate::Counters::switch_in) starts it again.
    pub const fn is_started(&self) -> bool {
        self.started
    }

    /// Sets whether it is to be started when it is given to a processor.
    pub const fn to_be_started(mut self, started: bool) -> Self {
        self.started = started;
        self
    }

    /// Returns the counters that it may have.
    pub(crate) const fn counters(&self) -> CounterSet {
        CounterSet::from_bits(self.counters)
    }

    /// Returns whether cores of this type count it.
    pub(crate) const fn is_of_core_type(&self, core_type: u32) -> bool {
        self.core_type == 0 || self.core_type == core_type
    }

    /// Returns the group to which it belongs.
    pub(crate) fn group(&self) -> Option<GroupId> {
        GroupId::of_bits(Membership::unpack(self.membership).group)
    }

    /// Returns the event with the select that it has on a processor: RDPMC user disable is each core's own.
    pub(crate) fn on(&self, processor: &CounterUnit) -> Self {
        let select = EventSelect::from_bits(self.select & !EventSelect::NO_USER_RDPMC);
        let user_rdpmc = Membership::unpack(self.membership).user_rdpmc;
        let denied = processor.has_user_rdpmc_control() && !user_rdpmc;
        let select = select.without_user_rdpmc(denied);
        Self { select: select.select_bits(), ..*self }
    }

    /// Returns the name by which it was opened.
    pub(crate) fn name(&self) -> Option<NamedEvent> {
        Membership::unpack(self.membership).name()
    }
}
