//! Events of a core type, as text for people.

mod json;
mod meaning;
pub mod uncore;
mod words;

use core::fmt::Write as _;

use clap::ValueEnum;

use crate::machine::Source;
use pmu_core::interval::IntervalLimits;
use pmu_core::profile::{Availability, KProfileSource, SourceInformation};
use pmu_core::x86::Snapshot;
use pmu_core::x86::dump::CpuidDump;
use pmu_events::metric::Metric;
use pmu_events::{CoreType, EventError, PmuEvent, Precise, Processor};
use words::{counters, perf};

/// A recorded processor, or this one.
///
/// # Errors
/// No core type is known for it; there is no CPUID.
pub fn detect(recorded: Option<&CpuidDump>) -> Result<Processor, String> {
    let snapshot = match recorded {
        Some(dump) => Snapshot::capture(dump),
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        None => Snapshot::capture(pmu_core::x86::raw_cpuid::native_cpuid::CpuIdReaderNative),
        #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
        None => return Err("this machine is no x86".into()),
    };
    Processor::detect(&snapshot).map_err(|error| error.to_string())
}

/// A reason for which an event is no source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoEvent {
    /// No events are known of this processor, for this reason.
    NoCatalog(String),
    /// No event has this name; the text names the nearest, if any.
    Unknown(String),
    /// The event is known, and cannot be a source for this reason.
    Refused(String),
}

/// The source that counts an event of this processor, by its name in any case.
///
/// # Errors
/// No event has this name, or perf's raw configuration does not hold it.
pub fn source(name: &str) -> Result<Source, NoEvent> {
    let processor = detect(None).map_err(NoEvent::NoCatalog)?;
    let event = processor.event(name).map_err(|error| match error {
        EventError::Unknown => match processor.core_type().event_or_uncore(name) {
            Err(error @ EventError::Uncore(_)) => NoEvent::Refused(format!("{name}: {error}")),
            _ => NoEvent::Unknown(nearest(processor.core_type(), name)),
        },
        EventError::Character { .. } | EventError::TooLong => NoEvent::Unknown(String::new()),
        other => NoEvent::Refused(format!("{name}: {other}")),
    })?;
    let name = event.name().to_string();
    let (raw, 0) = event.perf_config() else {
        return Err(NoEvent::Refused(format!(
            "{name} needs a second register, which profile does not set; take `perf`"
        )));
    };
    let select = event.encodings().next().map_or(0, |way| way.select.select_bits());
    // Beside all numbers of tables.
    let id = KProfileSource::new(u32::MAX).unwrap_or(KProfileSource::TOTAL_CYCLES);
    let limits = IntervalLimits::EVENTS;
    let availability = Availability::Declared;
    let name: &'static str = Box::leak(name.into_boxed_str());
    Ok(Source {
        id,
        name,
        windows_name: name,
        select,
        event: (select & 0xFF | select >> 24 & 0xF00) as u16,
        unit_mask: (select >> 8) as u8,
        raw,
        information: SourceInformation { source: id, availability, interval: 65_536, limits },
    })
}

/// The core type with this name.
///
/// # Errors
/// There is none; the error has those that contain the name or begin as it does, or all.
pub fn named(name: &str) -> Result<&'static CoreType, String> {
    CoreType::named(name).map_err(|error| {
        let wanted = name.to_ascii_lowercase();
        let is_alike = |other: &&str| {
            let beginning = wanted.get(..4).is_some_and(|four| other.starts_with(four));
            beginning || wanted.len() > 2 && other.contains(&wanted)
        };
        let all = || CoreType::all().map(CoreType::name);
        let alike: Vec<_> = all().filter(is_alike).collect();
        let names = if alike.is_empty() { all().collect() } else { alike };
        format!("{name}: {error}; there are {}", names.join(" "))
    })
}

