//! The facility of precise events.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::access::{AccessFault, RegisterAddress, RegisterBackend};
use pmu_core::error::{CounterError, NoFacility};
use pmu_core::facility::{
    Asked, EventControl, EventFacility, Facility, Interrupted, Recorded, Running, RunningEvent,
    Unsettled,
};
use pmu_core::precise::{NotPrecise, PreciseSample, Precision, SampleParts};
use pmu_core::registers::{CounterId, EventSelect};
use pmu_core::thread::Waiting;
use pmu_core::{CounterSet, Event, EventId};

use crate::precise::memory::{PAGE, PreciseMemory};
use crate::precise::model::LatencyEvent;
use crate::precise::reading::Reading;
use crate::precise::record::PreciseRecord;
use crate::precise::registers::{MSR_PEBS_FRONTEND, MSR_PEBS_LD_LAT_THRESHOLD};
use crate::precise::settle::Registers;
use crate::precise::state::{KNOWN, TAKEN};
use crate::precise::unit::PreciseUnit;

/// Intel's precise records (PEBS) of one processor: the facility by which a session's events can be
/// [precise](pmu_core::Event::precise). The processor writes a record to memory whenever such an event's counter
/// overflows, and loads the counter again.
///
/// The session's event source has the value, and so has the interrupt handler: see
/// [`Events::with`](pmu_core::Events::with). The processor writes nothing before the first precise event
/// runs.
///
/// # Context
/// Any context, including interrupt and NMI.
///
/// # Limitations
/// - A kernel with 32-bit words in its Debug Store (no DTES64) only decodes records.
/// - Records through Intel's Processor Trace, the upper halves of vector registers, and events with another extra
///   register than the front-end event's are not programmed.
/// - Before Sandy Bridge, which events are recorded is listed. From Sandy Bridge to Cascade Lake, an event that is not
///   precise has no record, and no error. Whether Goldmont records cycles is taken from Linux. Sandy Bridge's
///   microcode, which early records need, is not checked.
/// - The data sources of loads are decoded by tables of Linux perf: of P-cores to Nova Lake and Diamond Rapids, and of
///   E-cores from Gracemont to Nova Lake's; a core that is not listed has none. Of stores, only a hit of the
///   first-level cache is told, and none of E-cores and of Panther Cove.
/// - If counters run on in an interrupt (a processor that does not freeze as asked), a record of the handler's may
///   overwrite one that is being read. A late write of the index by such a processor may undo the index's reset, and
///   records are then reported twice.
/// - A window's end does not restore the latency's threshold and the front-end event's condition: the hypervisor
///   restores what its guest changed there.
#[derive(Clone, Copy, Debug)]
pub struct Pebs<'a> {
    pub(crate) unit: &'a PreciseUnit,
    pub(crate) memory: &'static PreciseMemory,
    /// The buffer's physical address, for architectural PEBS.
    pub(crate) physical: u64,
    /// The records that this interrupt reads.
    pub(crate) reading: Option<Reading>,
    /// The next interrupt reads all records.
    pub(crate) all: bool,
}

