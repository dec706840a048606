//! A recorder's records beside a session whose source has them: they leave with the counters, and return with them.

use core::sync::atomic::Ordering::Relaxed;

use crate::branches::memory::{FREEZES, GOES_ON, RECORDING, STACK};
use crate::branches::recording::{Recording, Wanted};
use crate::msr::backend::MsrBackend;

impl<M: MsrBackend> Recording<'_, M> {
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
