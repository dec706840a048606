//! Events that happen more than 15 times per cycle, which count right only on a pair of counters, one of them with the
//! merge event: no pairs are made, and no wrong count is given out either.

use std::collections::BTreeSet;

use pmu::core::error::CounterError;
use pmu::core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu::core::registers::{EventSelect, MAX_COUNTERS};
use pmu::core::{CounterSession, CounterSet, Event, Events};
use pmu::perf::{PERF_TYPE_RAW, PerfAttributes};
use pmu_amd::{Generation, SOURCES, Zen};
use pmu_events::{CoreType, PmuEvent};
use pmu_tests::Reason;
use pmu_tests::{FakePlatform, RegisterFile, recorded};

const REFUSED: Result<(), CounterError> = Err(CounterError::NeedsCounterPair);

const ZEN: [&str; 6] = [
    "amd-zen2.txt",
    "amd-zen3.txt",
    "amd-zen4.txt",
    "amd-zen5.txt",
    "hygon-dhyana.txt",
    "hygon-c86-4g.txt",
];
const BEFORE: [&str; 4] = ["amd-k8.txt", "amd-k10.txt", "amd-bulldozer.txt", "amd-piledriver.txt"];

fn raw(bits: u64) -> Event {
    Event::raw(EventSelect::from_bits(bits))
}

/// Opens, starts and closes events on a recorded processor's counters.
fn outcomes(file: &str, events: impl IntoIterator<Item = Event>) -> Vec<Result<(), CounterError>> {
    let unit = pmu_amd::counters(&recorded(file));
    // The legacy counters, the core extension's, and the global registers.
    let registers = [0xC001_0000..0xC001_0008, 0xC001_0200..0xC001_020C, 0xC000_0300..0xC000_0304];
    let registers = registers.into_iter().flatten();
    let msr = match unit.counters().len() {
        4 => RegisterFile::new(registers, 0xC001_0004),
        _ => RegisterFile::new(registers, 0xC001_0201).rdpmc_step(2),
    };
    let memory = CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new();
    let table = EventTable::<[EventEntry; 2]>::new();
    let platform = FakePlatform::default();
    let source = Events::new(&unit, &table);
    let mut counters =
        CounterSession::take(source, &unit, CounterSet::ALL, (&msr, &platform), &memory).unwrap();
    let outcomes = events.into_iter().map(|event| {
        msr.take_writes();
        let id = counters.open(&unit, &[event]);
        assert_eq!(msr.take_writes(), [], "{file}: opening writes no register");
        counters.enable(id?, 0)?;
        counters.close(id?, 0).map(|_| ()).reason()
    });
    let outcomes = outcomes.collect();
    counters.shut_down().unwrap();
    outcomes
}

#[test]
fn flops_that_a_single_counter_would_count_wrong_are_refused_on_zen() {
    let perf = PerfAttributes { type_: PERF_TYPE_RAW, config: 0xFF03, ..Default::default() };
    for file in ZEN {
        // With a counter mask, with a period, in user mode, by perf.
        let flops = [
            raw(0xFF03),
            raw(0x0103),
            raw(0x0100_FF03),
            raw(0x0F03).every(0x1_0000).user_only(),
            perf.try_into().unwrap(),
        ];
        assert_eq!(outcomes(file, flops), [REFUSED; 5], "{file}");
        // Scalar code's; and other event numbers that end in 03.
        let narrow = [raw(0x0103).at_most_15_per_cycle(), raw(0x1_0000_0103), raw(0xFF02)];
        assert_eq!(outcomes(file, narrow), [Ok(()); 3], "{file}");
    }
}

/// The event changes what the next lower counter counts.
#[test]
fn the_merge_event_is_refused_on_zen() {
    let merge = raw(0xF_0000_00FF);
    for file in ZEN {
        let refused = outcomes(file, [merge, merge.at_most_15_per_cycle()]);
        assert_eq!(refused, [REFUSED; 2], "{file}");
    }
}

#[test]
fn the_same_numbers_are_plain_events_before_zen() {
    for file in BEFORE {
        assert_eq!(outcomes(file, [raw(0xFF03), raw(0xF_0000_00FF)]), [Ok(()); 2], "{file}");
    }
}

#[test]
fn no_source_of_amds_needs_a_pair() {
    let generations = [Generation::Zen1, Generation::Zen3, Generation::Zen6];
    let zen = generations.iter().flat_map(|generation| Zen::sources(*generation).unwrap());
    for source in SOURCES.iter().chain(zen) {
        assert!(![0x003, 0xFFF].contains(&source.select().event_number()), "{source:?}");
    }
}

/// AMD names the event `FpRetSseAvxOps` (PPR of families 17h and 19h) and `Retired_SSE_AVX_FLOPs` (family 1Ah); Linux'
/// lists have the former name everywhere.
#[test]
fn the_tables_mark_zens_flops_and_nothing_else() {
    for core_type in CoreType::all() {
        let names = |of: fn(&PmuEvent) -> bool| -> BTreeSet<String> {
            core_type.events().filter(of).map(|event| event.name().to_string()).collect()
        };
        let marked = names(PmuEvent::needs_counter_pair);
        assert_eq!(marked, names(|event| event.name().as_str().starts_with("fp_ret_sse_avx_ops")));
        assert_eq!(core_type.name().starts_with("zen"), !marked.is_empty(), "{core_type}");
    }
}

#[test]
fn an_event_by_name_is_refused_where_the_table_marks_it() {
    for (file, core_type) in [("amd-zen3.txt", "zen3"), ("amd-zen5.txt", "zen5")] {
        let core_type = CoreType::named(core_type).unwrap();
        let outcomes = outcomes(file, core_type.events().map(Event::from));
        for (event, outcome) in core_type.events().zip(outcomes) {
            let expected = if event.needs_counter_pair() { REFUSED } else { Ok(()) };
            assert_eq!(outcome, expected, "{event:?}");
        }
    }
}
