//! The entry of the interrupt path: `service`.

use crate::counters::error::ServiceError;
use crate::counters::hooks::event_source::EventSource;
use crate::counters::interrupt::claim::{Claim, Serviced};
use crate::counters::interrupt::overflow::EventOverflow;
use crate::counters::interrupt::pass::Pass;
use crate::counters::names::counter_id::CounterSet;
use crate::counters::shared::memory::CounterMemory;
use crate::msr::backend::MsrBackend;
use crate::platform::Platform;

/// Services the performance interrupt of the processor that executes the call: finds the overflowed counters, re-arms
/// them, reports each completed period to `overflowed` once, and lets the interrupt recur.
///
/// `memory` is the processor's. Without a session, `service` accesses no register and returns
/// [`NotOurs`](Claim::NotOurs); only the first interrupt after a [`shut_down`](crate::CounterSession::shut_down) may
/// be claimed, as a spurious one. A nested call, from an interrupt that interrupted this one, returns
/// [`Ours`](Claim::Ours) at once, and the outer call makes another pass.
///
/// ```
/// # use pmu_core::{Claim, CounterMemory, EventSource, MsrBackend, Platform};
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
/// Interrupt or NMI, and any other. Bounded by the number of counters, once more for each nested interrupt; takes no
/// lock, does not allocate, and does not panic unless `overflowed` does. If `overflowed` unwinds, later interrupts are
/// only noted, until [`reprogram`](crate::CounterSession::reprogram).
///
/// # Errors
/// Returns the first access that failed after one retry, and the faulted counters: those that may no longer count or
/// interrupt, and those of the other events of their groups. Their events do not run. The remaining accesses are still
/// attempted. Count the interrupt as [`OursAndMore`](Claim::OursAndMore).
///
/// If the overflow status can be neither read nor cleared, the LVT entry is left [masked](ServiceError::masked). Until
/// [`reprogram`](crate::CounterSession::reprogram), calls access no register.
#[inline]
pub fn service<S: EventSource, M: MsrBackend, P: Platform>(
    source: &S,
    msr: &M,
    platform: &P,
    memory: &CounterMemory,
    overflowed: impl FnMut(EventOverflow),
) -> Result<Serviced, ServiceError> {
    let unit = source.unit();
    // This source's unit does not describe counters that another source's session has taken.
    let own = memory.verified(unit.counters());
    if own.is_empty() {
        let (claim, lent) = memory.unserved(own);
        return Ok(Serviced { overflows: 0, claim, others: 0, lent });
    }
    let mut pass = Pass {
        source,
        msr,
        platform,
        memory,
        own: own.bits(),
        overflowed,
        overflows: 0,
        raised: 0,
        others: 0,
        fault: None,
        fallen: CounterSet::NONE,
    };
    let served = memory.serve(|| match unit.global() {
        None => pass.by_value(),
        Some(global) => pass.by_status(global),
    });
    if !served {
        let (claim, lent) = memory.unserved(own);
        return Ok(Serviced { overflows: 0, claim, others: 0, lent });
    }
    if let Some(fault) = pass.fault {
        return Err(ServiceError { fault, counters: pass.fallen, masked: memory.is_muted() });
    }
    let claim = match pass.raised {
        0 => memory.claim_spurious(),
        1 => Claim::Ours,
        2.. => Claim::OursAndMore,
    };
    Ok(Serviced { overflows: pass.overflows, claim, others: pass.others, lent: false })
}
