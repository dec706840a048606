//! Costs of Linux' operations in register accesses, as a trace of its kernel in the example monitor has them
//! (`.ci/run linux`): the documents' rows are those of the data, and no operation of ours accesses more.

const MEASURED: &str = include_str!("../../data/accesses.md");
const LINUX: &str = include_str!("../../data/linux_accesses.csv");

/// Operations, in the order of the columns of the first table, of that of groups, and of Linux' own.
const SINGLE: [&str; 3] = ["interrupt", "switch", "start one beside pinned"];
const GROUP: [&str; 6] =
    ["group interrupt", "group switch", "group start", "group read", "group stop", "rotation"];
const OTHERS: [&str; 6] = [
    "start one",
    "single interrupt",
    "precise interrupt",
    "branch sample",
    "sampled op",
    "sampled op's address",
];

/// Our rows, and the machine of Linux with the same counters.
const PAIRS: [(&str, &str); 4] = [
    ("Intel, version 2 on", "intel-2"),
    ("Intel, version 4 on, freezing", "intel-4"),
    ("AMD, legacy and core extension", "amd-legacy"),
    ("AMD, PerfMonV2", "amd-v2"),
];

/// Returns what an operation accesses on a machine; `–`: it was not measured there.
pub(crate) fn accesses(machine: &str, operation: &str) -> &'static str {
    let prefix = format!("{machine},{operation},");
    LINUX.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or("–")
}

/// Returns the number of accesses of a cell, as `2R 4W`.
pub(crate) fn sum(cell: &str) -> u32 {
    let counts = cell.trim_matches('*').split(' ').filter(|count| *count != "–");
    counts.map(|count| count[..count.len() - 1].parse::<u32>().unwrap()).sum()
}

/// Returns the cells behind a row's name, in the first table that has this column and this row.
pub(crate) fn row(column: &str, name: &str) -> Vec<&'static str> {
    let tables = MEASURED.split("\n\n").filter(|table| table.starts_with("| |"));
    let mut rows = tables.filter_map(|table| {
        let mut lines = table.lines();
        lines.next()?.contains(&format!("| {column}")).then_some(())?;
        lines.find_map(|line| line.strip_prefix(&format!("| {name} |")))
    });
    let row = rows.next().unwrap_or_else(|| panic!("no table with {column} and {name}"));
    row.trim_end_matches('|').split('|').map(str::trim).collect()
}

/// Returns Linux' rows: of the first table, of that of groups, and of its own.
fn rows_of_linux() -> Vec<String> {
    let row = |name: &str, machine: &str, operations: &[&str]| {
        let cells = operations.iter().map(|operation| match accesses(machine, operation) {
            "–" => " – |".into(),
            counts => format!(" *{counts}* |"),
        });
        format!("| *Linux, {name}* |{}", cells.collect::<String>())
    };
    let machines =
        [("Intel version 2 on", "intel-2"), ("AMD legacy", "amd-legacy"), ("PerfMonV2", "amd-v2")];
    let mut rows: Vec<_> =
        machines.iter().map(|(name, machine)| row(name, machine, &SINGLE) + " – |").collect();
    rows.extend(machines.iter().map(|(name, machine)| row(name, machine, &GROUP)));
    for (name, machine) in [
        ("Intel version 2", "intel-2"),
        ("Intel version 4", "intel-4"),
        ("Intel version 5", "intel-5"),
        ("AMD legacy", "amd-legacy"),
        ("PerfMonV2", "amd-v2"),
        ("PerfMonV2 with sampled ops", "amd-ibs"),
    ] {
        rows.push(row(name, machine, &OTHERS));
    }
    rows
}

#[test]
fn the_rows_of_linux_are_those_of_its_trace() {
    let rows = rows_of_linux();
    let missing: Vec<_> = rows.iter().filter(|row| !MEASURED.contains(*row)).cloned().collect();
    assert!(missing.is_empty(), "tests/data/accesses.md lacks:\n{}", missing.join("\n"));
    for document in [MEASURED, include_str!("../../../docs/costs.md")] {
        for line in document.lines().filter(|line| line.starts_with("| *Linux")) {
            assert!(rows.iter().any(|row| row == line), "not of the trace: {line}");
        }
    }
    // One row stands for all of Intel's versions.
    for operation in SINGLE.iter().chain(&GROUP) {
        for machine in ["intel-4", "intel-5"] {
            assert_eq!(accesses(machine, operation), accesses("intel-2", operation), "{machine}");
        }
    }
}

#[test]
fn no_operation_accesses_more_than_that_of_linux() {
    let mut compared = 0;
    let mut compare = |ours: u32, name: &str, machine: &str, operation: &str| {
        let linux = sum(accesses(machine, operation));
        assert!(0 < linux && ours <= linux, "{name}, {operation}: {ours}, Linux {linux}");
        compared += 1;
    };
    for (name, machine) in PAIRS {
        for (column, operations) in [("lend to a guest", &SINGLE[..]), ("rotate", &GROUP)] {
            for (cell, operation) in row(column, name).into_iter().zip(operations) {
                compare(sum(cell), name, machine, operation);
            }
        }
    }
    let interrupt = sum(row("open", "a general counter: an event that interrupts")[0]);
    compare(interrupt, "one event", "intel-2", "single interrupt");
    let record = sum(row("one record", "Debug Store, not freezing")[0]);
    compare(record, "one record", "intel-5", "precise interrupt");
    let full = sum(row("first start", "format 5, version 4, 32 of an event")[0]);
    compare(interrupt + full, "32 branches", "intel-4", "branch sample");
    // With every register; of an op whose address alone is wanted, Linux reads fewer.
    let op = sum(row("no sample", "ops, Zen to Zen 5")[1]);
    compare(op, "a sampled op", "amd-ibs", "sampled op");
    assert_eq!(compared, 4 * (3 + 6) + 4);
}
