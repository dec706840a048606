//! The facility of sampled fetches and ops.

use core::sync::atomic::Ordering::Relaxed;

use pmu_core::access::{AccessFault, RegisterAccess, RegisterAddress, RegisterBackend};
use pmu_core::error::CounterError;
use pmu_core::facility::{
    Asked, EventFacility, Facility, Interrupted, Recorded, Running, RunningEvent, UnitAccess,
    Unsettled,
};
use pmu_core::precise::{NotPrecise, PreciseSample, Precision, SampleParts};
use pmu_core::registers::{Counter, CounterId, EventSelect};
use pmu_core::thread::Waiting;
use pmu_core::{CounterSet, EventId, Hardware};

use crate::ibs::counter::{KINDS, UnitCounter};
use crate::ibs::memory::{
    ACTIVE, CAME, HELD, IbsMemory, LATE, LEFT, LEFT_HELD, RUNNING, STOPPING, TAKEN, TOOK, UNKNOWN,
    USABLE, UnitMemory,
};
use crate::ibs::record::IbsRecord;
use crate::ibs::registers::{IBS_CTL, IBS_FETCH_CTL, IbsCtl};
use crate::ibs::sampling::{IbsSampling, IbsSamplingError, Levels};
use crate::ibs::unit::{IbsKind, IbsUnit, IbsUnits};

/// AMD's instruction-based sampling (IBS) of one processor: the facility by which a session's events sample fetches and
/// ops. Its two units are two more counters of the session, [`FETCH_UNIT`](CounterId::FETCH_UNIT) and
/// [`OP_UNIT`](CounterId::OP_UNIT).
///
/// [`IbsSampling`] makes the events. An event of cycles (0x76) or of retired ops (0xC1) that is
/// [precise](pmu_core::Event::precise) is counted by the unit of ops, as in Linux. The precision of the samples
/// is [`ZeroSkidRequested`](Precision::ZeroSkidRequested) at most. A unit does not know guests: a hypervisor
/// [lends](pmu_core::CounterSession::lend) the counters while a guest runs, and intercepts the guest's accesses to the
/// units' registers.
///
/// The session's event source has the value, and so has the interrupt handler: see
/// [`Events::with`](pmu_core::Events::with).
///
/// ```
/// # use pmu_core::{Claim, CounterUnit, Hardware, service};
/// # use pmu_core::memory::CounterMemory;
/// # fn push(_address: u64, _latency: Option<u16>) {}
/// use pmu_amd::ibs::{Ibs, IbsMemory, IbsSampling, IbsUnits};
/// use pmu_core::{CounterSession, EventId, Events};
/// use pmu_core::error::EventsError;
/// static SAMPLING: IbsMemory = IbsMemory::new(); // one per processor
///
/// /// The events of the processor's session and of its handler: `Events::new(…).with(facility(…))`.
/// fn facility(units: Option<&IbsUnits>) -> Option<Ibs<'_>> {
///     units.map(|units| Ibs::new(units, &SAMPLING))
/// }
/// type WithIbs<'a> = Events<'a, CounterUnit, Option<Ibs<'a>>>;
///
/// /// Samples one op in 400,000.
/// fn sample_ops<H: Hardware>(
///     session: &mut CounterSession<'_, WithIbs<'_>, H>,
///     unit: &CounterUnit,
/// ) -> Result<EventId, EventsError> {
///     session.start(unit, &[IbsSampling::ops().event().every(400_000)], 0)
/// }
///
/// /// In the handler of NMIs.
/// fn handler<H: Hardware>(
///     events: &WithIbs<'_>,
///     (hardware, counters): (&H, &CounterMemory),
/// ) -> Claim {
///     let serviced = service(events, hardware, counters, |sample| {
///         let Some(op) = sample.instruction() else { return }; // an overflow of a counter
///         let latency = op.access.and_then(|access| access.latency); // of a load that missed, in cycles
///         push(op.address.unwrap_or(0), latency);
///     });
///     serviced.map_or(Claim::OursAndMore, |serviced| serviced.claim)
/// }
/// ```
///
/// # Context
/// Any context, including interrupt and NMI.
///
/// # Limitations
/// - Tried on the software PMU alone, also by Linux in the monitor, where no op misses a cache.
/// - The memory profiler of later processors (leaf 0x8000001B EAX bit 18) is not driven: no manual and no header that
///   we found has the addresses of its registers. A Linux driver of 2026 is public, and shows the rest: a control
///   register and a second one, `IBS_OP_DATA2`'s and `IBS_OP_DATA3`'s counterparts, and an LVT entry of its own in bits
///   19:16 of `IBS_CTL`, valid with bit 24.
/// - Erratum 1606 is applied to all models of Zen 5, as in Linux; the revision guide lists it for models 00h–0Fh.
/// - Without the filter by bit 63 of the address (before Zen 6), both privilege levels are sampled; the samples of the
///   other level are dropped and counted. An event whose samples are filtered does not count the periods that the
///   processor began anew without a sample.
/// - Before the second control register (Zen 6), a sample that falls between the two accesses of a stop leaves no valid
///   bit: it is not reported, and the event's next occurrence is sampled in its place.
/// - Fetches are counted in sixteens. Firmware that assigns no entry of the local vector table is not corrected.
#[derive(Clone, Copy, Debug)]
pub struct Ibs<'a> {
    units: &'a IbsUnits,
    memory: &'a IbsMemory,
    /// The samples that this interrupt found: of events that left their units, and of those on the units.
    left: [bool; 2],
    found: [Option<Found>; 2],
    /// The sample that is being reported: the unit's newest, or that of an event that left.
    shown: Option<(IbsKind, bool)>,
}

