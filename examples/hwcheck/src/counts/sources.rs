//! The sources of the documents' tables: each counts on this processor, or does not.

use pmu_core::profile::ProfileSource;
use pmu_core::{CounterSet, Event};
use pmu_virt::configuration::{Configuration, Vendor};

use crate::counts::bench::Bench;
use crate::machine::workload::{Quantity, Workload};
use crate::registers::stop::Stop;
use crate::report::claim::{Claim, Evidence, Outcome, Reason};
use crate::report::count::Count;

/// The two lengths of a workload.
const LENGTHS: [u64; 2] = [64, 4_160];

/// The claims of the vendor's table.
///
/// # Errors
/// A register cannot be reached, or another owner wrote one.
pub(crate) fn sources(
    bench: &mut Bench<'_, '_>,
    alone: &dyn Fn() -> bool,
    tell: &mut dyn FnMut(Claim),
) -> Result<(), Stop> {
    let (list, table): (&str, &[ProfileSource]) = match bench.registers.configuration.vendor() {
        Vendor::Intel => ("source.emon.", &pmu_intel::SOURCES),
        Vendor::Amd => ("source.amd64.", &pmu_amd::SOURCES),
    };
    for source in table {
        if alone() {
            return Err(Stop::Alone);
        }
        let (outcome, evidence) = claim(bench, source)?;
        tell(Claim { id: format!("{list}{}", short_name(source)), outcome, evidence });
    }
    Ok(())
}

/// The documented name without its prefix.
fn short_name(source: &ProfileSource) -> &str {
    source.name().strip_prefix("Profile").unwrap_or(source.name())
}

fn claim(bench: &mut Bench<'_, '_>, source: &ProfileSource) -> Result<(Outcome, Evidence), Stop> {
    let absent = Evidence { reason: Some(Reason::Absent), ..Evidence::default() };
    let is_declared = match (bench.registers.configuration, source.event_bit()) {
        (Configuration::Intel(intel), Some(bit)) => intel.events >> bit & 1 != 0,
        _ => true,
    };
    if !is_declared {
        return Ok((Outcome::NotTried, absent));
    }
    let event = Event::raw(source.select()).user_only().on(CounterSet::GENERAL);
    let vendor = bench.registers.configuration.vendor();
    let quantity = quantity(vendor, source);
    let mut counts = Vec::new();
    for workload in Workload::ALL {
        let Some(count) = bench.measure(&event, workload, LENGTHS)? else {
            return Ok((Outcome::NotTried, absent));
        };
        let known =
            quantity.and_then(|quantity| workload.known(quantity, bench.memory, count.iterations));
        counts.push(Count { known, ..count });
    }
    let outcome = if counts.iter().all(|count: &Count| count.greatest == 0) {
        Outcome::Silent
    } else if counts.iter().all(is_as_known) {
        Outcome::Counts
    } else {
        Outcome::SomethingElse
    };
    // A workload that counted nothing, and of which no number was known, says no more than that.
    counts.retain(|count| count.greatest != 0 || count.known.is_some());
    Ok((outcome, Evidence { counts, ..Evidence::default() }))
}

/// Returns whether a count is the known number, but for a sixty-fourth and 64: what the kernel's interrupts add.
fn is_as_known(count: &Count) -> bool {
    count.known.is_none_or(|[least, greatest]| {
        (least - least / 64..=greatest + greatest / 64 + 64).contains(&count.least)
    })
}

/// Returns the quantity that a source's name says, if its number in a workload is known.
fn quantity(vendor: Vendor, source: &ProfileSource) -> Option<Quantity> {
    use Quantity::{
        Branches, DataCacheMisses, Instructions, LastCacheMisses, MisalignedAccesses,
        Mispredictions, TakenBranches,
    };
    Some(match (vendor, short_name(source)) {
        (_, "TotalIssues") | (Vendor::Intel, "InstructionRetired") => Instructions,
        (Vendor::Amd, "FRRetiredx86Instructions") => Instructions,
        (_, "BranchInstructions") | (Vendor::Intel, "BranchInstructionRetired") => Branches,
        (Vendor::Amd, "FRRetiredBranches") => Branches,
        (_, "BranchMispredictions") | (Vendor::Intel, "BranchMispredictsRetired") => Mispredictions,
        (Vendor::Amd, "FRRetiredBranchesMispredicted") => Mispredictions,
        (Vendor::Amd, "FRRetiredTakenBranches") => TakenBranches,
        (Vendor::Intel, "CacheMisses" | "LLCMisses") => LastCacheMisses,
        (Vendor::Amd, "DcacheMisses" | "DCMiss") => DataCacheMisses,
        (Vendor::Amd, "DCMisaligndDataReference") => MisalignedAccesses,
        _ => return None,
    })
}

/// The names of the sources of which a workload's number is known, for the README's list.
pub fn of_known_numbers(vendor: Vendor) -> Vec<&'static str> {
    let table: &'static [ProfileSource] = match vendor {
        Vendor::Intel => &pmu_intel::SOURCES,
        Vendor::Amd => &pmu_amd::SOURCES,
    };
    let known = |source: &&ProfileSource| quantity(vendor, source).is_some();
    table.iter().filter(known).map(short_name).collect()
}
