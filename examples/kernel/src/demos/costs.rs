//! Starting a source, switching counters out and in, and one performance interrupt, each marked for a
//! monitor that counts register accesses.

use core::sync::atomic::{AtomicBool, Ordering};

use pmu::core::interval::IntervalLimits;
use pmu::core::profile::{KProfileSource, ProfileSource};
use pmu::core::thread::{SavedCounter, SavedCounters};
use pmu::core::{CounterSet, EventSource};

use crate::demos::failure::Failure;
use crate::demos::rate::Rate;
use crate::demos::workload;
use crate::embedding::sessions::{Control, Sessions};
use crate::line;
use crate::machine::serial::{Mark, mark};
use crate::machine::{clock, processor};

/// Number of counters that run meanwhile.
const COUNTERS: usize = 4;
/// Time until the one interrupt comes.
const INTERRUPT_MS: u64 = 20;
/// Time to wait for it.
const PATIENCE_MS: u64 = 20_000;

/// The boot processor's next performance interrupt is to be marked for the monitor.
static MARK_NEXT: AtomicBool = AtomicBool::new(false);

/// Handles a performance interrupt, which is marked if it is the one to be.
pub fn marked(handle: impl FnOnce()) {
    let marked = processor::number() == 0 && MARK_NEXT.load(Ordering::Relaxed);
    if marked {
        mark(Mark::Interrupt);
    }
    handle();
    if marked {
        mark(Mark::Rest);
        MARK_NEXT.store(false, Ordering::Relaxed);
    }
}

/// Starts, switches and interrupts with as many counters as there are, at most four; `counting` counts, at this rate.
///
/// # Errors
/// Those of the interface; a counter that moved while it was switched out; no interrupt.
pub fn run(sessions: &Sessions, counting: KProfileSource, rate: Rate) -> Result<(), Failure> {
    let machine = sessions.machine();
    let others = || {
        let sources = machine.sources().iter().skip(1).map(ProfileSource::source);
        let general = machine.unit().counters() & CounterSet::GENERAL;
        let wanted = COUNTERS.min(general.len()) - 1;
        sources.filter(|s| *s != counting && machine.query(*s).is_supported()).take(wanted)
    };
    // None of them interrupts meanwhile.
    for source in others().chain([counting]) {
        machine.set_interval(source, IntervalLimits::EVENTS.max.into())?;
    }
    sessions.on(0, |session| {
        others().try_for_each(|source| session.start(source))?;
        mark(Mark::Start);
        let started = session.start(counting);
        mark(Mark::Rest);
        started?;
        switch(session, counting)
    })?;
    line!("marked {} start, {} switch", Mark::Start as u8, Mark::Switch as u8);

    machine.set_interval_clamped(counting, rate.per(INTERRUPT_MS))?;
    MARK_NEXT.store(true, Ordering::Relaxed);
    sessions.on(0, |session| session.stop(counting).and_then(|()| session.start(counting)))?;
    let begin = clock::now();
    while MARK_NEXT.load(Ordering::Relaxed) {
        workload::short_turn();
        if clock::now() - begin > clock::milliseconds(PATIENCE_MS) {
            return Err(Failure::Wrong("a counter did not interrupt"));
        }
    }
    sessions
        .on(0, |session| others().chain([counting]).try_for_each(|source| session.stop(source)))?;
    line!("marked {} interrupt", Mark::Interrupt as u8);
    Ok(())
}

/// Switches as a scheduler does with a thread that has counters: out, another thread's turn, in.
fn switch(session: &mut Control, counting: KProfileSource) -> Result<(), Failure> {
    let mut thread = SavedCounters::<[SavedCounter; 16]>::new();
    let before = session.read(counting)?;
    mark(Mark::Switch);
    let saved = session.save(&mut thread, |_| ());
    mark(Mark::Rest);
    saved?;
    workload::turn(); // another thread's
    mark(Mark::Switch);
    let restored = session.restore(&thread);
    mark(Mark::Rest);
    restored?;
    let between = session.read(counting)?;
    workload::turn(); // its own
    let after = session.read(counting)?;
    line!("switch counters {} out {} in {}", thread.len(), between - before, after - between);
    if between - before > (after - between) / 2 {
        return Err(Failure::Wrong("a counter moved while it was switched out"));
    }
    Ok(())
}
