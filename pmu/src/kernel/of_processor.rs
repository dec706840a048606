//! The memory of one processor.

use core::ptr;
use core::sync::atomic::AtomicBool;

use pmu_core::profile::{Session, WithOpenedEvents};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{CounterMemory, CounterSlot, CounterUnit, EventEntry, EventId, EventTable};

use crate::kernel::duties::KernelApic;
use crate::kernel::facilities::Facilities;
use crate::kernel::required::Kernel;
use crate::kernel::sources::MachineSources;
use crate::per_processor::OnProcessor;
use crate::watchdog::Watchdog;

/// The [`Session`] that a [`Pmu`](crate::Pmu) has for each processor. The session controls the counters of the
/// machine's profile sources, of [added](pmu_core::profile::AddedSources) sources, and of
/// [opened](pmu_core::CounterSession::open_event) events.
pub type PmuSession<K> = Session<'static, PmuSource<K>, <K as Kernel>::Msr, KernelApic<K>>;

/// The sources, the opened events and the [facilities](crate::Facilities) of one processor.
pub type PmuSource<K> = WithOpenedEvents<
    'static,
    MachineSources<K>,
    <<K as Kernel>::Facilities as Facilities>::Facility,
>;

/// Memory that the interrupt and the tasks of one processor share.
pub(super) struct OfProcessor<K: Kernel, const E: usize> {
    pub(super) counters: CounterMemory<[CounterSlot; MAX_COUNTERS]>,
    pub(super) events: EventTable<[EventEntry; E]>,
    pub(super) facilities: K::Facilities,
    pub(super) watchdog: Watchdog,
    /// The processor has a session.
    pub(super) is_up: AtomicBool,
    /// A request came while the session was in use: whoever uses the session serves the request afterwards.
    pub(super) is_asked: AtomicBool,
}

impl<K: Kernel, const E: usize> OfProcessor<K, E> {
    pub(super) const fn new() -> Self {
        Self {
            counters: CounterMemory::new(),
            events: EventTable::new(),
            facilities: K::Facilities::NEW,
            watchdog: Watchdog::new(),
            is_up: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
        }
    }

    /// Returns the sources and events of the processor, and its facilities.
    #[inline]
    pub(super) fn source(&'static self, sources: &'static MachineSources<K>) -> PmuSource<K> {
        WithOpenedEvents::new(sources, &self.events).with(self.facilities.facility())
    }

    /// Returns the tag of the watchdog's event: an address, which no event of the kernel has. So the watchdog does not
    /// take an event for its own that the kernel opened at the place of a closed one.
    #[inline]
    pub(super) fn watchdog_tag(&self) -> u64 {
        ptr::from_ref(&self.watchdog).addr() as u64
    }

    /// Returns the watchdog's event, if it is open.
    pub(super) fn watched(&self, here: &mut Here<K>) -> Option<EventId> {
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
