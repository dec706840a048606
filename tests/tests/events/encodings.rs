//! The encodings of pmu-events, against an independent library's: a dump of libpfm4 (`tests/data/libpfm4.csv`; how it
//! is made is in `pmu-events/tools/libpfm4_dump.c`).

use std::collections::{BTreeMap, BTreeSet};

use pmu_events::{CoreType, PmuEvent};

/// The library's name of each core type that both describe; it has none of the others.
const SAME: &[(&str, &str)] = &[
    ("bonnell", "atom"),
    ("nehalemep", "nhm"),
    ("nehalemex", "nhm_ex"),
    ("westmereep-sp", "wsm"),
    ("westmereep-dp", "wsm_dp"),
    ("westmereex", "wsm_dp"),
    ("sandybridge", "snb"),
    ("jaketown", "snb_ep"),
    ("ivybridge", "ivb"),
    ("ivytown", "ivb_ep"),
    ("haswell", "hsw"),
    ("haswellx", "hsw_ep"),
    ("broadwell", "bdw"),
    ("broadwellde", "bdw_ep"),
    ("broadwellx", "bdw_ep"),
    ("skylake", "skl"),
    ("skylakex", "skx"),
    ("cascadelakex", "clx"),
    ("silvermont", "slm"),
    ("goldmont", "glm"),
    ("elkhartlake", "tmt"),
    ("snowridgex", "tmt"),
    ("knightslanding", "knl"),
    ("icelake", "icl"),
    ("rocketlake", "icl"),
    ("tigerlake", "icl"),
    ("icelakex", "icx"),
    ("sapphirerapids", "spr"),
    ("emeraldrapids", "spr"),
    ("zen1", "amd64_fam17h_zen1"),
    ("zen2", "amd64_fam17h_zen2"),
    ("zen3", "amd64_fam19h_zen3"),
    ("zen4", "amd64_fam19h_zen4"),
];

/// The library's select and extra MSR's value of each event and unit mask, by processor and name.
fn library() -> BTreeMap<&'static str, BTreeMap<String, (u64, Option<u64>)>> {
    let mut processors = BTreeMap::<_, BTreeMap<_, _>>::new();
    let mut processor = "";
    for line in include_str!("../../data/libpfm4.csv").lines() {
        match line.strip_prefix("# ") {
            Some(name) => processor = name,
            None => {
                let mut fields = line.split(',');
                let name = fields.next().unwrap().replace(':', ".").to_lowercase();
                let mut numbers = fields.map(number);
                let select = numbers.next().unwrap();
                processors.entry(processor).or_default().insert(name, (select, numbers.next()));
            }
        }
    }
    processors
}

fn number(text: &str) -> u64 {
    u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

/// Compares an Intel event with the library's event of the same name: whether they agree, then the library's select and
/// extra value. perf and the library encode a fixed counter's event like that of a general counter.
fn intel(
    theirs: &BTreeMap<String, (u64, Option<u64>)>,
    event: &PmuEvent,
) -> Option<(bool, u64, Option<u64>)> {
    let (select, extra) = *theirs.get(&event.name().as_str().to_lowercase())?;
    let ours = event.select().select_bits();
    let same = ours == select || event.is_fixed_only() && event.perf_config().0 == select;
    // The library has a value of 0 where it would have one to be given.
    let same_extra = match (event.extra(), extra) {
        (Some(ours), Some(theirs)) => ours.value == theirs,
        _ => true,
    };
    Some((same && same_extra, select, extra))
}

/// Compares an AMD event with the library's events of the same number, whose names differ: their unit masks together
/// must have these bits.
fn amd(
    theirs: &BTreeMap<String, (u64, Option<u64>)>,
    event: &PmuEvent,
) -> Option<(bool, u64, Option<u64>)> {
    const UNIT_MASK: u64 = 0xFF00;
    let ours = event.select().select_bits();
    let number_and_mask = theirs.values().map(|(select, _)| select & 0xF_0000_FFFF);
    let known = number_and_mask
        .filter(|select| (select ^ ours) & 0xF_0000_00FF == 0)
        .reduce(|all, select| all | select)?;
    Some((ours & UNIT_MASK & !known == 0, known, None))
}

/// Returns whether a disagreement is decided: by the vendor's list, of the version that the tables are of; by the
/// manual; by neither, since both count the same; or openly not.
fn is_decided(values: &str, decides: &str) -> bool {
    let core_type = CoreType::named(values.split(',').next().unwrap()).unwrap();
    match decides.strip_prefix("list ") {
        Some(version) => version == core_type.version(),
        None => ["manual", "either", "undecided"].contains(&decides),
    }
}

#[test]
fn every_encoding_that_the_library_knows_agrees_or_is_listed_with_what_decides() {
    let library = library();
    let (mut found, mut coverage) = (BTreeSet::new(), Vec::new());
    for core_type in CoreType::all() {
        let name = core_type.name();
        let Some((_, same)) = SAME.iter().find(|(ours, _)| *ours == name) else {
            coverage.push(format!("{name},,0,0,{}", core_type.events().len()));
            continue;
        };
        let theirs = &library[same];
        let (mut agreeing, mut differing, mut missing) = (0, 0, 0);
        for event in core_type.events() {
            let compare = if name.starts_with("zen") { amd } else { intel };
            match compare(theirs, &event) {
                Some((true, ..)) => agreeing += 1,
                Some((false, select, extra)) => {
                    differing += 1;
                    let hex =
                        |value: Option<u64>| value.map_or(String::new(), |v| format!("{v:#X}"));
                    found.insert(format!(
                        "{name},{},{:#X},{},{select:#X},{}",
                        event.name(),
                        event.select().select_bits(),
                        hex(event.extra().map(|extra| extra.value)),
                        hex(extra)
                    ));
                }
                None => missing += 1,
            }
        }
        coverage.push(format!("{name},{same},{agreeing},{differing},{missing}"));
    }
    let listed: BTreeSet<String> = include_str!("../../data/libpfm4_disagreements.csv")
        .lines()
        .skip(1)
        .map(|line| {
            let [why, decides, values]: [&str; 3] =
                line.rsplitn(3, ',').collect::<Vec<_>>().try_into().unwrap();
            assert!(is_decided(values, decides) && why.contains(' '), "{line}");
            values.to_owned()
        })
        .collect();
    assert_eq!(&found - &listed, BTreeSet::new(), "not listed");
    assert_eq!(&listed - &found, BTreeSet::new(), "listed, and not found");
    let known: Vec<_> = include_str!("../../data/libpfm4_coverage.csv").lines().skip(1).collect();
    assert_eq!(coverage, known, "core type, the library's, agreeing, differing, missing there");
}
