//! One sample, as the interrupt path reports it.

use core::cell::Cell;
use core::ops::Deref;

use crate::access::backend::{RegisterAccess, RegisterBackend};
use crate::branches::filter::PackedFilter;
use crate::branches::record::Branch;
use crate::branches::sampled::Branches;
use crate::counters::error::{CounterError, EventsError};
use crate::counters::events::count::{EventCount, EventOverflow};
use crate::counters::hooks::division::Division;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::Facility;
use crate::counters::names::{CounterId, EventId};
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::period::since_record;
use crate::counters::shared::slot::SlotState;
use crate::precise::sample::PreciseSample;
use crate::profile::event_source::{EventSource, counters_of, read_counter, registers_of};

/// One sample of an event: the overflow, and what the source's [facilities](crate::EventSource::Facility) recorded with
/// it. The value derefs to the [`EventOverflow`], so `sample.event`, `sample.tag`, `sample.period` and `sample.counter`
/// are the overflow's.
///
/// ```
/// # use pmu_core::Sample;
/// # use pmu_core::interrupt::EventOverflow;
/// # fn push(_tag: u64, _events: u64) {}
/// fn report<F>(sample: Sample<'_, F>) {
///     push(sample.tag, sample.period);
///     let _: EventOverflow = *sample;
/// }
/// ```
#[derive(Debug)]
pub struct Sample<'s, F = ()> {
    overflow: EventOverflow,
    /// `None` if the interrupt had nothing to do for it.
    facility: Option<&'s F>,
    /// The branches that the event asked for.
    branches: PackedFilter,
}

impl<'s, F> Sample<'s, F> {
    #[inline(always)]
    pub(crate) fn new<S: EventSource>(
        source: &S,
        overflow: EventOverflow,
        facility: Option<&'s F>,
    ) -> Self {
        let entry = if S::Facility::OFFERS && facility.is_some() {
            source.opened().entry(overflow.event)
        } else {
            None
        };
        Self {
            overflow,
            facility,
            branches: entry.map_or(PackedFilter::NONE, EventEntry::branches),
        }
    }

    /// Creates the sample of an overflow without an interrupt, such as one that
    /// [`EventTable::happened`](crate::memory::EventTable::happened) reported. It has no branches. `facility` has the
    /// record, if there is one.
    ///
    /// ```
    /// use pmu_core::Sample;
    /// use pmu_core::interrupt::EventOverflow;
    /// /// Passes on what a call counted, as an interrupt passes on its samples.
    /// fn report(overflow: EventOverflow, mut sampled: impl FnMut(Sample<'_>)) {
    ///     sampled(Sample::of(overflow, None));
    /// }
    /// # let _ = |overflow| report(overflow, |_| ());
    /// ```
    pub const fn of(overflow: EventOverflow, facility: Option<&'s F>) -> Self {
        Self { overflow, facility, branches: PackedFilter::NONE }
    }

    /// Returns the source's facility, which has [collected](crate::facility::Facility::collect) what belongs to the
    /// sample. Returns `None` if the facility [was idle](crate::facility::Facility::is_idle).
    #[inline]
    pub const fn facility(&self) -> Option<&'s F> {
        self.facility
    }
}

