//! A source of events, as the loop of a [processor](crate::processor) calls it.

use core::time::Duration;

use iced_x86::Instruction;
use pmu_virt::topdown::TopDownMix;
use pmu_virt::{Feed, Privilege, VirtualPmu};

use crate::count::fed::Fed;
use crate::error::Error;
use crate::guest::Guest;
use crate::guest_pmu::facilities::Facilities;

/// Progress of the guest between two looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// One instruction was executed, or an exception or interrupt was taken.
    Stepped,
    /// The guest ran until any other stop.
    Ran,
}

/// A source of events for one virtual processor.
///
/// While a counter runs, or ops are sampled, the processor calls [`enter`](Self::enter) before it runs the guest, and
/// [`leave`](Self::leave) afterwards, before it serves the guest's exit.
pub(crate) trait Source {
    /// Returns the quantities that the source feeds.
    fn fed(&self) -> &Fed;

    /// Returns whether the source ever stops the guest after one instruction.
    fn may_step(&self) -> bool {
        false
    }

    /// Returns whether the source now stops the guest after each instruction.
    fn steps(&self, _: &Facilities) -> bool {
        false
    }

    /// Returns the parts into which issue slots are divided.
    fn mix(&self) -> TopDownMix {
        TopDownMix::RETIRING
    }

    /// Prepares for a run of the guest while nothing is counted or recorded.
    fn idle(&mut self) {}

    /// Notes an instruction that the monitor executed for the guest.
    fn executed(&mut self, _: Instruction, _: Privilege) {}

    /// Prepares for a run of the guest. Returns whether the guest is to stop after one instruction.
    fn enter(
        &mut self,
        guest: Guest<'_>,
        pmu: &VirtualPmu,
        facilities: &Facilities,
    ) -> Result<bool, Error>;

    /// Adds the events of the guest's run to `happened`, and its taken branches, its ops and its fetches to
    /// `facilities`, as far as they are known. Returns whether the events are known; if not, nothing was added.
    fn leave(
        &mut self,
        guest: Guest<'_>,
        stop: Stop,
        pmu: &mut VirtualPmu,
        facilities: &mut Facilities,
        happened: &mut Feed,
    ) -> Result<bool, Error>;

    /// Returns the time until the next look at the guest: an overflow or a sample may be due then.
    fn due(
        &self,
        guest: Guest<'_>,
        pmu: &mut VirtualPmu,
        facilities: &Facilities,
    ) -> Option<Duration>;
}
