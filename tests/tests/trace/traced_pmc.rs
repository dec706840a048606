//! The lists of counters and of events of traced PMC: the checks in Windows' order, and what is allocated.

use core::panic::AssertUnwindSafe;
use std::collections::BTreeMap;
use std::panic::catch_unwind;

use pmu_core::frame::ProcessorNumber;
use pmu_core::profile::{KProfileSource, NtStatus};
use pmu_kprofile::WindowsVersion::{Windows8, Windows10v1703, Windows10v1903};
use pmu_kprofile::trace::{
    CONTEXT_SWITCH_HOOK, CounterSets, LoggerFacts, MAX_TRACED_COUNTERS, MAX_TRACED_HOOKS,
    PMC_INTERRUPT_HOOK, TracedPmc,
};
use pmu_kprofile::{Affinity, Rules};
use pmu_tests::kprofile::{VERSIONS, WIDTHS, active, processor};

/// A logger that may be told anything.
const GOOD: LoggerFacts =
    LoggerFacts { is_active: true, may_enable: true, is_paged: false, has_memory: true };

/// Hardware that fails the test if counters are allocated twice, or freed where there are none.
#[derive(Default)]
struct Hardware {
    active: Option<Affinity>,
    counters: usize,
    allocated: BTreeMap<ProcessorNumber, Vec<u32>>,
    refuses: Option<ProcessorNumber>,
    panics: bool,
}

