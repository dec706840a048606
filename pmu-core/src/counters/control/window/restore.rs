//! Restoring lent counters.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::access::backend::AccessFault;
use crate::counters::control::handle::CounterSession;
use crate::counters::control::window::CounterWindow;
use crate::counters::error::CounterError;
use crate::counters::events::event::GuestMode;
use crate::counters::hooks::facility::Facility;
use crate::counters::interrupt::sample::Sample;
use crate::counters::names::{CounterId, CounterSet, EventId, MAX_COUNTERS};
use crate::counters::registers::counter::CounterControl;
use crate::counters::shared::entry::{EventEntry, EventState};
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::platform::Hardware;
use crate::profile::event_source::EventSource;

impl<'a, S: EventSource, H: Hardware> CounterSession<'a, S, H> {
    /// Returns those of these counters that run.
    pub(crate) fn running(&self, own: CounterSet) -> CounterSet {
        let running =
            self.slots_of(own).filter(|(_, slot)| matches!(slot.load(), SlotState::Running { .. }));
        running.map(|(counter, _)| counter).collect()
    }

    /// Disarms and clears lent counters on which a borrower left something. Acknowledges their overflows, and these
    /// other bits of the `status`.
    pub(crate) fn disarm(&self, lent: CounterSet, status: u64, failures: &mut Failures) {
        // One write stops them all, so that none overflows while the others are cleared.
        let (unit, mut stopped) = (self.unit(), Ok(()));
        if let Some(global) = unit.global() {
            let control = self.memory.global_control.load(Relaxed);
            stopped = self.write_retrying(global.control, control);
        }
        let stopped = stopped.and_then(|()| self.disarm_fixed(lent & unit.counters()));
        let note = |failures: &mut Failures, counter: CounterId, fault| {
            match self.slot(counter).filter(|_| self.declared.contains(counter)) {
                Some(slot) => failures.note(counter, slot, fault),
                // It was added to the session's.
                None => failures.add(counter, fault),
            }
        };
        for counter in lent.iter() {
            let Some(registers) = unit.counter(counter) else { continue };
            let disarmed = match registers.control {
                CounterControl::Select(select) => {
                    stopped.and_then(|()| self.write_retrying(select, 0))
                }
                CounterControl::Shared { .. } => stopped,
            };
            let cleared = disarmed.and_then(|()| self.write_retrying(registers.value, 0));
            if let Err(fault) = cleared {
                note(failures, counter, fault);
            }
        }
        // Last: a counter that still ran could set its bit again.
        let left = lent.bits() | status;
        let acknowledged =
            unit.global().map_or(Ok(0), |global| self.acknowledge(global, left | global.frozen));
        if let Err(fault) = acknowledged {
            lent.iter().for_each(|counter| note(failures, counter, fault));
        }
    }

    /// Clears the bits of these fixed counters in their common control register. The session's bits are restored
    /// later.
    pub(crate) fn disarm_fixed(&self, lent: CounterSet) -> Result<(), AccessFault> {
        let fixed = lent & CounterSet::FIXED;
        if fixed.is_empty() {
            return Ok(());
        }
        let register = self.unit().fixed_control();
        let known = !self.fixed_of(self.declared).is_empty();
        let mut control = match known {
            true => self.memory.fixed_control.load(Relaxed),
            false => self.read_retrying(register)?,
        };
        for counter in fixed.iter() {
            control &= !self.unit().registers(counter).control.mask();
        }
        self.write_retrying(register, control)
    }

    /// Loads the running counters with these values.
    pub(crate) fn restore_values(&self, own: CounterSet, values: &Values, failures: &mut Failures) {
        let full_width = self.memory.full_width.load(Relaxed);
        for (value, (counter, slot)) in values.iter().zip(self.slots_of(own)) {
            let SlotState::Running { event, .. } = slot.load() else { continue };
            let (registers, mut value) = (self.registers(counter), *value);
            if let Some(entry) = self.due_on(counter, value) {
                entry.accumulate_precise(value, registers.mask());
                value = registers.preload(1);
                entry.loaded(value);
            }
            if registers.register_for(value) != registers.value
                && !full_width
                && let Some(entry) = self.table().entry(event)
            {
                // The event is counted only, and no write reaches the value.
                entry.accumulate(value, registers.mask());
                value = registers.rearmed_value(value, full_width);
                entry.loaded(value);
            }
            if let Err(fault) = self.load(&registers, value) {
                failures.note(counter, slot, fault);
            }
        }
    }

