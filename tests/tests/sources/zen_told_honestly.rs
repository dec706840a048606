//! The meanings of the Amd64 sources on each generation, against two tables that the code was not made from: libpfm4's
//! (`tests/data/libpfm4.csv`) and the names of each select on Zen (`tests/data/amd64_on_zen.csv`).

use std::collections::{BTreeMap, BTreeSet};

use pmu::Machine;
use pmu_amd::{Generation, Meaning, SOURCES, Zen};
use pmu_core::EventSource;
use pmu_core::profile::KProfileSource;
use pmu_core::x86::Snapshot;
use pmu_core::x86::raw_cpuid::CpuIdResult;
use pmu_events::{CoreType, Processor};

/// The names of a processor's events in the library, by event number, with those of the unit masks.
fn library(processor: &str) -> BTreeMap<u64, BTreeMap<String, BTreeMap<u64, String>>> {
    let mut events = BTreeMap::<_, BTreeMap<_, BTreeMap<_, _>>>::new();
    let lines = include_str!("../../data/libpfm4.csv").lines();
    let title = format!("# {processor}");
    for line in lines.skip_while(|line| *line != title).skip(1).take_while(|l| !l.starts_with('#'))
    {
        let (name, select) = line.split_once(',').unwrap();
        let (event, mask_name) = name.split_once(':').unwrap_or((name, ""));
        let select = u64::from_str_radix(&select[2..], 16).unwrap();
        let masks = events.entry(select & 0xFF | select >> 24 & 0xF00).or_default();
        masks.entry(event.to_owned()).or_default().insert(select >> 8 & 0xFF, mask_name.to_owned());
    }
    events
}

const FAMILIES: [(Generation, &str); 6] = [
    (Generation::Family10h, "amd64_fam10h_istanbul"),
    (Generation::Family11h, "amd64_fam11h_turion"),
    (Generation::Family12h, "amd64_fam12h_llano"),
    (Generation::Family14h, "amd64_fam14h_bobcat"),
    (Generation::Family15h, "amd64_fam15h_interlagos"),
    (Generation::Family16h, "amd64_fam16h"),
];

const ZENS: [(Generation, &str); 6] = [
    (Generation::Zen1, "zen1"),
    (Generation::Zen2, "zen2"),
    (Generation::Zen3, "zen3"),
    (Generation::Zen4, "zen4"),
    (Generation::Zen5, "zen5"),
    (Generation::Zen6, "zen6"),
];

#[test]
fn a_select_of_families_10h_to_16h_is_judged_as_the_library_names_it() {
    let hammer = library("amd64_k8_revg");
    let mut judged = 0;
    for (generation, processor) in FAMILIES {
        let events = library(processor);
        for source in &SOURCES {
            let meaning = generation.meaning(source.source()).unwrap();
            let (number, mask) = (
                u64::from(source.select().event_number()),
                u64::from(source.select().event_unit_mask()),
            );
            let at = format!("{generation:?} {}", source.name());
            let Some(here) = events.get(&number) else {
                assert_eq!(meaning, Meaning::Unknown, "{at}: the library is silent");
                continue;
            };
            let documented = here.values().flat_map(BTreeMap::keys).fold(0, |all, mask| all | mask);
            if mask == 0 && documented != 0 {
                assert_eq!(meaning, Meaning::Nothing, "{at}: a unit mask without a condition");
                continue;
            }
            assert_ne!(meaning, Meaning::Nothing, "{at}");
            let Some(then) = hammer.get(&number) else { continue };
            // One condition, or an event without any, of the same names.
            let name = |events: &BTreeMap<String, BTreeMap<u64, String>>| {
                let (event, masks) = events.first_key_value().unwrap();
                Some((event.clone(), masks.get(&mask)?.clone()))
            };
            if let (Some(here), Some(then)) = (name(here), name(then))
                && mask.count_ones() <= 1
            {
                if here == then {
                    judged += 1;
                    assert_eq!(meaning, Meaning::Same, "{at}: {here:?}");
                } else if here.1 != then.1 && here.0 == then.0 {
                    // Of two memory channels the one that was alone, and MMX without 3DNow!, are still the same.
                    let alike = here.1.starts_with("DCT0_") && here.1.ends_with(&then.1);
                    let expected = if alike { Meaning::Same } else { Meaning::Other };
                    assert_eq!(meaning, expected, "{at}: {then:?} became {here:?}");
                }
            }
        }
    }
    assert!(judged > 300, "{judged}");
}

