//! Single steps of the guest: what retired between two of its stops.

use iced_x86::Instruction;
use pmu_virt::Privilege;

use crate::count::retired::{Next, Point, Retired, ahead, between};
use crate::count::source::Stop;
use crate::emulation::pvm;
use crate::guest::{self, Guest};

/// The guest's way, while it is stopped after each instruction.
pub(crate) struct Walk {
    /// The instruction that the guest was about to execute when it was last entered.
    ahead: Vec<Next>,
    /// An instruction that the monitor executed for the guest, and that was not told yet.
    owed: Option<Retired>,
    /// After an instruction in ring 3 kvm-pvm stopped for another reason, and the instruction's own stop is
    /// still to come.
    trap_pending: bool,
    kvm_pvm: bool,
}

impl Walk {
    pub(crate) fn new() -> Self {
        Self { ahead: Vec::new(), owed: None, trap_pending: false, kvm_pvm: pvm::is_there() }
    }

    /// Forgets what it waits for: the guest ran without steps.
    pub(crate) fn idle(&mut self) {
        (self.owed, self.trap_pending) = (None, false);
    }

    /// Notes an instruction that the monitor executed for the guest.
    pub(crate) fn executed(&mut self, instruction: Instruction, privilege: Privilege) {
        self.owed = Some(Retired::passed(instruction, privilege));
    }

    /// Decodes what the guest is about to execute.
    pub(crate) fn enter(&mut self, guest: Guest<'_>) {
        let here = Point::new(guest.registers(), guest.system());
        self.ahead = ahead(&guest, here, |code| self.kvm_pvm && pvm::has_no_stop(code));
        if self.kvm_pvm
            && let Some(frame) = self.ahead.iter().find_map(Next::frame_to_ring_3)
        {
            pvm::step_through_iret(guest, frame);
        }
    }

    /// Decodes what an interrupted guest is about to execute when it is back in ring 3. The guest has just entered its
    /// handler in ring 0. Returns `false` if its place in ring 3 is not known.
    pub(crate) fn enter_interrupted(&mut self, guest: Guest<'_>) -> bool {
        let system = guest.system();
        let Some((frame, _)) = guest::frame_from_ring_3(&guest, &system) else { return false };
        if frame.cs & 3 != 3 {
            return false;
        }
        let (registers, system) = frame.undo(&guest, guest.registers(), system);
        self.ahead = ahead(&guest, Point::new(registers, system), |_| false);
        true
    }

    /// Passes each instruction that retired since the last stop to `add`. Returns `false` where the instructions do not
    /// lead to the stop; then `add` gets only what the monitor executed.
    pub(crate) fn leave(
        &mut self,
        guest: Guest<'_>,
        stop: Stop,
        mut add: impl FnMut(&Retired),
    ) -> bool {
        if let Some(owed) = self.owed.take() {
            add(&owed);
        }
        let here = Point::new(guest.registers(), guest.system());
        let may_stay = stop == Stop::Ran || self.trap_pending;
        let retired = between(&guest, &self.ahead, &here, may_stay);
        retired.iter().flatten().for_each(add);
        let some = retired.as_ref().is_some_and(|retired| !retired.is_empty());
        self.trap_pending = self.kvm_pvm && here.is_user() && stop == Stop::Ran && some;
        retired.is_some()
    }
}
