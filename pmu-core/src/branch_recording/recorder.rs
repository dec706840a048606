//! The recorder: operations of a task on a processor's branch records.

use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;

use crate::access::backend::{AccessFault, RegisterAccess, RegisterBackend};
use crate::branch_recording::error::BranchError;
use crate::branches::filter::BranchFilter;
use crate::branches::memory::{
    BranchMemory, CLEAR, FREEZES, FREEZING, GOES_ON, LENT, LOST, RECORDING, STACK, UNKNOWN,
};
use crate::branches::recording::{Recording, Stacks, Wanted};
use crate::branches::sampled::Branches;
use crate::branches::unit::{BranchOrder, BranchUnit};
use crate::counters::names::CounterSet;

/// The control handle of a processor's branch records: starts and stops the recording, and reads the records. At thread
/// switches, the recorder saves and restores a thread's records.
///
/// The recorder needs no counter and no session. If the facility of a session's [source](crate::EventSource::Facility)
/// is the [`Branches`] of the same memory, the recorder lives with the session:
/// - [`service`](crate::service()) reads the records at each overflow. The [samples](crate::Sample::branch_records) of
///   the source's rows have the branches, and so have the samples of events that ask for the same filter.
/// - While the counters are [lent](crate::CounterSession::lend) or
///   [suspended](crate::CounterSession::suspend), the processor neither records nor freezes, and its records are
///   clear. The recorder's methods return [`Lent`](BranchError::Lent). Afterwards the session programs the registers
///   again, and the recording goes on: a [call stack](BranchFilter::call_stack) with the records that it had, any other
///   recording without records. If the registers do not answer then, the session returns the fault, and the recording
///   is stopped. The end of the next window, or [`restart`](Self::restart), starts it again.
/// - [`reprogram`](crate::CounterSession::reprogram) of the session programs the recorder's registers, too.
/// - The session's [`shut_down`](crate::CounterSession::shut_down) ends the recording, and clears the records. The
///   recorder can be [restarted](Self::restart).
///
/// The recorder cannot move to another thread. Before dropping the recorder, call [`shut_down`](Self::shut_down) on its
/// processor. Dropping the recorder accesses no register, so the processor keeps recording, and the memory stays in
/// use.
///
/// The kernel can read the last branches at any moment, without a counter:
///
/// ```
/// use pmu_core::branch_recording::{BranchError, BranchRecorder};
/// use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, BranchUnit};
/// use pmu_core::access::RegisterBackend;
/// static RECORDS: BranchMemory<[BranchSlot; 32]> = BranchMemory::new(); // one per processor
///
/// fn last_branches<M: RegisterBackend>(unit: &BranchUnit, msr: M, work: fn()) -> Result<(), BranchError> {
///     let mut recorder = BranchRecorder::take(unit, msr, &RECORDS)?;
///     let read = recorder.start(BranchFilter::KERNEL).and_then(|_| {
///         work();
///         for branch in recorder.read()?.iter() {
///             println!("{:#x} -> {:#x}", branch.from, branch.to); // the newest first
///         }
///         Ok(())
///     });
///     recorder.shut_down().and(read) // also after an error
/// }
/// ```
///
/// # Context
/// Call every method in task context, on the processor that records the branches, while no operation of this
/// processor's session is under way. The performance interrupt may come at any time.
///
/// ```compile_fail,E0277
/// fn needs_send<T: Send>() {}
/// needs_send::<pmu_core::branch_recording::BranchRecorder<'static, ()>>();
/// ```
///
/// # Limitations
/// - After a recorder was dropped, the bit of frozen records is in `Serviced::others` until the next
///   [`take`](Self::take).
/// - Two recorders of one processor, with a memory each, are not noticed: the second ends the recording of the first.
///   No register tells a recording in use from one that was left over. With one memory per processor, its second
///   recorder is refused.
/// - The kernel excludes a recorder's methods and the session's operations from each other; the compiler does not check
///   it. If a task is preempted within one of them, and another task lends the counters, a part of a call stack, or the
///   recording, may be left for the borrower.
#[doc(alias = "lbr")]
#[derive(Debug)]
pub struct BranchRecorder<'a, M> {
    pub(crate) unit: &'a BranchUnit,
    pub(crate) msr: M,
    pub(crate) memory: &'a BranchMemory,
    /// The branches that were recorded last.
    pub(crate) filter: Option<BranchFilter>,
    is_open: bool,
    /// XSAVES was found to save the records.
    pub(crate) uses_xsaves: bool,
    not_send: PhantomData<*mut ()>,
}

