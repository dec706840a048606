//! The memory of one processor.

use core::ptr;
use core::sync::atomic::AtomicBool;

use pmu_core::{
    CounterMemory, CounterSlot, CounterUnit, EventEntry, EventId, EventTable, MAX_COUNTERS,
    Session, WithOpenedEvents,
};

use crate::kernel::duties::KernelApic;
use crate::kernel::required::Kernel;
use crate::kernel::sources::MachineSources;
use crate::per_processor::OnProcessor;
use crate::watchdog::Watchdog;

/// The [`Session`] that a [`Pmu`](crate::Pmu) has for each processor. The session controls the counters of the
/// machine's profile sources, of [added](pmu_core::AddedSources) sources, and of
/// [opened](pmu_core::CounterSession::open_event) events.
pub type PmuSession<K> = Session<
    'static,
    WithOpenedEvents<'static, MachineSources<K>>,
    <K as Kernel>::Msr,
    KernelApic<K>,
>;

/// Memory that the interrupt and the tasks of one processor share.
pub(super) struct OfProcessor<const E: usize> {
    pub(super) counters: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    pub(super) events: EventTable<[EventEntry; E]>,
    pub(super) watchdog: Watchdog,
    /// The processor has a session.
    pub(super) is_up: AtomicBool,
    /// A request came while the session was in use: whoever uses the session serves the request afterwards.
    pub(super) is_asked: AtomicBool,
}

impl<const E: usize> OfProcessor<E> {
    pub(super) const fn new() -> Self {
        Self {
            counters: CounterMemory::new(),
            events: EventTable::new(),
            watchdog: Watchdog::new(),
            is_up: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
        }
    }

    /// Returns the tag of the watchdog's event: an address, which no event of the kernel has. So the watchdog does not
    /// take an event for its own that the kernel opened at the place of a closed one.
    #[inline]
    pub(super) fn watchdog_tag(&self) -> u64 {
        ptr::from_ref(&self.watchdog).addr() as u64
    }

    /// Returns the watchdog's event, if it is open.
    pub(super) fn watched<K: Kernel>(&self, here: &mut Here<K>) -> Option<EventId> {
        let event = self.watchdog.watched()?;
        let tag = here.session.counters_mut().event_tag(event);
        (tag == Ok(self.watchdog_tag())).then_some(event)
    }
}

/// State of one processor that only its tasks use.
pub(super) struct Here<K: Kernel> {
    pub(super) session: PmuSession<K>,
    /// This processor's counters: to make the description takes some hundred instructions of CPUID's leaves.
    pub(super) unit: CounterUnit,
    /// The session is suspended, and is not used until it is resumed.
    pub(super) is_suspended: bool,
}

// SAFETY: (1) as for a session, which is not `Send` so that it stays on its processor: what it holds is sent (`Msr`),
// or shared (the machine, the counters' memory); (2) a unit is plain data.
unsafe impl<K: Kernel> OnProcessor for Here<K> {}
