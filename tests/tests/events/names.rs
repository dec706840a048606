//! Names of events: every row of the CSV files is found as it is written there; and what is no event is a typed error.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pmu_core::access::RegisterAddress;
use pmu_core::registers::EventSelect;
use pmu_core::x86::Snapshot;
use pmu_core::x86::dump::CpuidDump;
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_core::{CounterSet, Event};
use pmu_events::metric::{Metric, MetricError};
use pmu_events::{CoreType, EventError, Precise, Processor, UnknownCoreType};

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../pmu-events/data").join(file)
}

/// The fields of the lines under the column names.
fn rows(file: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(data(file)).unwrap();
    text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

/// A processor by vendor, family, model, stepping, and EAX of leaf 0x1A.
fn processor(vendor: &str, family: u32, model: u32, stepping: u32, core: u32) -> Snapshot {
    let word =
        |place: usize| u32::from_le_bytes(vendor.as_bytes()[place..place + 4].try_into().unwrap());
    let (ebx, edx, ecx) = (word(0), word(4), word(8));
    let base = family.min(0xF);
    let signature =
        (family - base) << 20 | (model >> 4) << 16 | base << 8 | (model & 0xF) << 4 | stepping;
    Snapshot::capture(move |leaf: u32, _: u32| match leaf {
        0 => CpuIdResult { eax: 0x1F, ebx, ecx, edx },
        1 => CpuIdResult { eax: signature, ebx: 0, ecx: 0, edx: 0 },
        0x1A => CpuIdResult { eax: core, ebx: 0, ecx: 0, edx: 0 },
        _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
    })
}

#[test]
fn every_row_of_every_csv_file_is_found_by_its_name_in_any_case_as_it_is_written_there() {
    let mut events = 0;
    for core_type in CoreType::all() {
        let rows = rows(&format!("{}.csv", core_type.name()));
        assert_eq!(core_type.events().len(), rows.len());
        for row in rows {
            events += 1;
            let at = format!("{core_type} {}", row[0]);
            let event = core_type.event(&row[0].to_uppercase()).expect(&at);
            assert_eq!(event.name(), row[0].as_str());
            assert_eq!(core_type.event(&row[0].to_lowercase()).expect(&at).name(), row[0].as_str());
            let list = |column: usize| -> Vec<u64> {
                row[column].split(';').filter(|part| !part.is_empty()).map(number).collect()
            };
            let (numbers, masks, registers) = (list(1), list(2), list(9));
            let qualifiers = number(&row[3]) << 24
                | number(&row[4]) << 23
                | number(&row[5]) << 18
                | number(&row[6]) << 21;
            let select = |place: usize| {
                let number = numbers.get(place).unwrap_or(&numbers[0]);
                let mask = masks.get(place).unwrap_or(&masks[0]);
                qualifiers
                    | number & 0xFF
                    | (number >> 8) << 32
                    | (mask & 0xFF) << 8
                    | (mask >> 8) << 40
            };
            let mut expected: Vec<(u64, Option<(u32, u64)>)> = Vec::new();
            let ways = numbers.len().max(masks.len()).max(registers.len());
            for place in 0..ways {
                let extra = match registers.as_slice() {
                    [] => None,
                    // Of the two registers of the off-core response, the event has this one only.
                    [only] if ways > 1 && place as u64 != only - 0x1A6 => continue,
                    [only] => Some(*only),
                    all => Some(all[place]),
                };
                expected.push((select(place), extra.map(|msr| (msr as u32, number(&row[10])))));
            }
            let found: Vec<_> = event
                .encodings()
                .map(|way| (way.select.select_bits(), way.extra.map(|e| (e.register, e.value))))
                .collect();
            assert_eq!(found, expected, "{at}");
            let counters = match row[7].as_str() {
                "" => CounterSet::GENERAL,
                text => text.split('+').fold(CounterSet::NONE, |set, part| {
                    let (shift, part) =
                        part.strip_prefix('F').map_or((0, part), |fixed| (32, fixed));
                    let (first, last) = part.split_once('-').unwrap_or((part, part));
                    (number(first)..=number(last))
                        .fold(set, |set, one| set | CounterSet::from_bits(1 << (one + shift)))
                }),
            };
            assert_eq!(event.counters(), counters, "{at}");
            assert_eq!(event.is_fixed_only(), row[7].starts_with('F'), "{at}");
            let precise = [Precise::No, Precise::Possible, Precise::Only][number(&row[8]) as usize];
            assert_eq!(event.precise(), precise, "{at}");
            assert_eq!(event.errata().unwrap_or(""), row[11], "{at}");
            let plain = Event::raw(EventSelect::from_bits(expected[0].0)).on(counters);
            let encoded = expected.iter().enumerate().fold(plain, |event, (place, way)| {
                let (select, extra) = way;
                let Some((register, value)) = *extra else { return event };
                // SAFETY: nothing accesses it.
                let register = unsafe { RegisterAddress::new(register) };
                match place {
                    0 => event.with_extra(register, value),
                    _ => event.or_with_extra(*select as u16, register),
                }
            });
            assert_eq!(Event::from(event), encoded, "{at}");
        }
    }
    assert_eq!(events, 20_188);
}

#[test]
fn the_events_of_a_core_type_ascend_by_name_and_carry_version_and_source() {
    for core_type in CoreType::all() {
        let names: Vec<_> = core_type.events().map(|e| e.name().as_str().to_lowercase()).collect();
        assert!(names.is_sorted(), "{core_type}");
        assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len(), "{core_type}");
        assert_eq!(CoreType::named(&core_type.name().to_uppercase()).unwrap(), core_type);
    }
    for row in rows("core_types.csv") {
        let core_type = CoreType::named(&row[0]).unwrap();
        assert_eq!(core_type.version(), row[3]);
        assert_eq!(core_type.published().unwrap_or(""), row[4]);
        assert_eq!(core_type.source(), row[5]);
    }
    assert!(CoreType::named("pentium").is_err());
}