impl<F: EventFacility> Sample<'_, F> {
    /// Returns the last branches before the sample, the newest first, if the event [asked](crate::Event::with_branches)
    /// for branches. If the event's filter selects the kernel's branches, and the interrupt did not
    /// [freeze](Branches::is_frozen) the records, the newest are the handler's own: so it is with AMD's sampled ops,
    /// and on early processors. The branches that the processor copies into a precise record
    /// ([`SampleParts::branches`](crate::precise::SampleParts::branches)) are in the record, and not here.
    ///
    /// ```
    /// use pmu_core::facility::EventFacility;
    /// use pmu_core::Sample;
    /// # fn push(_tag: u64, _from: u64, _to: u64) {}
    /// fn report<F: EventFacility>(sample: Sample<'_, F>) {
    ///     for branch in sample.branches() {
    ///         push(sample.tag, branch.from, branch.to);
    ///     }
    /// }
    /// ```
    #[inline]
    pub fn branches(&self) -> impl Iterator<Item = Branch> {
        // A flattened option would take the room of two iterators on the interrupt's stack.
        let mut branches = self.branch_records().map(Branches::iter);
        core::iter::from_fn(move || branches.as_mut()?.next())
    }

    /// Returns the address of the sampled instruction: the exact one if the event is [precise](crate::Event::precise).
    /// Otherwise returns `interrupted`, the address in the interrupt's frame.
    pub fn address(&self, interrupted: u64) -> u64 {
        self.instruction().and_then(|sample| sample.address).unwrap_or(interrupted)
    }

    /// Returns what the processor recorded of the sampled instruction, if the event is
    /// [precise](crate::Event::precise).
    pub fn instruction(&self) -> Option<PreciseSample> {
        self.facility?.instruction(self.overflow.counter)
    }

    /// Returns the branch records of the sample, with what else is known of them. Returns `None` if the event did not
    /// ask for branches, or if the processor did not record them.
    ///
    /// An overflow of a source, which is no opened event, has the branches that a
    /// [`BranchRecorder`](crate::branch_recording::BranchRecorder) records meanwhile.
    pub fn branch_records(&self) -> Option<&Branches<'_>> {
        let facility = self.facility?;
        let records = facility.branches().filter(|_| facility.is_newest())?;
        let are_its = match self.branches.get() {
            Some(filter) => records.are_of(filter),
            None => self.event.row().is_some() && records.are_of_recorder(),
        };
        are_its.then_some(records)
    }
}

impl<F> Deref for Sample<'_, F> {
    type Target = EventOverflow;

    #[inline]
    fn deref(&self) -> &EventOverflow {
        &self.overflow
    }
}

/// The count of one event of a group, read at an overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SampleRead {
    /// The event that was counted.
    pub event: EventId,
    /// The event's [tag](crate::Event::tagged).
    pub tag: u64,
    /// The event's count.
    pub count: Result<EventCount, CounterError>,
}

/// A wrap is served before the counter has counted this many events more.
const SERVED_WITHIN: u64 = 1 << 31;

/// Reads the count of each event in an event's group, for sample records such as those of `PERF_SAMPLE_READ`. The
/// counts come in the group's order. If the event is in no group, only the event itself is read. The call needs no
/// session, and costs one read of the counter for each event that is on a counter.
///
/// The closure given to [`service`](crate::service()) calls `sample_read` with the event that overflowed. The handler
/// may also call `sample_read` after `service`. `source` and `memory` are the arguments of `service`, and `msr`
/// accesses the same registers as its `hardware`. `now` is the current time by the clock that the processor's session
/// uses.
///
/// Each count ends at one of these moments:
/// - If the processor [freezes](crate::CounterSession::freeze_on_interrupt) its counters at the interrupt, all counts
///   end at the overflow.
/// - If `service` stops the counters, all counts end when `service` stops the counters.
/// - Otherwise, each count ends at its own RDPMC. This is the case on AMD before PerfMonV2, on Intel's architectural
///   version 1, and in a call after `service`.
///
/// ```
/// use pmu_core::{EventSource, Hardware, Sample, service};
/// use pmu_core::memory::CounterMemory;
/// use pmu_core::reading::sample_read;
/// fn handler<S: EventSource, H: Hardware>(
///     (source, hardware, memory): (&S, &H, &CounterMemory),
///     clock: impl Fn() -> u64,
///     mut record: impl FnMut(u64, Option<u64>),
/// ) {
///     let sample = |sample: Sample<'_, S::Facility>| {
///         let counts = sample_read(source, hardware, memory, sample.event, clock());
///         for read in counts.into_iter().flatten() {
///             record(read.tag, read.count.ok().map(|count| count.value));
///         }
///     };
///     let _ = service(source, hardware, memory, sample);
/// }
/// ```
///
/// # Context
/// In the closure given to [`service`](crate::service()), or after `service` in the same interrupt. The call is
/// wait-free. The call's time is limited by the number of counters and the capacity of the event table. For each
/// [precise](crate::Event::precise) event it also walks the records that wait in the buffer, at most all of it. If
/// `sample_read` is called in an interrupt that interrupted `service`, such as an NMI, the counts may be inconsistent.
///
/// If the interrupt interrupted a task's operation on these events, the enabled and running times may end at the task's
/// previous operation.
///
/// # Errors
/// - [`NoSuchEvent`](CounterError::NoSuchEvent).
/// - [`GroupElsewhere`](CounterError::GroupElsewhere).
///
/// In place of its count, an event may have one of these errors:
/// - [`NoTotal`](CounterError::NoTotal).
/// - [`CounterLost`](CounterError::CounterLost): the event's counter faulted, or a task was removing the event from its
///   counter.
/// - [`Unchanged`](CounterError::Unchanged): the counter or the overflow status could not be read.
/// - [`NotAvailable`](CounterError::NotAvailable), only within the closure: the event has no period, and its counter
///   may have wrapped since `service` last handled the counter. After `service`, the count can be read.
pub fn sample_read<'a, S: EventSource, M: RegisterBackend>(
    source: &'a S,
    msr: &'a M,
    memory: &'a CounterMemory,
    event: EventId,
    now: u64,
) -> Result<impl Iterator<Item = SampleRead> + use<'a, S, M>, EventsError> {
    let table = source.opened();
    let no_event = EventsError::of_group(CounterError::NoSuchEvent(event));
    let group = table.entry(event).ok_or(no_event)?.group();
    let its = move |of: EventId, entry: &EventEntry| match group {
        Some(_) => entry.group() == group,
        None => of == event,
    };
    if group.is_some() {
        // Some members may be switched out: the counts of the others would not be those of one moment.
        let members = table.opened().filter(|(of, entry)| its(*of, entry));
        let declared = table.entry(event).map_or(0, EventEntry::members);
        if members.count() != usize::from(declared) {
            return Err(EventsError::of_group(CounterError::GroupElsewhere(event)));
        }
    }
    let overflowed = counter_of(source, memory, event);
    // All parts are of one moment.
    let divided = Cell::new(None);
    let read = move |(event, entry): (EventId, &EventEntry)| SampleRead {
        event,
        tag: entry.tag(),
        count: read((source, msr, memory), overflowed, (event, entry), now, &divided),
    };
    Ok(table.opened().filter(move |(of, entry)| its(*of, entry)).map(read))
}

