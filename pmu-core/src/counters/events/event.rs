//! An event to be counted: selection, privilege levels, and reporting.

use crate::access::address::RegisterAddress;
use crate::branches::filter::PackedFilter;
use crate::counters::events::count::{Membership, Period};
use crate::counters::events::resolve::Extra;
use crate::counters::events::software::SoftwareEvent;
use crate::counters::names::{CounterSet, GenericEvent};
use crate::counters::registers::counter::EventSelect;
use crate::precise::request::PackedPrecise;

/// An event to be counted, with its privilege levels, its period, and the counters that may count it.
///
/// A new event is counted at every privilege level, on any counter, without interrupts. The event's count is exact, but
/// may lack occurrences in the interrupt handler for one of these reasons:
/// - On Intel, the driver stops the counters while it services an interrupt.
/// - Without an overflow status (AMD before PerfMonV2, Intel's architectural version 1), the driver stops a counter
///   that wrapped, and reloads it. A counter wraps once per 2^47 events on AMD, and once per 2^31 events on Intel.
///
/// ```
/// use pmu_core::{Event, GenericEvent};
/// use pmu_core::registers::EventSelect;
/// let instructions = Event::generic(GenericEvent::Instructions);
/// // Every 100,000th last-level cache miss in user mode, by the event number in a manual.
/// let misses = Event::raw(EventSelect::from_bits(0x412E)).user_only().every(100_000);
/// # let _ = (instructions, misses);
/// ```
///
/// # Limitations
/// - The total of an event that is only counted lacks what happens while its counter stands still. Intel's counters
///   stand still while an interrupt is serviced. Without an overflow status (AMD before PerfMonV2, Intel's version 1),
///   a counter that wrapped stands still while it is set back, for one RDPMC and one write: once in 2^47 events, or
///   once in 2^31 if writes take 32 bits. Its value alone does not distinguish an interrupt that comes one whole range
///   later from one of another source.
/// - Counters are not merged. An event of which more than 15 can happen per cycle is refused: see
///   [`at_most_15_per_cycle`](Self::at_most_15_per_cycle).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Event {
    pub(crate) kind: EventKind,
    /// Mode bits that are left of the select.
    pub(crate) modes: u64,
    pub(crate) guest: GuestMode,
    pub(crate) reporting: Reporting,
    pub(crate) rotates: bool,
    /// Flags of its [`Membership`].
    pub(crate) flags: u8,
    /// Members of its group that reload its counter.
    pub(crate) reload: u8,
    /// The event happens at most 15 times per cycle.
    pub(crate) narrow: bool,
    /// The select means this event on every type of core.
    pub(crate) any_core_type: bool,
    pub(crate) tag: u64,
    pub(crate) counters: CounterSet,
    pub(crate) extra: Extra,
    /// The branches that samples of the event have.
    pub(crate) branches: PackedFilter,
    pub(crate) precise: PackedPrecise,
}

/// The period of an event, and whether the event has a total.
#[derive(Clone, Copy, Debug, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Reporting {
    /// 0: none.
    pub(crate) period: u64,
    /// Samples per second to which the period is adapted; 0: the period stays.
    pub(crate) hertz: u32,
    /// A total is kept even if the event has a period.
    pub(crate) total: bool,
}

impl Reporting {
    pub(crate) const NONE: Self = Self { period: 0, hertz: 0, total: false };

    pub(crate) const fn keeps_total(self) -> bool {
        self.total || self.period == 0
    }
}

impl PartialEq for Reporting {
    fn eq(&self, other: &Self) -> bool {
        self.period == other.period
            && self.hertz == other.hertz
            && self.keeps_total() == other.keeps_total()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) enum EventKind {
    Raw(EventSelect),
    Software(SoftwareEvent),
    Generic(GenericEvent),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) enum GuestMode {
    Everywhere,
    GuestOnly,
    HostOnly,
}

impl GuestMode {
    /// Returns the mode that is in the low two bits of an event's attributes.
    pub(crate) const fn of_bits(attributes: u16) -> Self {
        match attributes & 0b11 {
            0 => Self::Everywhere,
            1 => Self::GuestOnly,
            _ => Self::HostOnly,
        }
    }
}

impl Event {
    pub(crate) const fn new(kind: EventKind) -> Self {
        Self {
            kind,
            modes: EventSelect::MODES,
            guest: GuestMode::Everywhere,
            reporting: Reporting::NONE,
            rotates: false,
            flags: 0,
            reload: 0,
            narrow: false,
            any_core_type: false,
            tag: 0,
            counters: CounterSet::ALL,
            extra: Extra::NONE,
            branches: PackedFilter::NONE,
            precise: PackedPrecise::NONE,
        }
    }

