//! Claims of Intel's precise records, on a loop whose branches were counted by hand.

use pmu::core::precise::SampleParts;
use pmu::intel::precise::{GeneralRegister, PreciseRecord, PreciseRecords};

use crate::check::bench::Bench;
use crate::check::claim::Outcome;
use crate::check::records::{CAPACITY, FAR, Found, Group, Records, Trial};
use crate::demos::loops::CALLS;

/// Groups that records can have: their bits in `MSR_PEBS_DATA_CFG` and in CFG_C, and their words. SDM vol. 3B,
/// "Adaptive PEBS"; Intel's Architecture Instruction Set Extensions reference, "Architectural PEBS".
const GROUPS: [(SampleParts, Group); 6] = [
    (SampleParts::ACCESS, Group { adaptive: (1 << 0, 4), architectural: (1 << 62, 8) }),
    (SampleParts::REGISTERS, Group { adaptive: (1 << 1, 18), architectural: (1 << 61, 20) }),
    (SampleParts::VECTORS, Group { adaptive: (1 << 2, 32), architectural: (1 << 49, 34) }),
    // 32 branches, and 8.
    (
        SampleParts::branches(32),
        Group { adaptive: (1 << 3 | 31 << 24, 96), architectural: (1 << 40, 30) },
    ),
    (SampleParts::METRICS, Group { adaptive: (1 << 5, 4), architectural: (1 << 38, 4) }),
    // Of counter 0 alone.
    (
        SampleParts::COUNTERS,
        Group { adaptive: (1 << 4 | 1 << 32, 3), architectural: (0b11 << 35, 3) },
    ),
];
/// Trials of a claim about single records.
const ROUNDS: u64 = 8;
/// A counter that is loaded again is at most so far beyond its reset value.
const SOON: u64 = FAR / 2;

/// The registers that CPUID declares hold what is written.
pub fn registers(bench: &Bench) -> Outcome {
    let Some(records) = Records::of(bench) else { return Outcome::ABSENT };
    let refused = records.refused();
    Outcome::of(refused == 0).with("refused", refused)
}

/// Each record has the size of its groups, and its words are plausible.
pub fn formats(bench: &Bench) -> Outcome {
    let Some(records) = Records::of(bench) else { return Outcome::ABSENT };
    let none = [(SampleParts::NONE, Group::default())];
    let chosen = GROUPS.iter().filter(|(group, _)| {
        let can_choose = records.size(GROUPS[1].1) != records.size(Group::default());
        can_choose && records.unit.groups().contains(*group)
    });
    let (mut written, mut wrong, mut refused) = (0, 0, 0);
    for (groups, group) in none.iter().chain(chosen) {
        let Some(found) = records.run(&Trial { group: *group, ..Trial::SINGLE }, |_| false) else {
            refused += 1;
            continue;
        };
        let size = records.size(*group);
        let mut decoded = records.written(found.bytes);
        let mut count = 0;
        for record in decoded.by_ref() {
            count += 1;
            wrong += u64::from(!is_plausible(&records, &found, *groups, &record));
        }
        wrong +=
            u64::from(decoded.malformed()) + u64::from(found.bytes != count * size || count == 0);
        written += count;
    }
    Outcome::of(wrong == 0 && refused == 0)
        .with("records", written)
        .with("wrong", wrong)
        .with("refused", refused)
}

/// Returns whether a record is of this kernel, of the trial's time and counter, and has the groups.
fn is_plausible(
    records: &Records<'_>,
    found: &Found,
    groups: SampleParts,
    record: &PreciseRecord<'_>,
) -> bool {
    let in_time = |time| (found.time.0..=found.time.1).contains(&time);
    let has = |group| groups.contains(group);
    let is_fixed = records.unit.format().record_size().is_some();
    let registers = record.registers();
    let is_right = registers.is_none_or(|registers| {
        let get = |register| registers.get(register).unwrap_or(0);
        let in_loop = record.address().is_some_and(|address| CALLS.name_of(address).is_some());
        // Bit 1 of RFLAGS is always set. The loop counts down from 100.
        get(GeneralRegister::Rflags) & 0b10 != 0
            && (!in_loop || get(GeneralRegister::Rcx) as u32 <= 100)
    });
    // Of formats 1 and 2, the status at the record, which may lack the counter.
    let names = record.counters().is_none_or(|counters| match record.time() {
        Some(_) => counters.bits() == records.bench.bit(0),
        None => true,
    });
    is_right
        && names
        && record.time().is_none_or(in_time)
        && (is_fixed
            || registers.is_some() == has(SampleParts::REGISTERS)
                && record.memory().is_some() == has(SampleParts::ACCESS)
                && record.vectors().is_some() == has(SampleParts::VECTORS)
                && record.branches().is_some() == (groups.branch_count() != 0)
                && record.counter_values().is_some()
                    == (has(SampleParts::COUNTERS) || has(SampleParts::METRICS)))
}

/// Records of the loop that are of a branch, those that are of no branch, and records elsewhere.
fn addresses(decoded: PreciseRecords<'_>) -> [u64; 3] {
    let mut counts = [0; 3];
    for record in decoded {
        let place = match (record.address(), record.next_address()) {
            (Some(address), _) => match CALLS.effect_of(address) {
                // `returned` is neither a jump nor a return.
                Some(effect) => usize::from(effect.target.is_none() && effect.may_pass),
                None => 2,
            },
            // Formats before 2 have the address behind: each branch but those to `back` is taken, or passes to `end`.
            (None, Some(next)) => match CALLS.name_of(next) {
                Some(name) => usize::from(name == "back"),
                None => 2,
            },
            (None, None) => 2,
        };
        counts[place] += 1;
    }
    counts
}