impl<'a, M: RegisterBackend> BranchRecorder<'a, M> {
    /// Takes ownership of this processor's branch records. The call clears the records, and disables recording and
    /// freezing, which an earlier owner may have left enabled.
    ///
    /// Make this call on the processor that `unit` describes. `memory` must have room for the processor's
    /// [records](BranchUnit::depth).
    ///
    /// # Errors
    /// - [`RecordsForEvents`](BranchError::RecordsForEvents): only events have branches on this processor.
    /// - [`InsufficientMemory`](BranchError::InsufficientMemory), [`MemoryInUse`](BranchError::MemoryInUse): `memory`
    ///   is too small, or belongs to another recorder. No register was accessed.
    /// - [`Unresponsive`](BranchError::Unresponsive): the processor declares the records, but lacks them, for example
    ///   under some hypervisors.
    /// - [`NotRecording`](BranchError::NotRecording): no recorder uses `memory`.
    pub fn take(
        unit: &'a BranchUnit,
        msr: M,
        memory: &'a BranchMemory,
    ) -> Result<Self, BranchError> {
        if unit.holds_interrupt() {
            return Err(BranchError::RecordsForEvents);
        }
        let (needed, lent) = (unit.depth().into(), memory.capacity());
        if lent < needed {
            return Err(BranchError::InsufficientMemory { needed, lent });
        }
        if !memory.take(unit) {
            return Err(BranchError::MemoryInUse);
        }
        let recorder = Self {
            unit,
            msr,
            memory,
            filter: None,
            is_open: true,
            uses_xsaves: false,
            not_send: PhantomData,
        };
        match recorder.recording().end_left_over() {
            Ok(true) => {
                memory.set_mode(CLEAR);
                return Ok(recorder);
            }
            Ok(false) => memory.give_back(),
            Err(fault) => {
                memory.give_back_untaken();
                return Err(BranchError::NotRecording(fault));
            }
        }
        Err(BranchError::Unresponsive)
    }

    /// Makes the processor freeze the records when it raises the performance interrupt. The records then contain no
    /// branches of the interrupt handler. [`service`](crate::service()) reads the records, and then ends the freeze.
    ///
    /// Call this before [`start`](Self::start), and only if this processor's interrupt handler services a source whose
    /// [facility](crate::EventSource::Facility) is the [`Branches`] of this memory. **Every** performance interrupt
    /// freezes the records, and only `Branches` ends the freeze. While freezing is not enabled, `Branches` itself stops
    /// the recording at the beginning of `service`.
    ///
    /// This call has no effect on a [call stack](BranchFilter::call_stack), because a freeze close to a call or return
    /// instruction would corrupt the call stack.
    ///
    /// # Errors
    /// - [`FreezeUnsupported`](BranchError::FreezeUnsupported): the processor cannot freeze its records,
    ///   [`take`](Self::take) failed to access the registers that control the freeze, or the freeze bit reads back 0.
    /// - [`NotRecording`](BranchError::NotRecording): the records do not freeze.
    /// - [`ShutDown`](BranchError::ShutDown).
    pub fn freeze_on_interrupt(&mut self) -> Result<(), BranchError> {
        self.check_open()?;
        let freeze = self.unit.registers().freeze.ok_or(BranchError::FreezeUnsupported)?;
        let kept = self
            .recording()
            .set_freeze(true)
            .and_then(|()| self.msr.update_retrying(freeze.bit.read()));
        let kept = kept.map(|value| value & freeze.bit.bits() != 0);
        let is_stack = self.filter.is_some_and(BranchFilter::is_call_stack);
        let freezes = matches!(kept, Ok(true));
        self.memory.note(FREEZES, freezes);
        if !freezes || is_stack {
            self.recording().set_freeze(false).map_err(BranchError::NotRecording)?;
        }
        match kept {
            Ok(true) => Ok(()),
            Ok(false) => Err(BranchError::FreezeUnsupported),
            Err(fault) => Err(BranchError::NotRecording(fault)),
        }
    }

