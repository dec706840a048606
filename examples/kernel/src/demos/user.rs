//! Events that ring 3 reads by itself, by RDPMC and a page that the kernel shares with it.

use pmu::core::error::CounterError;
use pmu::core::thread::ThreadEvent;
use pmu::core::{CounterSet, CounterUnit, Event, EventId, GenericEvent};

use crate::demos::failure::Failure;
use crate::demos::programs::{HIDDEN, count_down, measure, read_counter, read_interrupted};
use crate::embedding::opened_events::Counters;
use crate::line;
use crate::machine::clock;
use crate::machine::ring3::{SHARED, Stop, Thread, allow_rdpmc};

/// Turns of the loop that is counted.
const TURNS: u32 = 1_000;
/// Instructions by which this loop is longer than one of a single turn.
const INSTRUCTIONS: u64 = 2 * (TURNS as u64 - 1);
/// More instructions than ring 3 executes behind its last RDPMC.
const REST: u64 = 64;

/// Lets ring 3 read: what it counts is what the kernel counts, also where the event moves in the middle of a reading;
/// and it reads nothing that is hidden or denied. `false`: a count is not the known one.
///
/// # Errors
/// Those of the counters; an event that did not move.
pub fn run(counters: &mut Counters, unit: &CounterUnit) -> Result<bool, Failure> {
    allow_rdpmc(true);
    let right = read(counters, unit);
    let right = right.and_then(|right| Ok(right & denied(counters, unit)?));
    allow_rdpmc(false);
    right
}

/// An event of ring 3 on a general counter, which can move to another one.
fn event() -> Event {
    Event::generic(GenericEvent::Instructions).user_only().on(CounterSet::GENERAL)
}

/// Shows ring 3 the event's present counter. No interrupt loads that counter anew while the demonstration runs.
fn publish(counters: &Counters, event: EventId) -> Result<(), CounterError> {
    SHARED.publish(None, || counters.user_view(event, clock::now()))
}

/// Reads an event at ring 3.
fn read(counters: &mut Counters, unit: &CounterUnit) -> Result<bool, Failure> {
    let event = counters.open(unit, &[event().with_user_reads()])?;
    counters.enable(event, clock::now())?;
    publish(counters, event)?;

    // The rest of both programs is the same.
    let counts_of = |turns| {
        let before = counters.read(event, 0)?.value;
        let read = ended(&mut measure(0, turns));
        Ok::<_, CounterError>((counters.read(event, 0)?.value.wrapping_sub(before), read))
    };
    let ((counted_1, read_1), (counted, read)) = (counts_of(1)?, counts_of(TURNS)?);
    let (counted, read) = (counted.wrapping_sub(counted_1), read.wrapping_sub(read_1));
    line!("event user {} rdpmc {}", counted, read);
    let right = counted == INSTRUCTIONS && read == INSTRUCTIONS;

    let (event, read) = moved(counters, unit, event)?;
    let total = counters.read(event, 0)?.value;
    line!("event moved {} rdpmc {}", total, read);
    let right = right && (1..=REST).contains(&total.wrapping_sub(read));

    let mut thread = read_interrupted(0);
    asks(&mut thread)?;
    SHARED.hide();
    let read = ended(&mut thread);
    line!("event hidden {}", if read == HIDDEN { "none" } else { "read" });
    counters.close(event, clock::now())?;
    Ok(right && read == HIDDEN)
}

/// Lets a thread be switched out in the middle of a reading, and in again, with its event on another counter: the one
/// that it is about to read counts something else by then. Returns the event, and what the thread read.
fn moved(
    counters: &mut Counters,
    unit: &CounterUnit,
    event: EventId,
) -> Result<(EventId, u64), Failure> {
    let from = counters.counter_of(event).ok_or(CounterError::NotEnabled(event))?;
    let mut thread = read_interrupted(0);
    asks(&mut thread)?;
    let mut events = [ThreadEvent::Opened(event)];
    counters.switch_out(&mut events, clock::now(), |_| ())?;
    let other = Event::generic(GenericEvent::Instructions).on(from.only()).with_user_reads();
    let other = counters.open(unit, &[other])?;
    counters.enable(other, clock::now())?;
    counters.switch_in(unit, &mut events, clock::now())?;
    let [ThreadEvent::Opened(event)] = events else {
        return Err(Failure::Wrong("a thread's event was lost"));
    };
    if counters.counter_of(event).is_none_or(|counter| counter == from) {
        return Err(Failure::Wrong("an event did not move to another counter"));
    }
    publish(counters, event)?;
    let read = ended(&mut thread);
    counters.close(other, clock::now())?;
    Ok((event, read))
}

/// Reads the counter of an event that was not opened for ring 3: 0, where the processor has RDPMC user disable.
fn denied(counters: &mut Counters, unit: &CounterUnit) -> Result<bool, Failure> {
    if !unit.can_deny_user_reads() {
        line!("event denied unsupported");
        return Ok(true);
    }
    let event = counters.open(unit, &[event()])?;
    counters.enable(event, clock::now())?;
    asks(&mut count_down(0, TURNS))?;
    let mut running = unit.iter().filter(|(id, _)| counters.counter_of(event) == Some(*id));
    let index = running.next().and_then(|(_, counter)| counter.read_index());
    let index = index.ok_or(CounterError::NotEnabled(event))?;
    let read = ended(&mut read_counter(0, index.get()));
    let counted = counters.close(event, clock::now())?.value;
    line!("event denied {} rdpmc {}", counted, read);
    Ok(counted > INSTRUCTIONS && read == 0)
}

/// Runs a thread until it asks.
fn asks(thread: &mut Thread) -> Result<(), Failure> {
    match thread.run() {
        Stop::Asked => Ok(()),
        Stop::Ended(_) => Err(Failure::Wrong("a thread did not read what it was shown")),
    }
}

/// Runs a thread to its end.
fn ended(thread: &mut Thread) -> u64 {
    loop {
        if let Stop::Ended(value) = thread.run() {
            return value;
        }
    }
}
