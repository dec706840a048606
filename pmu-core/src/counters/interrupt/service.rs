//! The entry of the interrupt path: `service`.

use core::sync::atomic::Ordering;

use crate::counters::error::ServiceError;
use crate::counters::events::count::EventOverflow;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::Facility;
use crate::counters::interrupt::pass::{Pass, Shared, serve_alone};
use crate::counters::interrupt::sample::Sample;
use crate::counters::names::CounterSet;
use crate::counters::shared::memory::CounterMemory;
use crate::counters::shared::serving::WITH_FACILITY;
use crate::platform::Hardware;
use crate::profile::event_source::{EventSource, verified_of};

/// Services the performance interrupt of the processor that executes the call: finds the overflowed counters, re-arms
/// them, and passes each completed period to `report` once, as a [`Sample`]. After the call, the next overflow
/// interrupts again.
///
/// `memory` is the memory of this processor's counters. If no session uses this memory, `service` accesses no register,
/// and returns [`NotOurs`](crate::Claim::NotOurs). However, `service` may claim the first interrupt after a
/// [`shut_down`](crate::CounterSession::shut_down).
///
/// The sample may be that of a profile source: [`EventSource::overflow`] tells. Before it is passed on, the event of an
/// [added](crate::profile::AddedSources) source takes up the source's interval, if that was changed.
///
/// If an interrupt handler interrupts this call and calls `service`, the nested call returns
/// [`Ours`](crate::Claim::Ours) at once. The outer call then makes another pass over the counters.
///
/// ```
/// # use pmu_core::{Claim, EventSource, Hardware};
/// # use pmu_core::memory::CounterMemory;
/// # fn sample(_tag: u64) {}
/// /// The NMI handler asks: was it a counter's, and may another follow?
/// fn non_maskable_interrupt<S: EventSource, H: Hardware>(
///     source: &S,
///     hardware: &H,
///     memory: &CounterMemory, // this processor's
/// ) -> Claim {
///     let serviced = pmu_core::service(source, hardware, memory, |overflow| sample(overflow.tag));
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
/// If the overflow status can be neither read nor cleared, the interrupt is left [masked](ServiceError::masked). Until
/// [`reprogram`](crate::CounterSession::reprogram), later calls access no register.
#[inline]
pub fn service<S: EventSource, H: Hardware>(
    source: &S,
    hardware: &H,
    memory: &CounterMemory,
    mut report: impl FnMut(Sample<'_, S::Facility>),
) -> Result<Serviced, ServiceError> {
    serve_interrupt(source, hardware, memory, move |overflow, facility| {
        source.added().take_up_interval(source.opened(), &overflow);
        report(Sample::new(source, overflow, facility));
    })
}

/// Serves an interrupt: without the source's facility, if that is idle.
#[inline(always)]
pub(crate) fn serve_interrupt<S: EventSource, H: Hardware>(
    source: &S,
    hardware: &H,
    memory: &CounterMemory,
    mut overflowed: impl FnMut(EventOverflow, Option<&S::Facility>),
) -> Result<Serviced, ServiceError> {
    // By value and moved: references would take stack and text, although there is no facility.
    if source.has_idle_facility() {
        serve(source, hardware, memory, (), move |overflow, ()| overflowed(overflow, None))
    } else {
        let (facility, mut overflowed) =
            (source.facility(), move |overflow, of: &S::Facility| overflowed(overflow, Some(of)));
        if S::Facility::RECORDS {
            serve_records(source, hardware, memory, facility, &mut overflowed)
        } else {
            serve(source, hardware, memory, facility, overflowed)
        }
    }
}

/// Serves an interrupt with a facility that records, or the same in a task that reports pending records. Not generic in
/// what gets the overflows, so that both share it.
#[inline(never)] // 5,600 bytes of the Hermit-like glue.
pub(crate) fn serve_records<S: EventSource, H: Hardware>(
    source: &S,
    hardware: &H,
    memory: &CounterMemory,
    facility: S::Facility,
    overflowed: &mut dyn FnMut(EventOverflow, &S::Facility),
) -> Result<Serviced, ServiceError> {
    serve(source, hardware, memory, facility, overflowed)
}

/// Serves an interrupt with a facility, or with none.
#[inline(always)]
pub(crate) fn serve<S: EventSource, H: Hardware, B: EventFacility>(
    source: &S,
    hardware: &H,
    memory: &CounterMemory,
    mut facility: B,
    overflowed: impl FnMut(EventOverflow, &B),
) -> Result<Serviced, ServiceError> {
    let unit = source.unit();
    // This source's unit does not describe counters that another source's session has taken.
    let own = verified_of(source, memory);
    if B::ALONE && (own.is_empty() || !memory.serving.is_idle()) && !memory.is_lent() {
        return serve_alone(hardware, memory, facility);
    }
    if own.is_empty() {
        let (mut claim, lent) = memory.unserved(false);
        if lent {
            claim = claim.and(facility.while_lent());
        } else {
            let (counters, masked) = (CounterSet::NONE, false);
            let outcome = facility.without_counters(hardware);
            outcome.map_err(|fault| ServiceError { fault, counters, masked })?;
        }
        return Ok(Serviced { overflows: 0, claim, others: 0, lent });
    }
    let mut pass = Pass {
        shared: Shared {
            source,
            unit,
            hardware,
            memory,
            own: own.bits(),
            overflows: 0,
            raised: 0,
            others: 0,
            fault: None,
            fallen: CounterSet::NONE,
        },
        facility,
        overflowed,
    };
    let served = memory.serving.serve(if B::ALONE { WITH_FACILITY } else { 0 }, || {
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
        return Err(ServiceError {
            fault,
            counters: pass.fallen,
            masked: memory.serving.is_masked(),
        });
    }
    let claim = memory.claim(pass.raised);
    Ok(Serviced { overflows: pass.overflows, claim, others: pass.others, lent: false })
}

/// Result of servicing one interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Serviced {
    /// Number of overflows that were reported while this interrupt was serviced.
    pub overflows: u32,
    /// Tells whether the interrupt belongs to the session. A handler that several drivers share needs this answer.
    pub claim: Claim,
    /// Bits of the global overflow status that were set, but that the session does not acknowledge. These bits stand
    /// for other owners' counters, or for other causes of this interrupt, such as a branch or trace buffer.
    pub others: u64,
    /// Set if the counters are [lent](crate::CounterSession::lend). [`service`](crate::service()) then accesses no
    /// register. The interrupt may belong to the borrower of the counters, such as a guest. The handler therefore also
    /// asks the borrower, whatever the value of `claim`. If its delivery masked the interrupt, the interrupt
    /// stays masked. If `lent` is `false`, the handler asks other drivers only if the claim is
    /// [`NotOurs`](Claim::NotOurs).
    pub lent: bool,
}

/// Tells whether one interrupt belongs to the session. A handler that several drivers share, such as an NMI handler,
/// needs this answer.
///
/// An NMI that no driver claims is unknown, and may mean failing hardware. An NMI of a performance counter may find no
/// overflow, because the service of the previous NMI already handled the counter. A shared handler adds up the
/// [number of interrupts](Self::interrupts) in each driver's claim. If the sum exceeds 1, another NMI of a counter may
/// follow. In this case, the handler does not report the next unclaimed NMI on this processor as unknown if that NMI
/// comes within 100 ms.
///
/// ```
/// use pmu_core::Claim;
/// /// The part of a kernel's NMI handler that comes after all sources were asked. `true`: unknown NMI.
/// fn unknown(pmu: Claim, others: u32, swallow_until: &mut u64, now_ms: u64) -> bool {
///     let claimed = pmu.interrupts() + others;
///     if claimed > 1 {
///         *swallow_until = now_ms + 100;
///     }
///     claimed == 0 && now_ms >= core::mem::take(swallow_until)
/// }
/// let mut swallow = 0;
/// assert!(!unknown(Claim::OursAndMore, 0, &mut swallow, 1000));
/// assert!(!unknown(Claim::NotOurs, 0, &mut swallow, 1001));
/// assert!(unknown(Claim::NotOurs, 0, &mut swallow, 1002));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Claim {
    /// The session had no overflow: the interrupt belongs to another driver, or is unknown.
    NotOurs,
    /// The interrupt belongs to the session.
    Ours,
    /// The interrupt belongs to the session. The session's counters may raise one more interrupt, which will be
    /// spurious.
    OursAndMore,
}