#[test]
fn every_row_of_the_processors_is_detected_as_its_core_type() {
    for row in rows("processors.csv") {
        let of = |column: usize| number(&row[column]) as u32;
        let core = if row[6].is_empty() { 0 } else { of(6) << 24 | of(7) };
        for model in of(2)..=of(3) {
            for stepping in [of(4), of(5)] {
                let snapshot = processor(&row[0], of(1), model, stepping, core);
                let detected = Processor::detect(&snapshot).unwrap();
                assert_eq!(detected.core_type().name(), row[8], "{row:?}");
            }
        }
    }
}

#[test]
fn recorded_processors_are_of_the_core_types_that_their_files_name() {
    for (file, core_type) in [
        ("intel-skylake", "skylake"),
        ("intel-haswell", "haswell"),
        ("intel-goldmontplus", "goldmontplus"),
        ("intel-knightslanding", "knightslanding"),
        ("amd-zen2", "zen2"),
        ("amd-zen5", "zen5"),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/cpuid/{file}.txt"));
        let text = std::fs::read_to_string(path).unwrap();
        let dump = CpuidDump::parse(&text).unwrap();
        let detected = Processor::detect(&Snapshot::capture(&dump)).unwrap();
        assert_eq!(detected.core_type().name(), core_type);
    }
}

#[test]
fn an_unknown_model_and_a_core_that_cpuid_does_not_tell_are_typed_errors() {
    let detect = |vendor, family, model, stepping, core| {
        Processor::detect(&processor(vendor, family, model, stepping, core))
    };
    let unknown = detect("GenuineIntel", 6, 0x0F, 11, 0).unwrap_err();
    let vendor = *b"GenuineIntel";
    assert_eq!(unknown, UnknownCoreType::Model { vendor, family: 6, model: 0x0F, stepping: 11 });
    assert!(detect("AuthenticAMD", 6, 0x5E, 3, 0).is_err(), "Intel's model of another vendor");
    assert_eq!(detect("GenuineIntel", 6, 0x97, 2, 0).unwrap_err(), UnknownCoreType::Core(0));
    let other = detect("GenuineIntel", 6, 0x97, 2, 0x2000_0003).unwrap_err();
    assert_eq!(other, UnknownCoreType::Core(0x2000_0003));
    assert_eq!(other.to_string(), "no events are known of a hybrid's core 0x20000003");
    let skylake = detect("GenuineIntel", 6, 0x5E, 3, 0).unwrap();
    assert_eq!(format!("{skylake:?}"), "processor of skylake");
    assert_eq!(format!("{:?} {}", skylake.core_type(), skylake.core_type()), "skylake skylake");
}