impl<'a> Pebs<'a> {
    /// Makes the facility of one processor. `physical` is the physical address of the memory's buffer; [architectural
    /// PEBS](PreciseUnit::needs_physical_address) needs it.
    ///
    /// # Errors
    /// - [`BufferSize`](NoFacility::BufferSize).
    /// - [`NoPhysicalAddress`](NoFacility::NoPhysicalAddress): with architectural PEBS, the buffer is not 2ⁿ pages, or
    ///   `physical` is no address of a page.
    ///
    /// # Safety
    /// As long as a session has the facility:
    /// - `unit` describes the processor of the session.
    /// - The memory's pages are mapped and writable in *every* address space in which this processor runs. With kernel
    ///   page-table isolation, this includes the page tables of user mode.
    /// - `memory` is used on this processor only.
    /// - No other code writes `IA32_DS_AREA`, `IA32_PEBS_ENABLE`, `IA32_PEBS_BASE` or the words of the memory's
    ///   [area](PreciseMemory::control_area).
    /// - If `physical` is given, the buffer is physically contiguous, and `physical` is the buffer's physical address.
    /// - If the registers lose their contents, as in a suspend, the session is
    ///   [suspended](pmu_core::CounterSession::suspend) before, or
    ///   [programmed again](pmu_core::CounterSession::reprogram) before its next operation.
    /// - The session's MSR backend writes each given value to its register exactly once. It does not keep the
    ///   [`RegisterAddress`](pmu_core::access::RegisterAddress) of a register, and does not pass the address to other
    ///   safe code.
    ///
    /// ```
    /// use core::sync::atomic::AtomicU64;
    /// use pmu_core::{CounterUnit, Events};
    /// use pmu_core::memory::{EventEntry, EventTable};
    /// use pmu_intel::precise::{Pebs, PreciseMemory, PreciseUnit};
    /// static RECORDS: PreciseMemory<[AtomicU64; 8192]> = PreciseMemory::new(); // one per processor
    /// static EVENTS: EventTable<[EventEntry; 8]> = EventTable::new(); // one per processor
    ///
    /// fn events<'a>(counters: &'a CounterUnit, unit: &'a PreciseUnit) -> Events<'a, CounterUnit, Option<Pebs<'a>>> {
    ///     // SAFETY: RECORDS is this processor's alone. The kernel's statics are mapped, writable, in each address
    ///     // space. The kernel has no other driver of the Debug Store. Its backend keeps no address.
    ///     let pebs = unsafe { Pebs::new(unit, &RECORDS, None) };
    ///     Events::new(counters, &EVENTS).with(pebs.ok())
    /// }
    /// ```
    ///
    /// Two facilities of one source are a pair, in either order:
    ///
    /// ```
    /// use pmu_core::{CounterUnit, Events, Sample};
    /// use pmu_core::branches::{BranchMemory, BranchSlot, BranchUnit, Branches};
    /// use pmu_core::memory::EventTable;
    /// use pmu_intel::precise::{Pebs, PreciseRecord};
    /// static BRANCHES: BranchMemory<[BranchSlot; 32]> = BranchMemory::new(); // one per processor
    ///
    /// type Both<'a> = (Option<Pebs<'a>>, Branches<'a>);
    /// fn events<'a>(
    ///     counters: &'a CounterUnit,
    ///     table: &'a EventTable,
    ///     pebs: Option<Pebs<'a>>,
    ///     branches: &'a BranchUnit, // of `pmu_intel::branches`
    /// ) -> Events<'a, CounterUnit, Both<'a>> {
    ///     Events::new(counters, table).with((pebs, Branches::new(branches, &BRANCHES)))
    /// }
    /// /// Returns the record of a sample.
    /// fn record(sample: &Sample<'_, Both<'_>>) -> Option<PreciseRecord<'static>> {
    ///     let (pebs, _) = sample.facility()?;
    ///     pebs.as_ref()?.record()
    /// }
    /// ```
    ///
    /// Wrong: two processors use the same memory.
    ///
    /// ```
    /// # use core::sync::atomic::AtomicU64;
    /// # use pmu_core::error::NoFacility;
    /// # use pmu_intel::precise::{Pebs, PreciseMemory, PreciseUnit};
    /// static RECORDS: PreciseMemory<[AtomicU64; 8192]> = PreciseMemory::new();
    /// /// Each processor calls this.
    /// fn pebs(unit: &PreciseUnit) -> Result<Pebs<'_>, NoFacility> {
    ///     // SAFETY: not given. Both processors write records to the same places.
    ///     unsafe { Pebs::new(unit, &RECORDS, None) }
    /// }
    /// ```
    pub unsafe fn new(
        unit: &'a PreciseUnit,
        memory: &'static PreciseMemory,
        physical: Option<u64>,
    ) -> Result<Self, NoFacility> {
        let pages = memory.capacity() / PAGE;
        if pages == 0 || !memory.capacity().is_multiple_of(PAGE) {
            return Err(NoFacility::BufferSize);
        }
        let physical = physical.filter(|address| address.is_multiple_of(PAGE as u64));
        if unit.needs_physical_address() && (!pages.is_power_of_two() || physical.is_none()) {
            return Err(NoFacility::NoPhysicalAddress);
        }
        let physical = physical.unwrap_or(0);
        Ok(Self { unit, memory, physical, reading: None, all: false })
    }

    /// Returns the record of the sample that is being reported, limited to the privilege levels that the
    /// event counts.
    ///
    /// ```
    /// use pmu_core::Sample;
    /// use pmu_intel::precise::{GeneralRegister, Pebs};
    /// /// Returns the stack pointer at the sampled instruction.
    /// fn stack_pointer(sample: &Sample<'_, Option<Pebs<'_>>>) -> Option<u64> {
    ///     let record = sample.facility()?.as_ref()?.record()?;
    ///     record.registers()?.get(GeneralRegister::Rsp)
    /// }
    /// ```
    pub fn record(&self) -> Option<PreciseRecord<'static>> {
        self.reading.as_ref()?.shown().map(|(record, _)| record)
    }
}

