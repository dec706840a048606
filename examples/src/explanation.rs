//! A profile source in full: its event, and the meaning of that on processors of today.

use core::fmt::Write as _;
use std::collections::BTreeMap;

use pmu_amd::{Generation, Meaning};
use pmu_core::EventSource;
use pmu_core::profile::KProfileSource;
use pmu_events::CoreType;

use crate::machine::{Machine, Source};

/// The flags of a select, by bit (SDM vol. 3B, "IA32_PERFEVTSELx MSRs"; APM vol. 2, "PerfEvtSeln").
const FLAGS: [(u32, &str); 7] = [
    (16, "user"),
    (17, "kernel"),
    (18, "edge"),
    (19, "pin control"),
    (20, "interrupt"),
    (22, "enable"),
    (23, "invert"),
];

/// Explains a source of a machine: names, select, and what each generation counts under it.
pub fn explain(machine: &Machine, source: &Source) -> String {
    let mut text =
        format!("{} ({}), source {:#04X}\n", source.name, source.windows_name, source.id.value());
    if source.id == KProfileSource::TIME {
        text += "  processor time, by a timer; no event\n";
        return text;
    }
    let flags = FLAGS.iter().filter(|(bit, _)| source.select >> bit & 1 != 0);
    let flags: Vec<_> = flags.map(|(bit, name)| format!("{bit} {name}")).collect();
    // A String takes whatever is written.
    let _ = writeln!(text, "  event      {:#05X}", source.event);
    let _ = writeln!(text, "  unit mask  {:#04X}", source.unit_mask);
    let _ = writeln!(text, "  select     {:#010X}", source.select);
    if !flags.is_empty() {
        let _ = writeln!(text, "  bits       {}", flags.join(", "));
    }
    let supported = match source.information.is_supported() {
        true => "declared by the processor; not verified",
        false => "no",
    };
    let _ = writeln!(text, "  supported  {supported}");
    let is_amd = machine.interface().name() == EventSource::name(&pmu_amd::Amd64::declared());
    if is_amd {
        text += "\nmeaning on AMD's generations\n";
        for generation in Generation::ALL {
            let meaning = match generation.meaning(source.id) {
                Some(Meaning::Same) => "the same as the name says",
                Some(Meaning::Other) => "something else than the name says",
                Some(Meaning::Nothing) => "nothing: the select names no unit mask",
                Some(Meaning::Unknown) | None => "not told by any table at hand",
            };
            let generation = format!("{generation:?}");
            let _ = writeln!(text, "  {generation:10} {meaning}");
        }
    }
    let mut names: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for core_type in
        CoreType::all().filter(|core_type| core_type.source().contains("amd") == is_amd)
    {
        let same = |event: &pmu_events::PmuEvent| event.perf_config() == (source.raw, 0);
        let found: Vec<_> =
            core_type.events().filter(same).map(|event| event.name().to_string()).collect();
        let found = if found.is_empty() { "(no event)".into() } else { found.join(", ") };
        names.entry(found).or_default().push(core_type.name());
    }
    text += "\nevents with this event number and unit mask, and the core types that have them\n";
    for (events, core_types) in names {
        let _ = writeln!(text, "  {events}\n    {}", core_types.join(" "));
    }
    text
}
