//! Hardware beside the counters that a session's events ask for.

use crate::access::backend::{AccessFault, RegisterBackend};
use crate::branches::sampled::Branches;
use crate::counters::error::CounterError;
use crate::counters::hooks::division::Division;
use crate::counters::hooks::facility::Facility;
use crate::counters::hooks::running::{Asked, EventControl, Running, RunningEvent, Unsettled};
use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::counters::registers::counter::Counter;
use crate::counters::shared::entry::EventEntry;
use crate::counters::shared::period::Waiting;
use crate::platform::Hardware;
use crate::precise::sample::PreciseSample;

/// Hardware beside the counters that a session places with its events. The session's
/// [`EventSource`](crate::EventSource) yields the value, and the session calls these methods. The embedder never does.
///
/// The value is made per call, and holds references only. All state is in memory that the embedder lends, as atomics,
/// so that tasks and interrupts see the same. `()` is no facility, and nothing of it is linked. Pairs and `Option`s of
/// facilities are facilities.
///
/// The whole life of a facility is [`settle`](Self::settle). After each start, stop, turn and thread switch, and around
/// each window and suspend, the session names the events that are on counters now. The facility derives its registers
/// from them, and writes the differences.
///
/// This facility keeps a register at the number of running events. (A real one reads the event.)
///
/// ```
/// use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use pmu_core::facility::{EventFacility, Facility, Running, Unsettled};
/// use pmu_core::access::{RegisterAccess, RegisterAddress, RegisterBackend};
///
/// #[derive(Clone, Copy)]
/// struct Gauge<'a> {
///     register: RegisterAddress,
///     /// The register's value, plus 1; 0 if it is unknown.
///     known: &'a AtomicU64,
/// }
/// impl Facility for Gauge<'_> {}
/// impl EventFacility for Gauge<'_> {
///     const OFFERS: bool = true;
///     fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
///         let wanted = running.counters().iter().filter(|on| running.on(*on).is_some()).count() as u64;
///         if self.known.swap(0, Relaxed) != wanted + 1 {
///             // On failure no event may run: each depends on the register.
///             msr.write_retrying(self.register, wanted)
///                 .map_err(|fault| Unsettled { counters: running.counters(), fault })?;
///         }
///         self.known.store(wanted + 1, Relaxed);
///         Ok(())
///     }
///     fn lose(&self) {
///         self.known.store(0, Relaxed);
///     }
/// }
/// ```
///
/// # Context
/// Task, on the processor of the session. An interrupt may come at any time, and calls the methods of [`Facility`]. The
/// interrupt's handler also calls [`waiting`](Self::waiting), [`branches`](Self::branches),
/// [`is_newest`](Self::is_newest) and [`instruction`](Self::instruction): these four take no lock.
pub trait EventFacility: Facility + Copy {
    /// `false` if events can ask for nothing. The session's code for facilities is then not linked.
    const OFFERS: bool;

    /// `true` if the facility drives sampling units (AMD's IBS): each is one more counter of the session, with a value
    /// and a control that [`access_unit`](Self::access_unit) reads and writes. The samples are
    /// [records](Facility::next_record).
    const UNITS: bool = false;

    /// Returns the sampling units of the processor: [`FETCH_UNIT`](CounterId::FETCH_UNIT) and
    /// [`OP_UNIT`](CounterId::OP_UNIT).
    fn units(&self) -> CounterSet {
        CounterSet::NONE
    }

    /// Returns a sampling unit as a [counter](Counter::of_unit). The call is only for one of the [units](Self::units).
    fn unit(&self, counter: CounterId) -> Option<Counter> {
        let _ = counter;
        None
    }

    /// Lets the sampling units interrupt. Returns those that can be used: firmware assigned an interrupt to them, and
    /// the platform unmasked its entry of the local vector table.
    ///
    /// # Errors
    /// A register access failed.
    fn unmask_units<H: Hardware>(&self, hardware: &H) -> Result<CounterSet, AccessFault> {
        let _ = hardware;
        Ok(CounterSet::NONE)
    }

    /// Accesses a sampling unit, `registers`, as a counter. A write returns 0.
    ///
    /// # Errors
    /// A register access failed.
    fn access_unit<M: RegisterBackend>(
        &self,
        msr: &M,
        registers: &Counter,
        access: UnitAccess,
    ) -> Result<u64, AccessFault> {
        let _ = (msr, registers, access);
        Ok(0)
    }

    /// `true` if the facility [divides](Self::division) an event into parts. Otherwise the session's code for parts is
    /// not linked.
    const DIVIDES: bool = false;

    /// `true` if the kernel's calls count [software events](crate::Event::software). Otherwise the session's code for
    /// them is not linked.
    const SOFTWARE: bool = false;