#[test]
fn names_with_odd_characters_are_errors_that_say_where() {
    let skylake = CoreType::named("skylake").unwrap();
    for (name, at) in [
        ("INST_RETIRED.ANY ", 16),
        ("INST\0RETIRED.ANY", 4),
        ("INST\u{7F}RETIRED.ANY", 4), // '_' with the bit set that folds letters
        ("INST_RETIRED\u{E}ANY", 12), // '.' with it taken away
        ("INST_RETIRED.ÄNY", 13),
        ("*", 0),
        ("\u{1F980}", 0),
    ] {
        assert_eq!(skylake.event(name).unwrap_err(), EventError::Character { at }, "{name:?}");
    }
    for name in ["", "INST_RETIRED.AN", "INST_RETIRED.ANYY", "INST_RETIRED", "."] {
        assert_eq!(skylake.event(name).unwrap_err(), EventError::Unknown, "{name:?}");
    }
    assert_eq!(skylake.event(&"A".repeat(96)).unwrap_err(), EventError::Unknown);
    assert_eq!(skylake.event(&"A".repeat(97)).unwrap_err(), EventError::TooLong);
    assert_eq!(skylake.matching("mem load").err(), Some(EventError::Character { at: 3 }));
    assert_eq!(skylake.matching("mem*ö").err(), Some(EventError::Character { at: 4 }));
    assert_eq!(skylake.matching(&"*".repeat(97)).err(), Some(EventError::TooLong));
}

#[test]
fn a_pattern_that_matches_thousands_gives_all_of_them_and_is_an_error_where_one_is_wanted() {
    let cascade_lake = CoreType::named("cascadelakex").unwrap();
    assert_eq!(cascade_lake.matching("*").unwrap().count(), 2344);
    let matches = |pattern| cascade_lake.only_match(pattern).unwrap_err();
    assert_eq!(matches("*"), EventError::Ambiguous { matches: 2344 });
    assert_eq!(matches("offcore_response:*"), EventError::Ambiguous { matches: 1008 });
    assert_eq!(matches("no_such*"), EventError::Unknown);
    assert_eq!(cascade_lake.only_match("inst_retired.any").unwrap().name(), "INST_RETIRED.ANY");
    assert_eq!(
        cascade_lake.only_match("Inst_Retired.To*Cycles_?S").unwrap().name(),
        "INST_RETIRED.TOTAL_CYCLES_PS"
    );
}

#[test]
fn two_steppings_of_a_model_have_their_own_events_and_name_each_other() {
    let at =
        |stepping| Processor::detect(&processor("GenuineIntel", 6, 0x55, stepping, 0)).unwrap();
    let (skylake, cascade_lake) = (at(4), at(5));
    assert_eq!(skylake.core_type().name(), "skylakex");
    assert_eq!(cascade_lake.core_type().name(), "cascadelakex");
    let only = cascade_lake
        .core_type()
        .events()
        .find(|event| skylake.core_type().event(event.name().as_str()).is_err())
        .unwrap();
    let error = skylake.event(only.name().as_str()).unwrap_err();
    assert_eq!(error, EventError::OtherCore(cascade_lake.core_type()));
    assert_eq!(skylake.event("no_such_event").unwrap_err(), EventError::Unknown);
}

#[test]
fn a_hybrid_core_that_is_asked_for_the_other_kind_of_cores_event_says_whose_it_is() {
    let core = |core| Processor::detect(&processor("GenuineIntel", 6, 0x97, 2, core)).unwrap();
    let (performance, efficient) = (core(0x4000_0001), core(0x2000_0001));
    let error = performance.event("topdown_fe_bound.all").unwrap_err();
    assert_eq!(error, EventError::OtherCore(efficient.core_type()));
    assert_eq!(
        error.to_string(),
        "an event of alderlake_gracemont, which is another core type of the same model"
    );
    let error = efficient.event("TOPDOWN.SLOTS").unwrap_err();
    assert_eq!(error, EventError::OtherCore(performance.core_type()));
    assert!(performance.event("INST_RETIRED.ANY").is_ok());
    assert!(efficient.event("INST_RETIRED.ANY").is_ok());
}

