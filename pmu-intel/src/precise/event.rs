//! A request for precise records.

use pmu_core::Event;

use crate::precise::groups::PreciseGroups;

/// The skid of a sampled address: how far it may be from the instruction that caused the overflow. The levels are those
/// of perf's `precise_ip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Precision {
    /// Level 1: constant skid. A record may have only the address of the next instruction.
    ConstantSkid = 1,
    /// Level 2: no skid is asked for. A record has the address of an instruction that caused the event, which may be a
    /// later one than the one that made the counter overflow.
    ZeroSkidRequested = 2,
    /// Level 3: no skid is required. A record is of the very instruction that made the counter overflow (PDIR, PDIST).
    ZeroSkidRequired = 3,
}

impl Precision {
    /// Returns the precision of a level of perf's `precise_ip`, or `None` for level 0 and for levels above 3.
    ///
    /// ```
    /// use pmu_intel::precise::Precision;
    /// assert_eq!(Precision::of_level(2), Some(Precision::ZeroSkidRequested)); // `cycles:pp`
    /// assert_eq!(Precision::of_level(0), None); // an event without records
    /// ```
    pub const fn of_level(level: u8) -> Option<Self> {
        match level {
            1 => Some(Self::ConstantSkid),
            2 => Some(Self::ZeroSkidRequested),
            3 => Some(Self::ZeroSkidRequired),
            _ => None,
        }
    }
}

/// An event whose overflows the processor records itself.
///
/// The event's [period](Event::every), [tag](Event::tagged), privilege levels and [counters](Event::on) apply to its
/// records. Reports are limited to the privilege levels that the event counts.
///
/// ```
/// use pmu_core::{Event, GenericEvent};
/// use pmu_intel::precise::{PreciseEvent, PreciseGroups, Precision};
/// // Every 10,007th branch of user mode, with the general registers.
/// let branches = Event::generic(GenericEvent::Branches).user_only().every(10_007);
/// let event = PreciseEvent::new(branches, Precision::ZeroSkidRequested).with(PreciseGroups::REGISTERS);
/// # let _ = event;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PreciseEvent {
    pub(crate) event: Event,
    pub(crate) precision: Precision,
    pub(crate) groups: PreciseGroups,
    /// Latency of the loads that are sampled, in cycles; 0: the event is not of loads' latencies.
    pub(crate) latency: u16,
    /// The handler loads the counter, and not the processor.
    pub(crate) by_handler: bool,
}

impl PreciseEvent {
    /// Creates a request to record an event. Each record has the instruction's address, the counters that overflowed,
    /// and the time, if the processor's format has these.
    pub const fn new(event: Event, precision: Precision) -> Self {
        let groups = PreciseGroups::NONE;
        Self { event, precision, groups, latency: 0, by_handler: false }
    }

    /// Adds groups to the records.
    #[must_use]
    pub fn with(mut self, groups: PreciseGroups) -> Self {
        self.groups = self.groups | groups;
        self
    }

    /// Samples only loads whose latency is at least `cycles` (perf's `ldlat`). The event must be the processor's event
    /// of load latencies. The call adds the group [`MEMORY`](PreciseGroups::MEMORY).
    ///
    /// All started events share one threshold. Starting an event with another threshold fails.
    ///
    /// ```
    /// use pmu_core::{Event, EventSelect};
    /// use pmu_intel::precise::{PreciseEvent, PreciseGroups, Precision};
    /// // MEM_TRANS_RETIRED.LOAD_LATENCY of Skylake: loads that take 64 cycles or more.
    /// let loads = Event::raw(EventSelect::from_bits(0x01CD)).every(1_009);
    /// let loads = PreciseEvent::new(loads, Precision::ZeroSkidRequested).with_latency(64);
    /// assert!(loads.groups().contains(PreciseGroups::MEMORY));
    /// ```
    #[must_use]
    pub fn with_latency(self, cycles: u16) -> Self {
        Self { latency: cycles, ..self.with(PreciseGroups::MEMORY) }
    }

    /// Makes the interrupt handler, instead of the processor, load the counter for each next period. Each record then
    /// interrupts, and [`PreciseMemory::set_period`](crate::precise::PreciseMemory::set_period) changes the period at
    /// any time, as a sampler with a target frequency does. Each interrupt takes one more write per counter.
    #[must_use]
    pub const fn loaded_by_handler(mut self) -> Self {
        self.by_handler = true;
        self
    }

    /// Returns the event.
    pub const fn event(&self) -> &Event {
        &self.event
    }

    /// Returns the precision.
    pub const fn precision(&self) -> Precision {
        self.precision
    }

    /// Returns the [latency](Self::with_latency) of the sampled loads, at least, in cycles; 0 if none was given.
    pub const fn latency(&self) -> u16 {
        self.latency
    }

    /// Returns the groups.
    pub const fn groups(&self) -> PreciseGroups {
        self.groups
    }
}
