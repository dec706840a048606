//! `--count step`: instructions and branches, exactly, or reported as inexact. While a counter runs, branches are
//! recorded or ops are sampled, the guest is stopped after each instruction, which was decoded before.

use core::time::Duration;

use iced_x86::Instruction;
use pmu_virt::{Feed, Privilege, VirtualPmu};

use crate::count::branch;
use crate::count::fed::Fed;
use crate::count::op;
use crate::count::quantity::Quantity;
use crate::count::record;
use crate::count::source::{Source, Stop};
use crate::count::walk::Walk;
use crate::error::Error;
use crate::guest::Guest;
use crate::guest_pmu::facilities::Facilities;

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
    walk: Walk,
}

impl Step {
    pub(crate) fn new(fed: Fed) -> Self {
        Self { fed, walk: Walk::new() }
    }
}

impl Source for Step {
    fn fed(&self) -> &Fed {
        &self.fed
    }

    fn may_step(&self) -> bool {
        true
    }

    fn steps(&self, _: &Facilities) -> bool {
        true
    }

    fn idle(&mut self) {
        self.walk.idle();
    }

    fn executed(&mut self, instruction: Instruction, privilege: Privilege) {
        self.walk.executed(instruction, privilege);
    }

    fn enter(&mut self, guest: Guest<'_>, _: &VirtualPmu, _: &Facilities) -> Result<bool, Error> {
        self.walk.enter(guest);
        Ok(true)
    }

    /// Counts an instruction if the counter runs when it retires. Where the instructions do not lead to the stop,
    /// none is counted: the counts are then too low, and never too high.
    fn leave(
        &mut self,
        guest: Guest<'_>,
        stop: Stop,
        pmu: &mut VirtualPmu,
        facilities: &mut Facilities,
        happened: &mut Feed,
    ) -> Result<bool, Error> {
        let Self { fed, walk } = self;
        let (records, (sampling, _)) = facilities;
        Ok(walk.leave(guest, stop, |retired| {
            record::write(fed, retired, guest, pmu, records);
            let mut add = |what| fed.add(happened, what, retired.privilege, 1);
            add(Quantity::Instructions);
            add(Quantity::Cycles);
            add(Quantity::ReferenceCycles);
            if retired.is_branch() {
                add(Quantity::Branches);
                if retired.taken {
                    add(Quantity::TakenBranches);
                }
            }
            if let Some(branch) = branch::taken(retired) {
                record::branch(&branch, guest, pmu, records);
            }
            if let Some(sampling) = sampling {
                op::execute(sampling, retired, guest);
            }
        }))
    }

    /// Returns `None`: the monitor looks at the guest after each instruction anyway.
    fn due(&self, _: Guest<'_>, _: &mut VirtualPmu, _: &Facilities) -> Option<Duration> {
        None
    }
}
