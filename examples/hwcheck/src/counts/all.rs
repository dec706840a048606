//! The claims of counts and of sources, on counters that the project's own counter layer took.

use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{CounterSession, CounterSet, Events};

use crate::counts::bench::{Bench, stop_of};
use crate::counts::exact::exact;
use crate::counts::sources::sources;
use crate::machine::workload::Memory;
use crate::machine::{identity, interrupts};
use crate::registers::access::Registers;
use crate::registers::driver::{DriverMsr, NoInterrupts, unit};
use crate::registers::stop::Stop;
use crate::report::claim::{Claim, Evidence, Outcome, Reason};

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
    let events = Events::new(&unit, &table);
    let msr = DriverMsr { registers, rdpmc };
    let only = CounterSet::from_bits(registers.agreed.taken());
    let mut counters = match CounterSession::take(events, &unit, only, (msr, NoInterrupts), &slots)
    {
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
        exact(&mut bench, alone, tell).and_then(|()| sources(&mut bench, alone, tell))
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
