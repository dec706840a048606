//! Events that the kernel's own calls count.

use crate::counters::error::CounterError;
use crate::counters::events::count::Period;
use crate::counters::events::event::{Event, EventKind, GuestMode, Reporting};
use crate::counters::names::CounterSet;
use crate::counters::registers::counter::EventSelect;
use crate::precise::request::NotPrecise;

/// An event that no counter counts: the kernel [tells](crate::memory::EventTable::happened) that it happened, or it is
/// a clock.
///
/// The numbers are those of Linux' `PERF_TYPE_SOFTWARE`. Source: `perf_event_open(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
#[repr(u8)]
pub enum SoftwareEvent {
    /// Nanoseconds of the kernel's clock for which the event counts, on the processor or in the thread.
    CpuClock = 0,
    /// As [`CpuClock`](Self::CpuClock); both names are Linux'.
    TaskClock = 1,
    /// Page faults, minor and major ones.
    PageFaults = 2,
    /// Switches from one thread to another. The kernel tells of one before it switches the events of the threads.
    ContextSwitches = 3,
    /// Moves of a thread to another processor. The kernel tells of one after it has switched to the thread's events.
    CpuMigrations = 4,
    /// Page faults that needed no input or output.
    MinorFaults = 5,
    /// Page faults that needed input or output.
    MajorFaults = 6,
    /// Unaligned accesses that the kernel handles.
    AlignmentFaults = 7,
    /// Instructions that the kernel emulates.
    EmulationFaults = 8,
    /// Nothing. perf opens it for the records that come beside samples.
    Dummy = 9,
}

impl SoftwareEvent {
    const ALL: [Self; 10] = [
        Self::CpuClock,
        Self::TaskClock,
        Self::PageFaults,
        Self::ContextSwitches,
        Self::CpuMigrations,
        Self::MinorFaults,
        Self::MajorFaults,
        Self::AlignmentFaults,
        Self::EmulationFaults,
        Self::Dummy,
    ];

    /// Shortest period of a clock, in nanoseconds. Source: Linux, `perf_swevent_start_hrtimer`.
    pub const MIN_CLOCK_PERIOD: u64 = 10_000;

    /// Returns the event with this number, `config` of Linux' `PERF_TYPE_SOFTWARE`.
    ///
    /// ```
    /// use pmu_core::SoftwareEvent;
    /// assert_eq!(SoftwareEvent::of_number(2), Some(SoftwareEvent::PageFaults));
    /// assert_eq!(SoftwareEvent::of_number(10), None); // PERF_COUNT_SW_BPF_OUTPUT
    /// ```
    pub fn of_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns the event's number.
    pub const fn number(self) -> u64 {
        self as u64
    }

    /// Returns whether the event counts nanoseconds.
    pub const fn is_clock(self) -> bool {
        matches!(self, Self::CpuClock | Self::TaskClock)
    }

    /// Returns whether the event counts something of which the kernel tells: each page fault is a minor or a major one,
    /// too.
    pub(crate) fn counts(self, what: Self) -> bool {
        let is_fault = matches!(what, Self::MinorFaults | Self::MajorFaults);
        !what.is_clock() && (self == what || self == Self::PageFaults && is_fault)
    }

    /// Returns the shortest period.
    pub(crate) const fn min_period(self) -> u64 {
        if self.is_clock() { Self::MIN_CLOCK_PERIOD } else { 1 }
    }

    /// Returns the select of the event, without mode bits.
    pub(crate) const fn select(self) -> EventSelect {
        EventSelect::from_bits(EventSelect::SOFTWARE | self.number())
    }

    pub(crate) fn of_select(select: EventSelect) -> Option<Self> {
        if select.is_software() { Self::of_number(select.select_bits() & 0xFF) } else { None }
    }
}

