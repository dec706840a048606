//! Intel's auto counter reload: an overflow loads other counters, without an interrupt.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::access::address::RegisterAddress;
use crate::access::backend::{AccessFault, RegisterAccess, RegisterBackend};
use crate::counters::error::CounterError;
use crate::counters::events::count::Membership;
use crate::counters::hooks::event_facility::EventFacility;
use crate::counters::hooks::facility::Facility;
use crate::counters::hooks::running::{Asked, EventControl, Running, RunningEvent, Unsettled};
use crate::counters::names::{CounterId, CounterSet, MAX_COUNTERS};

/// Intel's auto counter reload of one processor, for the [source](crate::EventSource) of its events. A session with
/// this facility may open groups in which the overflow of one event [reloads](crate::Event::reloaded_by) the counters
/// of others.
///
/// Before a session uses a counter, it clears the counter's reload registers: firmware or an earlier kernel may have
/// left values there. While the counters are [lent](crate::CounterSession::lend), no overflow reloads a counter.
///
/// The example samples mispredicted branches only in code in which such branches are frequent. After every 100,000
/// branches, the count of mispredicted branches starts again from 0. An interrupt comes only if 5,000 of 100,000
/// branches were mispredicted:
///
/// ```
/// use pmu_core::{CounterSession, CounterUnit, Event, EventId, Events, GenericEvent, Hardware};
/// use pmu_core::error::EventsError;
/// use pmu_core::memory::EventTable;
/// use pmu_core::reload::{AutoCounterReload, CounterReload, ReloadMemory};
/// static RELOADS: ReloadMemory = ReloadMemory::new(); // one per processor
///
/// type Source<'a> = Events<'a, CounterUnit, AutoCounterReload<'a>>;
///
/// /// The source of a processor: `reload` is what `pmu_intel::counter_reload` says of it.
/// fn source<'a>(unit: &'a CounterUnit, events: &'a EventTable, reload: &'a CounterReload) -> Source<'a> {
///     Events::new(unit, events).with(AutoCounterReload::new(reload, &RELOADS))
/// }
///
/// fn open<H: Hardware>(
///     counters: &mut CounterSession<'_, Source<'_>, H>,
///     this_processor: &CounterUnit,
/// ) -> Result<EventId, EventsError> {
///     let misses = Event::generic(GenericEvent::BranchMisses).every(5_000).reloaded_by(0b10);
///     // The second event of the group reloads the first, and itself: it never interrupts.
///     let branches = Event::generic(GenericEvent::Branches).every(100_000).reloaded_by(0b10);
///     counters.open(this_processor, &[misses, branches])
/// }
/// ```
///
/// # Limitations
/// - An event names events among the first six of its group. A counter that is reloaded keeps no total, and none is
///   reloaded while counters are lent.
/// - A change of a running event's period (`EventTable::set_period`) changes the reload value when the event starts
///   next.
/// - If a counter has both counter reload and architectural PEBS, a record has the values that the counters have after
///   the reload; what a processor records is unknown.
#[derive(Clone, Copy, Debug)]
pub struct AutoCounterReload<'a> {
    reload: &'a CounterReload,
    memory: &'a ReloadMemory,
}

impl<'a> AutoCounterReload<'a> {
    /// Creates the facility of a processor. `reload` describes the processor's reload registers, and `memory` records
    /// their values.
    pub const fn new(reload: &'a CounterReload, memory: &'a ReloadMemory) -> Self {
        Self { reload, memory }
    }

    /// Lets the overflows of `causes` reload a counter with `value`, if there are causes. A register that holds its
    /// value already is not written.
    fn set(
        &self,
        msr: &impl RegisterBackend,
        (counter, first): (CounterId, RegisterAddress),
        (causes, value): (CounterSet, u32),
    ) -> Result<(), AccessFault> {
        let (place, reload, memory) = (counter.place(), self.reload, self.memory);
        let (Some(known), Some(loaded)) = (memory.causes.get(place), memory.values.get(place))
        else {
            return Ok(());
        };
        let wanted = KNOWN | causes.bits();
        let has_causes = known.load(Relaxed) == wanted;
        let has_value = causes.is_empty() || has_causes && loaded.load(Relaxed) == value;
        if has_causes && has_value || !reload.reloaded.contains(counter) {
            return Ok(());
        }
        let distant = |distance: u32| first.get().wrapping_add(distance);
        // SAFETY: the registers of reloading, by the promise of `CounterReload::new`.
        let register = |distance: u32| unsafe { RegisterAddress::new(distant(distance)) };
        // Forgotten before the writes: after a failure, the registers hold neither the old values for sure nor the new
        // ones.
        known.store(0, Relaxed);
        // The value before the causes: once these are written, an overflow may load it.
        if !has_value {
            msr.write_retrying(register(reload.value), value.into())?;
            loaded.store(value, Relaxed);
        }
        if !has_causes {
            msr.write_retrying(register(reload.causes), causes.bits())?;
        }
        known.store(wanted, Relaxed);
        Ok(())
    }
}

/// The processor reloads the counters by itself.
impl Facility for AutoCounterReload<'_> {
    #[inline]
    fn is_idle(&self) -> bool {
        true
    }
}

