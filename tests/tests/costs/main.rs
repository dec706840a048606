//! Costs in register accesses: exact, and equal to the tables in tests/data/accesses.md.

mod asked_branches;
mod branch_sampling;
mod branches;
mod events;
mod groups;
mod ibs;
mod linux;
mod perf;
mod precise;
mod reload;
mod sources;
mod topdown;

use pmu_virt::mock::MockMsr;

/// Returns what an operation costs: reads, writes, and reads by RDPMC.
fn accesses_of(mock: &MockMsr<'_, 64>, act: impl FnOnce()) -> [u32; 3] {
    let before = mock.accesses();
    act();
    let after = mock.accesses();
    [after.reads - before.reads, after.writes - before.writes, after.pmc_reads - before.pmc_reads]
}

/// Returns an operation's reads and writes of registers, without the reads of counters by RDPMC.
fn reads_and_writes_of(mock: &MockMsr<'_, 64>, act: impl FnOnce()) -> [u32; 2] {
    let [reads, writes, _] = accesses_of(mock, act);
    [reads, writes]
}

/// Checks that these rows are in the table of accesses.
#[track_caller]
fn are_in_the_table(rows: &[String]) {
    let table = include_str!("../../data/accesses.md");
    let missing: Vec<_> = rows.iter().filter(|row| !table.contains(*row)).collect();
    assert!(missing.is_empty(), "tests/data/accesses.md lacks:\n{missing:#?}");
}

/// Each row of register accesses in the guide is a row of the measured tables.
#[test]
fn the_guides_rows_are_among_those_that_are_measured() {
    let (guide, measured) =
        (include_str!("../../../docs/costs.md"), include_str!("../../data/accesses.md"));
    let cell = |cell: &str| {
        let counts =
            cell.trim().trim_matches('*').split(' ').map(|count| count.split_at(count.len() - 1));
        let is_count = |(count, kind): (&str, &str)| {
            count.parse::<u32>().is_ok() && ["R", "W", "P", "A"].contains(&kind)
        };
        !cell.trim().is_empty() && cell.is_ascii() && counts.into_iter().all(is_count)
    };
    let is_of_accesses =
        |line: &&str| line.starts_with('|') && line.trim_matches('|').split('|').any(cell);
    let rows: Vec<_> = guide.lines().filter(is_of_accesses).collect();
    assert!(rows.len() > 10, "{rows:#?}");
    let missing: Vec<_> = rows.iter().filter(|row| !measured.contains(*row)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The README's table has sums of the first table, and of the turns in that of groups.
#[test]
fn the_readmes_numbers_are_sums_of_what_is_measured() {
    let readme = include_str!("../../../README.md");
    let rows = [
        ("an interrupt", "lend to a guest", 0, "interrupt"),
        ("a switch of four events out and in", "lend to a guest", 1, "switch"),
        ("one event more", "lend to a guest", 2, "start one beside pinned"),
        ("two groups of two take turns", "rotate", 5, "rotation"),
    ];
    for (name, column, place, operation) in rows {
        let [intel, amd] = ["Intel, version 4 on, freezing", "AMD, PerfMonV2"]
            .map(|name| linux::sum(linux::row(column, name)[place]));
        let [linux_intel, linux_amd] =
            ["intel-4", "amd-v2"].map(|machine| linux::sum(linux::accesses(machine, operation)));
        let row = format!("| {name} | {intel}, {amd} | {linux_intel}, {linux_amd} |");
        assert!(readme.contains(&row), "README.md lacks: {row}");
    }
}