impl EventFacility for Pebs<'_> {
    const OFFERS: bool = true;

    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> Result<CounterSet, CounterError> {
        self.unit.resolve(asked, counters)
    }

    /// An overflow is recorded, and does not interrupt.
    fn control(&self, event: &RunningEvent<'_>) -> EventControl {
        let silent = event.precision().is_some();
        let adaptive = silent && self.unit.has_adaptive_control() && !event.parts().is_empty();
        EventControl { silent, adaptive }
    }

    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        Registers { pebs: self, msr }.settle(running)
    }

    fn lose(&self) {
        self.memory.state.clear(KNOWN);
    }

    fn needs_stopped(&self, running: &Running<'_>) -> CounterSet {
        self.changes_all(running)
    }

    fn left_over(&self, running: &Running<'_>) -> CounterSet {
        let enabled = self.memory.state.enabled().iter();
        enabled.filter(|counter| !self.is_described(*counter, running)).collect()
    }

    fn leave<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
        event: &RunningEvent<'_>,
    ) -> Result<Waiting, AccessFault> {
        self.leave_waiting(msr, counter, event)
    }

    fn waiting<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
    ) -> Result<Waiting, AccessFault> {
        self.count_waiting(msr, counter)
    }

    fn has_waiting<M: RegisterBackend>(&self, msr: &M) -> Result<bool, AccessFault> {
        if !self.memory.state.is(TAKEN) {
            return Ok(false);
        }
        Ok(self.filled(msr)? != 0)
    }

    fn collecting_all(self) -> Self {
        Self { all: true, ..self }
    }

    fn forget(&self, event: EventId) {
        self.memory.state.forget(event);
    }

    fn is_newest(&self) -> bool {
        self.reading.as_ref().is_none_or(|reading| !reading.left && !self.has_more())
    }

    fn instruction(&self, _: CounterId) -> Option<PreciseSample> {
        let (record, access) = self.reading.as_ref()?.shown()?;
        Some(self.unit.sample(&record, access))
    }
}

impl Pebs<'_> {
    /// Returns the number of events for which the processor loads a counter after each record.
    pub(crate) fn reload_of(&self, counter: CounterId) -> u64 {
        self.memory.state.slot(counter).map_or(0, |slot| slot.reload.load(Relaxed))
    }
}

/// Bits of a select that say what is counted: all but the modes, `EN`, `INT`, `PC`, and the bits from 32 on.
const EVENT: u64 = 0xFF84_FFFF;

impl PreciseUnit {
    /// Meets a request for precise samples that the processor can record.
    pub(crate) fn resolve(
        &self,
        asked: &mut Asked,
        counters: CounterSet,
    ) -> Result<CounterSet, CounterError> {
        // A sampling unit's is another facility's.
        let precision = asked.precision.filter(|_| !asked.select.is_of_unit());
        let Some(precision) = precision else { return Ok(counters) };
        let capable = self.capable_of(asked, precision, counters);
        let capable = capable.map_err(CounterError::NotPrecise)?;
        let mut counters = counters & capable;
        if let Some(instead) = self.instead(asked.select, precision) {
            let others = asked.select.select_bits() & !EVENT;
            asked.select = EventSelect::from_bits(others | instead.select_bits());
            counters = counters & self.counters.counters_of(&Event::raw(instead))?;
        }
        // SAFETY: the value selects loads, and changes no memory.
        let register = unsafe { RegisterAddress::new(MSR_PEBS_LD_LAT_THRESHOLD) };
        asked.latency_register = asked.latency.take().map(|_| register);
        (asked.precision, asked.parts) = (None, SampleParts::NONE);
        Ok(counters)
    }

