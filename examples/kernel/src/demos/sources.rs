//! The sources of the machine: which it has, which of them count, and a profile by each that does.

use core::sync::atomic::Ordering;

use pmu::Machine;
use pmu::amd::Generation;
use pmu::apic::Delivery;
use pmu::core::EventSource;
use pmu::core::profile::{Availability, KProfileSource, ProfileSource};
use pmu::core::x86::Snapshot;

use crate::demos::command_line::CommandLine;
use crate::demos::failure::Failure;
use crate::demos::profile::{Meaning, Plan};
use crate::demos::rate::{Rate, WATCHED_MS};
use crate::demos::{costs, exact, others, trace};
use crate::embedding::interrupt::SPURIOUS;
use crate::embedding::platform::BY_VECTOR;
use crate::embedding::sessions::Sessions;
use crate::line;
use crate::machine::smp;

/// The longest table of sources is AMD's.
const MOST_SOURCES: usize = pmu::amd::SOURCES.len();

/// Counts and profiles by the sources, and gives the counters back.
///
/// # Errors
/// Those of the interface, of profile objects and of traces; a count, a share or a number of samples that is not as it
/// should be.
pub fn run(snapshot: &Snapshot, sessions: Sessions, words: &CommandLine) -> Result<(), Failure> {
    let samples = words.samples();
    let generation = Generation::of(snapshot);
    let meaning = |source: &ProfileSource| meaning(sessions.machine(), generation, source);
    let rates = list_sources(&sessions, &meaning, samples)?;
    if words.exact {
        exact::run(&sessions)?;
    }

    // The first source that counts, and is not just another name of such a source, stands for all where one is enough.
    let mut first = None;
    Plan::by_time(samples).run_here(&sessions)?;
    for (row, rate) in sessions.machine().sources().iter().zip(rates) {
        let Some(rate) = rate.filter(|rate| row.canonical().is_none() && !rate.is_rare(samples))
        else {
            continue;
        };
        let meaning = meaning(row);
        let known = (row.source(), row.name(), meaning);
        let deliveries: &[Delivery] = match meaning {
            Meaning::Untrue(_) => &[Delivery::NON_MASKABLE],
            Meaning::Even | Meaning::Known => &[Delivery::NON_MASKABLE, BY_VECTOR],
        };
        let is_true = !matches!(meaning, Meaning::Untrue(_));
        let samples = if is_true { samples } else { samples.div_ceil(10) };
        for delivery in deliveries {
            sessions.deliver(*delivery)?;
            Plan::by_counter(known, rate, *delivery, samples).run_here(&sessions)?;
        }
        if is_true {
            first.get_or_insert((known, rate));
        }
    }

    sessions.deliver(Delivery::NON_MASKABLE)?;
    if let Some(((source, ..), rate)) = first {
        costs::run(&sessions, source, rate)?;
    }
    let plan = match first {
        Some((known, rate)) => Plan::by_counter(known, rate, Delivery::NON_MASKABLE, samples),
        None => Plan::by_time(samples),
    };
    trace::run(snapshot, &sessions, &plan, words.trace)?;
    if smp::processors() > 1 {
        // There, being started and stopped has a share of its own, so the others' are not known.
        let meaning = Meaning::Known;
        others::run(Plan { processor: 1, meaning, ..plan }, &sessions)?;
    }
    let spurious = SPURIOUS.load(Ordering::Relaxed);
    line!("spurious {}", spurious);
    Ok(sessions.shut_down()?)
}

/// Prints each source that this machine supports: how far it can be relied upon, and whether it counts
/// often enough for so many samples. Gives the counter sources' rates, by row of the table.
fn list_sources(
    sessions: &Sessions,
    meaning: &dyn Fn(&ProfileSource) -> Meaning,
    samples: u64,
) -> Result<[Option<Rate>; MOST_SOURCES], Failure> {
    let mut rates = [None; MOST_SOURCES];
    for (row, place) in sessions.machine().sources().iter().zip(&mut rates) {
        let source = row.source();
        let information = sessions.on(0, |session| session.query(source));
        let availability = match information.availability {
            Availability::Unsupported => continue,
            Availability::Declared => "declared",
            Availability::Verified => "verified",
        };
        if source == KProfileSource::TIME {
            line!("source {} {} timer", row.name(), availability);
            continue;
        }
        let rate = *place.insert(Rate::of(source, sessions)?);
        let events = rate.per(WATCHED_MS);
        let counts = match events {
            0 => "silent",
            _ if rate.is_rare(samples) => "rare",
            _ => "counts",
        };
        let meaning = match meaning(row) {
            Meaning::Even | Meaning::Known => pmu::amd::Meaning::Same,
            Meaning::Untrue(meaning) => meaning,
        };
        line!("source {} {} {} {} {}", row.name(), availability, meaning.name(), counts, events);
    }
    Ok(rates)
}

/// Returns the meaning of a source on this machine, on AMD's of this generation.
fn meaning(machine: &Machine, generation: Option<Generation>, source: &ProfileSource) -> Meaning {
    if machine.why_time_only().is_some() {
        Meaning::Even
    } else if machine.perfmon().is_some() {
        intel_meaning(source)
    } else {
        amd_meaning(source, generation)
    }
}

/// Returns the meaning of an Intel source: all events are architectural; cycles, instructions and branches pass evenly
/// here.
fn intel_meaning(source: &ProfileSource) -> Meaning {
    match source.event_bit() {
        Some(0 | 1 | 2 | 5) => Meaning::Even,
        _ => Meaning::Known,
    }
}

/// Returns the meaning of an AMD source on this generation. The events of the table are those of family 0xF, and later
/// ones count others under many of their codes. Cycles, instructions, branches and taken branches pass evenly here.
fn amd_meaning(source: &ProfileSource, generation: Option<Generation>) -> Meaning {
    let meaning = generation.and_then(|generation| generation.meaning(source.source()));
    match (meaning.unwrap_or(pmu::amd::Meaning::Unknown), source.select().event_number()) {
        (pmu::amd::Meaning::Same, 0x76 | 0xC0 | 0xC2 | 0xC4) => Meaning::Even,
        (pmu::amd::Meaning::Same, _) => Meaning::Known,
        (other, _) => Meaning::Untrue(other),
    }
}