    /// Creates an event from an event select: its event number, unit mask and qualifiers. If both mode bits of the
    /// select (16, 17) are clear, the event counts at every privilege level.
    ///
    /// Opening the event fails if `select` has bit 20 (interrupt) or bit 22 (enable). The session sets these bits.
    ///
    /// ```
    /// # use pmu_core::Event;
    /// # use pmu_core::registers::EventSelect;
    /// // Mispredicted branches retired, counted in user mode: the mode bit 16 says so.
    /// let event = Event::raw(EventSelect::from_bits(0x1_00C5));
    /// assert!(event.counts_user() && !event.counts_kernel());
    /// assert_eq!(event.select(), Some(EventSelect::from_bits(0xC5)));
    /// ```
    ///
    /// # Limitations
    /// The event may get any counter, also one that cannot count it, unless the kernel names the right ones, for
    /// instance by `CoreType::constraints` of `pmu-events`.
    pub const fn raw(select: EventSelect) -> Self {
        let modes = select.select_bits() & EventSelect::MODES;
        let modes = if modes == 0 { EventSelect::MODES } else { modes };
        let plain = EventSelect::from_bits(select.select_bits() & !EventSelect::MODES);
        Self { modes, ..Self::new(EventKind::Raw(plain)) }
    }

    /// Returns the select of an event of a [sampling unit](EventSelect::OF_UNIT), with its mode bits.
    pub(crate) const fn of_unit(&self) -> Option<EventSelect> {
        match self.kind {
            EventKind::Raw(select) if select.is_of_unit() && self.precise.precision().is_some() => {
                Some(EventSelect::from_bits(select.select_bits() | self.modes))
            }
            _ => None,
        }
    }

    /// Creates a generic event. Intel's and AMD's processors count the event by different event selects.
    ///
    /// ```
    /// # use pmu_core::{Event, GenericEvent};
    /// let event = Event::generic(GenericEvent::CacheMisses);
    /// assert_eq!(event.name(), Some(GenericEvent::CacheMisses));
    /// assert_eq!(event.select(), None); // Each processor has its own.
    /// ```
    pub const fn generic(event: GenericEvent) -> Self {
        Self::new(EventKind::Generic(event))
    }

    /// Restricts counting to privilege levels above 0.
    pub const fn user_only(mut self) -> Self {
        self.modes = EventSelect::USER;
        self
    }

    /// Restricts counting to privilege level 0.
    ///
    /// ```
    /// # use pmu_core::{Event, GenericEvent};
    /// let event = Event::generic(GenericEvent::Cycles).kernel_only();
    /// assert!(event.counts_kernel() && !event.counts_user());
    /// ```
    pub const fn kernel_only(mut self) -> Self {
        self.modes = EventSelect::KERNEL;
        self
    }

    /// Restricts counting to the time in which a guest runs. The event counts nothing until
    /// [`set_virtualization`](crate::CounterSession::set_virtualization) declares that virtualization is on.
    ///
    /// On AMD, a bit of the event's select restricts the counting. On Intel, the hypervisor must load the values of
    /// [`guest_control`](crate::lending::guest_control) into the global control register at each VM entry and VM exit.
    /// Without these values, the event counts nothing. On Intel's architectural version 1, opening the event fails.
    pub const fn in_guests(mut self) -> Self {
        self.guest = GuestMode::GuestOnly;
        self
    }

