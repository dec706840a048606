//! Suspends the records while counters are lent, for instance to a guest, and resumes the records afterward.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::{
    Counter, CounterSet, EventSelect, Facility, FacilityControl, Interrupted, MsrAccess,
    MsrBackend, MsrFault,
};

use crate::precise::interrupt::Precise;
use crate::precise::recorder::PreciseRecorder;
use crate::precise::report::PreciseReport;

/// Argument of [`lend_with`](pmu_core::CounterSession::lend_with) that suspends a [`PreciseRecorder`] while counters
/// are lent. [`PreciseRecorder::lent`] creates the argument.
#[derive(Debug)]
pub struct LentPrecise<'s, 'a, M, F> {
    recorder: &'s mut PreciseRecorder<'a, M>,
    report: F,
}

impl<'a, M: MsrBackend> PreciseRecorder<'a, M> {
    /// Returns the argument with which [`lend_with`](pmu_core::CounterSession::lend_with) suspends this recorder while
    /// the session's counters are lent, for instance to a guest. Before the suspension, `report` receives the records
    /// that are in the recorder's buffer.
    ///
    /// Most processors with a PEBS format before 5 do not separate a guest's records from the host's records. Without
    /// the suspension, the host's counters on such a processor write records while the guest runs. These records
    /// contain the guest's registers. The processor writes them to the linear address of the host's buffer, but in the
    /// guest's address space.
    ///
    /// ```
    /// use pmu_core::{CounterError, CounterSession, EventSource, MsrBackend, Platform};
    /// use pmu_intel::precise::PreciseRecorder;
    /// # fn enter_guest() {}
    /// fn run_guest<S: EventSource, M: MsrBackend, P: Platform>(
    ///     counters: &mut CounterSession<'_, S, M, P>,
    ///     records: &mut PreciseRecorder<'_, M>,
    ///     clock: impl Fn() -> u64,
    /// ) -> Result<(), CounterError> {
    ///     let window = counters.lend_with(clock(), records.lent(|_| ()), |_, _| ())?;
    ///     enter_guest();
    ///     Ok(window.end(clock())?)
    /// }
    /// ```
    pub fn lent<F: FnMut(&PreciseReport<'_>)>(&mut self, report: F) -> LentPrecise<'_, 'a, M, F> {
        LentPrecise { recorder: self, report }
    }

    /// Ends the writing of records, while the counters are stopped.
    fn suspend(&self, report: &mut impl FnMut(&PreciseReport<'_>)) -> Result<(), MsrFault> {
        let (hardware, memory) = (&self.hardware, self.memory());
        if !hardware.is_architectural() {
            hardware.enable(CounterSet::NONE, CounterSet::NONE)?;
        }
        memory.drain(hardware.unit, &hardware.msr, report)?;
        for (counter, slot) in memory.slots(memory.recording()) {
            let Some(registers) = hardware.unit.counters.counter(counter) else { continue };
            slot.value.store(self.value(&registers)?, Relaxed);
        }
        if hardware.is_architectural() { hardware.disable_all() } else { Ok(()) }
    }

    fn value(&self, registers: &Counter) -> Result<u64, MsrFault> {
        let msr = &self.hardware.msr;
        match registers.rdpmc_index() {
            Some(index) => msr.rdpmc_retrying(index),
            None => msr.rdmsr_retrying(registers.value_register()),
        }
    }

    /// Has the counters write records again, whatever the borrower left in their registers.
    fn resume(&self) -> Result<(), MsrFault> {
        let (hardware, memory) = (&self.hardware, self.memory());
        for (counter, slot) in memory.slots(memory.reserved()) {
            let Some(registers) = hardware.unit.counters.counter(counter) else { continue };
            if memory.recording().contains(counter) {
                // A value behind its overflow would not overflow again for long.
                let value = match slot.value.load(Relaxed) {
                    value if registers.has_overflowed(value) => {
                        registers.preload(slot.period.load(Relaxed))
                    }
                    value => value,
                };
                registers.load(&hardware.msr, value)?;
                self.set_reload(counter)?;
            }
            let select = EventSelect::from_bits(slot.select.load(Relaxed));
            let is_adaptive = memory.recording().contains(counter) && self.is_adaptive(slot);
            registers.select_silently(&hardware.msr, select, is_adaptive)?;
        }
        if memory.recording().is_empty() { Ok(()) } else { self.enable(memory.recording()) }
    }
}

/// Behaves like a [`Precise`] of the recorder's memory.
impl<R: MsrBackend, F: FnMut(&PreciseReport<'_>)> Facility for LentPrecise<'_, '_, R, F> {
    fn status_bits(&self) -> u64 {
        let recorder = &self.recorder;
        Precise::new(recorder.unit(), recorder.memory(), |_: &PreciseReport<'_>| ()).status_bits()
    }

    fn own_counters(&self) -> CounterSet {
        self.recorder.memory().own_counters()
    }

    fn collect<M: MsrBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, MsrFault> {
        let (unit, memory) = (self.recorder.unit(), self.recorder.memory());
        Precise::new(unit, memory, &mut self.report).collect(msr, interrupted)
    }
}

/// All register accesses use the backend that the recorder owns. The argument `msr` is ignored.
impl<R: MsrBackend, F: FnMut(&PreciseReport<'_>)> FacilityControl for LentPrecise<'_, '_, R, F> {
    fn suspend<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        if self.recorder.is_lent || !self.recorder.is_open() {
            return Ok(());
        }
        match self.recorder.suspend(&mut self.report) {
            Ok(()) => {
                self.recorder.is_lent = true;
                Ok(())
            }
            Err(fault) => {
                // The counters go on as before. The index of architectural PEBS was not changed, and a write would drop
                // the records that are still in the buffer.
                if !self.recorder.hardware.is_architectural() {
                    let _ = self.recorder.enable(self.recorder.memory().recording());
                }
                Err(fault)
            }
        }
    }

    fn resume<M: MsrBackend>(&mut self, _: &M) -> Result<(), MsrFault> {
        if self.recorder.is_lent {
            self.recorder.resume()?;
            self.recorder.is_lent = false;
        }
        Ok(())
    }
}
