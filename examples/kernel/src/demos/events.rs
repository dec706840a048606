//! Events of this kernel's own beside the profile sources: a raw one, a fixed counter's, those of ring 3 and of
//! threads; and a watchdog.

use pmu::Machine;
use pmu::core::error::CounterError;
use pmu::core::registers::EventSelect;
use pmu::core::x86::Snapshot;
use pmu::core::{CounterSet, CounterUnit, Event, EventSource, GenericEvent};

use crate::demos::command_line::CommandLine;
use crate::demos::failure::Failure;
use crate::demos::loops::{COUNTED, EMPTY, measure};
use crate::demos::{branches, named, ops, precise, threads, user, watchdog};
use crate::embedding::opened_events::{Counters, with_events};
use crate::line;
use crate::machine::clock;

/// Retired instructions, by the number that both vendors' manuals give them.
const INSTRUCTIONS: EventSelect = EventSelect::from_bits(0xC0);
/// Intel's fixed counter of the same.
const FIXED_0: CounterSet = CounterSet::fixed(1);

/// Opens events of every kind, and that of the command line. With `exact` the machine counts exactly, so compare.
///
/// # Errors
/// Those of the counters; a count that is not the known one; a watchdog that does not fire.
pub fn run(
    machine: &'static Machine,
    snapshot: &Snapshot,
    words: &CommandLine,
) -> Result<(), Failure> {
    if machine.unit().counters().is_empty() {
        line!("event none");
        return Ok(());
    }
    let right = with_events(|counters, unit| {
        let right = raw_and_fixed(counters, unit)?;
        if let Some(name) = &words.event {
            named::count(counters, unit, snapshot, name.as_str())?;
        }
        let right = right & branches::run(machine, snapshot, counters, unit)?;
        let right = right & ops::run(counters, unit)? & precise::run(counters, unit)?;
        Ok::<_, Failure>(right & user::run(counters, unit)? & threads::run(counters, unit)?)
    })?;
    if words.exact && !right {
        return Err(Failure::Wrong(
            "an event's count, a branch, a sampled op or a record is not the known one",
        ));
    }
    watchdog::run()
}

/// Counts a raw event on a general counter and, if there is one, on the fixed counter of the same event, over one loop.
fn raw_and_fixed(counters: &mut Counters, unit: &CounterUnit) -> Result<bool, Failure> {
    let general = Event::raw(INSTRUCTIONS).on(CounterSet::GENERAL);
    let general = counters.open(unit, &[general])?;
    let fixed = Event::generic(GenericEvent::Instructions).on(FIXED_0);
    let fixed = match counters.open(unit, &[fixed]).map_err(CounterError::from) {
        Ok(event) => Some(event),
        Err(CounterError::NoCounterForEvent) => None,
        Err(error) => return Err(error.into()),
    };
    for event in [Some(general), fixed].into_iter().flatten() {
        counters.enable(event, clock::now())?;
    }
    let counted = &COUNTED[0];
    let mut right = true;
    for (name, event) in [("raw", Some(general)), ("fixed", fixed)] {
        let Some(event) = event else {
            line!("event {} none", name);
            continue;
        };
        let read = || Ok::<_, CounterError>(counters.read(event, 0)?.value);
        let around = measure(&read, EMPTY)?;
        let count = measure(&read, counted.run)?.saturating_sub(around);
        right &= count == counted.instructions;
        line!("event {} {} {}", name, counted.name, count);
        counters.close(event, clock::now())?;
    }
    Ok(right)
}