/// The end of an error: the names that are nearest.
fn nearest(core_type: &CoreType, name: &str) -> String {
    let nearest = core_type.nearest::<3>(name);
    let names: Vec<_> = nearest.iter().flatten().map(|event| event.name().to_string()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; the nearest are {}", names.join(", ")),
    }
}

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// The events of a core type whose names match a pattern, with meanings, encodings, constraints and perf's form.
///
/// # Errors
/// There is none; the error names the core types of `others` that have some, or the nearest names.
pub fn events(
    core_type: &CoreType,
    others: &[&CoreType],
    pattern: &str,
    form: Form,
) -> Result<String, String> {
    let at_fault = |error: EventError| {
        let hint = match error {
            EventError::Character { .. } => {
                "; letters, digits and `_.:=` make names, `*` and `?` patterns"
            }
            EventError::TooLong => "; `*` is any text",
            _ => "",
        };
        format!("{pattern:?}: {error}{hint}")
    };
    let mut matching = core_type.matching(pattern).map_err(at_fault)?.peekable();
    if matching.peek().is_none() {
        let has_some = |other: &&&CoreType| {
            other.matching(pattern).is_ok_and(|mut matching| matching.next().is_some())
        };
        let elsewhere: Vec<_> = others.iter().filter(has_some).map(|other| other.name()).collect();
        return Err(match elsewhere.first() {
            Some(other) => format!(
                "{pattern:?}: no event of {core_type}; of the same model, {} has it: --processor {other}",
                elsewhere.join(", ")
            ),
            None if pattern.contains(['*', '?']) => {
                format!("{pattern:?}: no event of {core_type} matches; `*` matches all")
            }
            None => match core_type.event_or_uncore(pattern) {
                Err(error @ EventError::Uncore(_)) => {
                    format!("{pattern:?}: {error}; --uncore prints it")
                }
                _ => at_fault(EventError::Unknown) + &nearest(core_type, pattern),
            },
        });
    }
    if form == Form::Json {
        return Ok(json::events(core_type, matching));
    }
    let mut text = about(core_type);
    matching.for_each(|event| describe(&mut text, core_type, &event));
    Ok(text)
}

/// The metrics of a core type, with their names and formulas, and with the parents of metrics below level 1.
pub fn metrics(core_type: &'static CoreType, form: Form) -> String {
    let known = Metric::ALL.map(|metric| core_type.metric(metric));
    let known = Metric::ALL.into_iter().zip(known);
    if form == Form::Json {
        let known = known.filter_map(|(metric, expression)| Some((metric, expression.ok()?)));
        return json::metrics(core_type, known, smt(core_type));
    }
    let mut text = about(core_type);
    for (metric, expression) in known {
        // A String takes whatever is written.
        let _ = match (expression, metric.parent()) {
            (Ok(expression), None) => {
                writeln!(text, "\n{metric} ({})\n  {expression}", metric.name())
            }
            (Ok(expression), Some(parent)) => writeln!(
                text,
                "\n{metric} ({}), of {}\n  {expression}",
                metric.name(),
                parent.name()
            ),
            (Err(_), None) if metric != Metric::SmtContention => {
                let name = metric.name();
                writeln!(text, "\n{metric} ({name})\n  not here: the events for it are missing")
            }
            (Err(_), _) => Ok(()),
        };
    }
    match smt(core_type) {
        Some(told) => text + "\nSMT\n  " + told + "\n",
        None => text,
    }
}

