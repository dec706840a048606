//! Events whose counters are reloaded by the overflows of other events of their group.

use crate::counters::events::event::Event;
use crate::counters::events::membership::Membership;

impl Event {
    /// Lets other events of the group reload this event's counter: when one of them overflows, this event begins a new
    /// period. `members` has one bit for each of the group's first six events, in the group's order. If this event's
    /// own bit is set, the event's own overflows also reload the counter. The event then never interrupts.
    ///
    /// The processor loads the counters itself (Intel's auto counter reload). The event interrupts only if its own
    /// period ends before any reloading event overflows. A kernel can thus restrict the samples to code in which the
    /// event is frequent.
    ///
    /// The event needs a period below 2³¹, and cannot keep a [total](Event::with_total). Therefore,
    /// [`read_group`](crate::CounterSession::read_group) fails for the event's group with
    /// [`NoTotal`](crate::CounterError::NoTotal).
    ///
    /// The session's event source must have the facility [`AutoCounterReload`](crate::reload::AutoCounterReload).
    /// Otherwise opening the group fails with [`NotReloadable`](crate::CounterError::NotReloadable). Like every group,
    /// this group is put on counters, [rotated](Event::rotating) and switched as a whole. A thread's group is not
    /// counted on a core without counter reload.
    ///
    /// Source: Intel's "Architecture Instruction Set Extensions Programming Reference", "Auto Counter Reload".
    ///
    /// ```
    /// use pmu_core::{Event, GenericEvent};
    /// // The first event of a group: 5,000 misses within 100,000 branches. The second event is the branches.
    /// let misses = Event::generic(GenericEvent::BranchMisses).every(5_000).reloaded_by(0b10);
    /// assert_eq!(misses.reloading_members(), 0b10);
    /// ```
    pub const fn reloaded_by(mut self, members: u8) -> Self {
        self.reload = members;
        self
    }

    /// Returns the mask that was given to [`reloaded_by`](Self::reloaded_by). Each set bit stands for an event whose
    /// overflow reloads this event's counter.
    ///
    /// ```
    /// use pmu_core::{Event, GenericEvent};
    /// let misses = Event::generic(GenericEvent::BranchMisses).every(500).reloaded_by(0b01);
    /// assert_eq!(misses.reloading_members(), 0b01); // the group's first event
    /// ```
    pub const fn reloading_members(&self) -> u8 {
        self.reload
    }
}

impl Membership {
    /// The longest period with which a counter can be reloaded.
    pub(crate) const MAX_RELOAD: u64 = i32::MAX as u64;

    /// The members that a bitmap can name.
    const NAMEABLE: u8 = 0b11_1111;

    /// Returns whether a member of a group reloads others, given what each member names; `None` if the member cannot be
    /// reloaded as it asks. `number`: the member. `period`: its period, 0 if none. `total`: it keeps a total.
    pub(crate) fn reloads_others(
        named: impl Iterator<Item = u8> + Clone,
        number: usize,
        (period, total): (u64, bool),
    ) -> Option<bool> {
        let own = named.clone().nth(number).unwrap_or(0);
        let all = named.clone().fold(0, |all, named| all | named);
        let members = 1u16.wrapping_shl(named.count().min(8) as u32).wrapping_sub(1) as u8;
        let is_possible = (1..=Self::MAX_RELOAD).contains(&period) && !total;
        if own & !(members & Self::NAMEABLE) != 0 || own != 0 && !is_possible {
            return None;
        }
        Some(number < 8 && all >> number & 1 != 0)
    }
}
