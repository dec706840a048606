//! The last branches before a sample of a loop whose branches are known.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use pmu::Machine;
use pmu::core::branches::{BranchFilter, Branches};
use pmu::core::registers::EventSelect;
use pmu::core::x86::Snapshot;
use pmu::core::{CounterSet, CounterUnit, Event};

use crate::demos::failure::Failure;
use crate::demos::loops::{CALLS, COUNTED};
use crate::embedding::memory::MAX_RECORDS;
use crate::embedding::msr::control_msr;
use crate::embedding::opened_events::Counters;
use crate::line;
use crate::machine::clock;

/// Retired instructions, by the number that both vendors' manuals give them.
const INSTRUCTIONS: EventSelect = EventSelect::from_bits(0xC0);
/// Instructions between two samples. A monitor that counts by time counts the handler, too, which may take longer than
/// a short period: then the next interrupt is due before the loop goes on, after branches of the handler alone. A
/// monitor that executes one instruction at a time reaches the end of a short period alone.
const PERIODS: [u64; 5] = [10_007, 100_003, 1_000_003, 10_000_019, 100_000_007];
/// Samples after which the period grows.
const SAMPLES_PER_PERIOD: usize = 20;
/// Time to wait for a sample that is late enough in the loop, where no interrupt comes.
const PATIENCE_MS: u64 = 60_000;

/// The first sample in the loop after as many of the loop's branches as there are records: the interrupted address,
/// and the branches before it, the newest first.
static SAMPLED: AtomicU64 = AtomicU64::new(0);
static FOUND: [[AtomicU64; 2]; MAX_RECORDS] =
    [const { [const { AtomicU64::new(0) }; 2] }; MAX_RECORDS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static FROZEN: AtomicBool = AtomicBool::new(false);
/// Samples so far, wherever they were.
static SAMPLES: AtomicUsize = AtomicUsize::new(0);

/// Keeps the branches of a sample, in an NMI. A sample that is not in the loop, or soon after its begin, is left out.
pub fn sampled(rip: u64, branches: &Branches<'_>) {
    SAMPLES.fetch_add(1, Ordering::Relaxed);
    if SAMPLED.load(Ordering::Relaxed) != 0 || CALLS.name_of(rip).is_none() {
        return;
    }
    let mut count = 0;
    for (place, branch) in FOUND.iter().zip(branches.iter()) {
        place[0].store(branch.from, Ordering::Relaxed);
        place[1].store(branch.to, Ordering::Relaxed);
        if CALLS.name_of(branch.from).is_none() {
            return;
        }
        count += 1;
    }
    COUNT.store(count, Ordering::Relaxed);
    FROZEN.store(branches.is_frozen(), Ordering::Relaxed);
    SAMPLED.store(rip, Ordering::Relaxed);
}

/// Samples the loop of calls, and prints the branches before the sample. Returns whether they are those of the loop's
/// listing, as many as the processor has records.
///
/// # Errors
/// Those of the counters.
pub fn run(
    machine: &'static Machine,
    snapshot: &Snapshot,
    counters: &mut Counters,
    unit: &CounterUnit,
) -> Result<bool, Failure> {
    let records = match machine.branches_of(snapshot, &control_msr()) {
        Ok(records) => records,
        Err(why) => {
            line!("branches none: {}", why);
            return Ok(true);
        }
    };
    sample(counters, unit, BranchFilter::KERNEL)?;
    Ok(print(records.depth(), FROZEN.load(Ordering::Relaxed)))
}

/// Runs the loop of calls until one of its interrupts finds as many of its branches as there are records, or the
/// patience ends. [`listed`] then tells of them.
///
/// # Errors
/// Those of the counters.
pub fn sample(
    counters: &mut Counters,
    unit: &CounterUnit,
    filter: BranchFilter,
) -> Result<(), Failure> {
    SAMPLED.store(0, Ordering::Relaxed);
    COUNT.store(0, Ordering::Relaxed);
    let begin = clock::now();
    for period in PERIODS {
        let sampled = Event::raw(INSTRUCTIONS).on(CounterSet::GENERAL).every(period);
        let sampled = sampled.with_branches(filter);
        let event = counters.open(unit, &[sampled])?;
        counters.enable(event, clock::now())?;
        SAMPLES.store(0, Ordering::Relaxed);
        while !is_over(begin) && SAMPLES.load(Ordering::Relaxed) < SAMPLES_PER_PERIOD {
            let calls = &COUNTED[2];
            (calls.run)();
        }
        counters.close(event, clock::now())?;
        if is_over(begin) {
            break;
        }
    }
    Ok(())
}

/// The last sample.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// The sample is in the loop.
    pub found: bool,
    /// Number of its branches.
    pub count: usize,
    /// Each branch is the one that the listing has before the next.
    pub in_order: bool,
    /// Each branch is a return.
    pub returns: bool,
}

/// Compares the last sample with the listing.
pub fn listed() -> Listed {
    let rip = SAMPLED.load(Ordering::Relaxed);
    let count = COUNT.load(Ordering::Relaxed);
    let mut expected = CALLS.branch_before(rip);
    let (mut in_order, mut returns) = (true, true);
    for place in &FOUND[..count] {
        let [from, to] = place.each_ref().map(|word| word.load(Ordering::Relaxed));
        in_order &= expected == Some((from, to));
        returns &= CALLS.name_of(from) == Some("leaf");
        expected = CALLS.branch_before(from);
    }
    Listed { found: rip != 0, count, in_order, returns }
}

/// Returns whether there is a sample, or will be none.
fn is_over(begin: u64) -> bool {
    let patience = clock::milliseconds(PATIENCE_MS);
    SAMPLED.load(Ordering::Relaxed) != 0 || clock::now() - begin >= patience
}

/// Prints the sample. Returns whether it has all records, in the order of the listing: before each branch of the loop
/// comes one other.
fn print(depth: u8, freezes: bool) -> bool {
    let name = |address| CALLS.name_of(address).unwrap_or("elsewhere");
    let rip = SAMPLED.load(Ordering::Relaxed);
    let count = COUNT.load(Ordering::Relaxed);
    line!("branches at {} records {} of {} freeze {}", name(rip), count, depth, freezes);
    for place in &FOUND[..count] {
        let [from, to] = place.each_ref().map(|word| name(word.load(Ordering::Relaxed)));
        line!("branch {} to {}", from, to);
    }
    listed().in_order && count == usize::from(depth)
}