/// Returns the counter that runs for an event.
fn counter_of<S: EventSource>(
    source: &S,
    memory: &CounterMemory,
    event: EventId,
) -> Option<CounterId> {
    let runs = |counter: &CounterId| match memory.slot(*counter).map(|slot| slot.load()) {
        Some(SlotState::Running { event: of, .. }) => of == event,
        _ => false,
    };
    memory.verified(counters_of(source)).iter().find(runs)
}

/// Reads the count of one event.
fn read<S: EventSource, M: RegisterBackend>(
    (source, msr, memory): (&S, &M, &CounterMemory),
    overflowed: Option<CounterId>,
    (event, entry): (EventId, &EventEntry),
    now: u64,
    divided: &Cell<Option<(u64, u64)>>,
) -> Result<EventCount, CounterError> {
    if !entry.wants_total() {
        return Err(CounterError::NoTotal(event));
    }
    if S::Facility::SOFTWARE && entry.is_software() {
        let value = entry.software_value(now);
        let runs = entry.state() == EventState::Counting;
        return Ok(EventCount { value, ..entry.count_at(now, runs) });
    }
    if S::Facility::DIVIDES && entry.is_part() {
        return read_part((source, msr, memory), entry, now, divided);
    }
    let on = counter_of(source, memory, event);
    let count = entry.count_at(now, on.is_some());
    let Some(counter) = on else {
        // It counts, but has no counter: an interrupted task moves it, or the counter faulted. What the counter holds
        // is in no total.
        let moves = entry.state() == EventState::Counting;
        return if moves { Err(CounterError::CounterLost(event)) } else { Ok(count) };
    };
    if S::Facility::DIVIDES && divides(source, event) {
        let (occurrences, _) = divided_now((source, msr), counter, divided)?;
        return Ok(EventCount { value: count.value.wrapping_add(occurrences), ..count });
    }
    let (value, _) = total_on((source, msr, memory), counter, overflowed, entry)?;
    Ok(EventCount { value, ..count })
}