    /// Clears the records and starts to record the branches that `filter` selects. The processor may record more
    /// branches than `filter` selects: see [`BranchUnit::recorded`]. Returns the filter that the processor applies.
    ///
    /// If the processor already records, the call first stops the recording.
    ///
    /// # Errors
    /// - [`FilterUnsupported`](BranchError::FilterUnsupported): `filter` selects no branch, or is a call stack that the
    ///   processor cannot record. Nothing was changed.
    /// - [`NotRecording`](BranchError::NotRecording), [`StateUnknown`](BranchError::StateUnknown),
    ///   [`ShutDown`](BranchError::ShutDown).
    pub fn start(&mut self, filter: BranchFilter) -> Result<BranchFilter, BranchError> {
        self.check_open()?;
        let unsupported = BranchError::FilterUnsupported(filter);
        let (value, recorded) = self.unit.selection(filter).ok_or(unsupported)?;
        self.start_anew(value, recorded).map_err(|fault| self.error(fault))?;
        Ok(recorded)
    }

    fn start_anew(&mut self, value: u64, recorded: BranchFilter) -> Result<(), AccessFault> {
        self.recording().pause()?;
        self.filter = None;
        self.recording().clear_stopped()?;
        // Also what is the same: the registers may have lost their contents.
        self.memory.control.store(value, Relaxed);
        self.recording().write_filter()?;
        let freezes = self.memory.has(FREEZES) && !recorded.is_call_stack();
        if freezes || self.memory.mode() & (FREEZING | UNKNOWN) != 0 {
            self.recording().set_freeze(freezes)?;
        }
        self.memory.clear_mode(UNKNOWN | STACK);
        self.memory.set_mode(if recorded.is_call_stack() { STACK } else { 0 });
        self.filter = Some(recorded);
        self.recording().resume()
    }

    /// Stops the recording. The records stay in their registers, and [`read`](Self::read) returns them.
    ///
    /// # Errors
    /// [`StateUnknown`](BranchError::StateUnknown), [`ShutDown`](BranchError::ShutDown).
    pub fn stop(&mut self) -> Result<(), BranchError> {
        self.check_open()?;
        self.recording().pause().map(|_| ()).map_err(|fault| self.error(fault))
    }

    /// Continues the recording after [`stop`](Self::stop) or [`read`](Self::read), without clearing the records.
    ///
    /// On AMD's processors, a debug exception (#DB) stops the recording, and the recorder does not notice. If the
    /// kernel's debugger is in use, call `restart` after each debug exception.
    ///
    /// # Errors
    /// [`NotStarted`](BranchError::NotStarted), [`NotRecording`](BranchError::NotRecording),
    /// [`StateUnknown`](BranchError::StateUnknown), [`ShutDown`](BranchError::ShutDown).
    pub fn restart(&mut self) -> Result<(), BranchError> {
        self.check_open()?;
        if self.filter.is_none() {
            return Err(BranchError::NotStarted);
        }
        let recording = self.recording();
        let clear = if recording.is_stale() { recording.pause_and_clear(None) } else { Ok(()) };
        let programmed = clear.and_then(|()| match self.memory.mode() & RECORDING {
            0 => recording.program(recording.of_recorder()),
            // The filter is not written while the processor records.
            _ => Ok(()),
        });
        programmed.and_then(|()| recording.resume()).map_err(|fault| self.error(fault))
    }

    /// Programs the registers of the branch records again after the registers lost their contents, for example in a
    /// suspend to memory. The records are then empty. If the processor recorded before, the recording continues.
    ///
    /// Call this on the processor that lost the registers' contents. A session whose source has the records makes the
    /// call unnecessary: [`resume`](crate::CounterSession::resume) and
    /// [`reprogram`](crate::CounterSession::reprogram) program the recorder's registers, too.
    ///
    /// # Errors
    /// - [`NotRecording`](BranchError::NotRecording), [`StateUnknown`](BranchError::StateUnknown).
    /// - [`Lent`](BranchError::Lent): the records are lent. When the [window](crate::lending::CounterWindow) ends, the
    ///   registers are programmed again.
    /// - [`ShutDown`](BranchError::ShutDown).
    pub fn reprogram(&mut self) -> Result<(), BranchError> {
        self.check_open()?;
        let recording = self.recording();
        let going_on = recording.going_on();
        self.memory.lose();
        let again = match going_on {
            Some(wanted) => recording.record_anew(wanted, Stacks::default()),
            None => recording.leave_nothing(false),
        };
        again.map_err(|fault| self.error(fault))
    }

