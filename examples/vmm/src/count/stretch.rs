//! The stretch of the guest before an interrupt that is due, which is stepped for the branch records: as many branches
//! as they hold.

use core::time::Duration;

use iced_x86::Instruction;
use pmu_virt::Privilege;
use pmu_virt::branches::VirtualBranches;

use crate::count::branch;
use crate::count::source::Stop;
use crate::count::walk::Walk;
use crate::guest::{self, Guest};

/// Most instructions of a stretch, per record: a guest may have few branches, or filter most of them.
const STEPS_PER_RECORD: u32 = 64;
/// Interval of looks at a guest that has left the privilege of the stretch.
const AWAY: Duration = Duration::from_millis(1);

/// Steps before an interrupt.
pub(crate) struct Stretch {
    walk: Walk,
    /// The stretch that is under way.
    current: Option<Current>,
}

struct Current {
    /// Privilege of the overflow. At the other one, the guest runs without steps.
    privilege: Privilege,
    /// The guest was entered to execute one instruction.
    stepping: bool,
    /// Branches that are still to be recorded, and instructions that may be executed for it.
    branches: u32,
    steps: u32,
}

impl Stretch {
    pub(crate) fn new() -> Self {
        Self { walk: Walk::new(), current: None }
    }

    /// Returns whether the interrupt waits for its stretch to end.
    pub(crate) fn is_under_way(&self) -> bool {
        self.current.is_some()
    }

    /// Ends the stretch.
    pub(crate) fn end(&mut self) {
        self.walk.idle();
        self.current = None;
    }

    /// Begins a stretch before an overflow at a privilege. What the records hold is of an earlier stretch, and the
    /// branches between are not known: the records are cleared.
    pub(crate) fn begin(&mut self, privilege: Privilege, branches: &mut VirtualBranches) {
        self.walk.idle();
        branches.lose_records();
        let depth = u32::from(branches.depth());
        let (branches, steps) = (depth, depth * STEPS_PER_RECORD);
        self.current = Some(Current { privilege, stepping: false, branches, steps });
    }

    /// Notes an instruction that the monitor executed for the guest.
    pub(crate) fn executed(&mut self, instruction: Instruction, privilege: Privilege) {
        self.walk.executed(instruction, privilege);
    }

    /// Prepares for a run of the guest. Returns whether it is to stop after one instruction.
    pub(crate) fn enter(&mut self, guest: Guest<'_>) -> bool {
        let Some(current) = &mut self.current else { return false };
        current.stepping = guest::privilege(&guest.system()) == current.privilege;
        if current.stepping {
            self.walk.enter(guest);
        }
        current.stepping
    }

    /// Records the branches since the last stop. Where they are not known, the stretch begins anew.
    pub(crate) fn leave(&mut self, guest: Guest<'_>, stop: Stop, branches: &mut VirtualBranches) {
        let Some(Current { privilege, stepping, .. }) = self.current else { return };
        let (mut recorded, mut executed) = (0, 0);
        let known = stepping
            && self.walk.leave(guest, stop, |retired| {
                executed += 1;
                let branch = branch::taken(retired);
                recorded += u32::from(branch.is_some_and(|branch| branches.record(&branch)));
            });
        let Some(current) = &mut self.current else { return };
        current.steps = current.steps.saturating_sub(executed);
        current.branches = current.branches.saturating_sub(recorded);
        if !known && current.steps != 0 {
            let steps = current.steps - 1;
            self.begin(privilege, branches);
            if let Some(current) = &mut self.current {
                current.steps = steps;
            }
        }
    }

    /// Returns whether the records are full, or the guest has executed as many instructions as it may.
    pub(crate) fn is_complete(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.branches == 0 || current.steps == 0)
    }

    /// Returns the time until the next look at a guest, while the stretch is under way: `None` if it stops by itself.
    pub(crate) fn due(&self, guest: Guest<'_>) -> Option<Duration> {
        let away = |current: &Current| guest::privilege(&guest.system()) != current.privilege;
        self.current.as_ref().is_some_and(away).then_some(AWAY)
    }
}
