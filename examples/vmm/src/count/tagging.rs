//! Samples of instructions while the guest runs at full speed: sampled ops and fetches, and precise records.
//!
//! At the end of a period the guest is stepped. The instruction that it executes next is sampled; of a precise counter,
//! the next that causes the counter's event.

use core::time::Duration;

use iced_x86::Instruction;
use pmu_virt::ibs::VirtualIbs;
use pmu_virt::{Privilege, VirtualPmu};

use crate::count::clock::Clock;
use crate::count::fed::Fed;
use crate::count::op;
use crate::count::quantity::Quantity;
use crate::count::record;
use crate::count::source::Stop;
use crate::count::walk::Walk;
use crate::guest::{self, Guest};
use crate::guest_pmu::facilities::Facilities;

/// Interval of looks at a guest that has left the privilege of an event whose record is due.
const AWAY: Duration = Duration::from_millis(1);

/// Periods of ops, cycles and fetches, by time; and the steps at the end of any period.
pub(crate) struct Tagging {
    clock: Clock,
    walk: Walk,
    /// The guest was entered to execute one instruction.
    stepping: bool,
}

impl Tagging {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, walk: Walk::new(), stepping: false }
    }

    /// Returns whether a period has ended, and an instruction is to be sampled.
    pub(crate) fn is_due(((_, precise), (sampling, _)): &Facilities) -> bool {
        precise.as_ref().is_some_and(|precise| precise.due() != 0) || is_tagged(sampling)
    }

    /// Forgets what it waits for: the guest ran without steps.
    pub(crate) fn idle(&mut self) {
        self.walk.idle();
        self.stepping = false;
    }

    /// Notes an instruction that the monitor executed for the guest.
    pub(crate) fn executed(&mut self, instruction: Instruction, privilege: Privilege) {
        if self.stepping {
            self.walk.executed(instruction, privilege);
        }
    }

    /// Prepares for a run of the guest. Returns whether it is to stop after one instruction.
    pub(crate) fn enter(
        &mut self,
        guest: Guest<'_>,
        pmu: &VirtualPmu,
        facilities: &Facilities,
    ) -> bool {
        let steps = steps(guest, pmu, facilities);
        if steps {
            self.stepping = true;
            self.walk.enter(guest);
        } else {
            self.idle();
        }
        steps
    }

    /// Counts the ops and fetches of a run that took `span`, and samples the instruction that was stepped. Where the
    /// instructions do not lead to the stop, a later instruction is sampled.
    pub(crate) fn leave(
        &mut self,
        guest: Guest<'_>,
        stop: Stop,
        span: Duration,
        fed: &Fed,
        pmu: &mut VirtualPmu,
        (records, (sampling, _)): &mut Facilities,
    ) {
        let passed = self.clock.pass(span);
        if self.stepping {
            self.walk.leave(guest, stop, |retired| {
                record::write(fed, retired, guest, pmu, records);
                if let Some(sampling) = sampling {
                    op::execute(sampling, retired, guest);
                }
            });
        } else if let Some(sampling) = sampling {
            let instructions = passed(Quantity::Instructions);
            sampling.pass(instructions, passed(Quantity::Cycles), instructions);
        }
    }

    /// Returns the time until the end of a period of ops, or until a look at a guest whose record is due; `None` if
    /// neither is, or the guest is to be stepped.
    pub(crate) fn due(
        &self,
        guest: Guest<'_>,
        pmu: &VirtualPmu,
        facilities: &Facilities,
    ) -> Option<Duration> {
        if Self::is_due(facilities) {
            return (!steps(guest, pmu, facilities)).then_some(AWAY);
        }
        let next = facilities.1.0.as_ref()?.next_sample();
        let due = |what, count: Option<u64>| Some(self.clock.time_before(what, count? - 1));
        let fetches_or_ops = next.ops.into_iter().chain(next.fetches).min();
        let dues =
            [due(Quantity::Instructions, fetches_or_ops), due(Quantity::Cycles, next.cycles)];
        dues.into_iter().flatten().min()
    }
}

/// Returns whether the guest is to stop after its next instruction.
fn steps(guest: Guest<'_>, pmu: &VirtualPmu, ((_, precise), (sampling, _)): &Facilities) -> bool {
    is_tagged(sampling) || record::is_due(precise, pmu, guest::privilege(&guest.system()))
}

/// Returns whether the next instruction is the sampled op or fetch.
fn is_tagged(sampling: &Option<VirtualIbs>) -> bool {
    let next = sampling.as_ref().map(VirtualIbs::next_sample).unwrap_or_default();
    [next.ops, next.cycles, next.fetches].contains(&Some(1))
}