    /// Restricts counting to the time in which no guest runs. On AMD, a bit of the event's select restricts the
    /// counting. On Intel, the hypervisor must load the values of [`guest_control`](crate::lending::guest_control) into
    /// the global control register at each VM entry and VM exit. Without these values, the event is also counted in
    /// guests. On Intel's architectural version 1, opening the event fails.
    ///
    /// On AMD without SVM, no guest can run: the event is counted all the time.
    ///
    /// ```
    /// # use pmu_core::{Event, GenericEvent};
    /// // Two events with the same select count the host and its guests separately.
    /// let cycles = Event::generic(GenericEvent::Cycles);
    /// let (host, guests) = (cycles.outside_guests(), cycles.in_guests());
    /// assert!(!host.counts_in_guests() && !guests.counts_outside_guests());
    /// ```
    ///
    /// # Limitations
    /// The event opens only if the processor can distinguish guests from their host: on AMD with SVM, and on Intel from
    /// version 2 on. On AMD without SVM, where no guest runs, this has no effect. On Intel, the hypervisor loads the
    /// values of [`guest_control`](crate::lending::guest_control); without them, events of the host count in guests,
    /// too.
    pub const fn outside_guests(mut self) -> Self {
        self.guest = GuestMode::HostOnly;
        self
    }

    /// Makes the event interrupt once per `period` occurrences. Call [`with_total`](Self::with_total) as well if the
    /// event's count is to be read.
    ///
    /// A period begins when the interrupt handler loads the counter. Where the processor does not freeze its counters
    /// at the interrupt, occurrences between an overflow and this moment are in the total, and in no period: samples
    /// are as much further apart.
    ///
    /// With a period of 0, the event does not interrupt. If the period exceeds the counter's range, the driver loads
    /// the counter several times per period. Opening the event fails if the period is below the table's
    /// [minimum](crate::memory::EventTable::set_min_period), which is 4,096 unless the kernel changes it.
    ///
    /// ```
    /// # use pmu_core::{Event, GenericEvent};
    /// let sampled = Event::generic(GenericEvent::Instructions).every(1_000_003);
    /// assert_eq!(sampled.period(), Some(1_000_003));
    /// assert_eq!(sampled.every(0).period(), None); // It is only counted.
    /// ```
    pub const fn every(mut self, period: u64) -> Self {
        (self.reporting.period, self.reporting.hertz) = (period, 0);
        self
    }

    /// Makes the event interrupt about `hertz` times per second, and keeps a [total](Self::with_total). The event
    /// begins with a period of 4,096. The period is adapted at each sample, if the handler calls
    /// [`account_sample`](crate::memory::EventTable::account_sample), and at each [tick](crate::CounterSession::tick),
    /// as Linux does it. It takes a clock in nanoseconds. Before the first tick, the period stays.
    ///
    /// With a frequency of 0, the event does not interrupt.
    ///
    /// ```
    /// # use pmu_core::{Event, GenericEvent};
    /// /// What `perf record` opens.
    /// const CYCLES: Event = Event::generic(GenericEvent::Cycles).at_frequency(4_000);
    /// assert_eq!((CYCLES.frequency(), CYCLES.period()), (Some(4_000), Some(4_096)));
    /// ```
    ///
    /// # Limitations
    /// The frequency is kept, and samples are limited, from the kernel's first tick on. Samples that a task reports
    /// (`switch`, `lend`, `report_samples`) count for neither. If many records wait for one interrupt, the period
    /// follows the tick alone.
    pub const fn at_frequency(mut self, hertz: u32) -> Self {
        let period = if hertz == 0 { 0 } else { Period::DEFAULT_MIN };
        self.reporting = Reporting { period, hertz, total: true };
        self
    }

    /// Keeps a total count of an event that [interrupts](Self::every). Each interrupt costs one more read of the
    /// counter. If the counters run during the interrupt, the total lacks the occurrences between this read and the
    /// loading of the next period.
    ///
    /// ```
    /// # use pmu_core::{Event, GenericEvent};
    /// /// A profiler's event: a sample every million instructions, and the total number of instructions.
    /// const PROFILED: Event = Event::generic(GenericEvent::Instructions).every(1_000_000).with_total();
    /// # let _ = PROFILED;
    /// ```
    pub const fn with_total(mut self) -> Self {
        self.reporting.total = true;
        self
    }