/// The sample of an event on its unit.
#[derive(Clone, Copy, Debug)]
struct Found {
    event: EventId,
    /// The sample's registers could be read.
    is_read: bool,
}

impl<'a> Ibs<'a> {
    /// Makes the facility of one processor, which `units` describes. The memory is used on this processor only.
    pub const fn new(units: &'a IbsUnits, memory: &'a IbsMemory) -> Self {
        Self { units, memory, left: [false; 2], found: [None; 2], shown: None }
    }

    /// Returns the registers of the sample that is being reported.
    ///
    /// ```
    /// use pmu_amd::ibs::{Ibs, IbsRecord};
    /// use pmu_core::Sample;
    /// /// Returns whether the sampled op came from microcode.
    /// fn is_microcode(sample: &Sample<'_, Option<Ibs<'_>>>) -> bool {
    ///     let record = sample.facility().and_then(Option::as_ref).and_then(Ibs::record);
    ///     matches!(record, Some(IbsRecord::Op(op)) if op.data.microcode())
    /// }
    /// ```
    pub fn record(&self) -> Option<IbsRecord> {
        let (kind, is_left) = self.shown?;
        let memory = self.memory.of(kind);
        Some(if is_left { memory.left.record(kind) } else { memory.record(kind) })
    }

    /// Returns the processor's units, with their memory.
    fn each(&self) -> impl Iterator<Item = (IbsKind, &'a IbsUnit, &'a UnitMemory)> + use<'a> {
        let (units, memory) = (self.units, self.memory);
        KINDS.into_iter().filter_map(|kind| Some((kind, units.get(kind)?, memory.of(kind))))
    }

    /// Returns the unit of a counter.
    fn of(&self, counter: CounterId) -> Option<(IbsKind, &'a IbsUnit, &'a UnitMemory)> {
        self.each().find(|(kind, _, _)| kind.counter() == counter)
    }

    /// Returns what a request for precise samples is to the units, or `None` if they sample no such event.
    fn sampling_of(asked: &Asked) -> Option<IbsSampling> {
        let select = asked.select.select_bits();
        match select & EVENT {
            _ if asked.select.is_of_unit() => Some(IbsSampling::of_select(select as u32)),
            CYCLES => Some(IbsSampling::cycles()),
            RETIRED_OPS => Some(IbsSampling::ops()),
            _ => None,
        }
    }

    fn check(&self, asked: &Asked, sampling: IbsSampling) -> Result<(), NotPrecise> {
        self.units.check(&sampling).map_err(|error| match error {
            IbsSamplingError::NoUnit | IbsSamplingError::CountsCyclesOnly => NotPrecise::Event,
            _ => NotPrecise::Filter,
        })?;
        let lacking = asked.parts.without(SampleParts::ACCESS);
        if !asked.samples {
            Err(NotPrecise::NoPeriod)
        } else if asked.in_guests_only || asked.extra.is_some() {
            Err(NotPrecise::Unsupported)
        } else if asked.precision > Some(Precision::ZeroSkidRequested) {
            Err(NotPrecise::NoExactCounter)
        } else if !lacking.is_empty() {
            Err(NotPrecise::Parts(lacking))
        } else if !self.memory.of(sampling.kind()).is(USABLE) {
            Err(NotPrecise::NoInterrupt)
        } else {
            Ok(())
        }
    }
}