    /// Returns the precise event of a counter that has this value, if its record is yet to be written. Another owner of
    /// the counters discards that record: the event's next occurrence is to be recorded instead.
    #[inline(always)]
    pub(crate) fn due_on(&self, counter: CounterId, value: u64) -> Option<&EventEntry> {
        let is_due = S::Facility::RECORDS && self.registers(counter).has_overflowed(value);
        let event = self.slot(counter).filter(|_| is_due)?.running()?;
        self.table().entry(event).filter(|entry| entry.is_precise())
    }

    /// Loads a counter of a precise event whose record is [due](Self::due_on), so that the next occurrence is recorded.
    #[inline(always)]
    pub(crate) fn load_due(&self, counter: CounterId) -> Result<(), AccessFault> {
        if !self.runs_precise(counter.only()) {
            return Ok(());
        }
        let registers = self.registers(counter);
        let value = self.read_value(&registers)?;
        let Some(entry) = self.due_on(counter, value) else { return Ok(()) };
        entry.accumulate_precise(value, registers.mask());
        let value = registers.preload(1);
        entry.loaded(value);
        self.load(&registers, value)
    }

    /// Programs the controls of the counters that run, and of those that are parked.
    pub(crate) fn restore_controls(&self, own: CounterSet, failures: &mut Failures) {
        // The fixed counters share one control register, which takes one write.
        let fixed = self.fixed_of(own);
        if !fixed.is_empty() {
            let (register, value) = (self.unit().fixed_control(), &self.memory.fixed_control);
            if let Err(fault) = self.write_retrying(register, value.load(Relaxed)) {
                let running = self.slots_of(self.running(fixed));
                running.for_each(|(counter, slot)| failures.note(counter, slot, fault));
            }
        }
        for (counter, slot) in self.slots_of(own.without(fixed)) {
            let (SlotState::Running { event, .. } | SlotState::Parked { event }) = slot.load()
            else {
                continue;
            };
            let registers = self.registers(counter);
            let bits = self.running_bits(&registers, event).unwrap_or(0);
            if let Err(fault) = self.set_control(&registers, bits) {
                failures.note(counter, slot, fault);
            }
        }
    }