#[test]
fn a_select_that_has_a_name_on_zen_is_neither_unknown_nor_nothing() {
    let text = include_str!("../../data/amd64_on_zen.csv");
    let mut rows = 0;
    for (line, source) in text.lines().skip(1).zip(&SOURCES) {
        rows += 1;
        let fields: Vec<_> = line.split(',').collect();
        assert_eq!(fields[1], source.name());
        for ((generation, _), names) in ZENS.iter().zip(&fields[4..]) {
            let meaning = generation.meaning(source.source()).unwrap();
            let at = format!("{generation:?} {}: {names:?}", source.name());
            if names.is_empty() {
                // No event has just this select. Its conditions may be another event's, or all of several.
                continue;
            }
            assert!(matches!(meaning, Meaning::Same | Meaning::Other), "{at}: {meaning:?}");
        }
    }
    assert_eq!(rows, SOURCES.len());
}

#[test]
fn an_event_number_that_zens_lists_lack_is_unknown_and_a_mask_without_conditions_counts_nothing() {
    const LIBRARY: [&str; 4] =
        ["amd64_fam17h_zen1", "amd64_fam17h_zen2", "amd64_fam19h_zen3", "amd64_fam19h_zen4"];
    for (place, (generation, core_type)) in ZENS.into_iter().enumerate() {
        let events = LIBRARY.get(place).map(|processor| library(processor)).unwrap_or_default();
        let mut masks = BTreeMap::<u64, BTreeSet<u64>>::new();
        for (number, names) in &events {
            masks.entry(*number).or_default().extend(names.values().flat_map(BTreeMap::keys));
        }
        for event in CoreType::named(core_type).unwrap().events() {
            let select = event.select();
            let known = masks.entry(u64::from(select.event_number())).or_default();
            known.insert(u64::from(select.event_unit_mask()));
        }
        for source in &SOURCES {
            let meaning = generation.meaning(source.source()).unwrap();
            let at = format!("{generation:?} {}", source.name());
            match masks.get(&u64::from(source.select().event_number())) {
                None => assert_eq!(meaning, Meaning::Unknown, "{at}"),
                Some(known) if source.select().event_unit_mask() == 0 => {
                    assert_eq!(meaning == Meaning::Nothing, !known.contains(&0), "{at}");
                }
                Some(_) => assert_ne!(meaning, Meaning::Nothing, "{at}"),
            }
        }
    }
}

#[test]
fn what_kept_its_meaning_on_every_generation_is_what_the_manuals_say() {
    // BKDGs and PPRs: PMCx076, 0C0, 0C2–0C6, 0C8, 0C9, and instruction-cache refills 082, 083.
    let everywhere = SOURCES.iter().filter(|source| {
        let same = |g: &Generation| g.meaning(source.source()) == Some(Meaning::Same);
        Generation::ALL.iter().all(same)
    });
    let numbers: BTreeSet<_> = everywhere.map(|source| source.select().event_number()).collect();
    for number in [0x76, 0xC0, 0xC2, 0xC3, 0xC4, 0xC5, 0xC6, 0xC8, 0xC9, 0x82, 0x83] {
        assert!(numbers.contains(&number), "{number:#X}");
    }
    let none = KProfileSource::new(0xC0).unwrap();
    assert_eq!(Generation::Zen1.meaning(none), None);
    let on_the_hammer =
        |row: &pmu_core::profile::ProfileSource| Generation::Hammer.meaning(row.source());
    assert!(SOURCES.iter().all(|row| on_the_hammer(row) == Some(Meaning::Same)));
}