/// Bits of a select that say what is counted.
const EVENT: u64 = 0xF_FF84_FFFF;
/// The events whose precise samples are those of ops (as in Linux): cycles not in halt, and retired ops.
const CYCLES: u64 = 0x76;
const RETIRED_OPS: u64 = 0xC1;

impl IbsKind {
    const fn counter(self) -> CounterId {
        match self {
            Self::Fetch => CounterId::FETCH_UNIT,
            Self::Op => CounterId::OP_UNIT,
        }
    }
}

impl Facility for Ibs<'_> {
    const RECORDS: bool = true;

    #[inline]
    fn is_idle(&self) -> bool {
        self.memory.is_idle()
    }

    fn collect<M: RegisterBackend>(
        &mut self,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<u32, AccessFault> {
        let (mut interrupts, mut outcome) = (0, Ok(()));
        for (kind, unit, memory) in self.each() {
            // A unit that neither runs nor has a sample costs the handler no access.
            if memory.is(ACTIVE) {
                match self.collect_from(kind, unit, memory, msr, interrupted) {
                    Ok(came) => interrupts += u32::from(came),
                    Err(fault) => {
                        // If a task collects, the interrupt is yet to come.
                        memory.change(0, LATE);
                        outcome = outcome.and(Err(fault));
                    }
                }
            }
        }
        outcome.map(|()| interrupts)
    }

    fn has_records(&self) -> bool {
        self.found.iter().any(Option::is_some) || self.left.contains(&true)
    }

    fn next_record(&mut self) -> Option<Recorded> {
        for (place, kind) in KINDS.into_iter().enumerate() {
            let memory = self.memory.of(kind);
            // The sample of an event that has left is the older one.
            if core::mem::take(self.left.get_mut(place)?) {
                if let Some((event, period)) = memory.left.event() {
                    let record = memory.left.record(kind);
                    let hidden = !self.shows(kind, Some(&record), memory.left.select(), true);
                    let (counter, left) = (kind.counter(), Some(period));
                    return Some(Recorded { counter, event, reloaded: 0, left, hidden });
                }
                // Its event was closed meanwhile.
                self.memory.count_dropped();
            }
            if let Some(Found { event, is_read }) = self.found.get_mut(place)?.take() {
                let record = is_read.then(|| memory.record(kind));
                let select = memory.select.load(Relaxed);
                let hidden = !self.shows(kind, record.as_ref(), select, false);
                let (counter, reloaded) = (kind.counter(), memory.reload.load(Relaxed).into());
                return Some(Recorded { counter, event, reloaded, left: None, hidden });
            }
        }
        // The overflows of counters follow.
        self.shown = None;
        None
    }

    fn set_reload<M: RegisterBackend>(
        &self,
        _: &M,
        counter: CounterId,
        events: u64,
    ) -> Result<(), AccessFault> {
        if let Some((_, _, memory)) = self.of(counter) {
            // A unit's counter has at most 27 bits, and no reload has more.
            memory.reload.store(events as u32, Relaxed);
        }
        Ok(())
    }

    fn while_lent(&mut self) -> u32 {
        let late = |memory: &UnitMemory| memory.change(LATE, 0) & LATE != 0;
        self.each().filter(|(_, _, memory)| late(memory)).count() as u32
    }
}

