//! The list of profile sources, as text for people and for machines.

use core::fmt::Write as _;

use pmu_amd::Meaning;
use serde::Serialize;

use crate::machine::{Machine, Source};

/// A row of the list, with the columns that machines read.
#[derive(Serialize)]
struct Row {
    id: String,
    name: &'static str,
    windows_name: &'static str,
    select: String,
    interval: u32,
    min: u32,
    max: u32,
    supported: &'static str,
    meaning: &'static str,
}

impl Row {
    fn new(machine: &Machine, source: &Source) -> Self {
        let information = &source.information;
        Self {
            id: format!("0x{:02X}", source.id.value()),
            name: source.name,
            windows_name: source.windows_name,
            select: format!("0x{:08X}", source.select),
            interval: information.interval,
            min: information.limits.min,
            max: information.limits.max,
            // No counter is touched, so none is known to count.
            supported: if information.is_supported() { "declared" } else { "no" },
            meaning: meaning(machine, source).map_or("", Meaning::name),
        }
    }
}

/// The meaning of an Amd64 source on the machine's processor.
fn meaning(machine: &Machine, source: &Source) -> Option<Meaning> {
    machine.generation()?.meaning(source.id)
}

/// The supported sources as `wpr -pmcsources`, `xperf -pmcsources` and `tracelog -profilesources`
/// print them, below a line each for the processor and the interface.
pub fn table(machine: &Machine) -> String {
    let mut text = format!(
        "Processor: {}\nInterface: {}\nVerified:  nothing; a source is declared by CPUID, and only a kernel sees whether it counts\n\n",
        machine.processor(),
        machine.describe_interface()
    );
    let sources = machine.sources();
    let listed = || sources.iter().filter(|source| source.information.is_supported());
    // As wide as Windows' tools have it, or as the longest name needs.
    let width = listed().map(|source| source.windows_name.len()).max().unwrap_or(0).max(25);
    let wider = width - 25;
    let _ = writeln!(text, "Id  Name{:wider$}                        Interval  Min      Max", "");
    let _ = writeln!(text, "{:-<1$}", "", 62 + wider);
    for source in listed() {
        let (id, name, information) = (source.id.value(), source.windows_name, source.information);
        let (interval, limits) = (information.interval, information.limits);
        // A String takes whatever is written.
        let _ = writeln!(
            text,
            "{id:3} {name:width$}{interval:11}{min:6}{max:11}",
            min = limits.min,
            max = limits.max
        );
    }
    text.push_str(&warning(machine));
    text
}

/// Of an AMD processor, the sources that do not count, or may not, what their names say.
fn warning(machine: &Machine) -> String {
    let sources = machine.sources();
    let of = |wanted| {
        let those = sources.iter().filter(|source| meaning(machine, source) == Some(wanted));
        let ids: Vec<_> = those.map(|source| source.id.value().to_string()).collect();
        (ids.len(), ids.join(" "))
    };
    let mut text = String::new();
    for (wanted, says) in [
        (Meaning::Other, "count something else than they say on this processor"),
        (Meaning::Nothing, "count nothing on it"),
        (Meaning::Unknown, "count what no table at hand tells"),
    ] {
        let (count, ids) = of(wanted);
        if count > 0 {
            let _ = write!(text, "\n{count} {says}: {ids}\n");
        }
    }
    text
}

/// All sources as comma-separated values, under a line of column names.
pub fn csv(machine: &Machine) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for source in &machine.sources() {
        writer.serialize(Row::new(machine, source))?;
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// All sources as a JSON object, with the processor and the interface.
pub fn json(machine: &Machine) -> Result<String, serde_json::Error> {
    #[derive(Serialize)]
    struct List<'m> {
        processor: &'m str,
        interface: &'static str,
        reason: Option<String>,
        sources: Vec<Row>,
    }
    let list = List {
        processor: machine.processor(),
        interface: machine.interface().name(),
        reason: machine.absent().map(|reason| reason.to_string()),
        sources: machine.sources().iter().map(|source| Row::new(machine, source)).collect(),
    };
    serde_json::to_string_pretty(&list).map(|json| json + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of two published listings: Microsoft's documentation of `wpr -pmcsources` (Intel), and
    /// dotnet/BenchmarkDotNet issue 1520 (AMD).
    #[test]
    fn the_table_is_laid_out_as_windows_tools_lay_it_out() {
        let intel = table(&Machine::with_interface(pmu_intel::Emon::declared()));
        let amd = table(&Machine::with_interface(pmu_amd::Amd64::declared()));
        for (list, line) in [
            (&intel, "Id  Name                        Interval  Min      Max"),
            (&intel, "--------------------------------------------------------------"),
            (&intel, "  0 Timer                          10000  1221    1000000"),
            (&intel, "  2 TotalIssues                    65536  4096 2147483647"),
            (&intel, " 27 UnhaltedReferenceCycles        65536  4096 2147483647"),
        ] {
            assert!(list.lines().any(|l| l == line), "{line:?} is missing in\n{list}");
        }
        // There a long name shifts the columns of its line; here it widens them all.
        let line = " 26 FPDispatchedFPUOpsAddExcludeJunk      65536  4096 2147483647";
        let same = |l: &str| l.split_whitespace().eq(line.split_whitespace());
        assert!(amd.lines().any(same), "{line:?} is missing in\n{amd}");
    }
}
