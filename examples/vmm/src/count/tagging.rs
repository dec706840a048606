//! Samples of ops and fetches while the guest runs at full speed.
//!
//! At the end of a period the guest is stepped: the instruction that it executes next is the sampled one.

use core::time::Duration;

use iced_x86::Instruction;
use pmu_virt::{Privilege, VirtualIbs};

use crate::count::clock::Clock;
use crate::count::op;
use crate::count::quantity::Quantity;
use crate::count::source::Stop;
use crate::count::walk::Walk;
use crate::guest::Guest;

/// Periods of ops, cycles and fetches, by time.
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

    /// Returns whether the next instruction ends a period.
    pub(crate) fn is_due(sampling: &Option<VirtualIbs>) -> bool {
        let next = sampling.as_ref().map(VirtualIbs::next_sample).unwrap_or_default();
        [next.ops, next.cycles, next.fetches].contains(&Some(1))
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
    pub(crate) fn enter(&mut self, guest: Guest<'_>, sampling: &Option<VirtualIbs>) -> bool {
        let is_due = Self::is_due(sampling);
        if !is_due {
            self.idle();
        } else {
            self.stepping = true;
            self.walk.enter(guest);
        }
        is_due
    }

    /// Counts the ops and fetches of a run that took `span`. Where the instructions do not lead to the stop, the period
    /// ends with a later instruction.
    pub(crate) fn leave(
        &mut self,
        guest: Guest<'_>,
        stop: Stop,
        span: Duration,
        sampling: &mut VirtualIbs,
    ) {
        let passed = self.clock.pass(span);
        if self.stepping {
            self.walk.leave(guest, stop, |retired| op::execute(sampling, retired, guest));
        } else {
            let instructions = passed(Quantity::Instructions);
            sampling.pass(instructions, passed(Quantity::Cycles), instructions);
        }
    }

    /// Returns the time until the end of a period; `None` if none is counted, or the guest is to be stepped.
    pub(crate) fn due(&self, sampling: &Option<VirtualIbs>) -> Option<Duration> {
        let next = sampling.as_ref()?.next_sample();
        let due = |what, count: Option<u64>| Some(self.clock.time_before(what, count? - 1));
        let instructions =
            due(Quantity::Instructions, next.ops.into_iter().chain(next.fetches).min());
        let due = [instructions, due(Quantity::Cycles, next.cycles)].into_iter().flatten().min();
        due.filter(|_| !Self::is_due(sampling))
    }
}
