//! Hardware beside the counters that shares their interrupt.

use crate::access::backend::{AccessFault, RegisterBackend};
use crate::counters::hooks::running::Recorded;
use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::counters::shared::memory::CounterMemory;

/// Hardware that shares the performance interrupt with the counters, such as branch records.
/// [`service`](crate::service()) calls this trait's methods, while it services the interrupt, for the facility of the
/// [source](crate::EventSource::Facility).
///
/// Each method has a default that accesses no register, so an implementation has only the methods that its hardware
/// needs. `()` stands for no facility, and costs nothing. A pair of two facilities is itself a facility, so pairs can
/// be nested.
///
/// `service` makes one or more passes over the counters. The steps of a pass are:
/// 1. [`begin`](Self::begin), before any other access.
/// 2. On some processors, the driver stops the counters. The driver reads the overflow status.
/// 3. [`collect`](Self::collect), before an overflow is acknowledged or reported, and before a counter is loaded.
/// 4. The driver acknowledges the overflows, together with the facility's [`status_bits`](Self::status_bits). The
///    driver reports each overflow with a reference to the facility, so that a handler can read what `collect` stored.
///    Before that, the driver reports each [record](Self::next_record) as an overflow. If the period of a record's
///    event has changed, the driver loads the counter, and calls [`set_reload`](Self::set_reload).
/// 5. [`end`](Self::end), after the counters run again.
///
/// Keep a facility small, because `service` takes the facility by value. Commonly a facility consists of two
/// references: one to a description of the hardware, and one to the embedder's memory. The handler gets only a shared
/// reference to the facility, so `collect` stores data for the handler in the embedder's memory or in a
/// [`Cell`](core::cell::Cell).
///
/// This example reads the records of a fake trace buffer. A full buffer raises the performance interrupt.
///
/// ```
/// use core::cell::Cell;
/// use pmu_core::facility::{Facility, Interrupted};
/// use pmu_core::access::{RegisterAccess, RegisterAddress, RegisterBackend, AccessFault};
///
/// /// Trace buffer whose status bit is bit 55. The register `filled` holds the number of records.
/// struct TraceBuffer<'a> {
///     filled: RegisterAddress,
///     drained: &'a Cell<u64>,
/// }
/// impl Facility for TraceBuffer<'_> {
///     fn status_bits(&self) -> u64 {
///         1 << 55
///     }
///     fn collect<M: RegisterBackend>(&mut self, msr: &M, interrupted: Interrupted) -> Result<u32, AccessFault> {
///         if interrupted.status & 1 << 55 == 0 {
///             return Ok(0); // Another cause: a counter's, or another owner's.
///         }
///         self.drained.set(self.drained.get() + msr.read_retrying(self.filled)?);
///         Ok(1)
///     }
/// }
/// ```
///
/// # Context
/// Any context, including interrupt and NMI. No method takes a lock, allocates or panics, and each method ends after a
/// bounded number of steps. If an interrupt handler calls `service` during another call of `service`, the
/// nested call calls no method of the facility. Instead, the outer call makes another pass.
///
/// # Errors
/// If a register access fails, the method retries the access once. If the retry also fails, the method still makes its
/// remaining accesses, and then returns the first fault of a retry. The pass continues, so no overflow is lost, and
/// `service` returns the fault.
pub trait Facility {
    /// `true` if the facility can raise an interrupt without the overflow of a counter.
    /// [`service`](crate::service()) then calls the facility's methods even in these cases, in which
    /// `service` does not service the counters:
    /// - No session has taken the counters.
    /// - The interrupt is masked.
    /// - The interrupt comes during an operation of the session that services the counters itself, such as
    ///   [`reprogram`](crate::CounterSession::reprogram).
    ///
    /// In these cases, `service` calls [`begin`](Self::begin), [`collect`](Self::collect) and [`end`](Self::end).
    /// While the counters are [lent](crate::CounterSession::lend), only [`while_lent`](Self::while_lent) is called.
    const ALONE: bool = false;

    /// `true` if the hardware writes records of its own to memory, which may wait there. Otherwise the session's code
    /// for them is not linked.
    const RECORDS: bool = false;

    /// Returns whether an interrupt has nothing to do for the facility: each of the other methods would return its
    /// default without an access. [`service`](crate::service()) asks this first, and then leaves the facility out. A
    /// facility that is about to record is not idle, nor is a facility whose last records are still to be reported.
    #[inline]
    fn is_idle(&self) -> bool {
        false
    }

    /// Returns the bits of the global overflow status that belong to the facility. The driver acknowledges these bits
    /// together with the counters' bits. [`Serviced::others`](crate::interrupt::Serviced::others) does not contain
    /// these bits.
    #[inline]
    fn status_bits(&self) -> u64 {
        0
    }

