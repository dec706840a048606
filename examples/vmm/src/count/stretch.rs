//! The stretch of the guest before an interrupt that is due, which is stepped for the branch records: as many branches
//! as they hold.

use core::time::Duration;

use iced_x86::Instruction;
use pmu_virt::branches::{FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::{GuestFacility, Privilege, Read};

use crate::count::branch;
use crate::count::source::Stop;
use crate::count::walk::Walk;
use crate::guest::{self, Guest};

/// Most instructions of a stretch, per record: a guest may have few branches, or filter most of them.
const STEPS_PER_RECORD: u32 = 64;
/// Instructions of a stretch of calls that have not returned: it must not end with a call or a return, as one of a
/// number of records would, since every sample would be of the same depth. The lengths vary, as a loop may be as long
/// as one.
const STEPS_OF_STACK: u32 = 512;
const VARYING: u32 = 61;
/// Most instructions of a handler that is stepped.
const STEPS_OF_HANDLER: u32 = 30_000;
/// MSR_LBR_SELECT and IA32_LBR_CTL, each with its bit that selects such a stack. SDM vol. 3B, "Last Branch, Call Stack,
/// Interrupt, and Exception Recording".
const CALL_STACK: [(u32, u64); 2] = [(0x1C8, 1 << 9), (0x14CE, 1 << 3)];
/// Interval of looks at a guest that has left the privilege of the stretch.
const AWAY: Duration = Duration::from_millis(1);

/// Steps before an interrupt.
pub(crate) struct Stretch {
    walk: Walk,
    /// Stretches so far.
    begun: u32,
    /// The stretch that is under way.
    current: Option<Current>,
}

struct Current {
    /// Privilege of the overflow. At the other one, the guest runs without steps.
    privilege: Privilege,
    /// The guest was entered to execute one instruction.
    stepping: bool,
    handler: Handler,
    /// Branches that are still to be recorded, and instructions that may be executed for it.
    branches: u32,
    steps: u32,
}

/// The handler of an interrupt that came in ring 3 during a stretch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handler {
    /// The guest is in none, or the records begin anew when it is back.
    Unknown,
    /// Its branches are filtered out: it runs without steps, and the records are kept.
    LeftOut,
    /// Its branches are recorded: as many instructions may still be stepped.
    Stepped(u32),
}

impl Stretch {
    pub(crate) fn new() -> Self {
        Self { walk: Walk::new(), begun: 0, current: None }
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
        self.begun = self.begun.wrapping_add(1);
        let (branches, steps) = match is_call_stack(branches) {
            true => (u32::MAX, STEPS_OF_STACK + self.begun % VARYING),
            false => (depth, depth * STEPS_PER_RECORD),
        };
        let (stepping, handler) = (false, Handler::Unknown);
        self.current = Some(Current { privilege, stepping, handler, branches, steps });
    }

    /// Notes an instruction that the monitor executed for the guest.
    pub(crate) fn executed(&mut self, instruction: Instruction, privilege: Privilege) {
        self.walk.executed(instruction, privilege);
    }

    /// Prepares for a run of the guest. Returns whether it is to stop after one instruction.
    pub(crate) fn enter(&mut self, guest: Guest<'_>) -> bool {
        let Some(current) = &mut self.current else { return false };
        let is_back = guest::privilege(&guest.system()) == current.privilege;
        current.stepping = is_back || matches!(current.handler, Handler::Stepped(_));
        if current.stepping {
            self.walk.enter(guest);
        }
        current.stepping
    }

    /// Records the branches since the last stop. Where they are not known, the stretch begins anew.
    ///
    /// An interrupt of ring 3 leaves the records as they are, if those of ring 0 are filtered out: the guest goes on
    /// where it was interrupted, and stops there or behind the next instruction, since the interrupt pushed the trap
    /// flag. Otherwise its handler is stepped, too.
    pub(crate) fn leave(&mut self, guest: Guest<'_>, stop: Stop, branches: &mut VirtualBranches) {
        let Some(Current { privilege, stepping, handler, .. }) = self.current else { return };
        let is_away = guest::privilege(&guest.system()) != privilege;
        if handler == Handler::LeftOut && is_away {
            return;
        }
        let (mut recorded, mut executed) = (0, 0);
        let mut known = (stepping || handler == Handler::LeftOut)
            && self.walk.leave(guest, stop, |retired| {
                executed += 1;
                let branch = branch::taken(retired);
                recorded += u32::from(branch.is_some_and(|branch| branches.record(&branch)));
            });
        let Some(current) = &mut self.current else { return };
        current.branches = current.branches.saturating_sub(recorded);
        current.handler = match handler {
            _ if !known || !is_away || privilege == Privilege::Kernel => Handler::Unknown,
            Handler::Stepped(0) => Handler::Unknown,
            Handler::Stepped(left) => Handler::Stepped(left.saturating_sub(executed)),
            _ if records_ring_0(branches) => Handler::Stepped(STEPS_OF_HANDLER),
            _ if self.walk.enter_interrupted(guest) => Handler::LeftOut,
            _ => Handler::Unknown,
        };
        match handler {
            Handler::Stepped(left) => known &= left != 0,
            _ => current.steps = current.steps.saturating_sub(executed),
        }
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
        self.current.as_ref().is_some_and(|current| {
            let in_handler = matches!(current.handler, Handler::Stepped(_));
            !in_handler && (current.branches == 0 || current.steps == 0)
        })
    }

    /// Returns the time until the next look at a guest, while the stretch is under way: `None` if it stops by itself.
    pub(crate) fn due(&self, guest: Guest<'_>) -> Option<Duration> {
        let away = |current: &Current| guest::privilege(&guest.system()) != current.privilege;
        self.current.as_ref().is_some_and(away).then_some(AWAY)
    }
}

/// Returns whether the guest's records are the calls that have not returned.
fn is_call_stack(branches: &VirtualBranches) -> bool {
    CALL_STACK.iter().any(|(register, bit)| {
        matches!(branches.read(*register), Read::Value(value) if value & bit != 0)
    })
}

/// Returns whether the guest's filter takes branches of ring 0.
fn records_ring_0(branches: &VirtualBranches) -> bool {
    const KINDS: [FedBranchKind; 3] =
        [FedBranchKind::RelativeJump, FedBranchKind::RelativeCall, FedBranchKind::Return];
    KINDS.iter().any(|kind| {
        let mut tried = *branches;
        tried.record(&FedBranch::new(0, 0, *kind, Privilege::Kernel))
    })
}