/// Reads the count of a part of an event.
fn read_part<S: EventSource, M: RegisterBackend>(
    (source, msr, memory): (&S, &M, &CounterMemory),
    part: &EventEntry,
    now: u64,
    read: &Cell<Option<(u64, u64)>>,
) -> Result<EventCount, CounterError> {
    let of_group =
        |(_, entry): &(EventId, &EventEntry)| part.is_grouped() && entry.group() == part.group();
    let divided = source.opened().opened().filter(of_group).find(|(of, _)| divides(source, *of));
    let Some((divided, of)) = divided else { return Ok(part.count()) };
    let on = counter_of(source, memory, divided);
    let count = EventCount { value: part.count().value, ..of.count_at(now, on.is_some()) };
    match (on, Division::part_of(part.select())) {
        (Some(counter), Some(number)) => {
            let (occurrences, shares) = divided_now((source, msr), counter, read)?;
            let share = Division::share(number, occurrences, shares);
            Ok(EventCount { value: count.value.wrapping_add(share), ..count })
        }
        _ => Ok(count),
    }
}

/// Returns whether an event has parts.
fn divides<S: EventSource>(source: &S, event: EventId) -> bool {
    let facility = source.facility();
    facility.division().is_some_and(|division| division.divides(source.opened(), event))
}

/// Reads what a counter and its shares hold now, which is not yet in the counts of the event and of its parts.
fn divided_now<S: EventSource, M: RegisterBackend>(
    (source, msr): (&S, &M),
    counter: CounterId,
    read: &Cell<Option<(u64, u64)>>,
) -> Result<(u64, u64), CounterError> {
    if let Some(found) = read.get() {
        return Ok(found);
    }
    let facility = source.facility();
    let readable = facility.division().filter(|division| division.memory.is_readable());
    let division = readable.ok_or(CounterError::NotAvailable(counter.only()))?;
    let occurrences =
        source.unit().registers(counter).read(msr).map_err(CounterError::Unchanged)?;
    let shares = msr.read_counter_retrying(division.index).map_err(CounterError::Unchanged)?;
    read.set(Some((occurrences, shares)));
    Ok((occurrences, shares))
}

/// Reads the total of an event on this counter, and the counter's value then. `overflowed`: the counter of the event
/// whose overflow is being reported.
pub(crate) fn total_on<S: EventSource, M: RegisterBackend>(
    (source, msr, memory): (&S, &M, &CounterMemory),
    counter: CounterId,
    overflowed: Option<CounterId>,
    entry: &EventEntry,
) -> Result<(u64, u64), CounterError> {
    let registers = registers_of(source, counter);
    let value = read_counter(source, msr, &registers).map_err(CounterError::Unchanged)?;
    let (mut total, mut counted_to) = entry.accumulated();
    if S::Facility::RECORDS && entry.is_precise() {
        let waiting = source.facility().waiting(msr, counter).map_err(CounterError::Unchanged)?;
        (total, counted_to) = waiting.added_to((total, counted_to), &registers);
    }
    let mut since = value.wrapping_sub(counted_to) & registers.mask();
    if S::Facility::RECORDS && entry.is_precise() {
        since = since_record(value, counted_to, registers.mask());
    }
    // Since its last wrap the counter has counted from 0. A small value may also be that of the next wrap: the status
    // tells.
    if entry.has_wrapped()
        && value < SERVED_WITHIN
        && let Some(global) = source.unit().global()
    {
        let status = msr.read_retrying(global.status).map_err(CounterError::Unchanged)?;
        let (is_set, is_frozen) =
            (status & counter.only().bits() != 0, status & global.frozen != 0);
        // The pass serves the counters in the order of their bits. It acknowledges them first, unless they are frozen.
        let serving = !memory.serving.is_idle();
        let is_served = overflowed.is_some_and(|overflowed| counter.bit() < overflowed.bit());
        let is_in_total = match (is_set, is_frozen) {
            (true, false) => Some(false),
            (true, true) => Some(serving && is_served),
            (false, true) => Some(true),
            // Acknowledged for this wrap, or for one that is in the total already.
            (false, false) => (!serving || is_served).then_some(true),
        };
        match is_in_total {
            Some(true) => {}
            Some(false) => since = since.wrapping_add(registers.mask()).wrapping_add(1),
            None => return Err(CounterError::NotAvailable(counter.only())),
        }
    }
    Ok((total.wrapping_add(since), value))
}
