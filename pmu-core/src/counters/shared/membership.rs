//! An opened event's group and flags, in its entry.

use crate::counters::events::membership::Membership;
use crate::counters::names::group_id::GroupId;
use crate::counters::shared::entry::EventEntry;

impl EventEntry {
    pub(crate) fn set_encoding(&self, encoding: u8) {
        self.set_membership(Membership { encoding, ..self.membership() });
    }

    /// Returns the group of the event.
    pub(crate) fn group(&self) -> Option<GroupId> {
        GroupId::of_bits(self.membership().group)
    }

    pub(crate) fn is_grouped(&self) -> bool {
        self.group().is_some()
    }

    /// Returns the number of events in the event's group.
    pub(crate) fn members(&self) -> u8 {
        self.membership().members
    }

    /// Puts the event into a group with this number of events.
    pub(crate) fn set_group(&self, group: GroupId, members: u8) {
        let group = group.bits();
        self.set_membership(Membership { group, members, ..self.membership() });
    }

    /// Returns whether the event is of the group with this number, and is counted when the group is.
    pub(crate) fn is_counted_with(&self, group: u32) -> bool {
        let membership = self.membership();
        group != 0 && membership.group == group && !membership.has(Membership::DISABLED)
    }

    /// Returns whether the event is not counted with its group.
    pub(crate) fn is_disabled(&self) -> bool {
        self.membership().has(Membership::DISABLED)
    }

    pub(crate) fn set_disabled(&self, disabled: bool) {
        self.set_membership(self.membership().with(Membership::DISABLED, disabled));
    }

    /// Returns whether the event counts in guests only, by the guests' value of the global control register.
    pub(crate) fn is_of_guests(&self) -> bool {
        self.membership().has(Membership::IN_GUESTS)
    }

    /// Returns whether the event's counter is stopped by the global control register while it is programmed.
    pub(crate) fn is_gated(&self) -> bool {
        self.is_grouped() || self.is_of_guests()
    }

    pub(crate) fn has_extra(&self) -> bool {
        self.membership().has(Membership::EXTRA)
    }

    /// Returns whether the event takes more to start than a free counter: an extra register, counters that no other
    /// event uses, or a change of the global control register.
    pub(crate) fn needs_more_than_a_counter(&self) -> bool {
        const MORE: u8 = Membership::EXTRA | Membership::EXCLUSIVE | Membership::IN_GUESTS;
        self.membership().has(MORE)
    }

    /// Returns whether no other event is counted while this one is, except those of its group.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.membership().has(Membership::EXCLUSIVE)
    }

    pub(crate) fn is_exclusive_or_of_guests(&self) -> bool {
        self.membership().has(Membership::EXCLUSIVE | Membership::IN_GUESTS)
    }
}
