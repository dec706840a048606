//! The contents of the CSV files, checked.

use std::collections::BTreeMap;

use crate::csv::{Row, rows};
use crate::formula::{Formula, METRICS, formulas};
use crate::hash::{MAX_NAME, odd_character};

const CORE_TYPES: &str = "core_types.csv";
const PROCESSORS: &str = "processors.csv";

/// The core types with their events and metrics, and the processors that have them.
pub(crate) struct Catalog {
    /// Ascending by name.
    pub(crate) core_types: Vec<CoreType>,
    pub(crate) formulas: Vec<Formula>,
    pub(crate) models: Vec<Model>,
}

pub(crate) struct CoreType {
    pub(crate) name: String,
    pub(crate) vendor: Vendor,
    pub(crate) version: String,
    pub(crate) published: String,
    pub(crate) source: String,
    /// Ascending by name in lower case.
    pub(crate) events: Vec<Event>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Vendor {
    Amd,
    Intel,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: String,
    /// Event and unit mask of the first encoding.
    pub(crate) low: u16,
    pub(crate) shape: Shape,
    /// Value of the MSR, if the shape has one.
    pub(crate) value: u64,
    pub(crate) errata: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    /// The first field, by which such shapes are last: the places of other shapes do not depend on them.
    pub(crate) needs_pair: bool,
    pub(crate) select: u64,
    pub(crate) counters: u64,
    pub(crate) others: Vec<u16>,
    pub(crate) registers: Vec<u64>,
    pub(crate) precise: u64,
    pub(crate) has_erratum: bool,
}

pub(crate) struct Model {
    pub(crate) vendor: String,
    pub(crate) family: u64,
    pub(crate) models: [u64; 2],
    pub(crate) steppings: [u64; 2],
    pub(crate) core: Option<u64>,
    pub(crate) core_type: String,
}

impl Catalog {
    /// Reads all files through `read`.
    pub(crate) fn read(read: &dyn Fn(&str) -> Result<String, String>) -> Result<Self, String> {
        let columns = ["name", "vendor", "events", "version", "published", "source"];
        let text = read(CORE_TYPES)?;
        let mut core_types = Vec::<CoreType>::new();
        for row in rows(CORE_TYPES, &text, &columns)? {
            let name = row.text("name").to_owned();
            if core_types.last().is_some_and(|before| before.name >= name) {
                return row.error(format!("{name} is not behind the name before it"));
            }
            let vendor = match row.text("vendor") {
                "amd" => Vendor::Amd,
                "intel" => Vendor::Intel,
                other => return row.error(format!("no such vendor: {other:?}")),
            };
            if row.text("version").is_empty() || row.text("source").is_empty() {
                return row.error("no version, or no source");
            }
            let file = format!("{name}.csv");
            let events = events(&file, &read(&file)?, vendor)?;
            if events.len() as u64 != row.number("events", u16::MAX.into())? {
                return row.error(format!("{file} has {} events", events.len()));
            }
            let [version, published, source] =
                ["version", "published", "source"].map(|column| row.text(column).to_owned());
            core_types.push(CoreType { name, vendor, version, published, source, events });
        }
        let formulas = formulas(&read(METRICS)?, |core_type, event| {
            let of = core_types.iter().find(|known| known.name == core_type)?;
            Some(of.events.iter().any(|known| known.name == event))
        })?;
        let models = models(&read(PROCESSORS)?, &core_types)?;
        Ok(Self { core_types, formulas, models })
    }
}

/// Returns the events of a core type's file, ascending by name.
fn events(file: &str, text: &str, vendor: Vendor) -> Result<Vec<Event>, String> {
    let columns = [
        "name",
        "event",
        "umask",
        "cmask",
        "inv",
        "edge",
        "any",
        "counters",
        "pebs",
        "msr_index",
        "msr_value",
        "errata",
    ];
    // By names in lower case, with the lines.
    let mut events = BTreeMap::<String, (usize, Event)>::new();
    for row in rows(file, text, &columns)? {
        let event = event(&row, vendor)?;
        let folded = event.name.to_lowercase();
        if let Some((line, _)) = events.get(&folded) {
            return row.error(format!("{} is in line {line} already", event.name));
        }
        events.insert(folded, (row.line, event));
    }
    Ok(events.into_values().map(|(_, event)| event).collect())
}

fn event(row: &Row<'_>, vendor: Vendor) -> Result<Event, String> {
    let name = row.text("name");
    if name.is_empty() || name.len() > MAX_NAME || odd_character(name).is_some() {
        return row.error(format!("{name:?} cannot be a name"));
    }
    // AMD's event numbers have 12 bits, Intel's unit masks a second byte.
    let (max_event, max_unit_mask) = match vendor {
        Vendor::Amd => (0xFFF, 0xFF),
        Vendor::Intel => (0xFF, 0xFFFF),
    };
    let numbers = row.numbers("event", max_event)?;
    let unit_masks = row.numbers("umask", max_unit_mask)?;
    let registers = row.numbers("msr_index", u16::MAX.into())?;
    let values = row.numbers("msr_value", u64::MAX)?;
    if registers.is_empty() != values.is_empty() || values.len() > 1 {
        return row.error(format!("{} MSRs, and {} values", registers.len(), values.len()));
    }
    let ways = numbers.len().max(unit_masks.len()).max(registers.len());
    let one_or_all = |of: usize| of == 1 || of == ways;
    if !one_or_all(numbers.len()) || !one_or_all(unit_masks.len()) {
        return row.error(format!(
            "{} events, {} unit masks and {} MSRs do not go together",
            numbers.len(),
            unit_masks.len(),
            registers.len()
        ));
    }
    // One MSR of two is the off-core response's of that place.
    let places = match (registers.as_slice(), ways) {
        ([], _) => 0..ways,
        ([0x1A6], 2) => 0..1,
        ([0x1A7], 2) => 1..2,
        (some, _) if some.len() == ways => 0..ways,
        _ => return row.error(format!("{} MSRs for {ways} encodings", registers.len())),
    };
    let flag = |column: &str, bit: u32| row.number(column, 1).map(|flag| flag << bit);
    let qualifiers =
        flag("edge", 18)? | flag("any", 21)? | flag("inv", 23)? | row.number("cmask", 0xFF)? << 24;
    let selects: Vec<u64> = places
        .map(|place| {
            let number = numbers.get(place).unwrap_or(&numbers[0]);
            let unit_mask = unit_masks.get(place).unwrap_or(&unit_masks[0]);
            let high = (number & 0xF00) << 24 | (unit_mask & 0xFF00) << 32;
            number & 0xFF | (unit_mask & 0xFF) << 8 | high | qualifiers
        })
        .collect();
    let low = |select: u64| select as u16;
    if selects.iter().any(|select| select >> 16 != selects[0] >> 16) {
        return row.error("its encodings differ in more than event and unit mask");
    }
    let counters = counters(row, vendor)?;
    // The pseudo encoding of fixed counter n is event 0 with unit mask n + 1.
    if let Some(fixed) = (counters & GENERAL == 0).then(|| counters.trailing_zeros() - 32)
        && u32::from(low(selects[0])) != (fixed + 1) << 8
    {
        let select = low(selects[0]);
        return row.error(format!("{select:#06x} is not the encoding of fixed counter {fixed}"));
    }
    let shape = Shape {
        select: selects[0] & !0xFFFF,
        counters,
        others: selects[1..].iter().map(|select| low(selects[0] ^ select)).collect(),
        registers,
        precise: row.number("pebs", 2)?,
        has_erratum: !row.text("errata").is_empty(),
        needs_pair: vendor == Vendor::Amd && numbers.contains(&SSE_AVX_FLOPS),
    };
    Ok(Event {
        name: name.to_owned(),
        low: low(selects[0]),
        shape,
        value: values.first().copied().unwrap_or(0),
        errata: row.text("errata").to_owned(),
    })
}

const GENERAL: u64 = 0xFFFF;

/// The number of the event of every Zen that happens more than 15 times per cycle, and counts right only on two
/// counters. Source: AMD's processor programming references, PMCx003 and, but for Zen 5's, "Large Increment per Cycle
/// Events": Zen 1 and 2 "can count above 15", Zen 3 and 4 "requires the use of the MergeEvent", Zen 5 "Use MergeEvent
/// feature for accurate results". Of Zen 6's, Linux' `arch/x86/events/amd/core.c` makes pairs, too.
const SSE_AVX_FLOPS: u64 = 0x003;

/// Returns the counters that `0-3`, `0+2-3` or `F2` names: one bit per counter, fixed ones from bit 32 on. AMD's events
/// are on all general counters.
fn counters(row: &Row<'_>, vendor: Vendor) -> Result<u64, String> {
    let text = row.text("counters");
    match (vendor, text.is_empty()) {
        (Vendor::Amd, true) => return Ok(GENERAL),
        (Vendor::Amd, false) | (Vendor::Intel, true) => {
            return row.error(format!("{text:?} are no counters of this vendor's"));
        }
        (Vendor::Intel, false) => {}
    }
    let mut bits = 0;
    for part in text.split('+') {
        let (kind, numbers) = match part.strip_prefix('F') {
            Some(numbers) => (32, numbers),
            None => (0, part),
        };
        let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
        let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else {
            return row.error(format!("{text:?} are no counters"));
        };
        if first > last || last >= 16 {
            return row.error(format!("there are no counters {part}"));
        }
        bits |= (first..=last).fold(0, |bits, number| bits | 1_u64 << (number + kind));
    }
    if bits & GENERAL != 0 && bits & !GENERAL != 0 || (bits >> 32).count_ones() > 1 {
        return row.error("general and fixed counters, or several fixed ones, for one encoding");
    }
    Ok(bits)
}

/// Returns the rows of the processors, which must not overlap.
fn models(text: &str, core_types: &[CoreType]) -> Result<Vec<Model>, String> {
    let columns = [
        "vendor",
        "family",
        "model_lo",
        "model_hi",
        "stepping_lo",
        "stepping_hi",
        "core_type",
        "native_model_id",
        "core",
        "source",
    ];
    let mut models = Vec::<Model>::new();
    for row in rows(PROCESSORS, text, &columns)? {
        let vendor = row.text("vendor");
        if vendor.len() != 12 {
            return row.error(format!("{vendor:?} is no vendor"));
        }
        let core = match (row.text("core_type"), row.text("native_model_id")) {
            ("", "") => None,
            _ => Some(
                row.number("core_type", 0xFF)? << 24 | row.number("native_model_id", 0xFF_FFFF)?,
            ),
        };
        let model = Model {
            vendor: vendor.to_owned(),
            family: row.number("family", 0x10E)?,
            models: [row.number("model_lo", 0xFF)?, row.number("model_hi", 0xFF)?],
            steppings: [row.number("stepping_lo", 15)?, row.number("stepping_hi", 15)?],
            core,
            core_type: row.text("core").to_owned(),
        };
        if model.models[0] > model.models[1] || model.steppings[0] > model.steppings[1] {
            return row.error("a range ends before it begins");
        }
        if !core_types.iter().any(|known| known.name == model.core_type) {
            return row.error(format!("{} is not in {CORE_TYPES}", model.core_type));
        }
        let meet = |a: [u64; 2], b: [u64; 2]| a[0] <= b[1] && b[0] <= a[1];
        let overlap = models.iter().position(|other| {
            (&other.vendor, other.family) == (&model.vendor, model.family)
                && meet(other.models, model.models)
                && meet(other.steppings, model.steppings)
                && (other.core.is_none() || model.core.is_none() || other.core == model.core)
        });
        if let Some(place) = overlap {
            return row.error(format!("the same processors as in line {}", place + 2));
        }
        models.push(model);
    }
    Ok(models)
}