impl Ibs<'_> {
    /// Looks for a unit's samples. Returns whether the interrupt was the unit's.
    fn collect_from<M: RegisterBackend>(
        &mut self,
        kind: IbsKind,
        unit: &IbsUnit,
        memory: &UnitMemory,
        msr: &M,
        interrupted: Interrupted<'_>,
    ) -> Result<bool, AccessFault> {
        let (place, state) = (kind as usize, memory.state());
        let control = unit.read_control(msr)?;
        // The valid bit is the only status that a unit has: it is set with the sample, and no register says who
        // interrupted.
        let is_valid = unit.is_valid(control);
        let read = |select| {
            let physical = IbsSampling::of_select(select).physical_addresses();
            let record = IbsRecord::read(unit, msr, control, physical);
            record.inspect_err(|_| self.memory.count_lost())
        };
        if state & LEFT_HELD != 0 && (is_valid || state & LEFT != 0) {
            // A task may have moved the sample of an event that left to memory, and be about to clear the registers.
            let record = (state & LEFT == 0).then(|| read(memory.left.select())).transpose();
            memory.change(LEFT_HELD | LEFT | LATE, 0);
            if let Ok(in_registers) = &record {
                if let Some(record) = in_registers {
                    memory.left.keep(record, control);
                }
                self.left[place] = true;
            }
            unit.clear(msr, control)?;
            return record.map(|_| true);
        }
        if state & (HELD | LEFT_HELD) != 0 && !is_valid {
            // The registers were lost. The next occurrence of the event on the unit is sampled in place of its sample.
            if memory.change(HELD | LEFT_HELD, 0) & HELD != 0 {
                memory.value.store(0, Relaxed);
            } else {
                self.memory.count_lost();
            }
        }
        let came = memory.change(LATE, 0) & LATE != 0;
        if state & LEFT != 0 {
            memory.change(LEFT, 0);
            self.left[place] = true;
        }
        if !is_valid {
            // Without a valid bit, a unit that is being stopped may have sampled just before the task's write.
            let may_be = state & STOPPING != 0 && !unit.capabilities().control2();
            let may_be = may_be && !unit.may_run(control);
            memory.change(0, if may_be { CAME } else { 0 });
            return Ok(came || may_be);
        }
        let event = interrupted.event(kind.counter());
        let Some(event) = event.filter(|_| state & (RUNNING | HELD) != 0) else {
            // Nothing would report the sample, or let the unit go on after it.
            memory.change(RUNNING, 0);
            return unit.clear(msr, control).map(|()| true);
        };
        let record = read(memory.select.load(Relaxed));
        if let Ok(record) = &record {
            memory.keep(record, control);
        }
        // Before the unit goes on: the value that it is loaded with next starts from here.
        UnitCounter::new(unit, memory, msr, &registers(unit)).sampled();
        self.found[place] = Some(Found { event, is_read: record.is_ok() });
        if state & (RUNNING | STOPPING) != RUNNING {
            // The unit stays stopped.
            memory.change(HELD, if state & STOPPING != 0 { TOOK } else { 0 });
            unit.clear(msr, control)?;
        } else {
            // The unit stays stopped until the sample is reported. Then the session lets it resume.
            memory.change(0, TAKEN);
        }
        record.map(|_| true)
    }

    /// Returns whether a sample is one that its event asked for, and shows it. A sample that could not be read was
    /// counted as lost.
    fn shows(
        &mut self,
        kind: IbsKind,
        record: Option<&IbsRecord>,
        select: u32,
        is_left: bool,
    ) -> bool {
        let latency = IbsSampling::of_select(select).latency();
        // Most units sample at every privilege level, so samples of the other levels are dropped here.
        let is_wanted = self.units.get(kind).zip(record).is_some_and(|(unit, record)| {
            !record.is_void(unit)
                && Levels::of(select).has(record.address(unit))
                && record.exceeds(latency.into())
        });
        if record.is_some() && !is_wanted {
            self.memory.count_dropped();
        }
        self.shown = is_wanted.then_some((kind, is_left));
        is_wanted
    }
}

/// Returns a unit as a counter.
fn registers(unit: &IbsUnit) -> Counter {
    Counter::of_unit(unit.control(), unit.width())
}

