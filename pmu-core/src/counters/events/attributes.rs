//! Requests of an event beside its count: precise samples, branches, counter reload, parts.

use crate::branches::filter::{BranchFilter, PackedFilter};
use crate::counters::events::count::Membership;
use crate::counters::events::event::{Event, EventKind};
use crate::counters::names::CounterSet;
use crate::counters::registers::counter::EventSelect;
use crate::precise::request::{Precision, SampleParts};

impl Event {
    /// Makes the event precise: the processor itself records each sample, so that the sample has the address of the
    /// instruction that caused the event: [`Sample::address`](crate::Sample::address). Intel's processors write records
    /// to memory (PEBS), AMD's keep them in registers (IBS), and another vendor's facility may do either.
    ///
    /// The event needs a [period](Self::every). The session's event source must have the facility, and the processor
    /// must be able to record the event. Otherwise opening the event fails with
    /// [`NotPrecise`](crate::error::CounterError::NotPrecise). A thread's event is not counted on a core that cannot
    /// record it.
    ///
    /// The address of a record tells the privilege level: the upper half of the address space is the kernel's. If an
    /// event counts only one of the levels, records at addresses of the other half are dropped. So a kernel whose own
    /// code is in the lower half opens precise events that count all levels.
    ///
    /// A processor may count another event in the event's place, of which it can write records. The event's
    /// [`select`](crate::thread::SavedEvent::select) stays as it was opened.
    ///
    /// There are two ways to the last branches before a precise sample:
    /// - [`with_branches`](Self::with_branches): the session records the branches, and
    ///   [`Sample::branches`](crate::Sample::branches) returns them. The handler reads them from registers, so the
    ///   processor interrupts for each record.
    /// - [`recording`](Self::recording) with [`SampleParts::branches`]: the processor copies the branches into the
    ///   record, so many records can wait for one interrupt. `Pebs::record` of `pmu-intel` returns the record with its
    ///   branches. This request does not start the recording of branches.
    ///
    /// ```
    /// use pmu_core::{Event, GenericEvent};
    /// use pmu_core::precise::{Precision, SampleParts};
    /// // Every 10,007th branch of user mode, with the general registers.
    /// let branches = Event::generic(GenericEvent::Branches).user_only().every(10_007);
    /// let branches = branches.precise(Precision::ZeroSkidRequested).recording(SampleParts::REGISTERS);
    /// assert_eq!(branches.precision(), Some(Precision::ZeroSkidRequested));
    /// ```
    ///
    /// # Limitations
    /// - Occurrences between an overflow and its record are in no count. Precise events are subject to the table's
    ///   shortest period.
    /// - A session that loses sight of records, because their registers failed more than 32 times since the last
    ///   interrupt, drops those that wait, and counts one loss.
    /// - Of several records that wait, those behind the one after which a handler called `stop_reporting` are reported
    ///   if the event leaves its counter first.
    /// - If a start cannot write the register that enables records, or the index, the precise events that ran are
    ///   stopped, too.
    /// - A session's shut-down drops records that wait: call `report_samples` before.
    #[must_use]
    pub const fn precise(mut self, precision: Precision) -> Self {
        self.precise = self.precise.with_precision(precision);
        self
    }

    /// Adds parts to the samples of a [precise](Self::precise) event.
    #[must_use]
    pub const fn recording(mut self, parts: SampleParts) -> Self {
        self.precise = self.precise.with_parts(parts);
        self
    }

