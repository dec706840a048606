//! The steps of a pass that a facility beside the counters has.

use crate::counters::error::ServiceError;
use crate::counters::hooks::event_source::{EventSource, opens_events};
use crate::counters::hooks::facility::{Facility, Interrupted};
use crate::counters::interrupt::claim::Serviced;
use crate::counters::interrupt::overflow::EventOverflow;
use crate::counters::interrupt::pass::Pass;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::shared::memory::CounterMemory;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

impl<'a, S, M, P, B, F> Pass<'a, S, M, P, B, F>
where
    S: EventSource,
    M: MsrBackend,
    P: Platform,
    B: Facility,
    F: FnMut(EventOverflow, &B),
{
    #[inline(always)]
    pub(crate) fn begin_facility(&mut self) {
        let begun = self.facility.begin(self.msr);
        self.note(begun);
    }

    /// Lets the facility read what it recorded. Returns the number of interrupts that the facility accounts for, which
    /// are added to those of the pass.
    #[inline(always)]
    pub(crate) fn collect(&mut self, status: u64, overflowed: CounterSet) -> u32 {
        let interrupted = Interrupted { status, overflowed, recorded: false, memory: self.memory };
        let collected = self.facility.collect(self.msr, interrupted);
        let accounted = self.note(collected).unwrap_or(0);
        self.raised += accounted;
        if B::RECORDS && opens_events(self.source) {
            self.report_records();
        }
        accounted
    }

    #[inline(always)]
    pub(crate) fn end_facility(&mut self) {
        let ended = self.facility.end(self.msr);
        self.note(ended);
    }
}

/// Serves a facility where no counter can be served: no session has taken the counters, the LVT entry is masked, or a
/// task services the counters without the facility. The facility's interrupt comes nevertheless.
pub(crate) fn serve_alone<M: MsrBackend, B: Facility>(
    msr: &M,
    memory: &CounterMemory,
    mut facility: B,
) -> Result<Serviced, ServiceError> {
    let (mut accounted, mut outcome) = (0, Ok(()));
    let served = memory.serve_alone(|| {
        let begun = facility.begin(msr);
        let interrupted =
            Interrupted { status: 0, overflowed: CounterSet::NONE, recorded: false, memory };
        let collected = facility.collect(msr, interrupted).map(|more| accounted += more);
        let ended = facility.end(msr);
        let unserved = facility.without_counters(msr);
        outcome = outcome.and(begun).and(collected).and(ended).and(unserved);
    });
    let Some(is_nested) = served else {
        let (claim, lent) = memory.unserved(true);
        return Ok(Serviced { overflows: 0, claim, others: 0, lent });
    };
    let (counters, masked) = (CounterSet::NONE, memory.is_muted());
    outcome.map_err(|fault| ServiceError { fault, counters, masked })?;
    Ok(Serviced {
        overflows: 0,
        claim: memory.claim(accounted.max(is_nested.into())),
        others: 0,
        lent: false,
    })
}
