//! Loops whose instructions and branches were counted by hand, counted by the processor.

use pmu::core::EventSource;
use pmu::core::interval::IntervalLimits;
use pmu::core::profile::{InterfaceError, KProfileSource};

use crate::demos::failure::Failure;
use crate::demos::loops::{COUNTED, Counted, EMPTY, measure};
use crate::embedding::sessions::Sessions;
use crate::line;

/// Counts each loop's instructions and branches, and compares them with the known numbers.
///
/// # Errors
/// Those of the interface; a number that is not the known one.
pub fn run(sessions: &Sessions) -> Result<(), Failure> {
    let instructions = |counted: &Counted| counted.instructions;
    let branches = |counted: &Counted| counted.branches;
    compare(sessions, KProfileSource::TOTAL_ISSUES, instructions)?;
    compare(sessions, KProfileSource::BRANCH_INSTRUCTIONS, branches)
}

fn compare(
    sessions: &Sessions,
    source: KProfileSource,
    known: fn(&Counted) -> u64,
) -> Result<(), Failure> {
    let name = source.general_name().unwrap_or("");
    if !sessions.machine().query(source).is_supported() {
        line!("count {} unsupported", name);
        return Ok(());
    }
    // No interrupt comes in between.
    sessions.machine().set_interval(source, IntervalLimits::EVENTS.max.into())?;
    let mut right = true;
    for counted in &COUNTED {
        let count = sessions.on(0, |session| {
            session.start(source)?;
            let read = || session.read(source);
            let around = measure(&read, EMPTY)?;
            let count = measure(&read, counted.run)?.wrapping_sub(around);
            session.stop(source)?;
            Ok::<u64, InterfaceError>(count)
        })?;
        right &= count == known(counted);
        line!("count {} {} {} expected {}", name, counted.name, count, known(counted));
    }
    if right { Ok(()) } else { Err(Failure::Wrong("a count is not the known one")) }
}