    /// Samples only loads with a latency of at least `cycles` (perf's `ldlat`). The event must be
    /// [precise](Self::precise), and must be the processor's load-latency event: `MEM_TRANS_RETIRED.LOAD_LATENCY`, or
    /// `MEM_UOPS_RETIRED.LOAD_LATENCY` on E-cores. Each sample then has the part [`ACCESS`](SampleParts::ACCESS).
    ///
    /// A processor has one threshold of latency. Events with another threshold do not run at the same time:
    /// [rotating](Self::rotating) events take turns.
    ///
    /// Golden Cove counts the event only beside the event 0x8203, which comes before it in the same group. Alone, the
    /// event is refused with [`NeedsBeside`](crate::precise::NotPrecise::NeedsBeside).
    ///
    /// ```
    /// # use pmu_core::{CounterSession, CounterUnit, EventId, EventSource, Hardware};
    /// # use pmu_core::error::EventsError;
    /// use pmu_core::Event;
    /// use pmu_core::precise::{Precision, SampleParts};
    /// use pmu_core::registers::EventSelect;
    /// // MEM_TRANS_RETIRED.LOAD_LATENCY: loads that take 64 cycles or more.
    /// let loads = Event::raw(EventSelect::from_bits(0x01CD)).every(10_007);
    /// let loads = loads.precise(Precision::ZeroSkidRequested).latency_at_least(64);
    /// assert!(loads.parts().contains(SampleParts::ACCESS));
    /// /// Opens the event on Golden Cove. Other P-cores open `loads` alone.
    /// fn open_on_golden_cove<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     unit: &CounterUnit,
    ///     loads: Event,
    /// ) -> Result<EventId, EventsError> {
    ///     counters.open(unit, &[Event::raw(EventSelect::from_bits(0x8203)), loads])
    /// }
    /// ```
    #[must_use]
    pub const fn latency_at_least(mut self, cycles: u16) -> Self {
        self.precise = self.precise.with_parts(SampleParts::ACCESS).with_latency();
        self.extra.value = cycles as u64;
        self.flags |= Membership::EXTRA;
        self
    }

    /// Returns the requested precision, or `None` if the event is not [precise](Self::precise).
    pub const fn precision(&self) -> Option<Precision> {
        self.precise.precision()
    }

    /// Returns the [parts](Self::recording) of the event's samples.
    pub const fn parts(&self) -> SampleParts {
        self.precise.parts()
    }

    /// Returns the minimum [latency](Self::latency_at_least) of the sampled loads, in cycles, if one was set.
    pub const fn latency(&self) -> Option<u16> {
        if self.precise.has_latency() { Some(self.extra.value as u16) } else { None }
    }

    /// Gives each sample of the event the last branches before the overflow, of those that `filter` selects:
    /// [`Sample::branches`](crate::Sample::branches). The processor records the branches itself (Intel's LBR, AMD's
    /// LbrExtV2 and branch sampling) while the event is on a counter. It may record more branches than `filter`
    /// selects: see [`BranchUnit::recorded`](crate::branches::BranchUnit::recorded).
    ///
    /// Branches come with samples: an event without a [period](Self::every) has none.
    ///
    /// The session's event source must have the facility [`Branches`](crate::branches::Branches), and the processor
    /// must be able to record the branches. Otherwise opening the event fails with
    /// [`BranchesUnsupported`](crate::error::CounterError::BranchesUnsupported). A thread's event is not counted on a
    /// core without such branch records.
    ///
    /// Zen 3 samples branches for one event alone, taken branches (`pmu_amd::branch_sampling_event`), on core counter
    /// 0. A sample then has up to 16 branches that were taken *after* the counter's overflow, and before its
    /// [interrupt](crate::branches::BranchUnit::holds_interrupt). Events that ask for branches take turns on this
    /// counter. For another event with branches there is
    /// [no counter](crate::error::CounterError::NoCounterForEvent).
    ///
    /// A processor records by one filter at a time. Events with another filter do not run at the same time:
    /// [rotating](Self::rotating) events take turns.
    ///
    /// [`switch_out`](crate::CounterSession::switch_out) and [`switch_in`](crate::CounterSession::switch_in) clear the
    /// records, so that no thread's sample has branches of another thread. If events of the processor have branches,
    /// the kernel makes both calls at each thread switch, also without events of the thread. A [call
    /// stack](BranchFilter::call_stack) that a thread's event asks for follows the thread, if the kernel has
    /// [memory](crate::branches::BranchMemory::set_call_stacks) for it; any other begins anew at each switch.
    ///
    /// ```
    /// use pmu_core::branches::BranchFilter;
    /// use pmu_core::{Event, GenericEvent};
    /// let misses = Event::generic(GenericEvent::BranchMisses).every(10_007).with_branches(BranchFilter::USER);
    /// assert_eq!(misses.branches(), Some(BranchFilter::USER));
    /// ```
    ///
    /// # Limitations
    /// An overflow that `switch_out` itself reports has no branches, nor has a record behind which another one was
    /// written before the interrupt. While a `BranchRecorder` has the memory, samples have its branches if its filter
    /// is theirs, and none otherwise.
    pub const fn with_branches(mut self, filter: BranchFilter) -> Self {
        self.branches = PackedFilter::new(filter);
        self
    }