    /// Returns the session's counters whose overflows the facility reports, in place of the driver.
    /// [`service`](crate::service()) acknowledges these overflows, but does not report them, and does not
    /// reload the counters.
    #[inline]
    fn own_counters(&self) -> CounterSet {
        CounterSet::NONE
    }

    /// Begins a [pass](Facility) over the counters. The driver calls this method before the pass accesses any register.
    /// If the hardware continues to record while the interrupt handler runs, this method stops the recording.
    ///
    /// # Errors
    /// A register access failed, and its [retry](Facility) failed, too.
    #[inline]
    fn begin<M: RegisterBackend>(&mut self, _: &M) -> Result<(), AccessFault> {
        Ok(())
    }

    /// Reads the facility's new records. The driver acknowledges the overflows after this call, because the
    /// acknowledgement may let the facility record again. Returns the number of interrupts that the facility itself
    /// raised. The [`Claim`](crate::Claim) includes this number. Return 0 if the facility did not interrupt. A facility
    /// that raises no interrupts itself always returns 0.
    ///
    /// # Errors
    /// A register access failed, and its [retry](Facility) failed, too.
    #[inline]
    fn collect<M: RegisterBackend>(
        &mut self,
        _: &M,
        _: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        Ok(0)
    }

    /// Returns whether [`collect`](Self::collect) found records.
    #[inline]
    fn has_records(&self) -> bool {
        false
    }

    /// Returns the next of the records that [`collect`](Self::collect) found. The driver reports each record as an
    /// overflow of the counter's event. While it does, the facility has the record for the
    /// [`Sample`](crate::Sample).
    #[inline]
    fn next_record(&mut self) -> Option<Recorded> {
        None
    }

    /// Sets the number of events for which the processor loads a counter after its next record. The counter is stopped.
    ///
    /// # Errors
    /// A register access failed, and its [retry](Facility) failed, too.
    #[inline]
    fn set_reload<M: RegisterBackend>(
        &self,
        _: &M,
        _: CounterId,
        _: u64,
    ) -> Result<(), AccessFault> {
        Ok(())
    }

    /// Ends a [pass](Facility) over the counters, after the counters run again. If the interrupt or
    /// [`begin`](Self::begin) stopped the recording, this method starts the recording again.
    ///
    /// # Errors
    /// A register access failed, and its [retry](Facility) failed, too.
    #[inline]
    fn end<M: RegisterBackend>(&mut self, _: &M) -> Result<(), AccessFault> {
        Ok(())
    }

    /// Handles an interrupt while no session has taken the counters. If the interrupt stopped the facility, this method
    /// lets the facility continue. For example, it ends a freeze of branch records. The method is not called while the
    /// counters are [lent](crate::CounterSession::lend).
    ///
    /// # Errors
    /// A register access failed, and its [retry](Facility) failed, too.
    #[inline]
    fn without_counters<M: RegisterBackend>(&mut self, _: &M) -> Result<(), AccessFault> {
        Ok(())
    }

    /// Handles an interrupt while the counters are [lent](crate::CounterSession::lend). The facility may have raised
    /// interrupts before it was suspended. Returns the number of these interrupts that may still be delivered. The
    /// [`Claim`](crate::Claim) includes this number. A later call does not count the same interrupts again. The method
    /// accesses no register, because the borrower of the counters may use the facility's registers.
    #[inline]
    fn while_lent(&mut self) -> u32 {
        0
    }
}

/// The overflows of one [pass](Facility) over the counters. [`Facility::collect`] receives this value.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted<'a> {
    /// The global overflow status, including other owners' bits. The value is 0 if the processor has no overflow
    /// status, if the status could not be read, or if this pass does [not service the counters](Facility::ALONE).
    pub status: u64,
    /// The session's counters that overflowed. The facility's [own counters](Facility::own_counters) are never in this
    /// set. On a processor without an overflow status, only a counter's value shows an overflow. The driver reads the
    /// values after [`collect`](Facility::collect), so the set then contains all of the session's general counters
    /// except the facility's own.
    pub overflowed: CounterSet,
    /// A facility that collected before has [records](Facility::next_record), which are samples, too.
    pub recorded: bool,
    pub(crate) memory: &'a CounterMemory,
}

impl Interrupted<'_> {
    /// Returns the value for a facility that collects after one that has records, or has none.
    fn beside(self, recorded: bool) -> Self {
        Self { recorded: self.recorded || recorded, ..self }
    }

    /// Returns the event that runs on a counter of the session. The counter may be one of the facility's
    /// [own counters](Facility::own_counters).
    ///
    /// ```
    /// use pmu_core::{CounterSet, EventId};
    /// use pmu_core::facility::Interrupted;
    /// /// Returns the events of the counters whose bits are set in a hardware record.
    /// fn events(interrupted: &Interrupted, applicable: u64) -> impl Iterator<Item = EventId> {
    ///     CounterSet::from_bits(applicable).iter().filter_map(|counter| interrupted.event(counter))
    /// }
    /// ```
    #[inline]
    pub fn event(&self, counter: CounterId) -> Option<EventId> {
        self.memory.slot(counter)?.running()
    }
}

