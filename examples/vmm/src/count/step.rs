//! `--count step`: instructions and branches, exactly, or reported as inexact. While a counter runs the guest is
//! stopped after each instruction, which was decoded before.

use core::time::Duration;

use iced_x86::Instruction;
use pmu_virt::{Feed, Privilege, VirtualPmu};

use crate::count::fed::Fed;
use crate::count::quantity::Quantity;
use crate::count::retired::{Next, Point, Retired, ahead, between};
use crate::count::source::{Source, Stop};
use crate::emulation::pvm;
use crate::error::Error;
use crate::guest::Guest;

/// The quantities that single steps count. Cycles are a stand-in, one per instruction: some drivers use no PMU
/// without them.
pub(crate) const QUANTITIES: [Quantity; 5] = [
    Quantity::Instructions,
    Quantity::Branches,
    Quantity::TakenBranches,
    Quantity::Cycles,
    Quantity::ReferenceCycles,
];

/// The source.
pub(crate) struct Step {
    fed: Fed,
    /// The instruction that the guest was about to execute when it was last entered.
    ahead: Vec<Next>,
    /// An instruction that the monitor executed for the guest, and that was not counted yet.
    owed: Option<Retired>,
    /// After an instruction in ring 3 kvm-pvm stopped for another reason, and the instruction's own stop is
    /// still to come.
    trap_pending: bool,
    kvm_pvm: bool,
}

impl Step {
    pub(crate) fn new(fed: Fed) -> Self {
        let kvm_pvm = pvm::is_there();
        Self { fed, ahead: Vec::new(), owed: None, trap_pending: false, kvm_pvm }
    }

    fn add(&self, happened: &mut Feed, retired: &Retired) {
        let mut add = |what| self.fed.add(happened, what, retired.privilege, 1);
        add(Quantity::Instructions);
        add(Quantity::Cycles);
        add(Quantity::ReferenceCycles);
        if retired.is_branch() {
            add(Quantity::Branches);
            if retired.taken {
                add(Quantity::TakenBranches);
            }
        }
    }
}

impl Source for Step {
    fn fed(&self) -> &Fed {
        &self.fed
    }

    fn steps(&self) -> bool {
        true
    }

    fn idle(&mut self) {
        (self.owed, self.trap_pending) = (None, false);
    }

    fn executed(&mut self, instruction: Instruction, privilege: Privilege) {
        self.owed = Some(Retired { instruction, privilege, taken: false });
    }

    fn enter(&mut self, guest: Guest<'_>, _: &VirtualPmu) -> Result<bool, Error> {
        let here = Point::new(guest.registers(), guest.system());
        self.ahead = ahead(&guest, here, |code| self.kvm_pvm && pvm::has_no_stop(code));
        if self.kvm_pvm
            && let Some(frame) = self.ahead.iter().find_map(Next::frame_to_ring_3)
        {
            pvm::step_through_iret(guest, frame);
        }
        Ok(true)
    }

    /// Counts an instruction if the counter runs when it retires. Where the instructions do not lead to the stop,
    /// none is counted: the counts are then too low, and never too high.
    fn leave(
        &mut self,
        guest: Guest<'_>,
        stop: Stop,
        _: &mut VirtualPmu,
        happened: &mut Feed,
    ) -> Result<bool, Error> {
        if let Some(owed) = self.owed.take() {
            self.add(happened, &owed);
        }
        let here = Point::new(guest.registers(), guest.system());
        let may_stay = stop == Stop::Ran || self.trap_pending;
        let retired = between(&guest, &self.ahead, &here, may_stay);
        retired.iter().flatten().for_each(|retired| self.add(happened, retired));
        let some = retired.as_ref().is_some_and(|retired| !retired.is_empty());
        self.trap_pending = self.kvm_pvm && here.is_user() && stop == Stop::Ran && some;
        Ok(retired.is_some())
    }

    /// Returns `None`: the monitor looks at the guest after each instruction anyway.
    fn due(&self, _: Guest<'_>, _: &mut VirtualPmu) -> Option<Duration> {
        None
    }
}
