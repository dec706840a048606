//! The entry of the interrupt path: `service`.

use crate::counters::error::ServiceError;
use crate::counters::hooks::event_source::{EventSource, counters_of};
use crate::counters::hooks::facility::Facility;
use crate::counters::interrupt::claim::Serviced;
use crate::counters::interrupt::facilities::serve_alone;
use crate::counters::interrupt::overflow::EventOverflow;
use crate::counters::interrupt::pass::Pass;
use crate::counters::interrupt::sample::Sample;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::shared::memory::{CounterMemory, WITH_FACILITY};
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

/// Services the performance interrupt of the processor that executes the call: finds the overflowed counters, re-arms
/// them, and passes each completed period to `report` once, as a [`Sample`]. After the call, the next overflow
/// interrupts again.
///
/// `memory` is the memory of this processor's counters. If no session uses this memory, `service` accesses no register,
/// and returns [`NotOurs`](crate::Claim::NotOurs). However, `service` may claim the first interrupt after a
/// [`shut_down`](crate::CounterSession::shut_down).
///
/// If an interrupt handler interrupts this call and calls `service`, the nested call returns
/// [`Ours`](crate::Claim::Ours) at once. The outer call then makes another pass over the counters.
///
/// ```
/// # use pmu_core::{Claim, CounterMemory, EventSource, Platform};
/// # use pmu_core::msr::MsrBackend;
/// # fn sample(_tag: u64) {}
/// /// The NMI handler asks: was it a counter's, and may another follow?
/// fn non_maskable_interrupt<S: EventSource, M: MsrBackend, P: Platform>(
///     source: &S,
///     (msr, platform): (&M, &P),
///     memory: &CounterMemory, // this processor's
/// ) -> Claim {
///     let serviced = pmu_core::service(source, msr, platform, memory, |overflow| sample(overflow.tag));
///     serviced.map_or(Claim::OursAndMore, |serviced| serviced.claim)
/// }
/// ```
///
/// # Context
/// Any context, including interrupt and NMI. The call makes one pass over the counters, and one more pass for each
/// nested interrupt. The call takes no lock and does not allocate. The call panics only if `report` panics. If
/// `report` unwinds, later interrupts are recorded but not serviced, until
/// [`reprogram`](crate::CounterSession::reprogram).
///
/// # Errors
/// A failed access is retried once, and the remaining accesses are still attempted. The error contains the first access
/// that failed twice, and the set of faulted counters, which may no longer count or interrupt. If one counter of a
/// group faults, all counters of the group are in this set. The events of faulted counters do not run. The caller
/// treats the interrupt as [`OursAndMore`](crate::Claim::OursAndMore).
///
/// If the overflow status can be neither read nor cleared, the LVT entry is left [masked](ServiceError::masked). Until
/// [`reprogram`](crate::CounterSession::reprogram), later calls access no register.
#[inline]
pub fn service<S: EventSource, M: MsrBackend, P: Platform>(
    source: &S,
    msr: &M,
    platform: &P,
    memory: &CounterMemory,
    mut report: impl FnMut(Sample<'_, S::Facility>),
) -> Result<Serviced, ServiceError> {
    // By value and moved: references would take stack and text, although there is no facility.
    let facility = source.facility();
    serve(source, msr, platform, memory, facility, move |overflow, facility| {
        report(Sample::new(source, overflow, facility));
    })
}

#[inline(always)]
pub(crate) fn serve<S: EventSource, M: MsrBackend, P: Platform, B: Facility>(
    source: &S,
    msr: &M,
    platform: &P,
    memory: &CounterMemory,
    mut facility: B,
    overflowed: impl FnMut(EventOverflow, &B),
) -> Result<Serviced, ServiceError> {
    let unit = source.unit();
    // This source's unit does not describe counters that another source's session has taken.
    let own = memory.verified(counters_of(source));
    if B::ALONE && (own.is_empty() || !memory.is_idle()) && !memory.is_lent() {
        return serve_alone(msr, memory, facility);
    }
    if own.is_empty() {
        let (mut claim, lent) = memory.unserved(false);
        if lent {
            claim = claim.and(facility.while_lent());
        } else {
            let (counters, masked) = (CounterSet::NONE, false);
            let outcome = facility.without_counters(msr);
            outcome.map_err(|fault| ServiceError { fault, counters, masked })?;
        }
        return Ok(Serviced { overflows: 0, claim, others: 0, lent });
    }
    let mut pass = Pass {
        source,
        msr,
        platform,
        memory,
        own: own.bits(),
        facility,
        overflowed,
        overflows: 0,
        raised: 0,
        others: 0,
        fault: None,
        fallen: CounterSet::NONE,
    };
    let served = memory.serve(if B::ALONE { WITH_FACILITY } else { 0 }, || {
        pass.begin_facility();
        match unit.global() {
            None => pass.by_value(),
            Some(global) => pass.by_status(global),
        }
        pass.end_facility();
    });
    if !served {
        let (claim, lent) = memory.unserved(true);
        return Ok(Serviced { overflows: 0, claim, others: 0, lent });
    }
    if let Some(fault) = pass.fault {
        return Err(ServiceError { fault, counters: pass.fallen, masked: memory.is_muted() });
    }
    let claim = memory.claim(pass.raised);
    Ok(Serviced { overflows: pass.overflows, claim, others: pass.others, lent: false })
}