/// No facility: no method does anything.
impl Facility for () {
    #[inline]
    fn is_idle(&self) -> bool {
        true
    }
}

/// The facility, if there is one. `None` does nothing.
impl<F: Facility> Facility for Option<F> {
    const ALONE: bool = F::ALONE;
    const RECORDS: bool = F::RECORDS;

    #[inline]
    fn is_idle(&self) -> bool {
        self.as_ref().is_none_or(F::is_idle)
    }

    #[inline]
    fn status_bits(&self) -> u64 {
        self.as_ref().map_or(0, F::status_bits)
    }

    #[inline]
    fn own_counters(&self) -> CounterSet {
        self.as_ref().map_or(CounterSet::NONE, F::own_counters)
    }

    #[inline]
    fn begin<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        self.as_mut().map_or(Ok(()), |facility| facility.begin(msr))
    }

    #[inline]
    fn collect<M: RegisterBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        self.as_mut().map_or(Ok(0), |facility| facility.collect(msr, interrupted))
    }

    #[inline]
    fn has_records(&self) -> bool {
        self.as_ref().is_some_and(F::has_records)
    }

    #[inline]
    fn next_record(&mut self) -> Option<Recorded> {
        self.as_mut().and_then(F::next_record)
    }

    #[inline]
    fn set_reload<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
        events: u64,
    ) -> Result<(), AccessFault> {
        self.as_ref().map_or(Ok(()), |facility| facility.set_reload(msr, counter, events))
    }

    #[inline]
    fn end<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        self.as_mut().map_or(Ok(()), |facility| facility.end(msr))
    }

    #[inline]
    fn without_counters<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        self.as_mut().map_or(Ok(()), |facility| facility.without_counters(msr))
    }

    #[inline]
    fn while_lent(&mut self) -> u32 {
        self.as_mut().map_or(0, F::while_lent)
    }
}

/// Two facilities. Each method calls both facilities, even if the first facility fails. If a
/// [status bit](Facility::status_bits) belongs to both facilities, [`collect`](Facility::collect) counts the bit's
/// interrupt once.
impl<A: Facility, B: Facility> Facility for (A, B) {
    const ALONE: bool = A::ALONE || B::ALONE;
    const RECORDS: bool = A::RECORDS || B::RECORDS;

    #[inline]
    fn is_idle(&self) -> bool {
        self.0.is_idle() && self.1.is_idle()
    }

    #[inline]
    fn status_bits(&self) -> u64 {
        self.0.status_bits() | self.1.status_bits()
    }

    #[inline]
    fn own_counters(&self) -> CounterSet {
        self.0.own_counters() | self.1.own_counters()
    }

    #[inline]
    fn begin<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        let (first, second) = (self.0.begin(msr), self.1.begin(msr));
        first.and(second)
    }

    #[inline]
    fn collect<M: RegisterBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        let shared = self.0.status_bits() & self.1.status_bits() & interrupted.status;
        // A facility that attends to samples collects after one that makes them.
        let (first, second) = if B::RECORDS && !A::RECORDS {
            let second = self.1.collect(msr, interrupted);
            (self.0.collect(msr, interrupted.beside(self.1.has_records())), second)
        } else if A::RECORDS {
            let first = self.0.collect(msr, interrupted);
            (first, self.1.collect(msr, interrupted.beside(self.0.has_records())))
        } else {
            (self.0.collect(msr, interrupted), self.1.collect(msr, interrupted))
        };
        let (first, second) = (first?, second?);
        // Both account for the one interrupt of a bit that they share.
        let twice = if shared == 0 { 0 } else { first.min(second).min(1) };
        Ok(first + second - twice)
    }

    #[inline]
    fn has_records(&self) -> bool {
        self.0.has_records() || self.1.has_records()
    }

    #[inline]
    fn next_record(&mut self) -> Option<Recorded> {
        match self.0.next_record() {
            None => self.1.next_record(),
            record => record,
        }
    }

    #[inline]
    fn set_reload<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
        events: u64,
    ) -> Result<(), AccessFault> {
        let first = self.0.set_reload(msr, counter, events);
        first.and(self.1.set_reload(msr, counter, events))
    }

    #[inline]
    fn end<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        let (first, second) = (self.0.end(msr), self.1.end(msr));
        first.and(second)
    }

    #[inline]
    fn without_counters<M: RegisterBackend>(&mut self, msr: &M) -> Result<(), AccessFault> {
        let (first, second) = (self.0.without_counters(msr), self.1.without_counters(msr));
        first.and(second)
    }

    #[inline]
    fn while_lent(&mut self) -> u32 {
        self.0.while_lent() + self.1.while_lent()
    }
}