    /// `true` if the facility keeps something of a thread while the thread does not run, which the session
    /// [claims](Self::claim). Otherwise the session's code for this is not linked.
    const KEEPS: bool = false;

    /// Returns those of `counters` that can do what an event asks for. Clears the requests in `asked` that this
    /// facility meets. An event whose requests are not all met cannot be opened. The same is asked each time that a
    /// thread's event comes to the processor: on failure, it is not counted there.
    ///
    /// # Errors
    /// The reason why the event cannot be opened, if it is known better than that nothing met the request.
    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> Result<CounterSet, CounterError> {
        let _ = asked;
        Ok(counters)
    }

    /// Returns how the counter of a running event is programmed.
    fn control(&self, event: &RunningEvent<'_>) -> EventControl {
        let _ = event;
        EventControl::default()
    }

    /// Programs the facility's registers for the events that are on counters now, and clears them elsewhere. Registers
    /// that hold their values already are not written. The counters of the events that changed are stopped, or not
    /// started yet, during the call. The first call comes with the first change: until then, registers hold what a
    /// predecessor left.
    ///
    /// # Errors
    /// Registers did not answer. The session stops the named counters, and calls the method once more.
    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled>;

    /// Notes that the registers lost their values, or that another owner may have changed them. The events stay on
    /// their counters, so the facility does not become [idle](Facility::is_idle) by this.
    fn lose(&self);

    /// Returns the counters that must not count while the facility is [settled](Self::settle).
    fn needs_stopped(&self, running: &Running<'_>) -> CounterSet {
        let _ = running;
        CounterSet::NONE
    }

    /// Returns the counters that may still write records although no event on them asks for that, because registers did
    /// not answer. No event comes to them before the facility is settled.
    fn left_over(&self, running: &Running<'_>) -> CounterSet {
        let _ = running;
        CounterSet::NONE
    }

    /// Lets the interrupt of a counter that is about to stop come, if the facility delays it. After the counter has
    /// stopped, the facility is settled.
    fn before_stop<M: RegisterBackend>(&self, msr: &M, counter: CounterId) {
        let _ = (msr, counter);
    }

    /// Notes that an event is about to leave its counter, which is stopped. Returns the records of the event that wait.
    /// They stay where they are, and are reported later as [`Recorded::left`](crate::facility::Recorded::left).
    ///
    /// # Errors
    /// A register access failed. The counter is not freed.
    fn leave<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
        event: &RunningEvent<'_>,
    ) -> Result<Waiting, AccessFault> {
        let _ = (msr, counter, event);
        Ok(Waiting::NONE)
    }

    /// Returns the records that wait of the event on a counter.
    ///
    /// # Errors
    /// A register access failed.
    fn waiting<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
    ) -> Result<Waiting, AccessFault> {
        let _ = (msr, counter);
        Ok(Waiting::NONE)
    }

    /// Returns whether records wait that the interrupt path is yet to report.
    ///
    /// # Errors
    /// A register access failed.
    fn has_waiting<M: RegisterBackend>(&self, msr: &M) -> Result<bool, AccessFault> {
        let _ = msr;
        Ok(false)
    }

    /// Returns the facility such that [`collect`](Facility::collect) finds all records that wait, also those that are
    /// yet to interrupt.
    #[must_use]
    fn collecting_all(self) -> Self {
        self
    }

    /// Notes that an event was closed: its records are reported no more.
    fn forget(&self, event: EventId) {
        let _ = event;
    }

    /// Discards what the facility keeps of a thread while the thread does not run, by the tag of an event of the
    /// thread, unless it has this number, which is not 0. Returns the number of what is kept next, or 0 if nothing ever
    /// is.
    ///
    /// The session calls the method as the event is switched out, and stores the number with the event. As the thread
    /// is switched in, it calls the method with the number before the event gets a counter, and with 0 afterwards: what
    /// did not return to the event by then is out of date as the thread runs on.
    fn claim(&self, tag: u64, number: u32) -> u32 {
        let _ = (tag, number);
        0
    }

    /// Returns whether the branches that were read in this interrupt may belong to the sample that is being reported.
    /// They do not belong to a record if another one was written since.
    #[inline]
    fn is_newest(&self) -> bool {
        true
    }

    /// Returns what is recorded of the instruction of the sample that is being reported: the overflow of a counter, or
    /// of the counter of a [record](Facility::next_record). One interrupt reports the samples of several counters, also
    /// of events that are not [precise](crate::Event::precise), for which the result is `None`.
    fn instruction(&self, counter: CounterId) -> Option<PreciseSample> {
        let _ = counter;
        None
    }

    /// Returns the branch records that the facility read in this interrupt, if it reads branch records.
    #[inline]
    fn branches(&self) -> Option<&Branches<'_>> {
        None
    }

    /// Returns the hardware that divides an event into [parts](crate::Event::part), if this processor has it. The
    /// session uses its registers.
    ///
    /// # Context
    /// Any context, including NMI.
    #[inline]
    fn division(&self) -> Option<Division<'_>> {
        None
    }
}