    /// Stops this processor's counters before a suspend. The session's memory keeps the count of each opened event, and
    /// the remainder of its period. Until [`resume`](Self::resume), no interrupt accesses a register, and the registers
    /// may lose their contents. Before `resume`, call no other method of the session than
    /// [`shut_down`](Self::shut_down).
    ///
    /// The call also suspends the [facilities](crate::EventSource::Facility) of the session's event source, such as a
    /// [`BranchRecorder`](crate::branch_recording::BranchRecorder)'s records, and `resume` programs them again. A
    /// facility that the source does not have is programmed again by its own method.
    ///
    /// This call reports to `overflowed` what [`lend`](Self::lend) reports.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// # fn sample(_tag: u64) {}
    /// /// Suspends one processor. No event loses a count, or begins a period anew.
    /// fn suspend<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     clock: impl Fn() -> u64,
    ///     sleep: impl FnOnce(),
    /// ) -> Result<(), CounterError> {
    ///     counters.suspend(clock(), |overflow| sample(overflow.tag))?;
    ///     sleep();
    ///     counters.resume(clock(), |_overflow| ()).map(|_| ())
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`lend`](Self::lend). After an error, the counters are not suspended.
    pub fn suspend(
        &mut self,
        now: u64,
        overflowed: impl FnMut(Sample<'_, S::Facility>),
    ) -> Result<(), CounterError> {
        self.lend(now, overflowed).map(|window| window.keep_counts())
    }

    /// Programs this processor's counters again after [`suspend`](Self::suspend), whether the registers lost their
    /// contents or not. Each opened event continues with its count and with the remainder of its period. The events'
    /// `enabled` and `running` times do not include the time of the suspend. An event that is a row of the
    /// [`EventSource`]'s table begins a new period.
    ///
    /// Returns the counters of all running events. If [`suspend`](Self::suspend) was not called before, this method is
    /// the same as [`reprogram`](Self::reprogram), and returns the counters that `reprogram` returns.
    ///
    /// # Errors
    /// The errors of [`reprogram`](Self::reprogram).
    pub fn resume(
        &mut self,
        now: u64,
        overflowed: impl FnMut(Sample<'_, S::Facility>),
    ) -> Result<CounterSet, CounterError> {
        if self.continue_software(now) || !self.memory.is_lent() {
            return self.reprogram(overflowed);
        }
        let own = self.candidates();
        for (_, slot) in self.slots_of(own) {
            // An event that was stopped or closed meanwhile left its counter.
            if slot.running().is_some_and(|event| !self.is_counting(event)) {
                slot.store(SlotState::Free);
            }
        }
        self.table().opened().for_each(|(_, entry)| entry.skip_time(now));
        self.program_again(own, true, overflowed)
    }

    /// Returns whether an event's state is that of an event on a counter.
    fn is_counting(&self, event: EventId) -> bool {
        let entry = self.table().entry(event);
        event.row().is_some() || entry.is_some_and(|entry| entry.state() == EventState::Counting)
    }
}

/// The values of a session's counters, in the order of their bits.
pub(crate) type Values = [u64; MAX_COUNTERS];

impl<S: EventSource, H: Hardware> CounterWindow<'_, '_, S, H> {
    /// Adds the window's time, up to `now`, to the `enabled` times of enabled events. The call leaves out events that
    /// count only [outside guests](crate::Event::outside_guests). Call this before [`end`](Self::end). No register is
    /// accessed.
    ///
    /// During a window, none of the session's events is counted. The count of an event that counts guests, too,
    /// therefore lacks the occurrences in the guest. With this call, [`EventCount::scaled`](crate::EventCount::scaled)
    /// estimates the missing part: the event's `enabled` time advances, and its `running` time does not. Without this
    /// call, neither time advances, and the scaled count covers only the time outside windows.
    ///
    /// ```
    /// # use pmu_core::{CounterSession, EventSource, Hardware};
    /// # use pmu_core::error::CounterError;
    /// # use pmu_core::lending::LentCounters;
    /// /// Runs a guest. Counts of events that count guests, too, are estimated for the guest's time.
    /// fn run_guest<S: EventSource, H: Hardware>(
    ///     counters: &mut CounterSession<'_, S, H>,
    ///     clock: impl Fn() -> u64,
    ///     guest: impl FnOnce(&mut LentCounters),
    /// ) -> Result<(), CounterError> {
    ///     let mut window = counters.lend(clock(), |_| ())?;
    ///     guest(window.lent());
    ///     let now = clock();
    ///     window.count_as_enabled(now);
    ///     Ok(window.end(now)?)
    /// }
    /// ```
    ///
    /// # Context
    /// Task, on the processor on which the counters were lent.
    pub fn count_as_enabled(&mut self, now: u64) {
        for (_, entry) in self.table().opened() {
            if entry.guest_mode() != GuestMode::HostOnly {
                entry.add_time(now, false);
            }
        }
    }
}

/// Failure to restore some counters at the end of a [window](crate::lending::CounterWindow).
///
/// ```
/// use pmu_core::CounterSet;
/// use pmu_core::access::{AccessErrorKind, AccessFault, AccessOperation};
/// use pmu_core::lending::WindowError;
/// let (operation, kind) = (AccessOperation::Write, AccessErrorKind::Fault);
/// let fault = AccessFault { operation, register: 0x186, kind };
/// let error = WindowError { counters: CounterSet::from_bits(0b1), fault };
/// assert!(error.to_string().contains("0x186"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct WindowError {
    /// Counters that could not be restored. Their events do not run. No event uses these counters before the next call
    /// of [`reprogram`](crate::CounterSession::reprogram). The set is empty if the only failure was that a
    /// [facility](crate::facility::EventFacility) could not be resumed.
    pub counters: CounterSet,
    /// The first register access that failed.
    pub fault: AccessFault,
}

impl fmt::Display for WindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counters, fault } = self;
        write!(f, "the counters {:#X} could not be brought back: {fault}", counters.bits())
    }
}

impl core::error::Error for WindowError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.fault)
    }
}

impl From<WindowError> for CounterError {
    fn from(error: WindowError) -> Self {
        Self::StateUnknown(error.fault)
    }
}

/// The counters that failed, and the first fault.
#[derive(Default)]
pub(crate) struct Failures {
    pub(crate) counters: CounterSet,
    pub(crate) fault: Option<AccessFault>,
}

impl Failures {
    /// Notes that a counter faulted, and marks its slot.
    pub(crate) fn note(&mut self, counter: CounterId, slot: &CounterSlot, fault: AccessFault) {
        slot.store(SlotState::Faulted);
        self.add(counter, fault);
    }

    /// Adds a counter that faulted.
    pub(crate) fn add(&mut self, counter: CounterId, fault: AccessFault) {
        self.counters = self.counters | counter.only();
        self.fault.get_or_insert(fault);
    }

    pub(crate) fn outcome(self) -> Result<(), WindowError> {
        match self.fault {
            Some(fault) => Err(WindowError { counters: self.counters, fault }),
            None => Ok(()),
        }
    }
}
