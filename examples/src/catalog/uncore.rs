//! Events of the uncore units, as text and as JSON.

use core::fmt::Write as _;

use pmu_events::CoreType;
use pmu_events::uncore::{Uncore, UncoreEvent};
use serde_json::json;

use super::Form;

/// The version of the object: fields are added with a new number, never changed.
const VERSION: u32 = 1;

/// The events of uncore units whose names match a pattern, with their encodings.
///
/// # Errors
/// No list of the units' events is at hand for the core type, or no event matches.
pub fn events(core_type: &CoreType, pattern: &str, form: Form) -> Result<String, String> {
    let Some(units) = Uncore::of(core_type) else {
        return Err(format!("{core_type}: no events of uncore units are known"));
    };
    let matching: Vec<_> = units.matching(pattern).collect();
    if matching.is_empty() {
        return Err(format!("{pattern:?}: no event of the units of {core_type}; '*' matches all"));
    }
    if form == Form::Json {
        let object = json!({
            "version": VERSION,
            "core_type": core_type.name(),
            "source": units.source(),
            "events": matching.iter().map(object).collect::<Vec<_>>(),
        });
        return Ok(format!("{object:#}\n"));
    }
    let count = units.events().count();
    let mut text = format!("{core_type}: {count} uncore events; {}\n", units.source());
    for event in &matching {
        // A String takes whatever is written.
        let _ = writeln!(
            text,
            "\n{}\n  unit      {}\n  perf      {event}\n  described {}",
            event.name(),
            event.unit(),
            described(event)
        );
    }
    Ok(text)
}

fn object(event: &UncoreEvent) -> serde_json::Value {
    let field = |(name, value): (&str, u64)| (name.to_owned(), format!("{value:#x}").into());
    json!({
        "name": event.name(),
        "unit": event.unit(),
        "fields": event.fields().map(field).collect::<serde_json::Map<_, _>>(),
        "perf": event.to_string(),
        "described": described(event),
    })
}

/// Tells where the vendor describes the event.
fn described(event: &UncoreEvent) -> &'static str {
    match event.unit() {
        "amd_l3" => "AMD PPR of the family, \"L3 Cache Performance Monitor Counters\"",
        "amd_df" => "AMD PPR of the family, \"Data Fabric Performance Monitor Counters\"",
        "amd_umc" => "AMD PPR of the family, \"UMC Performance Monitors\"",
        _ => "perfmon-events.intel.com; Intel's uncore performance monitoring reference manual",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zen(name: &str) -> &'static CoreType {
        CoreType::named(name).unwrap()
    }

    #[test]
    fn an_event_of_a_unit_is_written_with_unit_encoding_and_place_in_text_and_json() {
        let text = events(zen("zen5"), "umc_cas_cmd.r?", Form::Text).unwrap();
        let lines = [
            "zen5: 234 uncore events; Linux 7.2 amdzen5",
            "",
            "umc_cas_cmd.rd",
            "  unit      amd_umc",
            "  perf      amd_umc/event=0xa,rdwrmask=0x1/",
            "  described AMD PPR of the family, \"UMC Performance Monitors\"",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
        let text = events(zen("zen5"), "UMC_CAS_CMD.RD", Form::Json).unwrap();
        let object: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&object["version"], &object["core_type"]), (&1.into(), &"zen5".into()));
        let expected = json!([{
            "name": "umc_cas_cmd.rd",
            "unit": "amd_umc",
            "fields": { "event": "0xa", "rdwrmask": "0x1" },
            "perf": "amd_umc/event=0xa,rdwrmask=0x1/",
            "described": "AMD PPR of the family, \"UMC Performance Monitors\"",
        }]);
        assert_eq!(object["events"], expected);
    }

    #[test]
    fn a_core_without_a_list_and_a_name_without_an_event_are_told() {
        let none = events(zen("bonnell"), "*", Form::Text).unwrap_err();
        assert_eq!(none, "bonnell: no events of uncore units are known");
        let none = events(zen("zen5"), "ex_ret_instr", Form::Json).unwrap_err();
        assert!(none.ends_with("no event of the units of zen5; '*' matches all"), "{none}");
        let core = super::super::events(zen("zen5"), &[], "umc_mem_clk", Form::Text).unwrap_err();
        assert!(core.contains("an event of amd_umc, an uncore unit"), "{core}");
        assert!(core.ends_with("; --uncore prints it"), "{core}");
    }
}