/// An access to a sampling unit, which is a counter to the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitAccess {
    /// Reads the counter's value.
    ReadValue,
    /// Loads the counter with a value, from which it counts when it is next started, or goes on.
    WriteValue(u64),
    /// Reads the select that was written; 0 if the unit's registers lost it.
    ReadControl,
    /// Starts the unit for a select; 0 stops it.
    WriteControl(u64),
    /// Lets the unit go on after a sample, from the value that it has now.
    Resume,
}

/// Nothing beside the counters.
impl EventFacility for () {
    const OFFERS: bool = false;

    #[inline]
    fn settle<M: RegisterBackend>(&self, _: &M, _: &Running<'_>) -> Result<(), Unsettled> {
        Ok(())
    }

    #[inline]
    fn lose(&self) {}
}

/// The facility, if this processor has it.
impl<F: EventFacility> EventFacility for Option<F> {
    const OFFERS: bool = F::OFFERS;
    const UNITS: bool = F::UNITS;

    fn units(&self) -> CounterSet {
        self.as_ref().map_or(CounterSet::NONE, F::units)
    }

    fn unit(&self, counter: CounterId) -> Option<Counter> {
        self.as_ref().and_then(|facility| facility.unit(counter))
    }

    fn unmask_units<H: Hardware>(&self, hardware: &H) -> Result<CounterSet, AccessFault> {
        let none = Ok(CounterSet::NONE);
        self.as_ref().map_or(none, |facility| facility.unmask_units(hardware))
    }

    fn access_unit<M: RegisterBackend>(
        &self,
        msr: &M,
        registers: &Counter,
        access: UnitAccess,
    ) -> Result<u64, AccessFault> {
        self.as_ref().map_or(Ok(0), |facility| facility.access_unit(msr, registers, access))
    }

    const DIVIDES: bool = F::DIVIDES;
    const SOFTWARE: bool = F::SOFTWARE;
    const KEEPS: bool = F::KEEPS;

    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> Result<CounterSet, CounterError> {
        self.as_ref().map_or(Ok(counters), |facility| facility.resolve(asked, counters))
    }

    fn control(&self, event: &RunningEvent<'_>) -> EventControl {
        self.as_ref().map_or(EventControl::default(), |facility| facility.control(event))
    }

    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        self.as_ref().map_or(Ok(()), |facility| facility.settle(msr, running))
    }

    fn lose(&self) {
        if let Some(facility) = self {
            facility.lose();
        }
    }

    fn needs_stopped(&self, running: &Running<'_>) -> CounterSet {
        self.as_ref().map_or(CounterSet::NONE, |facility| facility.needs_stopped(running))
    }

    fn left_over(&self, running: &Running<'_>) -> CounterSet {
        self.as_ref().map_or(CounterSet::NONE, |facility| facility.left_over(running))
    }

    fn before_stop<M: RegisterBackend>(&self, msr: &M, counter: CounterId) {
        if let Some(facility) = self {
            facility.before_stop(msr, counter);
        }
    }

    fn leave<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
        event: &RunningEvent<'_>,
    ) -> Result<Waiting, AccessFault> {
        self.as_ref().map_or(Ok(Waiting::NONE), |facility| facility.leave(msr, counter, event))
    }

    fn waiting<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
    ) -> Result<Waiting, AccessFault> {
        self.as_ref().map_or(Ok(Waiting::NONE), |facility| facility.waiting(msr, counter))
    }

    fn has_waiting<M: RegisterBackend>(&self, msr: &M) -> Result<bool, AccessFault> {
        self.as_ref().map_or(Ok(false), |facility| facility.has_waiting(msr))
    }

    fn collecting_all(self) -> Self {
        self.map(F::collecting_all)
    }

    fn forget(&self, event: EventId) {
        if let Some(facility) = self {
            facility.forget(event);
        }
    }

    fn claim(&self, tag: u64, number: u32) -> u32 {
        self.as_ref().map_or(0, |facility| facility.claim(tag, number))
    }

    fn is_newest(&self) -> bool {
        self.as_ref().is_none_or(F::is_newest)
    }

    fn instruction(&self, counter: CounterId) -> Option<PreciseSample> {
        self.as_ref().and_then(|facility| facility.instruction(counter))
    }

    #[inline]
    fn branches(&self) -> Option<&Branches<'_>> {
        self.as_ref().and_then(F::branches)
    }

    #[inline]
    fn division(&self) -> Option<Division<'_>> {
        self.as_ref().and_then(F::division)
    }
}

