//! An event by the name that it has on this processor.

use pmu::core::error::CounterError;
use pmu::core::x86::Snapshot;
use pmu::core::{CounterUnit, Event};
use pmu_events::{PmuEvent, Processor};

use crate::demos::failure::Failure;
use crate::demos::loops::{COUNTED, EMPTY, measure};
use crate::embedding::opened_events::Counters;
use crate::line;
use crate::machine::clock;

/// Counts the event with this name over a loop. Of a name that the processor's core type lacks, prints the nearest.
///
/// # Errors
/// Those of the counters, once the event was started.
pub fn count(
    counters: &mut Counters,
    unit: &CounterUnit,
    snapshot: &Snapshot,
    name: &str,
) -> Result<(), Failure> {
    let Some(event) = find(snapshot, name) else { return Ok(()) };
    let name = event.name();
    let opened = match counters.open(unit, &[Event::from(event)]) {
        Ok(opened) => opened,
        Err(error) => {
            line!("event {} none: {}", name, error);
            return Ok(());
        }
    };
    // A hypervisor may lack the event's extra register.
    if let Err(error) = counters.enable(opened, clock::now()) {
        counters.close(opened, clock::now())?;
        line!("event {} none: {}", name, error);
        return Ok(());
    }
    let counted = &COUNTED[0];
    let read = || Ok::<_, CounterError>(counters.read(opened, 0)?.value);
    let around = measure(&read, EMPTY)?;
    let count = measure(&read, counted.run)?.saturating_sub(around);
    counters.close(opened, clock::now())?;
    line!("event {} {} {}", name, counted.name, count);
    Ok(())
}

/// Returns the processor's event with this name, or prints why there is none.
fn find(snapshot: &Snapshot, name: &str) -> Option<PmuEvent> {
    let processor = match Processor::detect(snapshot) {
        Ok(processor) => processor,
        Err(unknown) => {
            line!("event {} none: {}", name, unknown);
            return None;
        }
    };
    match processor.event(name) {
        Ok(event) => Some(event),
        Err(error) => {
            let core_type = processor.core_type();
            line!("event {} none: {}; nearest on {}:", name, error, core_type.name());
            let nearest: [_; 3] = core_type.nearest(name);
            for event in nearest.iter().flatten() {
                line!("nearest {}", event.name());
            }
            None
        }
    }
}
