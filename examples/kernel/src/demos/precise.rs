//! Precise records of a loop whose branches are known: Intel's PEBS.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pmu::core::precise::{Precision, SampleParts};
use pmu::core::registers::EventSelect;
use pmu::core::{CounterSet, CounterUnit, Event, EventSource};
use pmu::intel::precise::PreciseRecord;

use crate::demos::failure::Failure;
use crate::demos::loops::{CALLS, COUNTED};
use crate::embedding::memory::PMU;
use crate::embedding::opened_events::Counters;
use crate::line;
use crate::machine::{clock, processor};

/// Retired branches, an architectural event.
pub const BRANCHES: EventSelect = EventSelect::from_bits(0xC4);
/// Branches between two records, and the time to wait for the first record of such a period, in milliseconds. A monitor
/// that executes one instruction at a time reaches the end of a short period alone. By time, a period that ends within
/// the handler leaves the loop no time, so the long periods come first.
const PERIODS: [(u64, u64); 4] =
    [(1_000_003, 3_000), (100_003, 1_000), (10_007, 1_000), (1_009, PATIENCE_MS)];
/// Records of the loop to take, and the time to wait for them, in milliseconds.
const SAMPLES: usize = 20;
const PATIENCE_MS: u64 = 20_000;

/// Places of a record's words: address, next address, address of the access.
const ADDRESS: usize = 0;
const NEXT: usize = 1;
const ACCESSED: usize = 2;

static FOUND: [[AtomicU64; 3]; SAMPLES] = [const { [const { AtomicU64::new(0) }; 3] }; SAMPLES];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Keeps a record of the loop, in an NMI.
pub fn recorded(record: &PreciseRecord<'_>) {
    let count = COUNT.load(Ordering::Relaxed);
    let address = record.address().unwrap_or(0);
    if CALLS.name_of(address).is_none() {
        return;
    }
    let Some(place) = FOUND.get(count) else { return };
    let accessed = record.memory().and_then(|memory| memory.address);
    let words = [address, record.next_address().unwrap_or(0), accessed.unwrap_or(0)];
    for (place, word) in place.iter().zip(words) {
        place.store(word, Ordering::Relaxed);
    }
    COUNT.store(count + 1, Ordering::Relaxed);
}

/// Records the branches of the loop of calls, and prints them. Returns whether each is a branch of the loop's listing,
/// with the next instruction and the access that the listing has there.
///
/// # Errors
/// Those of the counters.
pub fn run(counters: &mut Counters, unit: &CounterUnit) -> Result<bool, Failure> {
    let number = processor::number();
    if let Err(why) = PMU.precise_records(number) {
        line!("precise none: {}", why);
        return Ok(true);
    }
    if let Some((events, _)) = PMU.events_of(number) {
        EventSource::opened(&events).set_min_period(PERIODS[PERIODS.len() - 1].0);
    }
    let mut reached = 0;
    for (period, patience) in PERIODS {
        reached = period;
        let branches = Event::raw(BRANCHES).on(CounterSet::GENERAL).every(period);
        let branches = branches
            .precise(Precision::ZeroSkidRequested)
            .recording(SampleParts::ACCESS | SampleParts::REGISTERS);
        let event = counters.open(unit, &[branches])?;
        counters.enable(event, clock::now())?;
        let begin = clock::now();
        while !is_over(begin, patience) {
            (COUNTED[2].run)();
        }
        counters.close(event, clock::now())?;
        if COUNT.load(Ordering::Relaxed) != 0 {
            break;
        }
    }
    Ok(print(reached))
}

/// Returns whether there are enough records, or will be none: after `patience`, or long after the first.
fn is_over(begin: u64, patience: u64) -> bool {
    let since = clock::now() - begin;
    match COUNT.load(Ordering::Relaxed) {
        0 => since >= clock::milliseconds(patience),
        SAMPLES.. => true,
        _ => since >= clock::milliseconds(PATIENCE_MS),
    }
}

/// Prints the records, and compares them with the listing. The loop's call stores where its return loads.
fn print(period: u64) -> bool {
    let count = COUNT.load(Ordering::Relaxed);
    line!("precise period {} records {}", period, count);
    let name = |address| CALLS.name_of(address).unwrap_or("elsewhere");
    let (mut stack, mut right) = (None, count != 0);
    for place in &FOUND[..count] {
        let words = place.each_ref().map(|word| word.load(Ordering::Relaxed));
        let (address, next, accessed) = (words[ADDRESS], words[NEXT], words[ACCESSED]);
        line!("record {} at {:x} to {}", name(address), accessed, name(next));
        let Some(effect) = CALLS.effect_of(address) else { return false };
        right &= match (effect.target, effect.may_pass) {
            // Call and return of the leaf.
            (Some(target), false) => {
                next == target && *stack.get_or_insert(accessed) == accessed && accessed != 0
            }
            // The jump back, and the end behind it.
            (Some(target), true) => (next == target || name(next) == "end") && accessed == 0,
            (None, false) => accessed != 0,
            // No branch.
            (None, true) => false,
        };
    }
    right
}
