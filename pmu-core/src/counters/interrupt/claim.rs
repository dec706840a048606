//! Claim of one interrupt, for a handler that several drivers share.

use core::sync::atomic::Ordering;

use crate::counters::shared::memory::{
    AGAIN, CounterMemory, IDLE, INITIALIZING, LENT_INTERRUPTED, MUTED, SERVING, WITH_FACILITY,
};

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
    /// asks the borrower, whatever the value of `claim`. If the interrupt's delivery masked the LVT entry, the entry
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
    #[inline(never)]
    pub(crate) fn claim_spurious(&self) -> Claim {
        match self.spurious_expected.swap(0, Ordering::Relaxed) {
            0 if self.owner.load(Ordering::Relaxed) != INITIALIZING => Claim::NotOurs,
            0 | 1 => Claim::Ours,
            _ => Claim::OursAndMore,
        }
    }

    /// Serves an interrupt by `pass`, and repeats it for interrupts that came meanwhile. Returns `false` if another
    /// service is under way, or if the LVT entry is masked. `facility` is [`WITH_FACILITY`] or 0.
    #[inline]
    pub(crate) fn serve(&self, facility: u8, pass: impl FnMut()) -> bool {
        let idle = self.is_idle();
        if idle {
            self.repeat(SERVING | facility, IDLE, pass);
        }
        idle
    }

    /// Serves a facility that needs no counter by `pass`, although the LVT entry is masked, or a service is under way
    /// that does not know the facility. That service makes another pass. Returns whether there is one; `None` if the
    /// service under way serves the facility.
    pub(crate) fn serve_alone(&self, pass: impl FnMut()) -> Option<bool> {
        let before = self.service.load(Ordering::Relaxed);
        if before & WITH_FACILITY != 0 {
            return None;
        }
        let is_nested = before & SERVING != 0;
        self.repeat(SERVING | WITH_FACILITY, if is_nested { AGAIN } else { before }, pass);
        Some(is_nested)
    }

    /// Repeats `pass` until no interrupt comes meanwhile.
    #[inline]
    fn repeat(&self, serving: u8, after: u8, mut pass: impl FnMut()) {
        loop {
            self.service.store(serving, Ordering::Relaxed);
            pass();
            let ended =
                self.service.compare_exchange(serving, after, Ordering::Relaxed, Ordering::Relaxed);
            if ended.is_ok() || ended == Err(MUTED) {
                return;
            }
        }
    }

    /// Claims an interrupt that is not served: the session has no counters, or [`serve`](Self::serve) `refused`. A
    /// service under way makes another pass. Also returns whether the counters are lent.
    #[cold]
    #[inline(never)]
    pub(crate) fn unserved(&self, refused: bool) -> (Claim, bool) {
        if refused && !self.is_muted() {
            self.service.fetch_or(AGAIN, Ordering::Relaxed);
            return (Claim::Ours, false);
        }
        let lent = !refused && self.is_lent();
        if lent {
            self.owner.store(LENT_INTERRUPTED, Ordering::Relaxed);
        }
        (self.claim_spurious(), lent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::shared::slot::CounterSlot;

    #[test]
    fn a_nested_service_leaves_a_note_for_the_one_under_way() {
        let memory = CounterMemory::<[CounterSlot; 1]>::new();
        let memory: &CounterMemory = &memory;
        let mut passes = 0;
        for passes_at_its_end in [3, 4] {
            let served = memory.serve(0, || {
                passes += 1;
                if passes < 3 {
                    for _ in 0..2 {
                        assert!(!memory.serve(0, || panic!("served while another is")));
                        let nested = memory.unserved(true);
                        assert_eq!(nested, (Claim::Ours, false));
                    }
                }
            });
            assert!(served);
            assert_eq!(passes, passes_at_its_end, "once more for each pass that was interrupted");
        }
    }
}