/// Two facilities. Both are settled, even if the first one fails.
impl<A: EventFacility, B: EventFacility> EventFacility for (A, B) {
    const OFFERS: bool = A::OFFERS || B::OFFERS;
    const UNITS: bool = A::UNITS || B::UNITS;

    fn units(&self) -> CounterSet {
        self.0.units() | self.1.units()
    }

    fn unit(&self, counter: CounterId) -> Option<Counter> {
        self.0.unit(counter).or_else(|| self.1.unit(counter))
    }

    fn unmask_units<H: Hardware>(&self, hardware: &H) -> Result<CounterSet, AccessFault> {
        // At most one facility of a pair drives sampling units.
        if A::UNITS { self.0.unmask_units(hardware) } else { self.1.unmask_units(hardware) }
    }

    fn access_unit<M: RegisterBackend>(
        &self,
        msr: &M,
        registers: &Counter,
        access: UnitAccess,
    ) -> Result<u64, AccessFault> {
        if A::UNITS {
            self.0.access_unit(msr, registers, access)
        } else {
            self.1.access_unit(msr, registers, access)
        }
    }

    const DIVIDES: bool = A::DIVIDES || B::DIVIDES;
    const SOFTWARE: bool = A::SOFTWARE || B::SOFTWARE;
    const KEEPS: bool = A::KEEPS || B::KEEPS;

    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> Result<CounterSet, CounterError> {
        let counters = self.0.resolve(asked, counters)?;
        self.1.resolve(asked, counters)
    }

    fn control(&self, event: &RunningEvent<'_>) -> EventControl {
        let (one, other) = (self.0.control(event), self.1.control(event));
        EventControl {
            silent: one.silent || other.silent,
            adaptive: one.adaptive || other.adaptive,
        }
    }

    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        match (self.0.settle(msr, running), self.1.settle(msr, running)) {
            (Err(first), Err(second)) => {
                Err(Unsettled { counters: first.counters | second.counters, ..first })
            }
            (first, second) => first.and(second),
        }
    }

    fn lose(&self) {
        self.0.lose();
        self.1.lose();
    }

    fn needs_stopped(&self, running: &Running<'_>) -> CounterSet {
        self.0.needs_stopped(running) | self.1.needs_stopped(running)
    }

    fn left_over(&self, running: &Running<'_>) -> CounterSet {
        self.0.left_over(running) | self.1.left_over(running)
    }

    fn before_stop<M: RegisterBackend>(&self, msr: &M, counter: CounterId) {
        self.0.before_stop(msr, counter);
        self.1.before_stop(msr, counter);
    }

    fn leave<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
        event: &RunningEvent<'_>,
    ) -> Result<Waiting, AccessFault> {
        // Only one facility records a counter's events, so the other has none that wait.
        match self.0.leave(msr, counter, event)? {
            Waiting::NONE => self.1.leave(msr, counter, event),
            waiting => Ok(waiting),
        }
    }

    fn waiting<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
    ) -> Result<Waiting, AccessFault> {
        match self.0.waiting(msr, counter)? {
            Waiting::NONE => self.1.waiting(msr, counter),
            waiting => Ok(waiting),
        }
    }

    fn has_waiting<M: RegisterBackend>(&self, msr: &M) -> Result<bool, AccessFault> {
        Ok(self.0.has_waiting(msr)? || self.1.has_waiting(msr)?)
    }

    fn collecting_all(self) -> Self {
        (self.0.collecting_all(), self.1.collecting_all())
    }

    fn forget(&self, event: EventId) {
        self.0.forget(event);
        self.1.forget(event);
    }

    fn claim(&self, tag: u64, number: u32) -> u32 {
        // One of them has the branch records.
        self.0.claim(tag, number) | self.1.claim(tag, number)
    }

    fn is_newest(&self) -> bool {
        self.0.is_newest() && self.1.is_newest()
    }

    #[inline(never)] // 48 bytes of the Hermit-like glue.
    fn instruction(&self, counter: CounterId) -> Option<PreciseSample> {
        self.0.instruction(counter).or_else(|| self.1.instruction(counter))
    }

    #[inline]
    fn branches(&self) -> Option<&Branches<'_>> {
        self.0.branches().or(self.1.branches())
    }

    #[inline]
    fn division(&self) -> Option<Division<'_>> {
        self.0.division().or(self.1.division())
    }
}

/// Returns the number of occurrences of an event between its counter's overflow and the interrupt, if the processor
/// [delays](crate::branches::BranchUnit::holds_interrupt) it: the counter overflows so much before the period's end.
#[inline(always)]
pub(crate) fn delay_of<F: EventFacility>(facility: &F, entry: &EventEntry) -> u64 {
    let asks = F::OFFERS && entry.branches().get().is_some();
    let branches = if asks { facility.branches() } else { None };
    branches.map_or(0, |branches| branches.unit.delay().into())
}
