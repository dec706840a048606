//! The memory in which the interrupt path finds a processor's counters.

use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crate::counters::names::{CounterId, CounterSet, EventId};
use crate::counters::shared::owner::Owner;
use crate::counters::shared::serving::Serving;
use crate::counters::shared::slot::{CounterSlot, SlotState};
use crate::counters::shared::table::EventTable;

/// Memory for the counters of one processor: 8 bytes per counter, plus 32 bytes.
///
/// The embedder lends the memory to a [`CounterSession`](crate::CounterSession) for as long as the processor counts.
/// The memory is commonly an element of a static array with one element per processor. [`service`](crate::service())
/// needs this memory, but not the session. The memory also records whether a session uses it. `service` may therefore
/// be called at any time. `&CounterMemory<[CounterSlot; N]>` coerces to `&CounterMemory`.
///
/// ```
/// use pmu_core::memory::{CounterMemory, CounterSlot};
/// use pmu_core::registers::MAX_COUNTERS;
/// const PROCESSORS: usize = 4;
/// static MEMORY: [CounterMemory<[CounterSlot; MAX_COUNTERS]>; PROCESSORS] =
///     [const { CounterMemory::new() }; PROCESSORS];
/// let of_processor_0: &CounterMemory = &MEMORY[0];
/// ```
#[derive(Debug)]
pub struct CounterMemory<S: ?Sized = [CounterSlot]> {
    /// Value of the global control register while the counters run: the other owners' bits, and the session's. The
    /// interrupt path leaves the register with this value.
    pub(crate) global_control: AtomicU64,
    /// Value of the fixed counters' control: the other owners' bits, and the session's. The interrupt path does not
    /// write this register.
    pub(crate) fixed_control: AtomicU64,
    /// Bits of the counters that the session has verified. If no bit is set, the registers belong to other owners.
    verified: AtomicU64,
    pub(crate) owner: Owner,
    pub(crate) serving: Serving,
    /// Number of spurious interrupts that may still come, of overflows that were already reported or dropped.
    pub(crate) spurious_expected: AtomicU8,
    /// The processor freezes its counters when it raises the performance interrupt.
    pub(crate) freezes: AtomicBool,
    /// The freeze bit was set before the session set it.
    pub(crate) froze_before: AtomicBool,
    /// The processor declares precise sampling.
    pub(crate) precise: AtomicBool,
    /// The counters can be written in full width.
    pub(crate) full_width: AtomicBool,
    /// Index of the first fixed counter's slot, behind those of the general counters.
    pub(crate) first_fixed: AtomicU8,
    slots: S,
}

impl<const N: usize> CounterMemory<[CounterSlot; N]> {
    /// Creates memory with room for `N` counters, which no session has taken yet. If `N` is 0,
    /// [`take`](crate::CounterSession::take) fails with
    /// [`InsufficientMemory`](crate::error::CounterError::InsufficientMemory).
    pub const fn new() -> Self {
        Self {
            global_control: AtomicU64::new(0),
            fixed_control: AtomicU64::new(0),
            verified: AtomicU64::new(0),
            owner: Owner::new(),
            serving: Serving::new(),
            spurious_expected: AtomicU8::new(0),
            freezes: AtomicBool::new(false),
            froze_before: AtomicBool::new(false),
            precise: AtomicBool::new(false),
            full_width: AtomicBool::new(false),
            first_fixed: AtomicU8::new(0),
            slots: [const { CounterSlot::new() }; N],
        }
    }
}

impl<const N: usize> Default for CounterMemory<[CounterSlot; N]> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Deref for CounterMemory<[CounterSlot; N]> {
    type Target = CounterMemory;

    fn deref(&self) -> &CounterMemory {
        self
    }
}