#[test]
fn the_nearest_names_are_those_that_a_naive_search_finds() {
    fn naive(a: &[u8], b: &[u8]) -> usize {
        let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
        for i in 0..=a.len() {
            for j in 0..=b.len() {
                table[i][j] = match (i, j) {
                    (0, n) | (n, 0) => n,
                    _ => (table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]))
                        .min(table[i - 1][j] + 1)
                        .min(table[i][j - 1] + 1),
                };
            }
        }
        table[a.len()][b.len()]
    }
    let zen = CoreType::named("zen4").unwrap();
    for wanted in ["ls_not_halted_cycles", "EX_RET_INSTRUCTIONS", "x", ""] {
        let folded = wanted.to_lowercase();
        let mut all: Vec<_> = zen
            .events()
            .map(|e| {
                (naive(folded.as_bytes(), e.name().as_str().to_lowercase().as_bytes()), e.name())
            })
            .collect();
        all.sort_by_key(|(distance, _)| *distance); // stable: by name among equals
        let nearest: [_; 5] = zen.nearest(wanted);
        let names: Vec<_> = nearest.iter().flatten().map(|event| event.name()).collect();
        assert_eq!(names, all[..5].iter().map(|(_, name)| *name).collect::<Vec<_>>(), "{wanted}");
    }
    assert!(zen.nearest::<0>("x").is_empty());
    assert!(zen.nearest::<1>(&"x".repeat(96))[0].is_some());
    assert!(zen.nearest::<1>(&"x".repeat(97))[0].is_none());
}

#[test]
fn perf_has_the_first_two_fixed_counters_under_the_numbers_of_general_ones() {
    let config = |core_type: &str, event: &str| {
        CoreType::named(core_type).unwrap().event(event).unwrap().perf_config()
    };
    // perf-stat(1) -vv of `instructions`, `cycles`, `ref-cycles` and `slots`.
    assert_eq!(config("skylake", "inst_retired.any"), (0xC0, 0));
    assert_eq!(config("skylake", "cpu_clk_unhalted.thread"), (0x3C, 0));
    assert_eq!(config("skylake", "cpu_clk_unhalted.ref_tsc"), (0x300, 0));
    assert_eq!(config("icelake", "topdown.slots"), (0x400, 0));
    assert_eq!(config("skylake", "frontend_retired.dsb_miss"), (0x1C6, 0x11));
}

#[test]
fn an_event_s_extra_register_is_printed_in_hexadecimal() {
    // Linux' table for Skylake: MSRIndex 0x3F7, MSRValue 0x11.
    let event = CoreType::named("skylake").unwrap().event("FRONTEND_RETIRED.DSB_MISS").unwrap();
    assert_eq!(format!("{:?}", event.extra().unwrap()), "MSR 0x3F7 = 0x11");
}

#[test]
fn metrics_are_ratios_of_events_that_the_core_type_has() {
    let mut with_top_down = 0;
    for core_type in CoreType::all() {
        for metric in Metric::ALL {
            match core_type.metric(metric) {
                Ok(expression) => {
                    assert!(expression.events().count() >= 2, "{core_type} {metric}");
                    assert_eq!(expression.ratio(|_| Some(0)), Err(MetricError::NothingToShare));
                }
                Err(error) => {
                    assert_eq!(error, MetricError::NotHere(metric));
                    // IPC and branch misses are everywhere.
                    assert!(!matches!(
                        metric,
                        Metric::InstructionsPerCycle | Metric::BranchMissesPerThousand
                    ));
                }
            }
        }
        let top_down = Metric::ALL[2..6].iter().filter(|m| core_type.metric(**m).is_ok()).count();
        assert!(top_down == 0 || top_down == 4, "{core_type}: {top_down} of four");
        with_top_down += usize::from(top_down == 4);
    }
    // Sandy Bridge to Cascade Lake 12, Ice Lake on 13, small cores from Tremont on 12, Zen 4 to 6.
    assert_eq!(with_top_down, 40);
}

/// Yasin 2014, table 1, on a core of width 4.
#[test]
fn a_formula_is_written_with_its_signs_and_factors() {
    let text = |metric| CoreType::named("skylake").unwrap().metric(metric).unwrap().to_string();
    assert_eq!(
        text(Metric::BadSpeculation),
        "(UOPS_ISSUED.ANY - UOPS_RETIRED.RETIRE_SLOTS + 4 * INT_MISC.RECOVERY_CYCLES) / (4 * CPU_CLK_UNHALTED.THREAD)"
    );
    assert_eq!(
        text(Metric::FrontendBound),
        "(IDQ_UOPS_NOT_DELIVERED.CORE) / (4 * CPU_CLK_UNHALTED.THREAD)"
    );
}

