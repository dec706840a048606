//! Sampled ops of a loop whose instructions are known: AMD's instruction-based sampling.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pmu::amd::ibs::IbsSampling;
use pmu::core::error::CounterError;
use pmu::core::precise::{NotPrecise, PreciseSample};
use pmu::core::{CounterUnit, EventSource};

use crate::demos::failure::Failure;
use crate::demos::loops::{CALLS, COUNTED};
use crate::embedding::memory::PMU;
use crate::embedding::opened_events::Counters;
use crate::line;
use crate::machine::{clock, processor};

/// Ops between two samples, first and at most.
const SHORTEST: u64 = 1_600;
const LONGEST: u64 = 256 * SHORTEST;
/// Samples elsewhere after which the period becomes four times as long: a period that ends within the handler samples
/// only the handler.
const TOO_MANY: usize = 32;
/// Samples of the loop to take, and the time to wait for them.
const SAMPLES: usize = 20;
const PATIENCE_MS: u64 = 10_000;

/// Places of a sample's words: address, address of the access, its direction, target.
const ADDRESS: usize = 0;
const ACCESSED: usize = 1;
const DIRECTION: usize = 2;
const TARGET: usize = 3;
/// Bits of the direction.
const LOAD: u64 = 1;
const STORE: u64 = 2;

static FOUND: [[AtomicU64; 4]; SAMPLES] = [const { [const { AtomicU64::new(0) }; 4] }; SAMPLES];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static ELSEWHERE: AtomicUsize = AtomicUsize::new(0);

/// Keeps a sample of the loop, in an NMI.
pub fn sampled(sample: &PreciseSample) {
    let count = COUNT.load(Ordering::Relaxed);
    let address = sample.address.unwrap_or(0);
    if CALLS.name_of(address).is_none() {
        ELSEWHERE.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if count == SAMPLES {
        return;
    }
    let access = sample.access.unwrap_or_default();
    let direction = if access.load { LOAD } else { 0 } | if access.store { STORE } else { 0 };
    let target = sample.branch.and_then(|branch| branch.target);
    let words = [address, access.address.unwrap_or(0), direction, target.unwrap_or(0)];
    for (place, word) in FOUND[count].iter().zip(words) {
        place.store(word, Ordering::Relaxed);
    }
    COUNT.store(count + 1, Ordering::Relaxed);
}

/// Samples the ops of the loop of calls, and prints them. Returns whether each is of the loop's listing, with the
/// access and the branch that the listing has there.
///
/// # Errors
/// Those of the counters.
pub fn run(counters: &mut Counters, unit: &CounterUnit) -> Result<bool, Failure> {
    let Some((events, _)) = PMU.events_of(processor::number()) else { return Ok(true) };
    let table = EventSource::opened(&events);
    table.set_min_period(SHORTEST);
    let ops = IbsSampling::ops().event().every(SHORTEST);
    let event = match counters.open(unit, &[ops]).map_err(CounterError::from) {
        Ok(event) => event,
        Err(CounterError::NotPrecise(NotPrecise::NoFacility)) => {
            line!("ops none");
            return Ok(true);
        }
        Err(CounterError::NotPrecise(why)) => {
            line!("ops none: {}", why);
            return Ok(true);
        }
        Err(error) => return Err(error.into()),
    };
    let mut period = SHORTEST;
    counters.enable(event, clock::now())?;
    let begin = clock::now();
    while COUNT.load(Ordering::Relaxed) < SAMPLES
        && clock::now() - begin < clock::milliseconds(PATIENCE_MS)
    {
        (COUNTED[2].run)();
        if ELSEWHERE.load(Ordering::Relaxed) >= TOO_MANY && period < LONGEST {
            period *= 4;
            table.set_period(event, period)?;
            ELSEWHERE.store(0, Ordering::Relaxed);
        }
    }
    counters.close(event, clock::now())?;
    Ok(print(period))
}

/// Prints the samples, and compares them with the listing. The loop's call stores where its return loads.
fn print(period: u64) -> bool {
    let count = COUNT.load(Ordering::Relaxed);
    line!("ops period {} samples {}", period, count);
    let name = |address| CALLS.name_of(address).unwrap_or("elsewhere");
    let (mut stack, mut right) = (None, count != 0);
    for place in &FOUND[..count] {
        let words = place.each_ref().map(|word| word.load(Ordering::Relaxed));
        let (address, accessed, target) = (words[ADDRESS], words[ACCESSED], words[TARGET]);
        let access = match words[DIRECTION] {
            0 => "none",
            LOAD => "load",
            STORE => "store",
            _ => "both",
        };
        let target_name = if target == 0 { "none" } else { name(target) };
        line!("op {} access {} at {:x} to {}", name(address), access, accessed, target_name);
        let Some(effect) = CALLS.effect_of(address) else { return false };
        right &= (words[DIRECTION] & LOAD != 0) == effect.loads;
        right &= (words[DIRECTION] & STORE != 0) == effect.stores;
        if let Some(expected) = effect.target {
            right &= target == expected || effect.may_pass && target == 0;
            // Call and return of the leaf.
            if !effect.may_pass {
                right &= *stack.get_or_insert(accessed) == accessed && accessed != 0;
            }
        }
    }
    right
}
