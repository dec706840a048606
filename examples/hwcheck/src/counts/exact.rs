//! Counts of code whose numbers are known by hand.

use pmu_core::registers::EventSelect;
use pmu_core::{CounterSet, Event, GenericEvent};
use pmu_virt::configuration::{Configuration, Vendor};

use crate::counts::bench::Bench;
use crate::machine::identity;
use crate::machine::workload::{Quantity, Workload};
use crate::registers::access::Registers;
use crate::registers::stop::Stop;
use crate::report::claim::{Claim, Evidence, Outcome, Reason};
use crate::report::count::Count;

/// The two lengths of a loop.
const SHORT: u64 = 1_000;
const LONG: u64 = 101_000;

/// The display models of family 6 on which event 0xC4 with unit mask 0x20 is retired taken branches:
/// `BR_INST_RETIRED.NEAR_TAKEN` in Intel's event lists of Sandy Bridge up to Lion Cove.
const TAKEN_BRANCHES_20: [u8; 41] = [
    0x2A, 0x2D, 0x3A, 0x3C, 0x3D, 0x3E, 0x3F, 0x45, 0x46, 0x47, 0x4E, 0x4F, 0x55, 0x56, 0x5E, 0x6A,
    0x6C, 0x7D, 0x7E, 0x8C, 0x8D, 0x8E, 0x8F, 0x97, 0x9A, 0x9E, 0xA5, 0xA6, 0xA7, 0xAA, 0xAC, 0xAD,
    0xAE, 0xB5, 0xB7, 0xBA, 0xBD, 0xBF, 0xC5, 0xC6, 0xCF,
];
/// Hybrid machines' core type of the smaller cores, which have another unit mask.
const ATOM: u8 = 0x20;

/// A claim of an exact number, with its event.
struct Exact {
    id: &'static str,
    quantity: Quantity,
    event: Option<Event>,
}

/// The claims of counts, each handed to `tell` as it is made.
///
/// # Errors
/// A register cannot be reached, or another owner wrote one.
pub(crate) fn exact(
    bench: &mut Bench<'_, '_>,
    alone: &dyn Fn() -> bool,
    tell: &mut dyn FnMut(Claim),
) -> Result<(), Stop> {
    for Exact { id, quantity, event } in claims(bench.registers) {
        if alone() {
            return Err(Stop::Alone);
        }
        let count = match &event {
            Some(event) => bench.measure(event, Workload::Loop, [SHORT, LONG])?,
            None => None,
        };
        let known = Workload::Loop.known(quantity, bench.memory, LONG - SHORT);
        let count = count.map(|count| Count { known, ..count });
        let outcome = match (&count, known) {
            (Some(count), Some([known, _])) if count.least == known => Outcome::Exact,
            (Some(_), _) => Outcome::Inexact,
            (None, _) => Outcome::NotTried,
        };
        let reason = count.is_none().then_some(Reason::Absent);
        let counts = count.into_iter().collect();
        let evidence = Evidence { counts, reason, ..Evidence::default() };
        tell(Claim { id: id.to_owned(), outcome, evidence });
    }
    Ok(())
}

fn claims(registers: &Registers<'_>) -> [Exact; 6] {
    let named = |event, on| Some(Event::generic(event).user_only().on(on));
    let raw =
        |bits: u64| Event::raw(EventSelect::from_bits(bits)).user_only().on(CounterSet::GENERAL);
    let has_fixed =
        matches!(registers.configuration, Configuration::Intel(intel) if intel.fixed != 0);
    let fixed = if has_fixed { named(GenericEvent::Instructions, CounterSet::FIXED) } else { None };
    let (branches, taken) = match registers.configuration.vendor() {
        Vendor::Intel => (0xC4, knows_taken_branches(registers).then_some(0x20C4)),
        Vendor::Amd => (0xC2, Some(0xC4)),
    };
    let general = CounterSet::GENERAL;
    let exact = |id, quantity, event| Exact { id, quantity, event };
    use Quantity::{Branches, Instructions, TakenBranches};
    [
        exact(
            "count.instructions.general",
            Instructions,
            named(GenericEvent::Instructions, general),
        ),
        exact("count.instructions.fixed", Instructions, fixed),
        exact("count.instructions.raw", Instructions, Some(raw(0xC0))),
        exact("count.branches.general", Branches, named(GenericEvent::Branches, general)),
        exact("count.branches.raw", Branches, Some(raw(branches))),
        exact("count.taken-branches.raw", TakenBranches, taken.map(raw)),
    ]
}

fn knows_taken_branches(registers: &Registers<'_>) -> bool {
    let processor = identity::processor(registers.machine);
    processor.vendor == "GenuineIntel"
        && processor.family == 6
        && TAKEN_BRANCHES_20.contains(&processor.model)
        && processor.core_type != Some(ATOM)
}
