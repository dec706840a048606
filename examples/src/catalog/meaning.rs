//! Meanings of events, in this project's words, and the places where their vendors describe them.
//!
//! The vendors' descriptions are not copied: `pmu-events` has names and encodings alone.

use pmu_events::{CoreType, PmuEvent};

/// `vendor,family,meaning`: a family is what events' names begin with, up to the first dot.
const MEANINGS: &str = include_str!("../../data/event_meanings.csv");

/// Facts on an event in words.
pub(super) struct Meaning {
    /// The meaning of the event's family, where it is known here.
    pub(super) text: Option<&'static str>,
    /// The vendor's description.
    pub(super) described: String,
}

/// Returns the meaning of a core type's event.
pub(super) fn of(core_type: &CoreType, event: &PmuEvent) -> Meaning {
    let is_amd = core_type.name().starts_with("zen");
    let (vendor, name) = (if is_amd { "amd" } else { "intel" }, event.name().to_string());
    let family = name.split(['.', ':']).next().unwrap_or_default();
    let known = MEANINGS.lines().skip(1).find_map(|line| {
        let mut columns = line.splitn(3, ',');
        let is_it = columns.next()? == vendor && columns.next()?.eq_ignore_ascii_case(family);
        if is_it { columns.next() } else { None }
    });
    let described = if is_amd {
        let select = event.encodings().next().map_or(0, |way| way.select.select_bits());
        let number = select & 0xFF | select >> 24 & 0xF00;
        format!("AMD PPR of the family, \"Core Performance Monitor Counters\", PMCx{number:03X}")
    } else {
        format!("perfmon-events.intel.com; {}", core_type.source())
    };
    Meaning { text: known, described }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_meaning_is_of_events_that_there_are_and_most_events_have_one() {
        let mut unused: Vec<_> = MEANINGS.lines().skip(1).collect();
        let (mut all, mut known) = (0, 0);
        for core_type in CoreType::all() {
            for event in core_type.events() {
                let Meaning { text, described } = of(core_type, &event);
                all += 1;
                known += usize::from(text.is_some());
                unused.retain(|line| text.is_none_or(|text| !line.ends_with(text)));
                assert!(described.contains("PMCx") || described.contains("intel/perfmon"));
            }
        }
        assert!(unused.is_empty(), "{unused:#?}");
        assert!(known * 10 >= all * 8, "{known} of {all}");
    }

    #[test]
    fn a_meaning_is_its_familys_of_its_vendor() {
        let text = |core_type: &str, name: &str| {
            let core_type = CoreType::named(core_type).unwrap();
            of(core_type, &core_type.event(name).unwrap())
        };
        let instructions = text("skylake", "inst_retired.any");
        assert_eq!(instructions.text, Some("instructions that retired"));
        let source = "perfmon-events.intel.com; intel/perfmon SKL/events/skylake_core.json";
        assert_eq!(instructions.described, source);
        let misses = text("zen4", "ls_dmnd_fills_from_sys.dram_io_near");
        assert!(misses.text.unwrap().starts_with("lines that loads and stores brought"));
        assert!(misses.described.ends_with("PMCx043"), "{}", misses.described);
        let slots = text("zen4", "de_no_dispatch_per_slot.no_ops_from_frontend");
        assert!(slots.described.ends_with("PMCx1A0"), "{}", slots.described);
    }
}