impl Claim {
    /// Returns the number of interrupts that the claim stands for: 0 for [`NotOurs`](Self::NotOurs), 1 for
    /// [`Ours`](Self::Ours), 2 for [`OursAndMore`](Self::OursAndMore).
    ///
    /// ```
    /// # use pmu_core::Claim;
    /// /// Returns the number of further NMIs to expect, from the claims of all drivers that share the NMI.
    /// fn expected_nmis(claims: &[Claim]) -> u32 {
    ///     claims.iter().map(|claim| claim.interrupts()).sum::<u32>().saturating_sub(1)
    /// }
    /// assert_eq!(expected_nmis(&[Claim::NotOurs, Claim::OursAndMore]), 1);
    /// ```
    pub const fn interrupts(self) -> u32 {
        self as u32
    }

    /// Returns the claim of these interrupts and of the `others`.
    #[inline]
    pub(crate) const fn and(self, others: u32) -> Self {
        match (self, others) {
            (claim, 0) => claim,
            (Self::NotOurs, 1) => Self::Ours,
            _ => Self::OursAndMore,
        }
    }
}

impl CounterMemory {
    /// Claims an interrupt that came with these interrupts, itself included.
    #[inline]
    pub(crate) fn claim(&self, raised: u32) -> Claim {
        match raised {
            0 => self.claim_spurious(),
            1 => Claim::Ours,
            2.. => Claim::OursAndMore,
        }
    }

    /// Claims an interrupt for which no overflow was found: as the session's if a spurious one was expected, or if
    /// counters are just being taken.
    #[inline(never)] // 96 bytes of the Hermit-like glue.
    pub(crate) fn claim_spurious(&self) -> Claim {
        // NMIs collapse: one may stand for all that were expected. `OursAndMore` covers those still to come.
        match self.spurious_expected.swap(0, Ordering::Relaxed) {
            0 if !self.owner.is_initializing() => Claim::NotOurs,
            0 | 1 => Claim::Ours,
            _ => Claim::OursAndMore,
        }
    }

    /// Claims an interrupt that is not served: the session has no counters, or its service was `refused`. A
    /// service under way makes another pass. Also returns whether the counters are lent.
    #[cold]
    #[inline(never)] // 38 bytes of counters alone.
    pub(crate) fn unserved(&self, refused: bool) -> (Claim, bool) {
        if refused && self.serving.ask_again() {
            return (Claim::Ours, false);
        }
        let lent = !refused && self.is_lent();
        if lent {
            // The delivery may have masked the interrupt: the end of the window unmasks it.
            self.owner.note_interrupt();
        }
        (self.claim_spurious(), lent)
    }
}
