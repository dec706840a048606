//! A recorder's records beside a session whose source has them: they leave with the counters, and return with them.

use core::sync::atomic::Ordering::Relaxed;

use crate::branch_recording::events::Wanted;
use crate::branches::memory::{FREEZES, GOES_ON, LENT, RECORDING, STACK};
use crate::branches::recording::Recording;
use crate::counters::hooks::running::Running;
use crate::msr::backend::MsrBackend;
use crate::msr::fault::MsrFault;

impl<M: MsrBackend> Recording<'_, M> {
    /// Settles the records of a recorder. Events that come and go, and threads, change nothing of them.
    #[inline(never)]
    pub(crate) fn settle_recorder(&self, running: &Running<'_>) -> Result<(), MsrFault> {
        let is_for_good = running.are_given_up();
        if !running.are_lent() && !running.are_returned() {
            return Ok(());
        }
        if self.memory.mode() & RECORDING != 0 {
            self.memory.note(GOES_ON, true);
        }
        if running.are_returned() {
            self.memory.note(LENT, false);
            return self.program_again(true);
        }
        self.leave_nothing(!is_for_good)?;
        if is_for_good {
            self.memory.note(LENT | GOES_ON, false);
        } else {
            self.memory.note(LENT, true);
        }
        Ok(())
    }

    /// Programs the registers of a recorder, which may have lost their values. Goes on if the recorder recorded.
    pub(crate) fn program_again(&self, is_returned: bool) -> Result<(), MsrFault> {
        self.memory.lose();
        if self.memory.has(GOES_ON) {
            self.record_anew(self.of_recorder(), is_returned)?;
            self.memory.note(GOES_ON, false);
            Ok(())
        } else {
            self.halt_and_clear()
        }
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
