//! The counts of code whose numbers are known by hand, on counters that the project's own counter layer opened.

use pmu_core::{
    CounterError, CounterMemory, CounterSet, CounterSlot, CounterUnit, Counters, Event, EventEntry,
    EventSelect, EventTable, MAX_COUNTERS, MsrErrorKind, NamedEvent, OpenedEvents,
};
use pmu_virt::{Configuration, Vendor};

use crate::driver::{DriverMsr, NoInterrupts, unit};
use crate::identity;
use crate::interrupts;
use crate::registers::Registers;
use crate::report::{Claim, Count, Evidence, Outcome, Reason};
use crate::sources;
use crate::stop::Stop;
use crate::workload::{Memory, Quantity, Workload};

/// The two lengths of a loop.
const SHORT: u64 = 1_000;
const LONG: u64 = 101_000;

/// The display models of family 6 on which event 0xC4 with unit mask 0x20 is retired taken branches:
/// `BR_INST_RETIRED.NEAR_TAKEN` in Intel's event lists of Sandy Bridge up to Lion Cove.
const TAKEN_BRANCHES_20: [u8; 41] = [
    0x2A, 0x2D, 0x3A, 0x3C, 0x3D, 0x3E, 0x3F, 0x45, 0x46, 0x47, 0x4E, 0x4F, 0x55, 0x56, 0x5E, 0x6A,
    0x6C, 0x7D, 0x7E, 0x8C, 0x8D, 0x8E, 0x8F, 0x97, 0x9A, 0x9E, 0xA5, 0xA6, 0xA7, 0xAA, 0xAC, 0xAD,
    0xAE, 0xB5, 0xB7, 0xBA, 0xBD, 0xBF, 0xC5, 0xC6, 0xCF,
];
/// Hybrid machines' core type of the smaller cores, which have another unit mask.
const ATOM: u8 = 0x20;

/// The counters, taken by the driver.
type Taken<'a> = Counters<'a, OpenedEvents<'a>, DriverMsr<'a, 'a>, NoInterrupts>;

/// A claim of an exact number, with its event.
struct Exact {
    id: &'static str,
    quantity: Quantity,
    event: Option<Event>,
}

/// The tools of a measurement.
pub(crate) struct Bench<'c, 'a> {
    pub(crate) registers: &'a Registers<'a>,
    pub(crate) unit: &'c CounterUnit,
    pub(crate) counters: &'c mut Taken<'a>,
    pub(crate) memory: &'c Memory,
    /// Number of runs of each length.
    pub(crate) runs: u32,
}

/// The claims of counts and of sources, each handed to `tell` as it is made.
///
/// # Errors
/// A register cannot be reached, or another owner wrote one.
pub fn counts(
    registers: &Registers<'_>,
    rdpmc: bool,
    runs: u32,
    alone: &dyn Fn() -> bool,
    tell: &mut dyn FnMut(Claim),
) -> Result<(), Stop> {
    let refused = |id: &str| Claim {
        id: id.to_owned(),
        outcome: Outcome::NotTried,
        evidence: Evidence { reason: Some(Reason::Driver), ..Evidence::default() },
    };
    let Some(unit) = unit(registers) else {
        tell(refused("driver.take"));
        return Ok(());
    };
    let slots = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let table = EventTable::<[EventEntry; 2]>::new();
    let events = OpenedEvents::new(&unit, &table);
    let msr = DriverMsr { registers, rdpmc };
    let only = CounterSet::from_bits(registers.agreed.taken());
    let mut counters = match Counters::take(events, &unit, only, msr, NoInterrupts, &slots) {
        Ok(counters) => counters,
        Err(error) => {
            stop_of(error)?;
            tell(refused("driver.take"));
            return Ok(());
        }
    };
    let usable = counters.counters().usable;
    let memory = Memory::new(
        interrupts::available_memory(registers.machine),
        identity::last_cache(registers.machine),
    );
    let measured = {
        let counters = &mut counters;
        let mut bench = Bench { registers, unit: &unit, counters, memory: &memory, runs };
        exact(&mut bench, alone, tell).and_then(|()| sources::sources(&mut bench, alone, tell))
    };
    // After a stop the registers are restored from what was written last: another owner's values stay.
    measured?;
    registers.check_others()?;
    let outcome = match counters.shut_down() {
        Ok(()) if usable == unit.counters() & only => Outcome::Agrees,
        _ => Outcome::Disagrees,
    };
    tell(Claim { id: "driver.take".to_owned(), outcome, evidence: Evidence::default() });
    Ok(())
}

/// An error of the driver that ends the work; any other is the claim's.
fn stop_of(error: CounterError) -> Result<(), Stop> {
    match error {
        CounterError::Access(fault) | CounterError::Faulted(fault)
            if fault.kind != MsrErrorKind::GeneralProtection =>
        {
            Err(Stop::Access { register: fault.register, kind: fault.kind })
        }
        _ => Ok(()),
    }
}