    /// Stops the recording, and reads the records. The records describe the last branches before this call.
    ///
    /// The returned value refers to the recorder's memory, where the records stay until [`restart`](Self::restart)
    /// continues the recording.
    ///
    /// ```
    /// # use pmu_core::branch_recording::{BranchError, BranchRecorder};
    /// # use pmu_core::access::RegisterBackend;
    /// /// Returns whether one of the recorded branches came from the function at these addresses.
    /// fn came_from<M: RegisterBackend>(
    ///     recorder: &mut BranchRecorder<'_, M>,
    ///     function: core::ops::Range<u64>,
    /// ) -> Result<bool, BranchError> {
    ///     let came = recorder.read()?.iter().any(|branch| function.contains(&branch.from));
    ///     recorder.restart()?;
    ///     Ok(came)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`StateUnknown`](BranchError::StateUnknown).
    /// - [`NotRecording`](BranchError::NotRecording): a record could not be read. The processor does not record.
    /// - [`ShutDown`](BranchError::ShutDown).
    pub fn read(&mut self) -> Result<Branches<'_>, BranchError> {
        self.check_open()?;
        let found = self.recording().pause().map_err(|fault| self.error(fault))?;
        if self.recording().is_stale() {
            self.recording().clear_stopped().map_err(BranchError::NotRecording)?;
        }
        let (len, read) = self.unit.read_records(&self.msr, self.memory, found);
        read.map_err(BranchError::NotRecording)?;
        Ok(Branches::of(self.unit, self.memory, len))
    }

    /// Clears all records. The recording neither starts nor stops. A kernel that records all threads calls this at each
    /// thread switch, because a record does not say which thread executed the branch.
    ///
    /// # Errors
    /// - [`NotRecording`](BranchError::NotRecording): the next [`restart`](Self::restart) or [`start`](Self::start)
    ///   clears the records before the recording starts.
    /// - [`StateUnknown`](BranchError::StateUnknown): the recording could not be stopped, and continues. Samples
    ///   contain no branches until `clear`, [`restart`](Self::restart) or a thread switch succeeds.
    /// - [`ShutDown`](BranchError::ShutDown).
    pub fn clear(&mut self) -> Result<(), BranchError> {
        self.check_open()?;
        let is_stopped = self.memory.mode() & RECORDING == 0;
        let cleared = if self.unit.registers().depth.is_some() || is_stopped {
            self.recording()
                .clear_stopped()
                .or_else(|fault| self.recording().pause().and(Err(fault)))
        } else {
            // A record that is added while others are cleared would move an old one on.
            self.recording().pause_and_clear(None).and_then(|()| self.recording().resume())
        };
        cleared.map_err(|fault| self.error(fault))
    }

    /// Ends the recording, clears the records, disables freezing, and releases the memory. Later calls return
    /// [`ShutDown`](BranchError::ShutDown).
    ///
    /// # Errors
    /// After each of these errors, the recorder keeps the memory, and the call can be repeated:
    /// - [`NotRecording`](BranchError::NotRecording), [`StateUnknown`](BranchError::StateUnknown).
    pub fn shut_down(&mut self) -> Result<(), BranchError> {
        self.check_open()?;
        self.recording().leave_nothing(false).map_err(|fault| self.error(fault))?;
        self.is_open = false;
        self.memory.give_back();
        Ok(())
    }

    /// Returns whether the processor records branches. The result is also `false` if [`service`](crate::service())
    /// stopped the recording and could not restart the recording.
    pub fn is_recording(&self) -> bool {
        self.is_open && self.memory.mode() & (RECORDING | LOST) == RECORDING
    }

    /// Returns the filter of the present recording. If the recording is stopped, returns the filter of the last
    /// recording.
    pub fn filter(&self) -> Option<BranchFilter> {
        self.filter
    }

    pub(crate) fn recording(&self) -> Recording<'_, M> {
        Recording { unit: self.unit, msr: &self.msr, memory: self.memory }
    }

    pub(crate) fn check_open(&self) -> Result<(), BranchError> {
        match () {
            () if !self.is_open => Err(BranchError::ShutDown),
            () if self.memory.has(LENT) => Err(BranchError::Lent),
            () => {
                // From here on the task decides again.
                self.memory.note(GOES_ON, false);
                Ok(())
            }
        }
    }

    /// Returns the error of a failed access.
    pub(crate) fn error(&self, fault: AccessFault) -> BranchError {
        let is_on = self.memory.mode() & RECORDING != 0;
        if is_on { BranchError::StateUnknown(fault) } else { BranchError::NotRecording(fault) }
    }
}