    /// Sets the `tag` that each overflow of the event reports: the caller's own identifier of the event, such as an
    /// index or an address.
    ///
    /// ```
    /// # use pmu_core::Event;
    /// # use pmu_core::interrupt::EventOverflow;
    /// # fn sample(_sampler: usize) {}
    /// /// Opens the event of sampler `number`. By the tag, the handler finds the sampler without a search.
    /// fn event_of(number: usize, event: Event) -> Event {
    ///     event.tagged(number as u64)
    /// }
    /// fn overflowed(overflow: EventOverflow) {
    ///     sample(overflow.tag as usize);
    /// }
    /// ```
    pub const fn tagged(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

    /// Lets the event rotate, as Linux perf multiplexes events: if there are too few counters, each call of
    /// [`rotate`](crate::CounterSession::rotate) exchanges running and waiting events.
    ///
    /// If no counter is free, a non-rotating event takes the counter of a rotating event. The non-rotating event keeps
    /// this counter until it is disabled, or until its thread is switched out. All rotating events of the processor and
    /// of its threads share the remaining counters. In the long run, rotating events that can use the same counters get
    /// equal [shares](crate::CounterSession::rotate).
    ///
    /// ```
    /// # use pmu_core::{Event, GenericEvent};
    /// /// Creates a profiler's events, which are more than there are counters.
    /// fn events() -> [Event; GenericEvent::COUNT] {
    ///     GenericEvent::ALL.map(|name| Event::generic(name).rotating())
    /// }
    /// # let _ = events();
    /// ```
    pub const fn rotating(mut self) -> Self {
        self.rotates = true;
        self
    }

    /// Makes the event exclusive, as `perf_event_attr::exclusive` does: while the event is on a counter, no other event
    /// of the session is on a counter. A group is exclusive if its first event is exclusive. The events of an exclusive
    /// group are counted together, and exclude only events outside the group.
    ///
    /// A running event that does not [rotate](Self::rotating) prevents an exclusive event from starting. Running events
    /// that rotate leave their counters for an exclusive event. While the exclusive event is on a counter, no other
    /// event starts. A rotating event that cannot start waits for its turn. A non-rotating event that cannot start
    /// [fails](crate::error::CounterError::NoFreeCounter).
    ///
    /// An exclusive event also excludes the events in the [`EventSource`](crate::EventSource)'s table. Counters of
    /// other owners are not affected.
    ///
    /// ```
    /// # use pmu_core::{Event, GenericEvent};
    /// // When its turn comes, this event is counted alone on the session's counters.
    /// let event = Event::generic(GenericEvent::CacheMisses).exclusive().rotating();
    /// # let _ = event;
    /// ```
    pub const fn exclusive(mut self) -> Self {
        self.flags |= Membership::EXCLUSIVE;
        self
    }

    /// Lets user mode read the event's counter: by RDPMC, or on Arm by MRS. The kernel also has to set `CR4.PCE`, or
    /// bits of `PMUSERENR_EL0`. If the processor cannot [deny RDPMC](crate::CounterUnit::can_deny_user_reads) for
    /// each counter, these bits permit reads of all counters, whether this was called or not.
    pub const fn with_user_reads(mut self) -> Self {
        self.flags |= Membership::USER_READS;
        self
    }

    /// Keeps the event out of the list that [`events`](crate::CounterSession::events) returns. A kernel that stops or
    /// closes all listed events then leaves this event alone. Use this for an event that a library opens for itself,
    /// such as the watchdog of `Pmu`. The events of [added](crate::profile::AddedSources) sources are unlisted.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, CounterUnit, Event, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// /// Opens an event of a layer, which no loop over all events of the kernel closes.
    /// fn open<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     this_processor: &CounterUnit,
    ///     event: Event,
    /// ) -> Result<bool, CounterError> {
    ///     let id = counters.open(this_processor, &[event.unlisted()])?;
    ///     Ok(counters.events().all(|listed| listed != id))
    /// }
    /// ```
    pub const fn unlisted(mut self) -> Self {
        self.flags |= Membership::UNLISTED;
        self
    }

    /// Promises that the event happens at most 15 times per cycle. Scalar floating-point code, for example, keeps this
    /// limit.
    ///
    /// On AMD's Zen processors, a single counter counts at most 15 occurrences of event 0x003 per cycle. A pair of
    /// counters can count more, but these crates do not support pairs. Without this promise, opening event 0x003
    /// [fails](crate::error::CounterError::NeedsCounterPair). If the promise is broken, the count is too low. For Zen 3
    /// and 4, the manual does not guarantee correct counts without a pair, even if the promise holds. Source: AMD's
    /// processor programming references, "Large Increment per Cycle Events" and PMCx003.
    ///
    /// ```
    /// # use pmu_core::Event;
    /// # use pmu_core::registers::EventSelect;
    /// // FLOPs of code that is known to be scalar, on AMD's Zen.
    /// let flops = Event::raw(EventSelect::from_bits(0xFF03)).at_most_15_per_cycle();
    /// # let _ = flops;
    /// ```
    pub const fn at_most_15_per_cycle(mut self) -> Self {
        self.narrow = true;
        self
    }

    /// Promises that the event's select means the same on every type of core of a hybrid processor. This is true for
    /// architectural events. Without this promise, a [raw](Self::raw) event counts only on the type of core on which
    /// the event was opened. While the event's thread is on another type of core, the event is
    /// [not counted](crate::CounterSession::switch_in).
    ///
    /// ```
    /// # use pmu_core::Event;
    /// # use pmu_core::registers::EventSelect;
    /// /// Creates a client's event on a hybrid processor. Only architectural selects mean the same on all cores.
    /// fn event(select: u64, is_architectural: bool) -> Event {
    ///     let event = Event::raw(EventSelect::from_bits(select));
    ///     if is_architectural { event.on_any_core_type() } else { event }
    /// }
    /// # let _ = event(0xC0, true);
    /// ```
    pub const fn on_any_core_type(mut self) -> Self {
        self.any_core_type = true;
        self
    }

    /// Confines the event to the given `counters`. Use this if the processor's manual says that no other counter counts
    /// the event.
    ///
    /// A fixed counter always counts its own event. So if `counters` is a single fixed counter, the event's number and
    /// unit mask have no effect.
    ///
    /// ```
    /// # use pmu_core::{CounterSet, Event};
    /// # use pmu_core::registers::EventSelect;
    /// // The processor's manual confines this event to counters 0 to 3.
    /// let event = Event::raw(EventSelect::from_bits(0x01D1)).on(CounterSet::from_bits(0b1111));
    /// // Fixed counter 3 counts issue slots, whatever the select.
    /// let slots = Event::raw(EventSelect::from_bits(0)).on(CounterSet::fixed(1 << 3));
    /// # let _ = (event, slots);
    /// ```
    pub const fn on(mut self, counters: CounterSet) -> Self {
        self.counters = counters;
        self
    }

    /// Restricts the event by an extra register: an MSR for conditions that do not fit in the select. Examples on Intel
    /// are Intel's registers for off-core response, load latency and front-end events.
    ///
    /// The session owns the register from the event's first start on, and writes the old value back at shutdown. Events
    /// that need the same value share the register. Events that need different values cannot be counted at the same
    /// time: the second event fails to start, or waits for its turn if it [rotates](Self::rotating).
    ///
    /// On Intel's Nehalem and Westmere, the two logical processors of a core share each of these registers. The kernel
    /// must let only one of the two logical processors use the register. Source: SDM vol. 4, scope of the registers.
    ///
    /// ```
    /// use pmu_core::Event;
    /// use pmu_core::access::RegisterAddress;
    /// use pmu_core::registers::EventSelect;
    /// // SAFETY: off-core response: the value selects requests and responses to count.
    /// let [first, second] = unsafe { [RegisterAddress::new(0x1A6), RegisterAddress::new(0x1A7)] };
    /// // Skylake's OFFCORE_RESPONSE.DEMAND_DATA_RD.ANY_RESPONSE, by whichever of the two registers is free.
    /// let event = Event::raw(EventSelect::from_bits(0x01B7))
    ///     .with_extra(first, 0x1_0001)
    ///     .or_with_extra(0x01BB, second);
    /// # let _ = event;
    /// ```
    ///
    /// # Limitations
    /// On Nehalem and Westmere, the two threads of a core share the extra registers. The kernel must not let the second
    /// thread use them.
    pub const fn with_extra(mut self, register: RegisterAddress, value: u64) -> Self {
        self.extra = Extra::new(register, value);
        self.flags |= Membership::EXTRA;
        self
    }

    /// Adds another encoding by which the event may be counted. `event` is the event number and unit mask (bits 15:0 of
    /// a select). `register` is the extra register of this encoding. Every encoding's register gets the value that was
    /// given to [`with_extra`](Self::with_extra). An event has at most four encodings.
    ///
    /// The call changes nothing if the event already has four encodings, has no [extra register](Self::with_extra) yet,
    /// or is a generic event.
    ///
    /// ```
    /// # use pmu_core::Event;
    /// # use pmu_core::access::RegisterAddress;
    /// # use pmu_core::registers::EventSelect;
    /// // SAFETY: the registers hold filters of the off-core response, and no address.
    /// let registers = unsafe { [RegisterAddress::new(0x1A6), RegisterAddress::new(0x1A7)] };
    /// let event = Event::raw(EventSelect::from_bits(0x01B7)).with_extra(registers[0], 0x1_0001);
    /// // Two events with different values can then be counted at the same time.
    /// let event = event.or_with_extra(0x01BB, registers[1]);
    /// assert_eq!(event.extra(), Some((registers[0], 0x1_0001))); // the first encoding's
    /// ```
    pub const fn or_with_extra(mut self, event: u16, register: RegisterAddress) -> Self {
        if let (false, EventKind::Raw(select)) = (self.extra.is_none(), self.kind) {
            self.extra = self.extra.or(select.select_bits() as u16 ^ event, register);
        }
        self
    }

    /// Returns the event's period: the number of occurrences per interrupt. Returns `None` if the event does not
    /// interrupt.
    pub const fn period(&self) -> Option<u64> {
        if self.reporting.period == 0 { None } else { Some(self.reporting.period) }
    }

    /// Returns the number of samples per second to which the event's period is [adapted](Self::at_frequency); `None` if
    /// the event keeps its period.
    pub const fn frequency(&self) -> Option<u32> {
        if self.reporting.hertz == 0 { None } else { Some(self.reporting.hertz) }
    }

    /// Returns the event's [tag](Self::tagged).
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns the event's select without the mode bits, or `None` for a generic event.
    pub const fn select(&self) -> Option<EventSelect> {
        match self.kind {
            EventKind::Raw(select) => Some(select),
            EventKind::Software(_) | EventKind::Generic(_) => None,
        }
    }

    /// Returns the address and value of the [extra register](Self::with_extra) that restricts the event, if there is
    /// one. If the event has several encodings, the address is that of the first encoding's register.
    pub const fn extra(&self) -> Option<(RegisterAddress, u64)> {
        match self.extra.registers[0].get() {
            Some(register) => Some((register, self.extra.value)),
            None => None,
        }
    }

    /// Returns the generic event that was given to [`generic`](Self::generic), or `None` for a [raw](Self::raw) event.
    pub const fn name(&self) -> Option<GenericEvent> {
        match self.kind {
            EventKind::Raw(_) | EventKind::Software(_) => None,
            EventKind::Generic(name) => Some(name),
        }
    }

    /// Returns whether the event is counted at privilege levels above 0.
    pub const fn counts_user(&self) -> bool {
        self.modes & EventSelect::USER != 0
    }

    /// Returns whether the event is counted at privilege level 0.
    pub const fn counts_kernel(&self) -> bool {
        self.modes & EventSelect::KERNEL != 0
    }

    /// Returns whether the event is counted while a guest runs.
    pub const fn counts_in_guests(&self) -> bool {
        !matches!(self.guest, GuestMode::HostOnly)
    }

    /// Returns whether the event is counted while no guest runs.
    pub const fn counts_outside_guests(&self) -> bool {
        !matches!(self.guest, GuestMode::GuestOnly)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_select_with_mode_bits_is_the_event_counted_in_these_modes() {
        let raw = |bits| Event::raw(EventSelect::from_bits(bits));
        assert_eq!(raw(0x1_00C0), raw(0xC0).user_only());
        assert_eq!(raw(0x2_00C0), raw(0xC0).kernel_only());
        assert_eq!(raw(0x3_00C0), raw(0xC0));
        assert_eq!(raw(0x1_00C0).select(), Some(EventSelect::from_bits(0xC0)));
    }

    #[test]
    fn a_total_is_kept_whether_it_is_asked_for_before_or_after_the_period() {
        let event = Event::generic(GenericEvent::Cycles);
        assert_eq!(event.with_total().every(10_000), event.every(10_000).with_total());
        assert_ne!(event.with_total().every(10_000), event.every(10_000));
    }

    #[test]
    fn a_period_of_0_is_none_and_leaves_the_total() {
        let event = Event::generic(GenericEvent::Cycles);
        assert_eq!(event.every(0), event);
    }
}