/// Tells the meaning of the top-down shares where two threads share a core.
fn smt(core_type: &'static CoreType) -> Option<&'static str> {
    let cycles = ["CPU_CLK_UNHALTED.THREAD", "ls_not_halted_cyc"];
    let of_cycles = core_type
        .metric(Metric::Retiring)
        .is_ok_and(|one| one.events().any(|event| cycles.contains(&event.name())));
    of_cycles.then(|| match core_type.metric(Metric::SmtContention) {
        Ok(_) => {
            "slots are those of the thread's cycles: \
             what is left of them went to the core's other thread, de_no_dispatch_per_slot.smt_contention"
        }
        Err(_) => {
            "slots are those of the thread's cycles: \
             the shares are right while the core's other thread is idle"
        }
    })
}

/// A line on a core type and its source.
fn about(core_type: &CoreType) -> String {
    let (source, version) = (core_type.source(), core_type.version());
    let day = core_type.published().map_or(String::new(), |day| format!(" of {day}"));
    format!("{core_type}: {} events; {source}, version {version}{day}\n", core_type.events().len())
}

fn describe(text: &mut String, core_type: &CoreType, event: &PmuEvent) {
    let _ = writeln!(text, "\n{}", event.name());
    let meaning = meaning::of(core_type, event);
    if let Some(meaning) = meaning.text {
        let _ = writeln!(text, "  meaning   {meaning}");
    }
    for way in event.encodings() {
        let select = way.select.select_bits();
        let extra = way.extra.map_or(String::new(), |extra| format!(", {extra:?}"));
        let _ = writeln!(text, "  select    {select:#010X}{extra}");
    }
    let _ = writeln!(text, "  counters  {}", counters(event.counters()));
    match event.precise() {
        Precise::No => {}
        Precise::Possible => text.push_str("  precise   possible\n"),
        Precise::Only => text.push_str("  precise   only\n"),
    }
    if let Some(errata) = event.errata() {
        let _ = writeln!(text, "  errata    {}", errata.replace(';', " "));
    }
    let _ = writeln!(text, "  perf      {}", perf(core_type, event));
    let _ = writeln!(text, "  described {}", meaning.described);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
        let lines = text.lines().skip_while(|line| *line != name).skip(1);
        lines.take_while(|line| !line.is_empty()).map(str::trim).collect()
    }

    #[test]
    fn an_event_has_its_encodings_constraints_and_perfs_form() {
        let skylake = named("skylake").unwrap();
        let text = events(skylake, &[], "frontend_retired.dsb_miss", Form::Text).unwrap();
        assert_eq!(
            block(&text, "FRONTEND_RETIRED.DSB_MISS"),
            [
                "meaning   instructions that retired after the front end had kept them waiting; which wait the second \
                 register tells",
                "select    0x000001C6, MSR 0x3F7 = 0x11",
                "counters  general 0-3",
                "precise   possible",
                "perf      cpu/event=0xc6,umask=0x1,config1=0x11/",
                "described perfmon-events.intel.com; intel/perfmon SKL/events/skylake_core.json",
            ]
        );
        let text = events(skylake, &[], "inst_retired.total_cycles_ps", Form::Text).unwrap();
        let lines = block(&text, "INST_RETIRED.TOTAL_CYCLES_PS");
        assert_eq!(lines[2], "counters  general 0,2-3");
        let gracemont = named("alderlake_gracemont").unwrap();
        let text = events(gracemont, &[], "CPU_CLK_UNHALTED.CORE", Form::Text).unwrap();
        let lines = block(&text, "CPU_CLK_UNHALTED.CORE");
        assert_eq!(lines[2..4], ["counters  fixed 1 only", "perf      cpu_atom/event=0x3c/"]);
    }

    #[test]
    fn shares_of_slots_that_a_threads_cycles_tell_are_told_to_be_so() {
        let told = |name: &str| {
            metrics(named(name).unwrap(), Form::Text)
                .split_once("SMT\n")
                .map(|both| both.1.to_string())
        };
        assert!(told("skylake").unwrap().ends_with("while the core's other thread is idle\n"));
        assert!(told("zen6").unwrap().ends_with("de_no_dispatch_per_slot.smt_contention\n"));
        assert_eq!((told("icelake"), told("zen1")), (None, None));
    }

    #[test]
    fn json_has_what_the_text_has() {
        let zen = named("zen4").unwrap();
        let text = events(zen, &[], "ls_int_taken", Form::Json).unwrap();
        let object: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&object["version"], &object["core_type"]), (&1.into(), &"zen4".into()));
        let [event] = object["events"].as_array().unwrap().as_slice() else { panic!("{text}") };
        let expected = serde_json::json!({
            "name": "ls_int_taken",
            "meaning": "interrupts that were taken",
            "described": "AMD PPR of the family, \"Core Performance Monitor Counters\", PMCx02C",
            "encodings": [{ "select": "0x0000002C", "extra": null }],
            "counters": "any general",
            "precise": "no",
            "errata": null,
            "perf": "cpu/event=0x2c/",
        });
        assert_eq!(*event, expected);
    }

    #[test]
    fn metrics_are_written_with_formulas_and_parents_in_text_and_json() {
        let zen = named("zen6").unwrap();
        let text = metrics(zen, Form::Text);
        let memory = "tma_backend_bound * d_ratio(ex_no_retire.load_not_complete, ex_no_retire.not_complete)";
        let lines = format!(
            "\ntop-down: memory bound (tma_memory_bound), of tma_backend_bound\n  {memory}\n"
        );
        assert!(text.contains(&lines), "{text}");
        assert!(!text.contains("not here"), "{text}");
        let object: serde_json::Value = serde_json::from_str(&metrics(zen, Form::Json)).unwrap();
        assert_eq!((&object["version"], &object["core_type"]), (&2.into(), &"zen6".into()));
        assert!(object["smt"].as_str().unwrap().contains("smt_contention"), "{}", object["smt"]);
        let all = object["metrics"].as_array().unwrap();
        let latency = all.iter().find(|metric| metric["name"] == "tma_fetch_latency").unwrap();
        let starved = "de_no_dispatch_per_slot.no_ops_from_frontend:cmask=8";
        let expected = serde_json::json!({
            "name": "tma_fetch_latency",
            "words": "top-down: fetch latency",
            "level": 2,
            "parent": "tma_frontend_bound",
            "formula": format!("8 * {starved} / (8 * ls_not_halted_cyc)"),
            "events": [
                { "name": starved, "perf": "cpu/event=0x1a0,umask=0x1,cmask=0x8/" },
                { "name": "ls_not_halted_cyc", "perf": "cpu/event=0x76/" },
            ],
        });
        assert_eq!(*latency, expected);
        let level = |name: &str| {
            let metric = all.iter().find(|metric| metric["name"] == name);
            metric.map(|metric| metric["level"].clone())
        };
        assert_eq!(level("tma_backend_bound"), Some(1.into()));
        assert_eq!(level("smt_contention"), Some(1.into()));
        assert_eq!(level("branch_mpki"), Some(serde_json::Value::Null));
        assert!(text.contains("\ntop-down: back-end bound (tma_backend_bound)\n"), "{text}");
        // Nehalem's metrics of level 1 are missing, and that is said.
        assert_eq!(metrics(named("nehalemep").unwrap(), Form::Text).matches("not here").count(), 4);
    }

    #[test]
    fn every_event_of_every_core_type_has_a_form_for_perf() {
        for core_type in CoreType::all() {
            let text = events(core_type, &[], "*", Form::Text).unwrap();
            assert!(!text.contains("none:"), "{core_type}");
            assert_eq!(text.matches("  perf ").count(), core_type.events().len());
        }
    }

    #[test]
    fn what_is_no_event_is_told_with_the_nearest_names() {
        let zen = named("ZEN4").unwrap();
        let error = events(zen, &[], "ex_ret_instrs", Form::Text).unwrap_err();
        assert!(error.contains("no event has this name; the nearest are ex_ret_instr,"), "{error}");
        let odd = events(zen, &[], "ex ret", Form::Text).unwrap_err();
        assert!(odd.contains("byte 2; letters, digits and `_.:=` make names"), "{odd}");
        assert!(
            events(zen, &[], &"a".repeat(97), Form::Text).unwrap_err().ends_with("`*` is any text")
        );
        let pattern = events(zen, &[], "*zzz*", Form::Text).unwrap_err();
        assert_eq!(pattern, "\"*zzz*\": no event of zen4 matches; `*` matches all");
        let none = named("pentium").unwrap_err();
        assert!(none.contains("no core type has this name; there are alderlake"), "{none}");
        assert!(named("Gracemont").unwrap_err().ends_with("; there are alderlake_gracemont"));
        assert!(named("skylak").unwrap_err().ends_with("; there are skylake skylakex"));
    }

    #[test]
    fn an_event_of_a_hybrids_other_core_is_told_with_that_core() {
        let dump = include_str!("../../tests/data/cpuid/intel-alderlake.txt");
        let processor = detect(Some(&CpuidDump::parse(dump).unwrap())).unwrap();
        let others: Vec<_> = processor.other_core_types().collect();
        for pattern in ["topdown_fe_bound.all", "TOPDOWN_FE_*"] {
            let error = events(processor.core_type(), &others, pattern, Form::Text).unwrap_err();
            assert!(error.ends_with("has it: --processor alderlake_gracemont"), "{error}");
        }
    }
}