impl CounterSets for Hardware {
    fn active_processors(&self) -> Affinity {
        self.active.unwrap_or_else(active)
    }
    fn counters(&self) -> usize {
        self.counters
    }
    fn allocate(&mut self, on: ProcessorNumber, from: &[KProfileSource]) -> Result<(), NtStatus> {
        assert!(!self.panics, "on purpose");
        if self.refuses == Some(on) {
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        let sources = from.iter().map(|source| source.value()).collect();
        assert_eq!(self.allocated.insert(on, sources), None, "twice on {on}");
        Ok(())
    }
    fn free(&mut self, on: ProcessorNumber) {
        assert!(self.allocated.remove(&on).is_some(), "nothing is allocated on {on}");
    }
}

fn array(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Each request is wrong in everything from its check on: the order is that of the document.
#[test]
fn the_checks_come_in_windows_order_with_windows_statuses() {
    let bad =
        LoggerFacts { is_active: false, may_enable: false, is_paged: true, has_memory: false };
    let active = LoggerFacts { is_active: true, ..bad };
    let enabled = LoggerFacts { may_enable: true, ..active };
    let unpaged = LoggerFacts { is_paged: false, ..enabled };
    let nine: Vec<u8> = array(&[0x18; 9]);
    let traced = TracedPmc::new(Rules::LATEST);
    let mut hardware = Hardware { counters: 8, ..Hardware::default() };
    let partial = [&nine[..], &[0]].concat();
    let one = array(&[0x18]);
    let steps: [(&[u8], _, u32); 7] = [
        (&partial, bad, 0xC000_000D),  // not whole
        (&nine, bad, 0xC000_0296),     // no such logger
        (&nine, active, 0xC000_0022),  // no right
        (&nine, enabled, 0xC000_000D), // too many
        (&[], unpaged, 0xC000_000D),   // none
        (&one, enabled, 0xC000_000D),  // paged memory
        (&one, unpaged, 0xC000_0017),  // no memory
    ];
    for (number, (array, logger, status)) in steps.into_iter().enumerate() {
        let counters = traced.set_counters(array, logger, &mut hardware).unwrap_err();
        let hooks = traced.set_hooks(array, logger).unwrap_err();
        assert_eq!((counters.value(), hooks.value()), (status, status), "step {number}");
    }
    // ProfileMaximum is no source, and a hook has 16 bits.
    let refused = traced.set_counters(&one, GOOD, &mut hardware).unwrap_err();
    assert_eq!(refused.value(), 0xC000_00BB);
    assert_eq!(traced.set_hooks(&array(&[0x1_0524]), GOOD).unwrap_err().value(), 0xC000_000D);
    assert_eq!((traced.sources().count(), traced.hooks().count()), (0, 0));
    // Set once, "until stopped"; that is seen before anything is allocated.
    traced.set_counters(&array(&[0x13]), GOOD, &mut hardware).unwrap();
    traced.set_hooks(&array(&[0x0524]), GOOD).unwrap();
    for words in [&[0x13u32][..], &[0x18]] {
        let again = traced.set_counters(&array(words), GOOD, &mut hardware).unwrap_err();
        assert_eq!(again.value(), 0xC000_0303);
    }
    assert_eq!(traced.set_hooks(&array(&[0x0F2F]), GOOD).unwrap_err().value(), 0xC000_0303);
    assert!(traced.sources().eq([KProfileSource::TOTAL_CYCLES]) && traced.hooks().eq([0x0524]));
}

/// "Max: 4 (6.2-1607), 8 (1703-1809), HAL-reported (1903+)"; hooks 4; the classes date from version 6.2.
#[test]
fn as_many_as_the_version_takes() {
    assert_eq!((MAX_TRACED_COUNTERS, MAX_TRACED_HOOKS), (8, 4));
    for version in VERSIONS {
        for width in WIDTHS {
            for reported in [3, 6] {
                let most = match version {
                    _ if version < Windows8 => 0,
                    _ if version < Windows10v1703 => 4,
                    _ if version < Windows10v1903 => 8,
                    _ => reported,
                };
                for count in 1..=9 {
                    let traced = TracedPmc::new(Rules { version, width });
                    let mut hardware = Hardware { counters: reported, ..Hardware::default() };
                    let words: Vec<u32> = (0x19..0x19 + count as u32).collect();
                    let counters = traced.set_counters(&array(&words), GOOD, &mut hardware);
                    let hooks = traced.set_hooks(&array(&words), GOOD);
                    let status = if most == 0 { 0xC000_0002 } else { 0xC000_000D };
                    let expected = |most| if count <= most { Ok(()) } else { Err(status) };
                    let value = |outcome: Result<(), NtStatus>| outcome.map_err(NtStatus::value);
                    assert_eq!(value(counters), expected(most), "{version:?} {count}");
                    assert_eq!(value(hooks), expected(if most == 0 { 0 } else { 4 }));
                    let has = traced.sources().map(|source| source.value()).collect::<Vec<_>>();
                    assert_eq!(has, if count <= most { words } else { vec![] });
                    let everywhere = hardware.allocated.len() == active().iter().count();
                    assert_eq!(
                        (everywhere, hardware.allocated.is_empty()),
                        (count <= most, count > most)
                    );
                }
            }
        }
    }
}

/// "HalAllocatePmcCounterSet per active processor, any failure fails all".
#[test]
fn a_processor_that_has_no_counters_left_fails_all_and_nothing_stays_allocated() {
    for refuses in active().iter() {
        let traced = TracedPmc::new(Rules::LATEST);
        let mut hardware = Hardware { counters: 4, refuses: Some(refuses), ..Hardware::default() };
        let asked = array(&[0x13, 0x19]);
        let outcome = traced.set_counters(&asked, GOOD, &mut hardware);
        assert_eq!(outcome, Err(NtStatus::INSUFFICIENT_RESOURCES));
        assert_eq!((hardware.allocated.len(), traced.sources().count()), (0, 0));
        hardware.refuses = None;
        traced.set_counters(&asked, GOOD, &mut hardware).unwrap();
        assert!(hardware.allocated.values().all(|sources| *sources == [0x13, 0x19]));
        assert!(hardware.allocated.keys().copied().eq(active().iter()));
    }
}

#[test]
fn a_logger_that_is_stopped_frees_its_counters_and_may_be_told_anew() {
    let traced = TracedPmc::new(Rules::LATEST);
    let mut hardware = Hardware { counters: 4, ..Hardware::default() };
    traced.stop(&mut hardware);
    for round in 0..3 {
        traced.set_counters(&array(&[0x13]), GOOD, &mut hardware).unwrap();
        traced.set_hooks(&array(&[0x0524]), GOOD).unwrap();
        // A processor that went away has nothing to free, and one that came has no counters.
        hardware.active = Some(active().difference(Affinity::of(processor(0, 1))));
        hardware.allocated.remove(&processor(0, 1));
        traced.stop(&mut hardware);
        traced.stop(&mut hardware);
        assert_eq!(hardware.allocated.len(), 0, "round {round}");
        assert_eq!((traced.sources().count(), traced.hooks().count()), (0, 0));
        hardware.active = None;
    }
}

#[test]
fn a_panic_while_counters_are_allocated_leaves_the_list_to_be_set() {
    let traced = TracedPmc::new(Rules::LATEST);
    let mut hardware = Hardware { counters: 4, panics: true, ..Hardware::default() };
    let set = |hardware: &mut Hardware| traced.set_counters(&array(&[0x13]), GOOD, hardware);
    assert!(catch_unwind(AssertUnwindSafe(|| set(&mut hardware))).is_err());
    hardware.panics = false;
    assert_eq!(set(&mut hardware), Ok(()));
}

/// "Seven" is what three bits of a record's header count.
#[test]
fn the_records_of_listed_hooks_have_the_values_of_the_sources_in_order() {
    let traced = TracedPmc::new(Rules::LATEST);
    let mut hardware = Hardware { counters: 8, ..Hardware::default() };
    let read = |source: KProfileSource| (source.value() != 0x1B).then_some(source.value().into());
    assert_eq!(traced.values(CONTEXT_SWITCH_HOOK, read), []);
    traced.set_hooks(&array(&[0x0524, 0x0F2E]), GOOD).unwrap();
    assert_eq!(traced.values(CONTEXT_SWITCH_HOOK, read), []);
    let sources: Vec<u32> = (0x19..0x21).rev().collect();
    traced.set_counters(&array(&sources), GOOD, &mut hardware).unwrap();
    let values = [0x20, 0x1F, 0x1E, 0x1D, 0x1C, 0, 0x1A];
    assert_eq!(traced.values(CONTEXT_SWITCH_HOOK, read), values, "0 where it cannot be read");
    assert_eq!(traced.values(0x0F2E, read), values);
    assert_eq!(traced.values(PMC_INTERRUPT_HOOK, |_| panic!("it is not listed")), []);
    let shown = format!("{traced:?}");
    assert!(shown.contains("1316"), "{shown}"); // 0x0524
}