fn amd(family: u32, model: u32) -> Snapshot {
    let signature = (family - 0xF) << 20 | (model >> 4) << 16 | 0xF00 | (model & 0xF) << 4;
    Snapshot::capture(move |leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (1, 0x6874_7541, 0x444D_4163, 0x6974_6E65),
            1 => (signature, 0, 0, 0),
            0x8000_0000 => (0x8000_0001, 0, 0, 0),
            0x8000_0001 => (0, 0, 1 << 23, 1 << 29),
            _ => (0, 0, 0, 0),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    })
}

#[test]
fn generations_of_zen_are_those_of_the_lists_of_processors() {
    for family in [0x17, 0x19, 0x1A] {
        for model in 0..=0xFF {
            let snapshot = amd(family, model);
            let generation = Generation::of(&snapshot);
            let listed = Processor::detect(&snapshot).ok().map(|known| known.core_type().name());
            let name = ZENS.iter().find(|(of, _)| Some(*of) == generation).map(|(_, name)| *name);
            assert_eq!(listed, name, "family {family:#X} model {model:#X}");
        }
    }
    assert_eq!(Generation::of(&amd(0x18, 0)), None);
    assert_eq!(Generation::of(&amd(0x0F, 0x41)), Some(Generation::Hammer));
    assert_eq!(Generation::of(&amd(0x15, 2)), Some(Generation::Family15h));
}

#[test]
fn the_general_sources_of_zen_are_events_of_its_lists_under_the_general_values() {
    for (generation, name) in ZENS {
        let core_type = CoreType::named(name).unwrap();
        let sources = Zen::sources(generation).unwrap();
        assert!(sources.len() >= 11);
        for source in sources {
            assert!(source.source().is_general());
            assert_eq!(source.source().general_name(), Some(source.name()));
            let (number, mask) =
                (source.select().event_number(), source.select().event_unit_mask());
            let conditions = core_type
                .events()
                .filter(|event| event.select().event_number() == number)
                .fold(None, |all: Option<u8>, event| {
                    Some(all.unwrap_or(0) | event.select().event_unit_mask())
                });
            // Zen 4's list lacks 0xCB, of which the library has the conditions.
            let conditions = conditions.or((name == "zen4" && number == 0xCB).then_some(7));
            assert_eq!(conditions.map(|all| mask & !all), Some(0), "{name} {}", source.name());
        }
    }
    assert!(Zen::sources(Generation::Family15h).is_none());
    let zen = Zen::detect(&amd(0x19, 0x61)).unwrap();
    let row = zen.row(KProfileSource::CACHE_MISSES).unwrap();
    assert_eq!(EventSource::sources(&zen)[row].select().select_bits(), 0x3_4844);
    assert!(Zen::detect(&amd(0x15, 2)).is_none());
}

#[test]
fn a_machine_takes_zens_sources_only_when_it_is_asked_to() {
    for (family, model) in [(0x17, 0x01), (0x17, 0x31), (0x19, 0x21), (0x19, 0x61), (0x1A, 0x44)] {
        let snapshot = amd(family, model);
        let zen = Machine::detect_zen(&snapshot);
        assert_eq!(Some(zen.sources()), Zen::sources(Generation::of(&snapshot).unwrap()));
        assert_eq!(
            EventSource::unit(&zen).counters(),
            Machine::detect(&snapshot).unit().counters()
        );
        assert_eq!(Machine::detect(&snapshot).sources(), &SOURCES);
    }
    let bulldozer = Machine::detect_zen(&amd(0x15, 2));
    assert_eq!(bulldozer.sources(), &SOURCES);
}

/// The words of `pmcsources`' column.
#[test]
fn each_meaning_has_its_word() {
    let words =
        [Meaning::Same, Meaning::Other, Meaning::Nothing, Meaning::Unknown].map(Meaning::name);
    assert_eq!(words, ["same", "other", "nothing", "unknown"]);
}
