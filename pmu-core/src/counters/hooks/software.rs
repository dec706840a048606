//! Events that the kernel's calls count, as what a session's events can ask for.

use crate::access::backend::RegisterBackend;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::Facility;
use crate::counters::hooks::running::{Running, Unsettled};

/// [Software events](crate::Event::software), beside the events of counters. It needs no hardware and no memory.
///
/// A kernel that calls [`EventTable::happened`](crate::memory::EventTable::happened), or `happened` of `pmu::Pmu`, has
/// this among the facilities of its [`EventSource`](crate::EventSource), or of its architecture
/// (`pmu::X86<SoftwareEvents>`), alone or in a pair. Otherwise the code for such events is not linked, and they cannot
/// be opened. Clocks that are sampled need `CLOCK_TIMER`, `set_clock_timer` and `now` of `pmu::Kernel`, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SoftwareEvents;

impl Facility for SoftwareEvents {
    #[inline]
    fn is_idle(&self) -> bool {
        true
    }
}

impl EventFacility for SoftwareEvents {
    const OFFERS: bool = false;
    const SOFTWARE: bool = true;

    #[inline]
    fn settle<M: RegisterBackend>(&self, _: &M, _: &Running<'_>) -> Result<(), Unsettled> {
        Ok(())
    }

    #[inline]
    fn lose(&self) {}
}
