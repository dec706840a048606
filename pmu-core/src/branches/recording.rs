//! Operations of a task on a processor's branch records, whoever owns them.
//!
//! The interrupt may come between any two accesses, and looks only at the memory's mode. So the mode is set before the
//! recording is started, and cleared before the recording is stopped.

use core::sync::atomic::Ordering::Relaxed;

use crate::branches::memory::{
    BranchMemory, CLEAR, FREEZING, LOST, RECORDING, STACK, STALE, UNFREEZABLE, UNKNOWN,
};
use crate::branches::unit::BranchUnit;
use crate::msr::access::MsrAccess;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

/// A processor's branch records, with the memory of their owner.
#[derive(Clone, Copy)]
pub(crate) struct Recording<'r, M> {
    pub(crate) unit: &'r BranchUnit,
    pub(crate) msr: &'r M,
    pub(crate) memory: &'r BranchMemory,
}

/// Selection of the branches that the running events or a recorder ask for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// Value of the register of the filter.
    pub(crate) value: u64,
    pub(crate) is_call_stack: bool,
    /// The records are to freeze. A freeze close to a call or return instruction would corrupt a call stack.
    pub(crate) freezes: bool,
}

impl<M: MsrBackend> Recording<'_, M> {
    /// Ends what a predecessor left. Returns whether the processor has the records.
    pub(crate) fn end_left_over(&self) -> Result<bool, MsrFault> {
        self.unit.stop(self.msr)?;
        if let Err(fault) = self.set_freeze(false) {
            if self.memory.mode() & FREEZING != 0 {
                // The register is there: the events of before set the bit.
                return Err(fault);
            }
            // Records that cannot freeze are records nevertheless: a hypervisor may lack the registers of the freeze.
            self.memory.set_mode(UNFREEZABLE);
        }
        let starts = self.unit.starts(self.msr).inspect_err(|_| {
            if self.unit.stop(self.msr).is_err() {
                // The processor may record.
                self.memory.set_mode(STALE);
            }
        })?;
        self.unit.clear_records(self.msr)?;
        self.memory.clear_mode(STALE);
        Ok(self.unit.answers(self.msr)? && starts)
    }

    /// Sets or clears the freeze bit. The interrupt acknowledges the frozen records while the bit can be set.
    pub(crate) fn set_freeze(&self, freezes: bool) -> Result<(), MsrFault> {
        let Some(freeze) = &self.unit.registers().freeze else { return Ok(()) };
        if self.memory.mode() & UNFREEZABLE != 0 {
            return Ok(());
        }
        if freezes {
            self.memory.set_mode(FREEZING);
            return self.msr.update_retrying(freeze.bit.set_to(u64::MAX)).map(|_| ());
        }
        self.msr.update_retrying(freeze.bit.set_to(0))?;
        self.memory.clear_mode(FREEZING);
        // An interrupt that came before may have frozen them, and its service acknowledges them no more.
        self.unit.release(self.msr)
    }

    /// Writes the register of the filter, where it is not in the enabling register.
    pub(crate) fn write_filter(&self) -> Result<(), MsrFault> {
        let Some(register) = self.unit.registers().filter else { return Ok(()) };
        self.msr.wrmsr_retrying(register, self.memory.control.load(Relaxed))
    }

    /// Stops the recording. Returns the value that the enabling register had. If that fails, the recording goes on.
    pub(crate) fn halt(&self) -> Result<u64, MsrFault> {
        let recorded = self.memory.mode() & RECORDING;
        self.memory.clear_mode(RECORDING);
        let stopped = self.unit.stop(self.msr);
        match stopped {
            Ok(_) => self.memory.clear_mode(LOST),
            Err(_) => self.memory.set_mode(recorded),
        }
        stopped
    }

    /// Starts the recording, with what is in the memory and in the filter. If that fails, the recording is stopped.
    pub(crate) fn go_on(&self) -> Result<(), MsrFault> {
        let before = self.memory.mode();
        self.memory.clear_mode(LOST | CLEAR);
        self.memory.set_mode(RECORDING);
        // An interrupt of another owner may have frozen the records.
        let released = if before & FREEZING != 0 { self.unit.release(self.msr) } else { Ok(()) };
        let start = || self.unit.start(self.msr, self.memory.control.load(Relaxed));
        released.and_then(|()| start()).map(|_| ()).inspect_err(|_| {
            // A recording that was stopped is not started by a write that fails.
            if self.halt().is_err() {
                self.memory.clear_mode(!before & RECORDING);
            }
        })
    }

    /// Stops the recording for another thread or owner. If that fails, the records are read no more until they are
    /// cleared.
    #[inline(never)] // Linked once: several operations end a recording.
    pub(crate) fn halt_for_another(&self) -> Result<u64, MsrFault> {
        self.halt().inspect_err(|_| self.memory.set_mode(STALE))
    }

    /// Stops the recording for another thread or owner, and clears the records.
    #[inline(never)] // Linked once: several operations end a recording.
    pub(crate) fn halt_and_clear(&self) -> Result<(), MsrFault> {
        self.halt_for_another()?;
        self.clear_stopped()
    }

    /// Clears the records, and notes that they are another owner's where that fails.
    #[inline(never)] // Linked once: several operations end a recording.
    pub(crate) fn clear_stopped(&self) -> Result<(), MsrFault> {
        self.memory.clear_mode(CLEAR);
        let cleared = self.unit.clear_records(self.msr);
        match cleared {
            Err(_) => self.memory.set_mode(STALE),
            Ok(()) => {
                self.memory.clear_mode(STALE);
                if self.memory.mode() & RECORDING == 0 {
                    self.memory.set_mode(CLEAR);
                }
            }
        }
        cleared
    }

    /// Leaves no records of the thread that left, which may have been stopped or lost without being switched out.
    pub(crate) fn leave_no_records(&self) -> Result<(), MsrFault> {
        if self.memory.mode() & CLEAR == 0 { self.halt_and_clear() } else { Ok(()) }
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.memory.mode() & STALE != 0
    }

    /// Returns whether the processor records this already, and the records may be read.
    pub(crate) fn goes_on(&self, wanted: Wanted) -> bool {
        let is_same = self.memory.control.load(Relaxed) == wanted.value;
        self.memory.mode() & (RECORDING | LOST | STALE | UNKNOWN | CLEAR) == RECORDING && is_same
    }

    /// Starts to record, with empty records, or with the call stack that was kept while the counters were lent.
    pub(crate) fn record_anew(&self, wanted: Wanted, is_returned: bool) -> Result<(), MsrFault> {
        let kept = self.memory.kept.swap(0, Relaxed);
        let is_same = self.memory.control.load(Relaxed) == wanted.value;
        if self.memory.mode() & (UNKNOWN | RECORDING | CLEAR) != CLEAR {
            self.halt_and_clear()?;
        }
        self.program(wanted)?;
        if kept != 0 && is_same && is_returned {
            let slots = self.memory.slots().iter().take(kept.into());
            let newest = self.memory.newest.load(Relaxed);
            self.memory.clear_mode(CLEAR);
            let written = self.unit.write_records(self.msr, newest, slots.map(|slot| slot.load()));
            // A part of the call stack may be in the registers.
            written.inspect_err(|_| self.memory.set_mode(STALE))?;
        }
        self.go_on()
    }

    /// Writes the filter and the freeze bit of a stopped recording, unless the registers have them.
    pub(crate) fn program(&self, wanted: Wanted) -> Result<(), MsrFault> {
        let is_same = self.memory.control.load(Relaxed) == wanted.value;
        if is_same && self.memory.mode() & UNKNOWN == 0 {
            return Ok(());
        }
        self.memory.set_mode(UNKNOWN);
        self.memory.control.store(wanted.value, Relaxed);
        self.write_filter()?;
        self.set_freeze(wanted.freezes)?;
        self.memory.clear_mode(UNKNOWN | STACK);
        if wanted.is_call_stack {
            self.memory.set_mode(STACK);
        }
        Ok(())
    }

    /// Leaves nothing that another owner may see, and no freeze. Keeps a call stack if it is to return.
    #[inline(never)]
    pub(crate) fn leave_nothing(&self, keeps: bool) -> Result<(), MsrFault> {
        let mode = self.memory.mode();
        if mode & (RECORDING | STALE | FREEZING | CLEAR) == CLEAR {
            return Ok(());
        }
        let found = self.halt_for_another()?;
        if keeps && mode & (RECORDING | LOST | STALE | STACK) == RECORDING | STACK {
            self.keep(found);
        }
        // Until they are cleared.
        self.memory.set_mode(STALE);
        self.set_freeze(false)?;
        self.clear_stopped()
    }

    /// Keeps the records in the memory. If one cannot be read, the call stack begins anew.
    fn keep(&self, found: u64) {
        let Ok(filled) = self.unit.filled(self.msr, found) else { return };
        if let (kept, Ok(())) = self.unit.read_records(self.msr, self.memory, found) {
            self.memory.newest.store(filled.newest, Relaxed);
            self.memory.kept.store(kept, Relaxed);
        }
    }
}