impl EventFacility for Ibs<'_> {
    const OFFERS: bool = true;
    const UNITS: bool = true;

    #[inline(never)] // 816 bytes of the Hermit-like glue.
    fn units(&self) -> CounterSet {
        self.each().map(|(kind, _, _)| kind.counter()).collect()
    }

    #[inline(never)] // 320 bytes of the Hermit-like glue, at `opt-level` 3.
    fn unit(&self, counter: CounterId) -> Option<Counter> {
        self.of(counter).map(|(_, unit, _)| registers(unit))
    }

    fn unmask_units<H: Hardware>(&self, hardware: &H) -> Result<CounterSet, AccessFault> {
        for (_, _, memory) in self.each() {
            // Until the entry is unmasked, a sample would interrupt nothing, and the unit would stay stopped.
            memory.change(USABLE, 0);
        }
        // SAFETY: the register names an entry of the local vector table, and is only read.
        let register = unsafe { RegisterAddress::new(IBS_CTL) };
        let assigned = IbsCtl::from_bits(hardware.read_retrying(register)?);
        // Firmware assigns the entry of the local vector table. Without one, a sample would not interrupt.
        if !assigned.lvt_offset_valid()
            || hardware.unmask_facility_interrupt(assigned.lvt_offset()).is_err()
        {
            return Ok(CounterSet::NONE);
        }
        for (_, _, memory) in self.each() {
            memory.change(0, USABLE);
        }
        Ok(self.units())
    }

    #[inline(never)] // 80 bytes of the Hermit-like glue.
    fn access_unit<M: RegisterBackend>(
        &self,
        msr: &M,
        registers: &Counter,
        access: UnitAccess,
    ) -> Result<u64, AccessFault> {
        let is_fetch = registers.value_register().get() == IBS_FETCH_CTL;
        let kind = if is_fetch { IbsKind::Fetch } else { IbsKind::Op };
        let Some(unit) = self.units.get(kind) else { return Ok(0) };
        let counter = UnitCounter::new(unit, self.memory.of(kind), msr, registers);
        match access {
            UnitAccess::ReadValue => counter.value().map(u64::from),
            UnitAccess::WriteValue(value) => {
                counter.load(value);
                Ok(0)
            }
            UnitAccess::ReadControl => counter.select(),
            UnitAccess::WriteControl(0) => counter.stop().map(|()| 0),
            UnitAccess::WriteControl(select) => counter.start(select).map(|()| 0),
            UnitAccess::Resume => counter.resume().map(|()| 0),
        }
    }

    fn resolve(&self, asked: &mut Asked, counters: CounterSet) -> Result<CounterSet, CounterError> {
        if asked.precision.is_none() {
            return Ok(counters);
        }
        let sampling = Self::sampling_of(asked).ok_or(NotPrecise::Event);
        let checked = sampling.and_then(|sampling| self.check(asked, sampling).map(|()| sampling));
        let sampling = checked.map_err(CounterError::NotPrecise)?;
        let levels = asked.select.select_bits() & MODES;
        asked.select = EventSelect::from_bits(levels | sampling.select().select_bits());
        (asked.precision, asked.parts) = (None, SampleParts::NONE);
        Ok(sampling.kind().counter().only())
    }

    fn settle<M: RegisterBackend>(&self, msr: &M, running: &Running<'_>) -> Result<(), Unsettled> {
        let mut outcome = Ok(());
        for (kind, unit, memory) in self.each() {
            let registers = registers(unit);
            let event = running.on(kind.counter());
            if let Some(event) = event {
                memory.reload.store(event.reloaded(&registers) as u32, Relaxed);
            }
            if event.is_some() && memory.is(RUNNING) {
                // The session has found, or has written, what the registers hold.
                memory.change(UNKNOWN, 0);
            } else if memory.is(UNKNOWN) || running.are_lent() && memory.is(RUNNING) {
                let stopped = UnitCounter::new(unit, memory, msr, &registers).stop();
                let counters = kind.counter().only();
                outcome = outcome.and(stopped.map_err(|fault| Unsettled { counters, fault }));
            }
        }
        outcome
    }

    fn leave<M: RegisterBackend>(
        &self,
        msr: &M,
        counter: CounterId,
        event: &RunningEvent<'_>,
    ) -> Result<Waiting, AccessFault> {
        let Some((_, unit, memory)) = self.of(counter) else { return Ok(Waiting::NONE) };
        let counter = UnitCounter::new(unit, memory, msr, &registers(unit));
        let reloaded = counter.leave(event.id(), event.period_under_way())?;
        Ok(reloaded.map_or(Waiting::NONE, |reloaded| Waiting { records: 1, reloaded }))
    }

    fn has_waiting<M: RegisterBackend>(&self, msr: &M) -> Result<bool, AccessFault> {
        for (_, unit, memory) in self.each() {
            if memory.is(HELD | LEFT | LEFT_HELD)
                || memory.is(RUNNING) && unit.is_valid(unit.read_control(msr)?)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn forget(&self, event: EventId) {
        self.each().for_each(|(_, _, memory)| memory.left.forget(event));
    }

    fn lose(&self) {
        for (_, _, memory) in self.each() {
            memory.change(0, UNKNOWN);
        }
    }

    fn instruction(&self, _: CounterId) -> Option<PreciseSample> {
        let (kind, _) = self.shown?;
        Some(self.record()?.sample(self.units.get(kind)?))
    }
}

/// The mode bits of a select.
const MODES: u64 = 0b11 << 16;