    /// Returns the filter that was given to [`with_branches`](Self::with_branches).
    ///
    /// ```
    /// use pmu_core::{Event, GenericEvent};
    /// assert_eq!(Event::generic(GenericEvent::Cycles).every(10_007).branches(), None);
    /// ```
    pub const fn branches(&self) -> Option<BranchFilter> {
        self.branches.get()
    }

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
    /// [`NoTotal`](crate::error::CounterError::NoTotal).
    ///
    /// The session's event source must have the facility [`AutoCounterReload`](crate::reload::AutoCounterReload).
    /// Otherwise opening the group fails with [`NotReloadable`](crate::error::CounterError::NotReloadable). Like every
    /// group, this group is put on counters, [rotated](Event::rotating) and switched as a whole. A thread's group is
    /// not counted on a core without counter reload.
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

    /// Creates the event of one part of another event's occurrences, where hardware divides these into parts: part
    /// `number` of the issue slots that Intel's fixed counter 3 counts, for instance. `number` is from 0 to 7; of a
    /// greater number, the low three bits count.
    ///
    /// A part needs no counter. It is opened in a group, after the event that is divided, and counts whenever that
    /// event counts. Both have the same privilege levels, and neither has a period. A read of the group returns the
    /// counts and their parts of one moment. A part cannot be enabled or disabled by itself.
    ///
    /// The session's event source must have the facility: see [`Division`](crate::facility::Division). If no facility
    /// of the source divides, opening the event fails with
    /// [`NoCounterForEvent`](crate::error::CounterError::NoCounterForEvent); if none divides the event before it into
    /// this part, with [`NotDivided`](crate::error::CounterError::NotDivided). A thread's group is not counted on a
    /// core that does not divide. A part is never [enabled](crate::CounterSession::is_enabled) itself; its
    /// [status](crate::CounterSession::event_status) is that of the event that is divided.
    ///
    /// ```
    /// use pmu_core::Event;
    /// use pmu_core::registers::EventSelect;
    /// // Intel's issue slots in user mode, of which part 0 retired.
    /// let slots = Event::raw(EventSelect::from_bits(0x0400)).user_only();
    /// let group = [slots, Event::part(0).user_only()];
    /// assert!(group[1].is_part() && !group[0].is_part());
    /// ```
    pub const fn part(number: u8) -> Self {
        let select = EventSelect::PART as u64 | ((number & 7) as u64) << 8;
        Self { counters: CounterSet::NONE, ..Self::raw(EventSelect::from_bits(select)) }
    }

    /// Returns whether the event is a [part](Self::part) of another event.
    pub const fn is_part(&self) -> bool {
        let is_none = self.counters.bits() == 0;
        match self.kind {
            EventKind::Raw(select) => {
                is_none && select.select_bits() & !0x0700 == EventSelect::PART as u64
            }
            EventKind::Software(_) | EventKind::Generic(_) => false,
        }
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