    /// Returns the counters that can record an event, which these counters can count.
    fn capable_of(
        &self,
        asked: &mut Asked,
        precision: Precision,
        counters: CounterSet,
    ) -> Result<CounterSet, NotPrecise> {
        if !asked.samples {
            return Err(NotPrecise::NoPeriod);
        }
        // In a guest the processor would write the record to the guest's memory.
        if asked.in_guests_only || !self.takes_extra(asked) {
            return Err(NotPrecise::Unsupported);
        }
        let select = self.instead(asked.select, precision).unwrap_or(asked.select);
        if !self.can_record(select) {
            return Err(NotPrecise::Event);
        }
        if precision > Precision::ConstantSkid && !self.format().has_own_address() {
            return Err(NotPrecise::NextAddressOnly);
        }
        let lacking = asked.parts.without(self.groups());
        if !lacking.is_empty() {
            return Err(NotPrecise::Parts(lacking));
        }
        let mut capable = self.counters();
        let number = select.select_bits() as u16;
        match self.model.latency_event().filter(|latency| latency.event == number) {
            Some(_) if asked.latency.is_none_or(|cycles| cycles == 0) => {
                return Err(NotPrecise::NoLatency);
            }
            Some(LatencyEvent { counters, beside, .. }) => {
                capable = capable & counters;
                asked.beside = (beside != 0).then_some(beside);
            }
            None if asked.latency.is_some() => return Err(NotPrecise::NotLatencyEvent),
            None => {}
        }
        if precision == Precision::ZeroSkidRequired {
            let only = self.model.exact_event;
            capable = capable & self.exact_counters();
            if (counters & capable).is_empty() || only != 0 && only != number && !self.is_baseline()
            {
                return Err(NotPrecise::NoExactCounter);
            }
        }
        Ok(capable)
    }

    /// Returns whether records can be written of an event with its extra register: only the condition of a front-end
    /// event.
    fn takes_extra(&self, asked: &Asked) -> bool {
        let Some((register, condition)) = asked.extra else { return true };
        asked.latency.is_none()
            && self.has_frontend()
            && register.get() == MSR_PEBS_FRONTEND
            && FRONTEND_EVENTS.contains(&(asked.select.select_bits() as u16))
            && condition & !FRONTEND_BITS == 0
    }

    /// Returns the event that is counted in place of cycles, if the processor writes no records of cycles.
    fn instead(&self, select: EventSelect, precision: Precision) -> Option<EventSelect> {
        let is_cycles = select.select_bits() & EVENT == 0x3C;
        self.model.cycles(precision).filter(|_| is_cycles)
    }
}

/// Front-end events: `FRONTEND_RETIRED` with its unit masks, and the events of E-cores.
const FRONTEND_EVENTS: [u16; 5] = [0x01C6, 0x02C6, 0x03C6, 0x04C2, 0x40AD];

/// The bits of `MSR_PEBS_FRONTEND`.
const FRONTEND_BITS: u64 = 0x7F_FFFF;

/// Periods from here on may be parts of longer ones: at least half of what a counter can take.
pub(crate) const LEAST_PART: u64 = 1 << 30;

impl Facility for Pebs<'_> {
    const RECORDS: bool = true;

    #[inline]
    fn is_idle(&self) -> bool {
        self.memory.is_idle()
    }

    fn status_bits(&self) -> u64 {
        if self.memory.state.is(TAKEN) { self.unit.status_bit() } else { 0 }
    }

    fn own_counters(&self) -> CounterSet {
        self.recording()
    }

    fn collect<M: RegisterBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        if !self.memory.state.is(TAKEN) {
            return Ok(0);
        }
        let interrupts = match interrupted.status {
            // Another owner's interrupt, or a status that could not be read: the buffer's own threshold tells.
            0 => self.memory.interrupts(self.unit, msr)?,
            status => status & self.status_bits() != 0,
        };
        if interrupts || self.all {
            self.begin_reading(msr)?;
        }
        Ok(interrupts.into())
    }

    fn has_records(&self) -> bool {
        self.reading.is_some() && self.has_more()
    }

    fn next_record(&mut self) -> Option<Recorded> {
        self.next_recorded()
    }

    fn set_reload<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
        events: u64,
    ) -> Result<(), AccessFault> {
        let state = &self.memory.state;
        let Some(slot) = state.slot(counter).filter(|_| self.recording().contains(counter)) else {
            return Ok(());
        };
        let registers = Registers { pebs: self, msr };
        slot.reload.store(events, core::sync::atomic::Ordering::Relaxed);
        if events >= LEAST_PART {
            // The interrupt begins the next part.
            registers.interrupt_for_each()?;
        }
        if self.unit.needs_physical_address() {
            return registers.write_control(counter, true);
        }
        if let Some(of_counter) = self.unit.counters.counter(counter) {
            registers.set_reset(counter, of_counter.preload(events));
        }
        Ok(())
    }
}

/// The fill level of the buffer of precise records at which the processor interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PreciseThreshold {
    /// The processor interrupts for each record.
    #[default]
    EachRecord,
    /// The processor interrupts when the rest of the buffer has room for only one record per counter. One interrupt
    /// then reports many records, so the size of the buffer limits the time of the interrupt. After an event has left
    /// its counter while its records wait, each record interrupts until a precise event next starts, stops or takes its
    /// turn. A task reports records that wait by [`report_samples`](pmu_core::CounterSession::report_samples).
    NearlyFull,
}