impl Event {
    /// Creates an event that the kernel's calls count. The session's facilities have
    /// [`SoftwareEvents`](crate::facility::SoftwareEvents). It is opened, grouped, switched with its thread and read
    /// like any other event, and takes no counter. In a group with events of counters, it counts while they do. Like
    /// them, it stands still while a guest has the counters.
    ///
    /// - A period may be as short as 1. The sample is reported by the call that ends the period.
    /// - The period of a clock is in nanoseconds, at least
    ///   [`MIN_CLOCK_PERIOD`](SoftwareEvent::MIN_CLOCK_PERIOD). A [frequency](Self::at_frequency) gives it a fixed
    ///   period. A timer of the kernel reports the samples.
    /// - [`user_only`](Self::user_only) and [`kernel_only`](Self::kernel_only) count what happened in code of that
    ///   mode. A clock counts in both modes, and is sampled in one.
    ///
    /// ```
    /// use pmu_core::{Event, SoftwareEvent};
    /// let faults = Event::software(SoftwareEvent::PageFaults);
    /// // A sample of each millisecond of a thread in user mode.
    /// let time = Event::software(SoftwareEvent::TaskClock).user_only().every(1_000_000);
    /// assert_eq!(time.software_event(), Some(SoftwareEvent::TaskClock));
    /// # let _ = faults;
    /// ```
    pub const fn software(event: SoftwareEvent) -> Self {
        Self { counters: CounterSet::NONE, ..Self::new(EventKind::Software(event)) }
    }

    /// Returns which event the kernel's calls count; `None` for an event of a counter.
    pub const fn software_event(&self) -> Option<SoftwareEvent> {
        match self.kind {
            EventKind::Software(event) => Some(event),
            EventKind::Raw(_) | EventKind::Generic(_) => None,
        }
    }

    /// Returns a software event as it is opened: a clock with a frequency has the period of that frequency.
    pub(crate) fn checked_software(&self, event: SoftwareEvent) -> Result<Self, CounterError> {
        if self.reload != 0 {
            return Err(CounterError::NotReloadable);
        }
        if !self.branches.is_none() {
            return Err(CounterError::BranchesUnsupported);
        }
        if !self.precise.is_none() {
            return Err(CounterError::NotPrecise(NotPrecise::Event));
        }
        if !self.extra.is_none() {
            return Err(CounterError::NoCounterForEvent);
        }
        if self.guest == GuestMode::GuestOnly {
            return Err(CounterError::GuestModeUnsupported);
        }
        let mut checked = *self;
        match self.frequency() {
            Some(hertz) if event.is_clock() => {
                let period =
                    (1_000_000_000 / u64::from(hertz)).max(SoftwareEvent::MIN_CLOCK_PERIOD);
                checked.reporting = Reporting { period, hertz: 0, total: true };
            }
            // It is adapted from the first sample on.
            Some(_) => checked.reporting.period = 1,
            None => {}
        }
        match checked.period() {
            Some(period) if !(event.min_period()..=Period::MAX).contains(&period) => {
                Err(CounterError::Period(period))
            }
            _ => Ok(checked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_select_and_a_number_stand_for_one_event() {
        for (number, event) in SoftwareEvent::ALL.into_iter().enumerate() {
            assert_eq!(event.number(), number as u64);
            assert_eq!(Event::software(event).software_event(), Some(event));
            assert_eq!(Event::software(event).user_only().software_event(), Some(event));
        }
        assert_eq!(SoftwareEvent::of_number(SoftwareEvent::ALL.len() as u64), None);
        assert_eq!(SoftwareEvent::of_number(u64::MAX), None);
        for raw in [2, SoftwareEvent::PageFaults.select().select_bits()] {
            assert_eq!(Event::raw(EventSelect::from_bits(raw)).software_event(), None);
        }
    }

    #[test]
    fn a_page_fault_is_told_of_once() {
        use SoftwareEvent::*;
        for (counts, what, expected) in [
            (PageFaults, MinorFaults, true),
            (PageFaults, MajorFaults, true),
            (PageFaults, PageFaults, true),
            (MinorFaults, MinorFaults, true),
            (MinorFaults, PageFaults, false),
            (MajorFaults, MinorFaults, false),
            (ContextSwitches, CpuMigrations, false),
            (CpuClock, CpuClock, false),
            (Dummy, PageFaults, false),
        ] {
            assert_eq!(counts.counts(what), expected, "{counts:?} {what:?}");
        }
    }
}