/// Each record of the loop is of one of its branches.
pub fn address(bench: &Bench) -> Outcome {
    let Some(records) = Records::of(bench) else { return Outcome::ABSENT };
    let trial = Trial { threshold: CAPACITY * 3 / 4, ..Trial::SINGLE };
    let found = records.run(&trial, |_| false);
    let [right, wrong, elsewhere] =
        addresses(records.written(found.map_or(0, |found| found.bytes.min(CAPACITY))));
    Outcome::of(wrong == 0 && right > elsewhere)
        .with("right", right)
        .with("wrong", wrong)
        .with("elsewhere", elsewhere)
}

/// The buffer interrupts once, not before its threshold, and with its bit of the status.
pub fn threshold(bench: &Bench) -> Outcome {
    let Some(records) = Records::of(bench) else { return Outcome::ABSENT };
    let threshold = CAPACITY * 3 / 4;
    let Some(found) = records.run(&Trial { threshold, ..Trial::SINGLE }, |_| false) else {
        return Outcome::of(false).with("interrupts", 0);
    };
    let is_right = (threshold..=CAPACITY).contains(&found.at_interrupt);
    let has_bit = found.status & records.status_bit() != 0;
    Outcome::of(found.interrupts == 1 && is_right && has_bit)
        .with("interrupts", found.interrupts)
        .with("bytes", found.at_interrupt)
        .with("threshold", threshold)
}

/// The interrupt of a record finds no bit of the record's counter in the status.
pub fn status(bench: &Bench) -> Outcome {
    let Some(records) = Records::of(bench) else { return Outcome::ABSENT };
    let Some(found) = records.run(&Trial::SINGLE, |_| false) else {
        return Outcome::of(false).with("interrupts", 0);
    };
    let counters = found.status & records.unit.counters().bits();
    Outcome::of(counters == 0).with("status", found.status).with("counters", counters)
}

/// The index is behind the last record, each time.
pub fn index(bench: &Bench) -> Outcome {
    let Some(records) = Records::of(bench) else { return Outcome::ABSENT };
    let size = records.size(Group::default());
    let (mut wrong, mut last) = (0, 0);
    for _ in 0..ROUNDS {
        let found = records.run(&Trial::SINGLE, |_| false);
        last = found.map_or(0, |found| found.bytes);
        let is_right = (size..=CAPACITY).contains(&last) && last.is_multiple_of(size);
        wrong += u64::from(!is_right);
    }
    Outcome::of(wrong == 0).with("wrong", wrong).with("last", last).with("size", size)
}

/// After a record the counter goes on from its reset value.
pub fn reload(bench: &Bench) -> Outcome {
    let Some(records) = Records::of(bench) else { return Outcome::ABSENT };
    let trial = Trial { period: FAR, ..Trial::SINGLE };
    let Some(found) = records.run(&trial, |_| false) else {
        return Outcome::of(false).with("interrupts", 0);
    };
    let mask = bench.counter(0).map_or(0, |counter| counter.mask());
    let beyond = found.value.wrapping_add(FAR) & mask;
    Outcome::of(beyond < SOON).with("value", found.value).with("beyond", beyond)
}

/// Two counters that overflow together write a record each.
pub fn collisions(bench: &Bench) -> Outcome {
    let Some(records) = Records::of(bench) else { return Outcome::ABSENT };
    let both = bench.bit(0) | bench.bit(1);
    if bench.general() < 2 || records.unit.counters().bits() & both != both {
        return Outcome::ABSENT;
    }
    // No interrupt: it would stop the counters between two records.
    let trial = Trial { counters: 2, period: FAR, threshold: 2 * CAPACITY, ..Trial::SINGLE };
    let reloaded = |place: usize| {
        let mask = bench.counter(place).map_or(0, |counter| counter.mask());
        bench.value(place).wrapping_add(FAR) & mask < SOON
    };
    let Some(found) = records.run(&trial, |_| reloaded(0) && reloaded(1)) else {
        return Outcome::of(false).with("records", 0);
    };
    let written = records.written(found.bytes.min(CAPACITY)).count() as u64;
    Outcome::of(written == 2).with("records", written).with("bytes", found.bytes)
}

/// Frozen counters write no record; counters that are not frozen do.
pub fn freeze(bench: &Bench) -> Outcome {
    let Some(records) = Records::of(bench) else { return Outcome::ABSENT };
    if bench.set_freezing(true) != Some(true) {
        return Outcome::ABSENT;
    }
    let frozen = after_interrupt(&records);
    bench.set_freezing(false);
    let running = after_interrupt(&records);
    Outcome::of(frozen == Some(0) && running.is_some_and(|bytes| bytes != 0))
        .with("frozen", frozen.unwrap_or(u64::MAX))
        .with("running", running.unwrap_or(u64::MAX))
}

/// Returns the bytes of records that were written after the interrupt of the first, while the counters were left alone.
fn after_interrupt(records: &Records<'_>) -> Option<u64> {
    let found = records.run(&Trial { goes_on: true, ..Trial::SINGLE }, |_| false)?;
    Some(found.bytes.saturating_sub(found.at_interrupt))
}