impl EventFacility for AutoCounterReload<'_> {
    const OFFERS: bool = true;

    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> Result<CounterSet, CounterError> {
        let Asked { reloaded, reloads, .. } = *asked;
        (asked.reloaded, asked.reloads) = (false, false);
        let reloaded = if reloaded { self.reload.reloaded } else { CounterSet::ALL };
        let causing = if reloads { self.reload.causing } else { CounterSet::ALL };
        Ok(counters & reloaded & causing)
    }

    fn control(&self, event: &RunningEvent<'_>) -> EventControl {
        EventControl { silent: event.reloads_itself(), adaptive: false }
    }

    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let mut outcome: Result<(), Unsettled> = Ok(());
        for counter in running.counters().iter() {
            let period = running.on(counter).map_or(0, |event| event.period());
            let value = (period.min(Membership::MAX_RELOAD) as u32).wrapping_neg();
            let first = running.registers(counter).value_register();
            let wanted = (running.reloaded_by(counter), value);
            if let Err(fault) = self.set(msr, (counter, first), wanted) {
                let unsettled =
                    outcome.err().unwrap_or(Unsettled { counters: CounterSet::NONE, fault });
                let counters = unsettled.counters | counter.only();
                outcome = Err(Unsettled { counters, ..unsettled });
            }
        }
        outcome
    }

    fn lose(&self) {
        self.memory.causes.iter().for_each(|causes| causes.store(0, Relaxed));
    }
}

/// Description of the registers of Intel's auto counter reload. With auto counter reload, an overflow of a counter
/// reloads other counters, or the counter itself, without an interrupt. Each counter has two registers, at fixed
/// distances from its value register. The first register is a bitmap of the counters whose overflows reload this
/// counter. The second register contains the value that is loaded into this counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CounterReload {
    causes: u32,
    value: u32,
    reloaded: CounterSet,
    causing: CounterSet,
}

impl CounterReload {
    /// Describes the reload registers of a processor's counters. Each counter in `reloaded` has two reload registers.
    /// `causes` and `value` are the distances of their addresses from the address of the counter's value register. The
    /// overflow of a counter in `causing` can reload other counters.
    ///
    /// # Safety
    /// - Each counter in `reloaded` has two registers with these contents. The register at the distance `causes`
    ///   contains a bitmap of counters. The register at the distance `value` contains bits 31:0 of the value that an
    ///   overflow loads. No value of these registers makes the processor write to memory.
    ///
    /// ```
    /// use pmu_core::reload::CounterReload;
    /// use pmu_core::CounterSet;
    /// let counters = CounterSet::from_bits(0xFF);
    /// // SAFETY: CFG_B and CFG_C are IA32_PMC_GP0_CTR + 2 and + 3. Bits 31:0 of CFG_C are the reload value.
    /// let reload = unsafe { CounterReload::new(2, 3, counters, counters) };
    /// assert_eq!(reload.reloaded(), counters);
    /// ```
    ///
    /// Wrong: distances of registers that hold addresses.
    ///
    /// ```
    /// # use pmu_core::reload::CounterReload;
    /// # use pmu_core::CounterSet;
    /// // SAFETY: not given. 0x3F4 is IA32_PEBS_BASE, the address of a buffer that the processor writes.
    /// let other = unsafe { CounterReload::new(0x3F4 - 0xC1, 3, CounterSet::from_bits(1), CounterSet::NONE) };
    /// # let _ = other;
    /// ```
    pub const unsafe fn new(
        causes: u32,
        value: u32,
        reloaded: CounterSet,
        causing: CounterSet,
    ) -> Self {
        Self { causes, value, reloaded, causing }
    }

    /// Returns the counters that have reload registers. An overflow can reload each of these counters.
    pub const fn reloaded(&self) -> CounterSet {
        self.reloaded
    }

    /// Returns the counters whose overflow can reload other counters.
    pub const fn causing(&self) -> CounterSet {
        self.causing
    }
}

/// Memory for the reload registers of one processor: 12 bytes per counter.
///
/// The embedder lends the memory to a session, through [`AutoCounterReload`].
///
/// ```
/// use pmu_core::reload::ReloadMemory;
/// static RELOADS: [ReloadMemory; 2] = [const { ReloadMemory::new() }; 2]; // one per processor
/// # let _ = &RELOADS;
/// ```
#[derive(Debug)]
pub struct ReloadMemory {
    /// The counters that reload each counter, and above them [`KNOWN`].
    causes: [AtomicU64; MAX_COUNTERS],
    values: [AtomicU32; MAX_COUNTERS],
}

/// Set if the register holds the bits below.
const KNOWN: u64 = 1 << 63;

impl ReloadMemory {
    /// Creates memory for a processor whose reload registers still hold unknown values.
    pub const fn new() -> Self {
        Self {
            causes: [const { AtomicU64::new(0) }; MAX_COUNTERS],
            values: [const { AtomicU32::new(0) }; MAX_COUNTERS],
        }
    }
}

impl Default for ReloadMemory {
    fn default() -> Self {
        Self::new()
    }
}