impl<M: RegisterBackend> Recording<'_, M> {
    /// Returns the selection of a recorder that records, or did so before its registers were another owner's.
    pub(crate) fn going_on(&self) -> Option<Wanted> {
        let goes_on = self.memory.has(GOES_ON) || self.memory.mode() & RECORDING != 0;
        goes_on.then(|| self.of_recorder())
    }

    /// Returns the selection of the recorder's last recording.
    pub(crate) fn of_recorder(&self) -> Wanted {
        let is_call_stack = self.memory.mode() & STACK != 0;
        Wanted {
            value: self.memory.control.load(Relaxed),
            is_call_stack,
            freezes: self.memory.has(FREEZES) && !is_call_stack,
        }
    }
}

impl Branches<'_> {
    /// Stops a branch sampling that [delays interrupts](crate::branches::BranchUnit::holds_interrupt), before the
    /// processor goes idle. An interrupt that is delayed comes now, and its sample has the branches that were sampled.
    /// A change of the session's events may start the sampling again. On other processors, and while no event's samples
    /// have branches, the call accesses no register.
    ///
    /// ```
    /// # use pmu_core::branches::Branches;
    /// # use pmu_core::access::{RegisterBackend, AccessFault};
    /// /// The idle loop of a processor.
    /// fn idle<M: RegisterBackend>(branches: &Branches<'_>, msr: &M, halt: fn()) -> Result<(), AccessFault> {
    ///     branches.before_idle(msr)?;
    ///     halt();
    ///     branches.after_idle(msr)
    /// }
    /// ```
    ///
    /// # Context
    /// Task, on the processor of the memory. The performance interrupt may come at any time.
    ///
    /// # Errors
    /// A register access failed. The call can be repeated.
    pub fn before_idle<M: RegisterBackend>(&self, msr: &M) -> Result<(), AccessFault> {
        self.suspend_sampling(msr, CounterSet::ALL)
    }

    /// Stops a sampling that delays interrupts of these counters. The records stay, and are read by the interrupt.
    pub(crate) fn suspend_sampling<M: RegisterBackend>(
        &self,
        msr: &M,
        counters: CounterSet,
    ) -> Result<(), AccessFault> {
        let BranchOrder::Filled { counters: of, .. } = self.unit.registers().order else {
            return Ok(());
        };
        let is_one = !(counters & CounterSet::from_bits(of.into())).is_empty();
        if !is_one || self.memory.mode() & RECORDING == 0 {
            return Ok(());
        }
        // Until the sampling is to go on, no interrupt starts it again.
        self.memory.set_mode(CLEAR);
        self.unit.suspend_sampling(msr)
    }

    /// Starts the branch sampling again that [`before_idle`](Self::before_idle) stopped, from the first record on.
    /// Otherwise the call accesses no register.
    ///
    /// # Context
    /// That of [`before_idle`](Self::before_idle).
    ///
    /// # Errors
    /// A register access failed. The call can be repeated.
    pub fn after_idle<M: RegisterBackend>(&self, msr: &M) -> Result<(), AccessFault> {
        let mode = self.memory.mode_of(self.unit);
        if mode & RECORDING == 0 || mode & (CLEAR | LOST) == 0 || !self.unit.holds_interrupt() {
            return Ok(());
        }
        // An interrupt that stops the sampling from here on starts it again.
        self.memory.clear_mode(CLEAR);
        self.restart(msr).map(|_| ())
    }
}