#[test]
fn a_name_is_a_text_in_every_way() {
    let name = CoreType::named("skylake").unwrap().event("inst_retired.any").unwrap().name();
    assert_eq!(AsRef::<str>::as_ref(&name), "INST_RETIRED.ANY");
    assert_eq!(name.to_string(), "INST_RETIRED.ANY");
    assert_eq!(format!("{name:?}"), "\"INST_RETIRED.ANY\"");
    assert!(name == *"INST_RETIRED.ANY" && name != *"INST_RETIRED.ANY_P");
    assert!(name == "INST_RETIRED.ANY" && name != "INST_RETIRED.ANY_P");
}

#[test]
fn an_event_that_was_not_counted_is_an_error_and_not_a_zero() {
    let skylake = CoreType::named("skylake").unwrap();
    let misses = skylake.metric(Metric::BranchMissesPerThousand).unwrap();
    assert_eq!(misses.to_string(), "(1000 * BR_MISP_RETIRED.ALL_BRANCHES) / (INST_RETIRED.ANY)");
    let only_instructions = |name: &str| (name == "INST_RETIRED.ANY").then_some(1000);
    let missing = MetricError::NotCounted("BR_MISP_RETIRED.ALL_BRANCHES");
    assert_eq!(misses.ratio(only_instructions), Err(missing));
    let both = |name: &str| Some(if name == "INST_RETIRED.ANY" { 10_000 } else { 25 });
    assert_eq!(misses.ratio(both).unwrap().times(10), Some(25)); // 2.5
    // The greatest counts there are do not overflow.
    assert_eq!(misses.ratio(|_| Some(u64::MAX)).unwrap().times(1), Some(1000));
}

#[test]
fn the_four_shares_of_top_down_are_the_whole() {
    let skylake = [
        // Yasin 2014, table 1, on a core of width 4: 1,000 cycles are 4,000 slots.
        ("CPU_CLK_UNHALTED.THREAD", 1_000),
        ("UOPS_RETIRED.RETIRE_SLOTS", 2_000),
        ("UOPS_ISSUED.ANY", 2_200),
        ("IDQ_UOPS_NOT_DELIVERED.CORE", 800),
        ("INT_MISC.RECOVERY_CYCLES", 50),
    ];
    // SDM vol. 3B, "Performance Metrics": bad speculation is the remainder of the slots.
    let icelake = [
        ("TOPDOWN.SLOTS", 4_000),
        ("UOPS_RETIRED.SLOTS", 2_000),
        ("IDQ_UOPS_NOT_DELIVERED.CORE", 800),
        ("TOPDOWN.BACKEND_BOUND_SLOTS", 800),
    ];
    // Eight operations are dispatched per cycle on Zen 6, of 500 cycles: AMD's metrics in Linux 7.2.
    let zen6 = [
        ("ls_not_halted_cyc", 500),
        ("ex_ret_ops", 2_000),
        ("de_src_op_disp.all", 2_400),
        ("de_no_dispatch_per_slot.no_ops_from_frontend", 800),
        ("de_no_dispatch_per_slot.backend_stalls", 800),
    ];
    // Each of the four is an event.
    let gracemont = [
        ("TOPDOWN_RETIRING.ALL", 2_000),
        ("TOPDOWN_BAD_SPECULATION.ALL", 400),
        ("TOPDOWN_FE_BOUND.ALL", 800),
        ("TOPDOWN_BE_BOUND.ALL", 800),
    ];
    // The same events, under the names that the table of these cores has alone.
    let crestmont = [
        ("TOPDOWN_RETIRING.ALL_P", 2_000),
        ("TOPDOWN_BAD_SPECULATION.ALL_P", 400),
        ("TOPDOWN_FE_BOUND.ALL_P", 800),
        ("TOPDOWN_BE_BOUND.ALL_P", 800),
    ];
    for (core_type, counted) in [
        ("skylake", &skylake[..]),
        ("icelake", &icelake),
        ("zen6", &zen6),
        ("alderlake_gracemont", &gracemont),
        ("arrowlake_crestmont", &crestmont),
    ] {
        let core_type = CoreType::named(core_type).unwrap();
        let counts = |name: &str| counted.iter().find(|one| one.0 == name).map(|one| one.1);
        let share = |metric: &Metric| {
            let ratio = core_type.metric(*metric).unwrap().ratio(counts);
            ratio.unwrap().times(1000).unwrap()
        };
        assert_eq!(Metric::ALL[2..6].iter().map(share).collect::<Vec<_>>(), [500, 100, 200, 200]);
    }
}