impl CounterMemory {
    /// Returns the number of counters for which the memory has room.
    pub const fn counters(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether [`service`](crate::service()) would serve an interrupt now: a session has counters, which are
    /// neither lent nor just being programmed, and no service is under way.
    #[inline]
    pub fn is_served(&self) -> bool {
        !self.verified(CounterSet::ALL).is_empty() && self.serving.is_idle()
    }

    /// Returns those of `counters` that the session has verified, if a session has the memory.
    #[inline]
    pub(crate) fn verified(&self, counters: CounterSet) -> CounterSet {
        // Pairs with the release in `set_verified`: a reader that sees a counter's bit also sees its slot.
        counters.of_bits(self.verified.load(Ordering::Acquire))
    }

    /// Returns the index of a counter's slot: the general counters come first.
    #[inline]
    pub(crate) fn slot_index(&self, counter: CounterId) -> usize {
        let fixed = if counter.is_fixed() { self.first_fixed.load(Ordering::Relaxed) } else { 0 };
        usize::from(counter.number() + fixed)
    }

    /// Returns a counter's slot, if the memory has room for it.
    #[inline]
    pub(crate) fn slot(&self, counter: CounterId) -> Option<&CounterSlot> {
        self.slots.get(self.slot_index(counter))
    }

    /// Returns the slot of a general counter, if the memory has room for it.
    #[inline]
    pub(crate) fn general_slot(&self, counter: CounterId) -> Option<&CounterSlot> {
        self.slots.get(usize::from(counter.bit()))
    }

    /// Returns the counter on which an event of the processor's session runs. Returns `None` if the event does not run,
    /// or if its counter has faulted.
    ///
    /// ```
    /// # use pmu_core::EventId;
    /// # use pmu_core::memory::CounterMemory;
    /// /// The interrupt handler of a watchdog asks whether its event still runs.
    /// fn is_blind(memory: &CounterMemory, watchdog: EventId) -> bool {
    ///     memory.counter_of(watchdog).is_none()
    /// }
    /// ```
    ///
    /// # Context
    /// Any context, on the processor of this memory. This method is for interrupt handlers, which have no
    /// [`CounterSession`](crate::CounterSession).
    pub fn counter_of(&self, event: EventId) -> Option<CounterId> {
        let is_on = |counter: &CounterId| {
            let state = self.slot(*counter).map(CounterSlot::load);
            matches!(state, Some(SlotState::Running { event: of, .. }) if of == event)
        };
        self.verified(CounterSet::ALL).iter().find(is_on)
    }

    /// Marks the counters of an event and of the rest of its group as faulted: they may no longer count or interrupt
    /// together. If `event` is `None`, marks the counters of all events. Returns the marked counters.
    #[cold]
    #[inline(never)] // 416 bytes of counters with branches, at `opt-level` 3.
    pub(crate) fn mark_faulted(&self, event: Option<EventId>, opened: &EventTable) -> CounterSet {
        let first_fixed = usize::from(self.first_fixed.load(Ordering::Relaxed));
        let mut faulted = 0;
        for (place, slot) in self.slots.iter().enumerate() {
            if let Some(running) = slot.running()
                && event.is_none_or(|event| opened.are_together(event, running))
            {
                slot.store(SlotState::Faulted);
                let bit = if place < first_fixed { place } else { 32 + place - first_fixed };
                faulted |= 1u64.wrapping_shl(bit as u32);
            }
        }
        CounterSet::from_bits(faulted)
    }

    pub(crate) fn slots(&self) -> &[CounterSlot] {
        &self.slots
    }

    /// Takes the memory for a session that is being initialized. Returns `false` if it is taken already.
    pub(crate) fn take(&self) -> bool {
        self.owner.take()
    }

    /// Hands these counters to the interrupt path.
    pub(crate) fn publish(&self, verified: CounterSet) {
        // First: an interrupt that finds the counters must not find that it is masked, from before, which would keep it
        // from them.
        self.serving.reset();
        // In this order an interrupt in between is served or claimed, never left unclaimed.
        self.set_verified(verified);
        self.owner.publish();
    }

    /// Changes the counters of a session that has the memory.
    pub(crate) fn set_verified(&self, verified: CounterSet) {
        self.verified.store(verified.bits(), Ordering::Release);
    }

    /// Takes the counters from the interrupt path while they are programmed. Until they are [published](Self::publish)
    /// again, an interrupt is claimed, and touches no register.
    pub(crate) fn unpublish(&self) {
        // The owner first, as in `publish`: an interrupt in between is served or claimed.
        self.owner.unpublish();
        self.set_verified(CounterSet::NONE);
    }

    /// Takes the counters from the interrupt path while they are lent. Until they are [taken back](Self::take_back),
    /// an interrupt touches no register.
    pub(crate) fn lend(&self) {
        self.owner.lend();
        self.set_verified(CounterSet::NONE);
    }

    /// Returns whether the counters are lent.
    pub(crate) fn is_lent(&self) -> bool {
        self.owner.is_lent()
    }

    /// Hands lent counters to the interrupt path again. Returns whether an interrupt came while the counters were lent.
    pub(crate) fn take_back(&self, own: CounterSet) -> bool {
        // The counters first: an interrupt in between is served.
        self.set_verified(own);
        self.owner.take_back()
    }

    /// Gives the memory back: the interrupt path touches no register from here on.
    pub(crate) fn give_back(&self) {
        self.verified.store(0, Ordering::Release);
        self.freezes.store(false, Ordering::Relaxed);
        // Last: a session that takes the memory from here on sees the other fields reset.
        self.owner.give_back();
    }

    /// Releases the memory of a session that ended without [`shut_down`](crate::CounterSession::shut_down), for example
    /// in a panic of its driver. Another session can then take the memory. The old session's counters keep running
    /// until the next session takes them, or until [`stop_all`](crate::registers::stop_all) stops them.
    ///
    /// # Context
    /// Task, on the processor of this memory, while no interrupt of this processor is being serviced.
    ///
    /// # Safety
    /// - The old session is not used again. Otherwise the old session and the next session would share counters. Each
    ///   session would count and report events of the other session.
    ///
    /// ```
    /// # use pmu_core::memory::{CounterMemory, CounterSlot};
    /// # static MEMORY: CounterMemory<[CounterSlot; 8]> = CounterMemory::new();
    /// # let memory: &CounterMemory = &MEMORY;
    /// // SAFETY: the task that owned the session has ended, and the session with it.
    /// unsafe { memory.reclaim() };
    /// ```
    ///
    /// Wrong: `let mut session = …; memory.reclaim(); session.start(source)`.
    pub unsafe fn reclaim(&self) {
        self.give_back();
        // The driver may have unwound out of a service, after which every interrupt would only leave a note.
        self.serving.reset();
        // The old counters run on, and an overflow of theirs would interrupt without an owner.
        self.expect_spurious_after_shut_down();
    }

    /// Notes that up to this many more spurious interrupts may come.
    // Linked once: each stop may leave an overflow.
    #[inline(never)] // 80 bytes of the Hermit-like glue.
    pub(crate) fn expect_spurious(&self, interrupts: u32) {
        let more = interrupts.min(u8::MAX.into()) as u8;
        // An interrupt may claim all that are expected between a load and a store.
        let add = |spurious: u8| Some(spurious.saturating_add(more));
        let _ = self.spurious_expected.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Expects one spurious interrupt fewer: the counter had not overflowed.
    pub(crate) fn cancel_spurious(&self) {
        // Not below 0: an interrupt in between may have claimed it already.
        let subtract = |spurious: u8| Some(spurious.saturating_sub(1));
        let _ = self.spurious_expected.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
    }

    /// Notes that one spurious interrupt may come after the session's end.
    pub(crate) fn expect_spurious_after_shut_down(&self) {
        self.spurious_expected.fetch_max(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_eight_bytes_per_counter_and_32_more() {
        assert_eq!(size_of::<CounterMemory<[CounterSlot; 8]>>(), 8 * 8 + 32);
    }

    #[test]
    fn memory_is_taken_once_until_it_is_given_back() {
        let memory = CounterMemory::<[CounterSlot; 1]>::new();
        let memory: &CounterMemory = &memory;
        assert!(memory.take());
        assert!(!memory.take());
        memory.publish(CounterSet::from_bits(1));
        assert!(!memory.take());
        memory.give_back();
        assert!(memory.take());
    }
}