impl Bench<'_, '_> {
    /// Counts an event in a workload, and returns nothing where the driver refuses the event.
    pub(crate) fn count(
        &mut self,
        event: &Event,
        workload: Workload,
        iterations: u64,
    ) -> Result<Option<u64>, Stop> {
        match self.try_count(event, workload, iterations) {
            Ok(count) => Ok(Some(count)),
            Err(error) => stop_of(error).map(|()| None),
        }
    }

    fn try_count(
        &mut self,
        event: &Event,
        workload: Workload,
        iterations: u64,
    ) -> Result<u64, CounterError> {
        let event = self.counters.open_event(self.unit, event)?;
        let counted = self.counters.start_event(event, 0).and_then(|()| {
            self.registers.machine.run(workload, self.memory, iterations);
            self.counters.stop_event(event, 0)
        });
        let closed = self.counters.close_event(event, 0)?;
        counted.map(|_| closed.value)
    }

    /// Counts an event in two lengths of a workload, several times: the least difference and the greatest.
    pub(crate) fn measure(
        &mut self,
        event: &Event,
        workload: Workload,
        [short, long]: [u64; 2],
    ) -> Result<Option<Count>, Stop> {
        let machine = self.registers.machine;
        let before = interrupts::counted(machine);
        let (mut shorts, mut longs) = (Vec::new(), Vec::new());
        for _ in 0..self.runs.max(1) {
            self.registers.check_others()?;
            let (Some(one), Some(other)) =
                (self.count(event, workload, short)?, self.count(event, workload, long)?)
            else {
                return Ok(None);
            };
            shorts.push(one);
            longs.push(other);
        }
        let least = |of: &[u64]| of.iter().copied().min().unwrap_or(0);
        let (shortest, longest) = (least(&shorts), least(&longs));
        let greatest = longs.iter().copied().max().unwrap_or(0);
        let more = longs.iter().filter(|count| **count > longest).count();
        Ok(Some(Count {
            workload: workload.name(),
            iterations: long - short,
            known: None,
            least: longest.saturating_sub(shortest),
            greatest: greatest.saturating_sub(shortest),
            runs: self.runs.max(1),
            runs_with_more: more as u32,
            interrupts: interrupts::counted(machine).saturating_sub(before),
        }))
    }
}

fn exact(
    bench: &mut Bench<'_, '_>,
    alone: &dyn Fn() -> bool,
    tell: &mut dyn FnMut(Claim),
) -> Result<(), Stop> {
    for Exact { id, quantity, event } in claims(bench.registers) {
        if alone() {
            return Err(Stop::Alone);
        }
        let count = match &event {
            Some(event) => bench.measure(event, Workload::Loop, [SHORT, LONG])?,
            None => None,
        };
        let known = Workload::Loop.known(quantity, bench.memory, LONG - SHORT);
        let count = count.map(|count| Count { known, ..count });
        let outcome = match (&count, known) {
            (Some(count), Some([known, _])) if count.least == known => Outcome::Exact,
            (Some(_), _) => Outcome::Inexact,
            (None, _) => Outcome::NotTried,
        };
        let reason = count.is_none().then_some(Reason::Absent);
        let counts = count.into_iter().collect();
        let evidence = Evidence { counts, reason, ..Evidence::default() };
        tell(Claim { id: id.to_owned(), outcome, evidence });
    }
    Ok(())
}

fn claims(registers: &Registers<'_>) -> [Exact; 6] {
    let named = |event, on| Some(Event::named(event).user_only().on(on));
    let raw =
        |bits: u64| Event::raw(EventSelect::from_bits(bits)).user_only().on(CounterSet::GENERAL);
    let has_fixed =
        matches!(registers.configuration, Configuration::Intel(intel) if intel.fixed != 0);
    let fixed = if has_fixed { named(NamedEvent::Instructions, CounterSet::FIXED) } else { None };
    let (branches, taken) = match registers.configuration.vendor() {
        Vendor::Intel => (0xC4, knows_taken_branches(registers).then_some(0x20C4)),
        Vendor::Amd => (0xC2, Some(0xC4)),
    };
    let general = CounterSet::GENERAL;
    let exact = |id, quantity, event| Exact { id, quantity, event };
    use Quantity::{Branches, Instructions, TakenBranches};
    [
        exact("count.instructions.general", Instructions, named(NamedEvent::Instructions, general)),
        exact("count.instructions.fixed", Instructions, fixed),
        exact("count.instructions.raw", Instructions, Some(raw(0xC0))),
        exact("count.branches.general", Branches, named(NamedEvent::Branches, general)),
        exact("count.branches.raw", Branches, Some(raw(branches))),
        exact("count.taken-branches.raw", TakenBranches, taken.map(raw)),
    ]
}

fn knows_taken_branches(registers: &Registers<'_>) -> bool {
    let processor = identity::processor(registers.machine);
    processor.vendor == "GenuineIntel"
        && processor.family == 6
        && TAKEN_BRANCHES_20.contains(&processor.model)
        && processor.core_type != Some(ATOM)
}
